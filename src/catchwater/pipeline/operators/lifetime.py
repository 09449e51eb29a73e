"""How long an operator's state lives, and the one timer by which it is woken.

An operator knows from its own declaration when its state can be of no more use, and drops it then.
What remains is the key's empty record; a `state_ttl` longer than anything in it removes that, too.
State means what the declaration says, so it is bound to that.
"""

from dataclasses import replace
from typing import Any, Literal, Protocol

from catchwater.pipeline.functions.spec import Context, FunctionSpec


class Waking(Protocol):
    """State of an operator that is woken at its earliest due time."""

    wake_at: int | None
    """For when the key's timer is set, event time in ms; never later than anything that is due."""


def wake(s: Waking, due: int, ctx: Context) -> None:
    """See to it that the timer fires at `due`; it may fire before."""
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
