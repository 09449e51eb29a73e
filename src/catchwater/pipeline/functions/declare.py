"""What a user writes: a typed function of one key's events, declared with what it promises.

The declaration says everything a restore must know (name, version, key, times, lifetimes, the
recovery contract's terms), so a wrong one is refused here, when the module is imported, with the
function and the field in the message. The name is the identity of the state: renaming the class
loses nothing.

Relies on `encoding` for the types. Imports no Spark. Runs nothing: `process` does.
"""

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions import encoding
from catchwater.pipeline.functions.durations import duration_ms
from catchwater.pipeline.functions.spec import FunctionSpec, Keyed, Late, TargetT
from catchwater.state.keys import KeyType
from catchwater.state.records import RecordCodec, new_record

_KEY_TYPES: tuple[type, ...] = (str, int, bytes)


class DeclarationError(CatchwaterError):
    """A function is declared in a way that could not work; nothing has run."""

    exit_code = 2


def function(
    *,
    name: str,
    version: int = 1,
    key: str | tuple[str, ...],
    event_time: str,
    watermark: str = "30s",
    dedup: str | None = None,
    dedup_ttl: str = "1d",
    state_ttl: str | None = None,
    output_id: str | tuple[str, ...] | None = None,
    needs_history: str | None = None,
    max_restore: str | None = None,
    late: Late = "drop",
) -> Callable[[TargetT], TargetT]:
    """Declare a `Keyed` class, or a plain `f(event, state, ctx)`, as a stateful function.

    Durations are texts such as "30s" or "7d". `watermark` is how long events may come out of
    order; `dedup` names the event's identity and `dedup_ttl` how long it is remembered;
    `state_ttl` how long a key's state outlives its last event (event time). `output_id` names the
    output's identity, on which idempotent sinks and reconciliation rest. `needs_history` and
    `max_restore` are the recovery contract's terms. Raises DeclarationError.
    """

    def declare(target: TargetT) -> TargetT:
        check = _Declaration(name)
        event_type, state_type, output_type = check.types_of(target)
        key_fields = (key,) if isinstance(key, str) else tuple(key)
        check.identity(version, late)
        spec = FunctionSpec(
            name=name,
            version=version,
            key=key_fields,
            event_time=check.time_field(event_type, event_time),
            watermark_ms=check.duration("watermark", watermark),
            dedup=check.id_field(event_type, dedup),
            dedup_ttl_ms=check.duration("dedup_ttl", dedup_ttl),
            state_ttl_ms=check.optional_duration("state_ttl", state_ttl),
            output_id=check.output_fields(output_type, output_id),
            needs_history_ms=check.optional_duration("needs_history", needs_history),
            max_restore_ms=check.optional_duration("max_restore", max_restore),
            late=late,
            event_type=event_type,
            state_type=check.state(state_type),
            output_type=output_type,
            key_type=check.key_type(event_type, key_fields),
            target=target,
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


class _Declaration:
    """The checks of one declaration; each says which function and which field is wrong."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise DeclarationError(
                f"The function name {name!r} must be 1 to 100 letters, digits, '.', '_' or '-'."
            )
        self.name = name

    def wrong(self, reason: str) -> DeclarationError:
        return DeclarationError(f"Function {self.name!r}: {reason}.")

    def identity(self, version: int, late: str) -> None:
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**16:
            raise self.wrong(f"version={version!r} must be a whole number from 1 to 65535")
        if late not in typing.get_args(Late):
            raise self.wrong(f"late={late!r} must be 'drop' or 'process'")

    def duration(self, field: str, text: str) -> int:
        try:
            return duration_ms(text)
        except ValueError as error:
            raise self.wrong(f"{field}={error}") from None

    def optional_duration(self, field: str, text: str | None) -> int | None:
        return None if text is None else self.duration(field, text)

    def types_of(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """(event, state, output) as the annotations say."""
        if not isinstance(target, type):
            return self._types_of_plain(target)
        if not issubclass(target, Keyed):
            raise self.wrong(f"class {target.__name__} must derive from Keyed[Event, State, Out]")
        try:
            types = target.declared_types()
        except ValueError as error:
            raise self.wrong(str(error)) from None
        if types is None:
            raise self.wrong("Keyed needs its types: write Keyed[Event, State, Out]")
        event, state, output = types
        if inspect.isabstract(target):
            raise self.wrong(f"class {target.__name__} must define on_event")
        return self._record("event", event), self._record("state", state), output

    def completed(self, spec: FunctionSpec) -> FunctionSpec:
        """With what the class itself has to say of its declaration."""
        if not (isinstance(spec.target, type) and issubclass(spec.target, Keyed)):
            return spec
        try:
            return spec.target.completed(spec)
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def _types_of_plain(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        shape = "write def f(e: Event, s: State, ctx: Context) -> Out[Alert]"
        try:
            hints = typing.get_type_hints(target)
        except NameError as error:
            raise self.wrong(f"an annotation cannot be resolved ({error}); {shape}") from None
        names = list(inspect.signature(target).parameters)
        if len(names) != 3 or not all(name in hints for name in [*names[:2], "return"]):
            raise self.wrong(f"the annotations must give event, state and output: {shape}")
        outputs = [arg for arg in typing.get_args(hints["return"]) if typing.get_args(arg)]
        yielded = typing.get_args(outputs[0] if outputs else hints["return"])
        if not yielded:
            raise self.wrong(f"the return annotation does not name the output type: {shape}")
        event, state = (hints[name] for name in names[:2])
        return self._record("event", event), self._record("state", state), yielded[0]

    def _record(self, role: str, declared: Any) -> Any:
        if not encoding.is_record(declared):
            raise self.wrong(
                f"the {role} type {_label(declared)} must be a dataclass, a msgspec.Struct, "
                "a TypedDict or a pydantic model"
            )
        return declared

    def state(self, state_type: Any) -> Any:
        """A key's first event meets `State()`, and what it becomes must be readable again."""
        required: frozenset[str] = getattr(state_type, "__required_keys__", frozenset())
        if required:
            raise self.wrong(
                f"the state {_label(state_type)} must be total=False: a new key starts empty"
            )
        try:
            codec: RecordCodec[Any] = RecordCodec(state_type, 1, {})
            codec.decode(codec.encode(new_record(state_type())))
        except (TypeError, ValueError) as error:
            raise self.wrong(
                f"the state {_label(state_type)} must have a default for every field "
                f"and types that can be stored ({error})"
            ) from None
        return state_type

    def field_type(self, owner: Any, role: str, field: str) -> Any:
        fields = typing.get_type_hints(owner)
        if field not in fields:
            known = ", ".join(fields)
            raise self.wrong(f"{role}={field!r} is not a field of {_label(owner)} ({known})")
        return fields[field]

    def time_field(self, event_type: Any, field: str) -> str:
        declared = self.field_type(event_type, "event_time", field)
        if declared is not int:
            raise self.wrong(
                f"event_time={field!r} of {_label(event_type)} must be int (milliseconds), "
                f"not {_label(declared)}"
            )
        return field

    def id_field(self, event_type: Any, field: str | None) -> str | None:
        if field is not None:
            self._plain_type(event_type, "dedup", field)
        return field

    def key_type(self, event_type: Any, fields: tuple[str, ...]) -> KeyType:
        if not fields:
            raise self.wrong("key names no field")
        declared = tuple(self._plain_type(event_type, "key", field) for field in fields)
        return declared if len(declared) > 1 else declared[0]

    def _plain_type(self, event_type: Any, role: str, field: str) -> type:
        declared = self.field_type(event_type, role, field)
        if declared not in _KEY_TYPES:
            raise self.wrong(
                f"{role}={field!r} of {_label(event_type)} must be str, int or bytes, "
                f"not {_label(declared)}"
            )
        return typing.cast(type, declared)

    def output_fields(
        self, output_type: Any, fields: str | tuple[str, ...] | None
    ) -> tuple[str, ...]:
        if fields is None:
            return ()
        named = (fields,) if isinstance(fields, str) else tuple(fields)
        for member in encoding.union_members(output_type):
            for field in named:
                self.field_type(member, "output_id", field)
        return named


def _label(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)
