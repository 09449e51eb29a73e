"""The sink seam: an epoch is written once, and can be looked at and mended afterwards.

Tasks *stage* what their shards put out, where no reader sees it; the driver then *commits* all
of an epoch's staged pieces together with the mark (pipeline, sink, generation, epoch, count,
checksum).
A sink that was opened for `exactly-once` keeps these promises; one conformance suite asks them:

- `commit` is atomic: readers see all of the epoch or nothing, and the mark goes with it. A sink
  that has no transactions writes idempotently instead; its `Guarantee` says so.
- Committing an epoch that has its mark changes nothing and answers what the first commit wrote.
  Spark repeats an epoch after a crash, so this is the ordinary case.
- A repeated epoch has the same content; if its checksum differs, `EpochDiffers` is raised and
  nothing changes: the function is not deterministic, or the checkpoint is another's.
- A target that is away is asked again for a while (`patiently`), then `SinkUnavailable` is raised:
  the epoch fails, nothing of it is visible, and it runs again when the pipeline does.

Opened for `at-least-once`, a sink writes no mark and a repeated epoch is written again; each row
still has its identity (epoch, shard, row), by which a reader knows it.

`truth` keeps what was staged, apart from the target: `rows` is compared with it, and `repair`
mends from it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch

T = TypeVar("T")

Headers = tuple[tuple[str, bytes], ...]

ROW_HEADER = "catchwater-row"
"""`<epoch>/<shard>/<row>` of a record, where the target has headers and the sink sets them."""
SINK_HEADER = "catchwater-sink"
"""`<pipeline>/<sink>`, beside one of the other two."""
RETRACTS_HEADER = "catchwater-retracts"
"""`<epoch>/<shard>/<row>` of the record that this one takes back; same key, same value."""
RETRACTS_OFFSET_HEADER = "catchwater-retracts-offset"
"""The offset of that record, in the partition of the retraction."""

RETRACTS_ID_HEADER = "catchwater-retracts-id"
"""Of an output that takes back what was put out before with the same values in these fields,
separated by commas: the function's `output_id`."""

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


class EpochDiffers(CatchwaterError):
    """The sink has this epoch with other content."""

    exit_code = 5


class EpochMissing(CatchwaterError):
    """The epoch does not follow the last one that the sink has; what lies between would be lost."""

    exit_code = 5


class SinkAhead(CatchwaterError):
    """The sink has epochs that this checkpoint knows nothing of."""

    exit_code = 5


class Superseded(CatchwaterError):
    """A newer generation of the pipeline writes to this sink: this one was rolled back."""

    exit_code = 5


class TargetTaken(CatchwaterError):
    """Another pipeline, or another sink, writes to this target."""

    exit_code = 5


class TargetDiffers(CatchwaterError):
    """The target is there and cannot take these outputs: names what differs.

    `alter` are the statements that would add what is missing; empty where that is not enough.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, alter: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.alter = tuple(alter)


class NotAdmitted(CatchwaterError):
    """The target does not take the login, or is not trusted: asking again would not help."""


class SinkUnavailable(CatchwaterError):
    """The target did not answer for as long as the sink waits."""


class SinkFull(CatchwaterError):
    """No space left for the epoch; nothing of it was written."""


class RowsUnreadable(CatchwaterError):
    """The target cannot be asked what it holds, or what is needed to mend it is not kept."""


class TargetState(NamedTuple):
    """What a target is like, as found without opening it: nothing in it has changed."""

    ours: bool = False
    """It names this sink of this pipeline as its writer."""
    newest: int | None = None
    """The newest epoch that it has of this sink; None: none, or it keeps no marks."""
    differs: TargetDiffers | None = None
    """Why it cannot take the outputs as it is."""


class OutputRecord(NamedTuple):
    """One output on its way to a sink."""

    key: bytes
    value: bytes
    """JSON; a dead letter's bytes as they were."""
    timestamp_ms: int
    headers: Headers = ()

    @property
    def retracts(self) -> bool:
        """Whether it takes back an earlier output of its `output_id`, and is none itself."""
        return bool(self.headers) and self.headers[0][0] == RETRACTS_ID_HEADER


class Staged(msgspec.Struct, frozen=True):
    """One shard's output of one epoch, durable and invisible; travels in the manifest row."""

    shard: int
    location: str
    """Where it lies, for the sink; empty if the shard put out nothing."""
    records: int
    bytes: int
    checksum: int
    """CRC-32C over the records in their order (`checksum_of`); equal on every replay."""
    kept: str = ""
    """Its copy in the truth, where that is not the location itself."""


