"""What a user writes: a typed function of one key's events, declared with what it promises.

The declaration says everything a restore must know (name, version, key, times, lifetimes, the
recovery contract's terms), so a wrong one is refused here, when the module is imported, with the
function and the field in the message. The name is the identity of the state: renaming the class
loses nothing.

Relies on `checks`. Imports no Spark. Runs nothing: `process` does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from catchwater.pipeline.calls.policy import Call
from catchwater.pipeline.functions.checks import Declaration, DeclarationError
from catchwater.pipeline.functions.policy import PoisonPolicy
from catchwater.pipeline.functions.spec import (
    MAX_FUTURE,
    FunctionSpec,
    Late,
    TableSpec,
    TargetT,
)

__all__ = ["DeclarationError", "function", "spec_of"]

Fields = str | tuple[str, ...]


def function(
    *,
    name: str,
    version: int = 1,
    key: Fields | Mapping[str, Fields],
    event_time: str | Mapping[str, str],
    inputs: Mapping[str, type] | None = None,
    watermark: str = "30s",
    max_future: str | None = MAX_FUTURE,
    dedup: str | Mapping[str, str] | None = None,
    dedup_ttl: str = "1d",
    state_ttl: str | None = None,
    output_id: Fields | None = None,
    needs_history: str | None = None,
    max_restore: str | None = None,
    late: Late = "drop",
    tables: Mapping[str, type | TableSpec] | None = None,
    calls: Mapping[str, Call] | None = None,
    poison: PoisonPolicy = "fail",
    poison_limit: int | None = None,
    handler_timeout: str = "60s",
) -> Callable[[TargetT], TargetT]:
    """Declare a `Keyed` class, or a plain `f(event, state, ctx)`, as a stateful function.

    What each means stands in docs/functions.md; durations are texts such as "30s" or "7d".
    Raises DeclarationError.
    """

    def declare(target: TargetT) -> TargetT:
        check = Declaration(name)
        event_type, state_type, output_type = check.types_of(target, inputs)
        check.identity(version, late)
        by_input = check.inputs(event_type, inputs, key, event_time, dedup)
        first = next(iter(by_input.values()))
        spec = FunctionSpec(
            name=name,
            version=version,
            key=first.key,
            event_time=first.event_time,
            watermark_ms=check.duration("watermark", watermark),
            dedup=first.dedup,
            dedup_ttl_ms=check.duration("dedup_ttl", dedup_ttl),
            state_ttl_ms=check.optional_duration("state_ttl", state_ttl),
            output_id=check.output_fields(output_type, output_id),
            needs_history_ms=check.optional_duration("needs_history", needs_history),
            max_restore_ms=check.optional_duration("max_restore", max_restore),
            late=late,
            event_type=event_type,
            state_type=state_type,
            output_type=output_type,
            key_type=check.key_type(by_input),
            target=target,
            inputs=by_input if inputs else {},
            tables=check.tables(tables or {}),
            calls=check.calls(target, calls or {}, poison),
            entry_fields=check.state(state_type),
            poison=check.poison(poison, poison_limit),
            handler_timeout_ms=check.handler_timeout(handler_timeout),
            max_future_ms=check.optional_duration("max_future", max_future),
        )
        target.__catchwater__ = check.completed(spec)  # type: ignore[attr-defined]
        return target

    return declare


def spec_of(target: Callable[..., Any]) -> FunctionSpec:
    """The declaration of a decorated class or function; DeclarationError if it has none."""
    spec = vars(target).get("__catchwater__")
    if not isinstance(spec, FunctionSpec):
        label = getattr(target, "__qualname__", repr(target))
        raise DeclarationError(f"{label} is not a function of ours: decorate it with @function")
    return spec
