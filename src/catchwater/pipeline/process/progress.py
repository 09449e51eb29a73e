"""Which handler runs at the moment, and which are known to end badly: an epoch seen from beside.

A handler that does not end, or ends its process, cannot say so itself. Whoever watches (`watchdog`)
reads here what is being handled; what it has learnt, the next pass over the epoch finds here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from catchwater.pipeline.process.batch import Batch
from catchwater.pipeline.process.context import EpochContext
from catchwater.state.keys import HASH_BYTES

TIMER = "timer "
"""Before a timer's name, where else a topic and partition stand."""


class HandlerTimeout(BaseException):
    """One call of a handler takes too long: raised inside it, by who watches.

    No `Exception`, so that a handler that goes on after any of those ends all the same.
    """


class Cause(NamedTuple):
    """What a handler is called for."""

    origin: str
    """"topic-partition"; of a timer "timer NAME"."""
    offset: int
    """Of a timer: the time (ms) it was set for."""
    key: bytes
    """Without its hash."""


@dataclass
class Progress:
    """One epoch of one shard."""

    careful: bool = False
    """Whether the first pass is a careful one: a handler has ended a process."""
    known: dict[Cause, str] = field(default_factory=dict)
    """What is not tried again, each with what became of it."""
    note: Callable[[Cause], None] | None = None
    """Called by a careful pass before each handler."""
    spread: Callable[[Cause, str], None] | None = None
    """Called with what becomes known."""
    context: EpochContext | None = None
    """Of the pass under way; its `cause` is None while no handler runs."""
    batch: Batch | None = None
    """Where the event comes from that is being handled."""

    def blame(self, cause: Cause, text: str) -> None:
        """Do not try this again."""
        self.known[cause] = text
        if self.spread is not None:
            self.spread(cause, text)

    def cause(self) -> Cause | None:
        """What is being handled, for whoever looks from another thread or a signal's handler."""
        context, batch = self.context, self.batch
        found = context.cause if context else None
        if context is None or found is None:
            return None
        key = context.stored_key[HASH_BYTES:]
        if isinstance(found, tuple):
            return Cause(TIMER + found[1], found[0], key)
        offsets = zip(batch.events, batch.offsets, strict=True) if batch else ()
        offset = next((int(at) for event, at in offsets if event is found), -1)
        return Cause(batch.origin if batch else "", offset, key)