class RowId(NamedTuple):
    """Which output a row is: the same on every replay."""

    epoch: int
    shard: int
    row: int
    """0 for the shard's first output of the epoch."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.shard}/{self.row}"


class SinkRow(NamedTuple):
    """A row as the target holds it."""

    id: RowId
    key: bytes
    digest: bytes | None
    """What `Sink.digest` says of the record it was made from; None: the target does not show it."""


class Expected(NamedTuple):
    """A row as it was staged."""

    id: RowId
    record: OutputRecord


class Fix(NamedTuple):
    """How a row is mended: all that the target holds under this identity becomes `record`."""

    id: RowId
    record: OutputRecord | None
    """None: nothing belongs there."""
    key: bytes = b""
    """Of a row to remove."""
    absent: bool = False
    """The target holds nothing under this identity: it is enough to add the record."""


class Stager(Protocol):
    """The half of a sink that works in Spark's tasks; pickles."""

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """Make one shard's records of the epoch durable where no reader sees them."""
        ...


class Truth(Protocol):
    """What was staged, kept for a while apart from the target (see `staged.Archive`)."""

    def epochs(self) -> list[int]:
        """The epochs that are kept, in order; perhaps the newest was never committed."""
        ...

    def pieces(self, epoch: int) -> list[Staged] | None:
        """What `commit` is given for the epoch; None if it is not kept."""
        ...

    def rows(self, epoch: int) -> Iterator[Expected]:
        """The epoch's outputs, by shard and row."""
        ...

    def record(self, epoch: int, pieces: Sequence[Staged], now_ms: int) -> None:
        """Keep what `commit` would be given, of an epoch that another driver commits."""
        ...

    def withdraw(self, after: int) -> None:
        """Forget all epochs after this one; they were undone."""
        ...


class Sink(Protocol):
    """The half of a sink that works on the driver, and behind `catchwater sink`."""

    name: str

    @property
    def retracts(self) -> bool:
        """Whether records that take back others (`OutputRecord.retracts`) are staged for it.

        Where rows replace each other they delete; a log appends them, under their header.
        """
        ...

    @property
    def truth(self) -> Truth:
        """What was staged for this sink."""
        ...

    def stager(self) -> Stager:
        """The other half, for the tasks."""
        ...

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Make the epoch visible, once.

        Raises `EpochDiffers`, `EpochMissing`, `Superseded`, `SinkUnavailable`, `SinkFull`.
        """
        ...

    def last_epoch(self) -> int | None:
        """The newest epoch of the pipeline that this sink has a mark of; None without marks."""
        ...

    def withdraw(self, after: int) -> None:
        """Undo what older generations wrote in epochs after this one: rows and marks.

        A log cannot: it writes a retraction (`RETRACTS_HEADER`) for each record. Again: no-op.
        """
        ...

    def identity(self, record: OutputRecord) -> bytes | None:
        """What a later record of the same identity replaces; None where nothing is replaced."""
        ...

    def digest(self, record: OutputRecord) -> bytes:
        """What `rows` says of a row that was made from this record."""
        ...

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """What the target holds of these epochs, both included, in any order.

        Raises `RowsUnreadable` if it cannot be asked.
        """
        ...

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Mend these rows; those that this sink cannot mend are returned. Again: no-op."""
        ...

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget what is kept of epochs before `oldest`, which no restore goes back to."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...


def checksum_of(records: Iterable[OutputRecord]) -> int:
    """CRC-32C over keys, values and headers, each behind its length."""
    checksum = 0
    for record in records:
        for part in (record.key, record.value):
            checksum = crc32c(part, crc32c(len(part).to_bytes(4, "big"), checksum))
        for name, value in record.headers:
            for part in (name.encode(), value):
                checksum = crc32c(part, crc32c(len(part).to_bytes(4, "big"), checksum))
    return checksum


def epoch_checksum(staged: Iterable[Staged]) -> str:
    """One checksum of an epoch: of its shards' checksums and counts, in shard order."""
    parts = sorted((piece.shard, piece.records, piece.checksum) for piece in staged)
    return sha256(repr([part for part in parts if part[1]]).encode()).hexdigest()[:16]


def record_digest(record: OutputRecord) -> bytes:
    """The digest of a record as it is: for targets that keep key, value and headers unchanged."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:8]


# A target that may be back soon


class Patience:
    """How long one target has been away.

    Waits double, are drawn at random up to that, and end with `retry` of the sink's section. Then
    the error goes up with the time it took, and the pipeline's own restarts take over.
    """

    def __init__(self, clock: Clock, retry_ms: int) -> None:
        self._clock = clock
        self._retry_s = retry_ms / 1000
        self._since_s: float | None = None
        self._tries = 0

    def answered(self) -> None:
        """The target is there: the next failure is a first one."""
        self._since_s, self._tries = None, 0

    def wait(self, error: SinkUnavailable) -> None:
        """Wait for the next attempt. Raises `SinkUnavailable` when it has been long enough."""
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
        self._clock.pause(wait_s)


def patiently(call: Callable[[], T], clock: Clock, retry_ms: int) -> T:
    """What the call returns, asked again for so long as it raises `SinkUnavailable`."""
    patience = Patience(clock, retry_ms)
    while True:
        try:
            return call()
        except SinkUnavailable as error:
            patience.wait(error)
