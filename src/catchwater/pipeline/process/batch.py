"""What goes into an epoch of one shard, and what comes out: plain data.

The tables a function looks rows up in: the last value of each key of a compacted topic.

A broadcast table lies whole in every shard, a keyed one only where its key's state is. Rows are
kept as they came and decoded when they are asked for, once an epoch.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from catchwater.pipeline.functions.spec import FunctionSpec, Headers, TableSpec
from catchwater.state.entries import ShardState, Table, prefix_of
from catchwater.state.keys import HASH_BYTES, encode_key, stored_key
from catchwater.values.registry import SchemaUnavailable

UNREADABLE = (Exception,)
"""What reading a record may raise: its class is the user's, and so is a `__post_init__` of it."""


def decode_all(
    decode: Callable[[bytes], Any], values: Iterable[bytes]
) -> tuple[list[Any], dict[int, str]]:
    """What could be decoded, in order; and by index, why others could not.

    Raises `SchemaUnavailable`, which is no fault of the record's.
    """
    decoded: list[Any] = []
    errors: dict[int, str] = {}
    waiting = iter(values)
    while True:
        try:
            decoded.extend(map(decode, waiting))
            return decoded, errors
        except SchemaUnavailable:
            raise
        except UNREADABLE as error:
            errors[len(decoded) + len(errors)] = f"{type(error).__name__}: {error}"


def unreadable(declared: Any, error: Exception) -> str:
    """Why a record cannot be read as what it should be."""
    return f"it cannot be read as {getattr(declared, '__name__', declared)}: {error}"


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
    """Events of one input in log order; keys, events, offsets and values lie side by side."""

    keys: Sequence[bytes]
    """Stored keys."""
    events: Sequence[Any]
    """Decoded."""
    origin: str
    """"topic-partition"; of events of several, that of the first."""
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
    runs: Sequence[tuple[str, int]] = ()
    """Of events of several partitions: the origin of those that follow one another, and the index
    where they end."""
    headers: Sequence[Headers] = ()
    """The records', side by side with the events; empty: none has any, or the function reads none.
    """
    places: Sequence[int] | None = None
    """Of a block's batch: where in the epoch's log order each event stands; None: the batches come
    in that order."""
    poisoned_places: Sequence[int] = ()
    """Side by side with `poisoned`, if there are places."""

    def origin_of(self, index: int) -> str:
        """Where the event of this index comes from."""
        if not self.runs:
            return self.origin
        return self.runs[bisect_right(self.runs, index, key=itemgetter(1))][0]

    def latest(self, times: Sequence[int]) -> dict[str, int]:
        """By origin the latest of the events' times."""
        found: dict[str, int] = {}
        start = 0
        for origin, end in self.runs or ((self.origin, len(times)),):
            last = max(times[start:end])
            found[origin] = max(last, found.get(origin, last))
            start = end
        return found


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


class TableRows:
    """All tables of a function in one epoch of one shard."""

    def __init__(self, spec: FunctionSpec, state: ShardState) -> None:
        self._spec = spec
        self._state = state
        self._rows: dict[tuple[Table, bytes], Any] = {}
        """Decoded in this epoch, by entry; None: there is no row."""

    def apply(self, batch: TableBatch) -> None:
        """Take over what has changed."""
        spec = self._spec.tables[batch.name]
        for key, value in zip(batch.keys, batch.values, strict=True):
            table, entry = _place(batch.name, spec, stored_key(key) if spec.keyed else key)
            if value is None:
                self._state.delete(table, entry)
            else:
                self._state.put(table, entry, value)

    def row(self, name: str, key: Any, current: bytes) -> Any:
        """The row of a key, or None; `current` is the stored key that is being handled.

        Raises LookupError for a table that is not declared, ValueError for another key of a keyed
        table.
        """
        spec = self._spec.tables.get(name)
        if spec is None:
            known = ", ".join(self._spec.tables) or "none"
            raise LookupError(f"there is no table {name!r}; declared: {known}")
        found = self._spec.encode_key(key) if spec.keyed else encode_key(key)
        if spec.keyed and found != current[HASH_BYTES:]:
            raise ValueError(
                f"the table {name!r} is keyed: beside the key's own row {key!r} lies elsewhere"
            )
        place = _place(name, spec, current if spec.keyed else found)
        if place not in self._rows:
            data = self._state.get(*place)
            self._rows[place] = None if data is None else spec.decode_row(data)
        return self._rows[place]


class RowsOf:
    """`Rows` of one table, as the context hands it out."""

    __slots__ = ("_current", "_name", "_tables")

    def __init__(self, tables: TableRows, name: str, current: bytes) -> None:
        self._tables = tables
        self._name = name
        self._current = current

    def get(self, key: Any) -> Any:
        """The row, or None."""
        return self._tables.row(self._name, key, self._current)


def _place(name: str, spec: TableSpec, key: bytes) -> tuple[Table, bytes]:
    """Table and entry of a row: `key` is a stored key if the table is keyed."""
    if spec.keyed:
        return Table.JOINED, prefix_of(key) + name.encode()
    return Table.SHARED, name.encode() + b"\0" + key
