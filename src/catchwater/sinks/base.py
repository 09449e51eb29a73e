"""The sink seam: an epoch is written once, and can be verified and repaired afterwards.

Tasks *stage* the outputs of their shards where no reader sees them; the driver then *commits* all
staged pieces of an epoch together with the mark (pipeline, sink, generation, epoch, count,
checksum). A sink opened for `exactly-once` keeps these promises; one conformance suite tests them:

- `commit` is atomic: readers see the whole epoch or none of it, and the mark commits with it. A
  sink without transactions writes idempotently instead; its `Guarantee` says so.
- Committing an epoch that has its mark changes nothing and returns what the first commit wrote.
  Spark repeats an epoch after a crash, so this is the ordinary case.
- A repeated epoch has the same content; if its checksum differs, `EpochDiffers` is raised and
  nothing changes: the function is not deterministic, or the checkpoint is another one's.
- Requests to an unavailable target are retried for a while (`patiently`), then `SinkUnavailable` is
  raised: the epoch fails, none of it is visible, and it runs again when the pipeline does.

Opened for `at-least-once`, a sink writes no mark and a repeated epoch is written again; each row
still has its identity (epoch, shard, row), by which readers can remove duplicates.

`truth` keeps the staged outputs, apart from the target: `rows` is compared with it, and `repair`
takes them from it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from catchwater import retries
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch

T = TypeVar("T")

Headers = tuple[tuple[str, bytes], ...]

ROW_HEADER = "catchwater-row"
"""`<epoch>/<shard>/<row>` of a record, in targets with headers that the sink sets."""
SINK_HEADER = "catchwater-sink"
"""`<pipeline>/<sink>`, beside one of the other two."""
RETRACTS_HEADER = "catchwater-retracts"
"""`<epoch>/<shard>/<row>` of the record that this one retracts; same key, same value."""
RETRACTS_OFFSET_HEADER = "catchwater-retracts-offset"
"""The offset of that record, in the partition of the retraction."""

RETRACTS_ID_HEADER = "catchwater-retracts-id"
"""Of an output that retracts the earlier one with the same values in these fields, separated by
commas: the function's `output_id`."""

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


class EpochDiffers(CatchwaterError):
    """The sink has this epoch with other content."""

    exit_code = 5


class EpochMissing(CatchwaterError):
    """The epoch does not follow the sink's last one; the epochs between would be lost."""

    exit_code = 5


class SinkAhead(CatchwaterError):
    """The sink has epochs that this checkpoint does not know."""

    exit_code = 5


class Superseded(CatchwaterError):
    """A newer generation of the pipeline writes to this sink: this one was rolled back."""

    exit_code = 5


class TargetTaken(CatchwaterError):
    """Another pipeline, or another sink, writes to this target."""

    exit_code = 5


class TargetDiffers(CatchwaterError):
    """The target exists and cannot take these outputs; the message names the difference.

    `alter` are the statements that would add what is missing; empty if that is not enough.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, alter: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.alter = tuple(alter)


class NotAdmitted(CatchwaterError):
    """The target refuses the login, or its certificate is not trusted; a retry would not help."""


class SinkUnavailable(CatchwaterError):
    """The target did not answer for as long as the sink waits."""


class SinkFull(CatchwaterError):
    """No space left for the epoch; nothing of it was written."""


class RowsUnreadable(CatchwaterError):
    """The target's rows cannot be read, or the outputs to repair them from are not kept."""


class TargetState(NamedTuple):
    """The state of a target, found without opening or changing it."""

    ours: bool = False
    """Whether it names this sink of this pipeline as its writer."""
    newest: int | None = None
    """The newest epoch that it has of this sink; None if it has none or keeps no marks."""
    differs: TargetDiffers | None = None
    """Why it cannot take the outputs; None if it can."""
    undone_from: int | None = None
    """The first epoch that `withdraw` can still undo; None: it can undo every one there is."""


class OutputRecord(NamedTuple):
    """One output for a sink."""

    key: bytes
    value: bytes
    """JSON; of a dead letter the original bytes."""
    timestamp_ms: int
    headers: Headers = ()

    @property
    def retracts(self) -> bool:
        """Whether it retracts an earlier output of its `output_id`, and is no output itself."""
        return bool(self.headers) and self.headers[0][0] == RETRACTS_ID_HEADER


class Staged(msgspec.Struct, frozen=True):
    """One shard's output of one epoch, durable and invisible; travels in the manifest row."""

    shard: int
    location: str
    """The sink's name for the staged bytes; empty if the shard had no outputs."""
    records: int
    bytes: int
    checksum: int
    """CRC-32C over the records in order (`checksum_of`); the same on every replay."""
    kept: str = ""
    """The location of its copy in the truth, if that is another one."""


class RowId(NamedTuple):
    """The identity of an output: the same on every replay."""

    epoch: int
    shard: int
    row: int
    """0 for the shard's first output of the epoch."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.shard}/{self.row}"


class SinkRow(NamedTuple):
    """A row read from the target."""

    id: RowId
    key: bytes
    digest: bytes | None
    """`Sink.digest` of the record it was made from; None if the target does not show it."""


class StagedRow(NamedTuple):
    """An output that was staged."""

    id: RowId
    record: OutputRecord


class Fix(NamedTuple):
    """The repair of a row: everything in the target with this identity becomes `record`."""

    id: RowId
    record: OutputRecord | None
    """None: the row is to be deleted."""
    key: bytes = b""
    """The key of a row to be deleted."""
    absent: bool = False
    """The target has nothing with this identity: it is enough to add the record."""


class Stager(Protocol):
    """The half of a sink that works in Spark's tasks; pickles."""

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """Make one shard's records of an epoch durable, invisible to readers."""
        ...


