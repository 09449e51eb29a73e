"""What goes into an epoch of one shard, and what comes out: plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Times(NamedTuple):
    """The times of an epoch; decided once, written into the offset, the same on every replay."""

    watermark_ms: int
    """Event time: timers up to it are due, state and ids expire by it."""
    late_before_ms: int
    """An event older than this is late; never above the watermark."""
    clock_ms: int
    """Processing time, ms since 1970: processing-time timers up to it are due."""


class Poisoned(NamedTuple):
    """A record that was not handled, and why: it could not be, or it came late."""

    origin: str
    """"topic-partition"; of a timer whose handler failed "timer NAME"."""
    offset: int
    """Of a timer: the time (ms) it was set for."""
    key: bytes | None
    """Without its hash; None: it has none, or none that can be read."""
    value: bytes
    """As it came; of a timer empty."""
    error: str


@dataclass(frozen=True)
class Batch:
    """Events of one partition in log order; keys, events, offsets and values lie side by side."""

    keys: Sequence[bytes]
    """Stored keys."""
    events: Sequence[Any]
    """Decoded."""
    origin: str
    """"topic-partition"."""
    offsets: Sequence[int]
    values: Sequence[bytes]
    """The events as they came."""
    input: str = ""
    """Which of the function's inputs; empty if it has only one."""
    poisoned: Sequence[Poisoned] = ()
    """Records of the batch that could not be decoded."""
    new_keys: Sequence[bytes] | None = None
    """Stored keys to look up now: with those of the batches before, all of `keys` and maybe more.
    None: `keys` themselves."""
    timestamps: Sequence[int] = ()
    """The records', ms, side by side with the events; not above 0: it has none. Empty: none has."""
    oldest_ms: int = 0
    """The least of them, where that was looked for; not above 0: each has to be looked at."""


@dataclass(frozen=True)
class TableBatch:
    """Rows of one table, in log order: keys as they came, and values as they came."""

    name: str
    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    """None deletes the row."""
    poisoned: Sequence[Poisoned] = ()
    """Rows that could not be decoded."""


class Answers(Protocol):
    """What external systems answered to an epoch's events."""

    def of(self, call: str, event: Any) -> Any:
        """The answer to what the call asked for this event.

        Raises `EventRefused` if there is none and the event cannot be handled without.
        """


@dataclass
class Processed:
    """What an epoch of one shard gave."""

    outputs: list[Any] = field(default_factory=list)
    output_keys: list[bytes] = field(default_factory=list)
    """Side by side with the outputs: the stored key each came from."""
    values: list[bytes] = field(default_factory=list)
    """Side by side with the outputs: each as JSON."""
    retractions: Sequence[int] = ()
    """Which of the outputs take back earlier ones, by index."""
    events: int = 0
    """Events read, with the late, the duplicate and the poisoned ones."""
    late: int = 0
    late_events: list[Poisoned] = field(default_factory=list)
    """Those of them that go somewhere, by what the function declares."""
    duplicates: int = 0
    timers: int = 0
    """Timers fired."""
    keys: int = 0
    """Records made, less records deleted."""
    poisoned: list[Poisoned] = field(default_factory=list)
    max_event_times: dict[str, int] = field(default_factory=dict)
    """By origin: the largest event time (ms); poisoned events do not count."""
    next_due_ms: int | None = None
    """The watermark at which the shard wants an epoch even without input; None: never."""
    next_due_clock_ms: int | None = None
    """The clock at which it does; None: never."""
