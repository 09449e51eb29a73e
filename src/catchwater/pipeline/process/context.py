"""What a handler sees as its `ctx`: one object for a whole epoch, moved from cause to cause."""

from hashlib import blake2b
from random import Random  # noqa: TID251  (seeded by key and event: a replay draws the same)
from typing import Any

from catchwater.pipeline.functions.spec import FunctionSpec, Headers
from catchwater.pipeline.process.batch import Answers, Batch, RowsOf, TableRows
from catchwater.state.entries import FIRST_MS, LAST_MS
from catchwater.state.keys import HASH_BYTES, encode_key
from catchwater.state.records import Record, new_record

MAX_TIMER_NAME_BYTES = 100


class EpochContext:
    """`function.Context`; `process` sets the three plain attributes before every handler."""

    __slots__ = (
        "_answers",
        "_chained",
        "_drawn_for",
        "_random",
        "_spec",
        "_tables",
        "batch",
        "cause",
        "index",
        "input",
        "now",
        "record",
        "stored_key",
        "timers_before",
        "watermark",
    )

    def __init__(
        self,
        spec: FunctionSpec,
        watermark_ms: int,
        clock_ms: int,
        tables: TableRows,
        answers: Answers | None,
        chained: bool = False,
    ) -> None:
        self._spec = spec
        self._tables = tables
        self._answers = answers
        self._chained = chained
        """Whether the events are outputs of the function before."""
        self._random: Random | None = None
        self._drawn_for: Any = None
        self.watermark = watermark_ms
        self.now = clock_ms
        self.stored_key = b""
        self.record: Record[Any] = new_record(None)
        self.cause: Any = None
        """The event that is being handled; of a timer a tuple that begins (time, name)."""
        self.batch: Batch | None = None
        self.index = -1
        """Of the event that is being handled, in its batch."""
        self.input = spec
        """The declaration as the input of the event has it."""
        self.timers_before: dict[bytes, tuple[dict[str, int], dict[str, int]]] = {}
        """Of keys whose timers changed: as the epoch found them, by watermark and by clock."""

    @property
    def key(self) -> Any:
        """The key's value."""
        return self._spec.decode_key(self.stored_key[HASH_BYTES:])

    @property
    def random(self) -> Random:
        """Seeded by function, key and cause, so that where epochs begin does not matter."""
        if self._random is None or self._drawn_for is not self.cause:
            seed = b"\0".join((self._spec.name.encode(), self.stored_key, self._identity()))
            self._random = Random(blake2b(seed).digest())
            self._drawn_for = self.cause
        return self._random

    def timer(self, name: str, at: int, clock: bool = False) -> None:
        """Set the key's timer of this name.

        Raises ValueError if the name is no text of at most 100 bytes, or `at` no whole number of ms
        that 64 bits hold.
        """
        if not isinstance(at, int) or isinstance(at, bool):
            raise ValueError(f"the timer {name!r} must be set for whole milliseconds, not {at!r}")
        if not FIRST_MS <= at <= LAST_MS:
            raise ValueError(f"the timer {name!r} must be set for a time in 64 bits, not {at}")
        if not isinstance(name, str):
            raise ValueError(f"a timer's name must be a text, not {name!r}")
        if len(name.encode()) > MAX_TIMER_NAME_BYTES:
            raise ValueError(f"the timer name {name[:40]!r}… is over {MAX_TIMER_NAME_BYTES} bytes")
        self._remember_timers()
        record = self.record
        self._drop(name)
        if not clock:
            record.timers[name] = at
        elif record.clock_timers is None:
            record.clock_timers = {name: at}
        else:
            record.clock_timers[name] = at

    def cancel_timer(self, name: str) -> None:
        """Forget the key's timer of this name."""
        self._remember_timers()
        self._drop(name)

    def table(self, name: str) -> RowsOf:
        """A declared table; LookupError, when it is asked, if there is none of this name."""
        return RowsOf(self._tables, name, self.stored_key)

    def answer(self, call: str) -> Any:
        """What a declared call answered for this event; LookupError in a timer."""
        if isinstance(self.cause, tuple):
            raise LookupError(f"a timer has no answer of {call!r}: only events ask")
        if self._answers is None:
            raise LookupError(f"there is no answer of {call!r}: the function declares no calls")
        return self._answers.of(call, self.cause)

    @property
    def topic(self) -> str:
        """Of the event's record. LookupError in a timer, or for a later function of a chain."""
        return self._record_of("topic")[0].rpartition("-")[0]

    @property
    def partition(self) -> int:
        """As `topic`."""
        return int(self._record_of("partition")[0].rpartition("-")[2])

    @property
    def offset(self) -> int:
        """As `topic`."""
        return self._record_of("offset")[1]

    @property
    def timestamp(self) -> int | None:
        """As `topic`; ms since 1970, None if the record has none."""
        batch = self._batch_of("timestamp")
        found = int(batch.timestamps[self.index]) if len(batch.timestamps) else 0
        return found if found > 0 else None

    @property
    def headers(self) -> Headers:
        """As `topic`; LookupError, too, for a function that is not declared with them."""
        batch = self._batch_of("headers")
        if not self._spec.headers:
            raise LookupError(
                f"the function {self._spec.name!r} reads no headers: declare headers=True"
            )
        return batch.headers[self.index] if batch.headers else ()

    def _record_of(self, what: str) -> tuple[str, int]:
        batch = self._batch_of(what)
        return batch.origin_of(self.index), int(batch.offsets[self.index])

    def _batch_of(self, what: str) -> Batch:
        if self._chained:
            raise LookupError(
                f"there is no {what}: in a chain only the first function's events are records of "
                "a topic"
            )
        if self.batch is None or self.cause is None or isinstance(self.cause, tuple):
            raise LookupError(f"a timer has no {what}: only an event comes in a record")
        return self.batch

    def _drop(self, name: str) -> None:
        self.record.timers.pop(name, None)
        if self.record.clock_timers:
            self.record.clock_timers.pop(name, None)

    def _remember_timers(self) -> None:
        if self.stored_key not in self.timers_before:
            record = self.record
            self.timers_before[self.stored_key] = (
                dict(record.timers),
                dict(record.clock_timers or {}),
            )

    def _identity(self) -> bytes:
        """Two equal events of one key draw the same if the function declares no `dedup` id."""
        cause = self.cause
        if isinstance(cause, tuple):
            return repr(cause).encode()
        if self.input.dedup is not None:
            return encode_key(self.input.id_of(cause))
        return self._spec.encode_output(cause)