class Truth(Protocol):
    """The staged outputs, kept for a while apart from the target (see `staged.Archive`)."""

    def epochs(self) -> list[int]:
        """The epochs that are kept, in order; the newest may never have been committed."""
        ...

    def pieces(self, epoch: int) -> list[Staged] | None:
        """The pieces that `commit` gets for the epoch; None if it is not kept."""
        ...

    def rows(self, epoch: int) -> Iterator[StagedRow]:
        """The epoch's outputs, by shard and row."""
        ...

    def record(self, epoch: int, pieces: Sequence[Staged], now_ms: int) -> None:
        """Record the pieces of an epoch, before it is committed."""
        ...

    def withdraw(self, after: int) -> None:
        """Drop all epochs after this one, because they were withdrawn from the target."""
        ...


class Sink(Protocol):
    """The half of a sink that works on the driver, and behind `catchwater sink`."""

    name: str

    @property
    def retracts(self) -> bool:
        """Whether retractions (`OutputRecord.retracts`) are staged for it.

        In a target whose rows replace each other they delete; a log appends them with their header.
        """
        ...

    @property
    def truth(self) -> Truth:
        """The outputs that were staged for this sink."""
        ...

    def stager(self) -> Stager:
        """The half for the tasks."""
        ...

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Make the epoch visible, once.

        Raises `EpochDiffers`, `EpochMissing`, `Superseded`, `SinkUnavailable`, `SinkFull`.
        """
        ...

    def last_epoch(self) -> int | None:
        """The newest epoch with a mark; None if there are no marks."""
        ...

    def withdraw(self, after: int) -> None:
        """Undo the rows and marks that older generations wrote in epochs after this one.

        A log cannot delete: it appends a retraction (`RETRACTS_HEADER`) for each record.
        Idempotent.
        """
        ...

    def identity(self, record: OutputRecord) -> bytes | None:
        """Records with the same identity replace each other; None if they do not in this sink."""
        ...

    def digest(self, record: OutputRecord) -> bytes:
        """The digest in `rows` of a row that was made from this record."""
        ...

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """The target's rows of these epochs, both included, in any order.

        Raises `RowsUnreadable` if they cannot be read.
        """
        ...

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Repair rows; returns those that this sink cannot repair. Idempotent."""
        ...

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Drop what is kept of epochs before `oldest`, to which no restore goes back."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def checksum_of(records: Iterable[OutputRecord]) -> int:
    """CRC-32C over keys, values and headers, each preceded by its length."""
    checksum = 0
    for record in records:
        for part in (record.key, record.value):
            checksum = crc32c(part, crc32c(len(part).to_bytes(4, "big"), checksum))
        for name, value in record.headers:
            for part in (name.encode(), value):
                checksum = crc32c(part, crc32c(len(part).to_bytes(4, "big"), checksum))
    return checksum


def epoch_checksum(staged: Iterable[Staged]) -> str:
    """The checksum of an epoch: over its shards' checksums and counts, in shard order."""
    parts = sorted((piece.shard, piece.records, piece.checksum) for piece in staged)
    return sha256(repr([part for part in parts if part[1]]).encode()).hexdigest()[:16]


def record_digest(record: OutputRecord) -> bytes:
    """The digest of a record for targets that keep key, value and headers unchanged."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:8]


# Retries of an unavailable target


class Patience:
    """The retries of requests to one target.

    Waits double, with a random part, and end after `retry` of the sink's section. Then the error is
    raised with the time that was spent, and the pipeline's restarts take over.
    """

    def __init__(self, clock: Clock, retry_ms: int) -> None:
        self._clock = clock
        self._retry_s = retry_ms / 1000
        self._since_s: float | None = None
        self._tries = 0

    def answered(self) -> None:
        """Count the next failure as a first one: the target has answered."""
        self._since_s, self._tries = None, 0

    def wait(self, error: SinkUnavailable) -> None:
        """Wait before the next attempt. Raises `SinkUnavailable` when `retry` is over."""
        now_s = self._clock.monotonic_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        self._tries += 1
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (self._tries - 1))
        wait_s *= self._clock.random.uniform(0.5, 1.0)
        away_s = now_s - self._since_s
        if away_s + wait_s > self._retry_s:
            raise SinkUnavailable(
                f"{error} Given up after {self._tries} tries in {away_s:.1f} s; nothing is lost.",
                hint=error.hint or "The epoch runs again when the pipeline is started again.",
            ) from error
        retries.count("sink")
        self._clock.pause(wait_s)


def patiently(call: Callable[[], T], clock: Clock, retry_ms: int) -> T:
    """The result of the call, retried as long as it raises `SinkUnavailable`."""
    patience = Patience(clock, retry_ms)
    while True:
        try:
            return call()
        except SinkUnavailable as error:
            patience.wait(error)
