"""The plainest operators, one event at a time, and what all operators share.

`map`, `filter` and `flat_map` make a function of a plain Python function of one event; they keep no
state. `Distinct` lets the first event of each id through and no other: the declaration's `dedup` as
a stage of its own, for what follows in a chain or for a topic that others read. A function that
declares `dedup` needs no Distinct before it.

**How long an operator's state lives.** An operator knows from its own declaration when its state
can be of no more use, and drops it then. What remains is the key's empty record; a `state_ttl`
longer than anything in it removes that, too. State means what the declaration says, so it is bound
to that.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from catchwater.pipeline.functions.declare import DeclarationError, function
from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Keyed,
    Nothing,
    Out,
    OutT,
    type_arguments,
)

_Given = TypeVar("_Given")
_Plain = Callable[[EventT], _Given]
_Made = Callable[[_Plain[EventT, _Given]], type[Keyed[EventT, Nothing, OutT]]]


class Each(Keyed[EventT, Nothing, OutT], Generic[EventT, OutT]):
    """A function that keeps nothing of an event but, with `dedup`, its id."""

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Event and output as derived; there is no state."""
        types = type_arguments(cls, Each)
        return None if types is None else (types[0], Nothing, types[1])

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with ids that end."""
        if spec.dedup is None or spec.state_ttl_ms is not None:
            return spec
        return replace(spec, state_ttl_ms=spec.dedup_ttl_ms)


def map(**declared: Any) -> "_Made[EventT, OutT, OutT]":
    """Put out what the function makes of each event: `@map(key="card", event_time="at")`.

    Takes what `@function` takes; `name` is the function's own unless it is given.
    """
    made: _Made[EventT, OutT, OutT] = _made(
        "map", declared, lambda f: lambda self, e, s, ctx: (f(e),), lambda given: given
    )
    return made


def filter(**declared: Any) -> "_Made[EventT, bool, EventT]":
    """Put out the events of which the function says True. Takes what `map` takes."""

    def on_event(f: Callable[[Any], bool]) -> Callable[..., Out[Any]]:
        return lambda self, e, s, ctx: (e,) if f(e) else ()

    made: _Made[EventT, bool, EventT] = _made("filter", declared, on_event, None)
    return made


def flat_map(**declared: Any) -> "_Made[EventT, Iterable[OutT], OutT]":
    """Put out all that the function yields or lists of each event. Takes what `map` takes."""
    made: _Made[EventT, Iterable[OutT], OutT] = _made(
        "flat_map", declared, lambda f: lambda self, e, s, ctx: f(e), _element
    )
    return made


def _made(
    called: str,
    declared: dict[str, Any],
    on_event: Callable[[Any], Callable[..., Out[Any]]],
    output_of: Callable[[Any], Any] | None,
) -> Any:
    """The decorator: from a function of one event to a class that stands in its place."""

    def declare(f: Callable[..., Any]) -> Any:
        name = declared.get("name", f.__name__)
        hints = typing.get_type_hints(f)
        parameters = list(inspect.signature(f).parameters)
        event, given = (hints.get(each) for each in (*parameters[:1], "return"))
        output = event if output_of is None else given and output_of(given)
        if len(parameters) != 1 or event is None or output is None:
            shape = {"map": "Made", "filter": "bool", "flat_map": "Iterable[Made]"}[called]
            raise DeclarationError(
                f"Function {name!r}: @{called} takes a function of one event with its types: "
                f"write def {f.__name__}(e: Event) -> {shape}."
            )
        body = {
            "on_event": on_event(f),
            "__doc__": f.__doc__,
            "__module__": f.__module__,
            "__qualname__": f.__qualname__,
        }
        base: Any = Each.__class_getitem__((event, output))  # type: ignore[attr-defined]
        made = types.new_class(f.__name__, (base,), exec_body=lambda space: space.update(body))
        return function(**{**declared, "name": name})(made)

    return declare


def _element(given: Any) -> Any:
    """`Made` of `Iterable[Made]`, None if it does not say."""
    return next(iter(typing.get_args(given)), None)


class Distinct(Keyed[EventT, Nothing, EventT], Generic[EventT]):
    """Derive with the type of event; declare `dedup` and `dedup_ttl`."""

    def on_event(self, e: EventT, s: Nothing, ctx: Context) -> Out[EventT]:
        """Let it through: it has not been seen for `dedup_ttl`."""
        return [e]

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Output is what input was. ValueError if that is not written."""
        types = type_arguments(cls, Distinct)
        if types is None:
            raise ValueError("Distinct needs its type: write Distinct[Event]")
        return types[0], Nothing, types[0]

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with ids that end. ValueError if it names no id."""
        if spec.dedup is None:
            raise ValueError("Distinct knows events by their id: declare dedup")
        if spec.state_ttl_ms is not None:
            raise ValueError("ids end by dedup_ttl; declare it without state_ttl")
        return replace(spec, state_ttl_ms=spec.dedup_ttl_ms)


# What operators share.


class Waking(Protocol):
    """State of an operator that is woken at its earliest due time."""

    wake_at: int | None
    """For when the key's timer is set, event time in ms; never later than anything that is due."""


def wake(s: Waking, due: int, ctx: Context) -> None:
    """Have the timer fire at `due` at the latest."""
    if s.wake_at is None or due < s.wake_at:
        s.wake_at = due
        ctx.timer("wake", due)


def lasting(spec: FunctionSpec, span_ms: int) -> FunctionSpec:
    """The declaration of an operator whose state is dropped at most `span_ms` after an event.

    Raises ValueError if it declares a lifetime itself: a shorter one would lose what is open.
    """
    if spec.state_ttl_ms is not None:
        raise ValueError("an operator's state ends by itself; declare it without state_ttl")
    return replace(spec, state_ttl_ms=span_ms + 1)


def bound_to(meaning: str) -> Any:
    """The type of a field of the state that holds `meaning` and nothing else.

    A version whose declaration gives the rest of the state another meaning is then refused as one
    whose state has another schema is.
    """
    return Literal[meaning]
