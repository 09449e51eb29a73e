"""The ledger: what each epoch saw and made. An epoch's entry is what commits its state.

Everything lies under `<checkpoint>/catchwater/`: `pipeline.json` (identity), `epochs/N.json` (one
entry an epoch, written before Spark commits it), `contracts/N.json`, `beginning.json` (where epoch
0 starts), `restores.jsonl`, `state/` (the shards' state logs), `replayed/` (the epochs that a
restore went back behind, to be issued again with the same ends), and `between/` (where epochs ended
that lie between two restore points). Of a checkpoint at a URL the folder is scratch, and `url.json`
names the URL.

An entry names the position of every shard's state. Epoch n starts from the positions of entry
n - 1 however often it runs; nothing refers to what an attempt without an entry has written.

A file is written whole or not at all and is synced, with its folder, before the call returns.
Relies on the checkpoint being a local or shared directory. Imports no Spark: the source, the
query and the commands all read it.
"""

import hashlib
import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.config import CatchwaterError, Restart
from catchwater.state.roll import Position

FOLDER = "catchwater"

OffsetMap = dict[str, dict[str, int]]
"""Topic → partition (as text, as in Spark's JSON) → next offset to read."""

StructT = TypeVar("StructT")


_BETWEEN = re.compile(r"(\d+)-(\d+)\.epochs")
_MAGIC = b"CWE1"

_UNREADABLE = (IsADirectoryError, ValueError, RecursionError)
"""What reading a file can raise whose content may be anything, or that is a folder."""


class LedgerDamaged(CatchwaterError):
    """A file of the ledger is not what we wrote."""

    restart = Restart.FALL_BACK


class SourceOffset(msgspec.Struct, frozen=True):
    """Where an epoch ends: what Spark's offset log holds of our source.

    Everything that decides what the epoch does lies in it, so that a replay does the same.
    """

    epoch: int
    """The epoch that ends here; -1 before the first."""
    offsets: OffsetMap
    watermarks: Annotated[list[int], msgspec.Meta(min_length=1)]
    """Event time, ms: of this epoch, then of those before it; stage k runs at the k-th."""
    clock_ms: int
    tables: OffsetMap = {}
    """Of the compacted topics that functions look things up in."""
    input_ms: int = 0
    """The clock of the last epoch that read something: how long the input has been idle."""

    @property
    def watermark_ms(self) -> int:
        """The watermark of the first stage."""
        return self.watermarks[0]

    def watermark_of(self, stage: int) -> int:
        """The watermark that a stage of the chain runs at."""
        return self.watermarks[min(stage, len(self.watermarks) - 1)]

    @property
    def needed(self) -> OffsetMap:
        """From where a restore reads: inputs and tables; of a topic that is both, the earlier."""
        merged = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        for topic, partitions in self.tables.items():
            own = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                own[partition] = min(offset, own.get(partition, offset))
        return merged

    def to_json(self) -> dict[str, Any]:
        """As Spark wants it: plain dicts of plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def to_text(self) -> str:
        """As Spark writes it into its log: what PySpark's source runner makes of `to_json`.

        Spark compares texts, and takes one that is spelled otherwise for new input.
        """
        return json.dumps(self.to_json())

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "SourceOffset":
        """The way back from `to_json`."""
        return msgspec.convert(plain, cls)


class SinkEpoch(msgspec.Struct, frozen=True):
    """What one sink made of an epoch."""

    topic: str
    records: int
    checksum: str
    """Of the epoch's records in their order; equal on every replay of the epoch."""
    offsets: dict[str, tuple[int, int]] = {}
    """Partition (as text) → (first, last) offset."""


class CallEpoch(msgspec.Struct, frozen=True):
    """What one shard asked of one endpoint in an epoch; replayed answers do not count."""

    questions: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    failures: int = 0
    """Questions that stayed without an answer."""
    p99_ms: int = 0
    """Of the attempts that were answered."""
    breaker: str = "closed"


class ShardEpoch(msgspec.Struct, frozen=True):
    """What one shard did in an epoch: its manifest, without what was staged."""

    shard: int
    """Its index: shards are equal ranges of the key's hash."""
    stage: int = 0
    """Which function of the chain, the first being 0."""
    version: int = 0
    token: str = ""
    events: int = 0
    outputs: int = 0
    late: int = 0
    duplicates: int = 0
    timers: int = 0
    poisoned: int = 0
    max_event_times: dict[str, int] = {}
    """By origin ("topic-partition"): the largest event time, ms."""
    next_due_ms: int | None = None
    """The watermark at which the shard wants an epoch even without input."""
    next_due_clock_ms: int | None = None
    """The clock at which it does."""
    state_bytes: int = 0
    """What a restore of the shard reads."""
    delta_bytes: int = 0
    written_bytes: int = 0
    """Of all objects of the state log that this epoch wrote."""
    keys: int = 0
    """Keys the shard has a record of."""
    rebuilt_bytes: int = 0
    """Read to rebuild the local store; 0 where it was as the ledger says."""
    restore_s: float = 0.0
    operator_ms: float = 0.0
    """From when the task had the epoch's events in hand until this shard's outputs were staged."""

    calls: dict[str, CallEpoch] = {}
    """What was asked of each endpoint."""
    hot_key: str = ""
    """The key with the most events, as text; empty: none had a notable share of them."""
    hot_events: int = 0
    """Its events."""
    handle_ms: float = 0.0
    """Decoding events and calling handlers, reading state included; without `calls_ms`."""
    decode_ms: float = 0.0
    """The part of `handle_ms` in which events were decoded."""
    cpu_ms: float = 0.0
    """The processor's part of `handle_ms`: the rest was waiting."""
    calls_ms: float = 0.0
    """Waiting for endpoints."""
    state_ms: float = 0.0
    """Loading the state, and waiting until its changes and the outputs were durable. `operator_ms`
    has also what other shards of the same task took meanwhile."""
    host: str = ""
    """Where it ran: the machine that has the shard's local store now."""
    disk_reads: int = 0
    """Pages of state, or of code, that `handle_ms` waited for because memory had them no more."""

    @property
    def position(self) -> Position:
        """Where the shard's state stands after this epoch."""
        return Position(self.version, self.token)


class EpochEntry(msgspec.Struct, frozen=True):
    """One epoch as it was run. Run again, only times and the tokens of its state differ."""

    epoch: int
    start: SourceOffset
    end: SourceOffset
    shards: list[ShardEpoch]
    sinks: dict[str, SinkEpoch]
    finished_ms: int
    seen: dict[str, int] = {}
    """By origin: the largest event time of this and all epochs before, ms."""
    poisoned: int = 0
    """Poisoned events of this and all epochs before."""
    run_ms: float = 0.0
    """How long Spark took from the records to all shards' answers; 0: not measured."""
    sink_ms: dict[str, float] = {}
    """Sink → how long its commit took."""
    gc_ms: float = 0.0
    """How long Spark's JVM stood still meanwhile to collect garbage."""

    def total(self, field: str) -> int:
        """The sum of a field over the shards of all stages."""
        return sum(getattr(shard, field) for shard in self.shards)

    def positions(self, stage: int = 0) -> dict[int, Position]:
        """By index: where the state of each of a stage's shards stands after this epoch."""
        return {each.shard: each.position for each in self.shards if each.stage == stage}

    def next_due_ms(self, stage: int) -> int | None:
        """The watermark at which some shard of the stage wants an epoch; None: no shard does."""
        due = [shard.next_due_ms for shard in self.shards if shard.stage == stage]
        return min((at for at in due if at is not None), default=None)

    @property
    def next_due_clock_ms(self) -> int | None:
        """The clock at which some shard wants an epoch; None: no shard does."""
        due = [shard.next_due_clock_ms for shard in self.shards]
        return min((at for at in due if at is not None), default=None)


class Passed(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of an epoch between two restore points: enough to run it again as it was."""

    end: SourceOffset
    sinks: dict[str, SinkEpoch] = {}


def parts_ms(entry: EpochEntry) -> dict[str, float]:
    """Where an epoch's time went, ms; empty if it was not measured.

    `source` is reading, decoding and shuffling; `function` the whole chain, one function after the
    other, each as long as its slowest shard; `sinks` their commits.
    """
    if not entry.run_ms:
        return {}
    stages: dict[int, float] = {}
    for shard in entry.shards:
        stages[shard.stage] = max(stages.get(shard.stage, 0.0), shard.operator_ms)
    function = sum(stages.values())
    source = max(0.0, entry.run_ms - function)
    return {"source": source, "function": function, "sinks": sum(entry.sink_ms.values())}


def operator_ms(shards: Iterable[ShardEpoch], *shares: float) -> list[float]:
    """How long events were in the operator, ms: what so large a share of them did not exceed.

    All events of a shard's epoch are in it for as long as the epoch takes there. Without events: 0.
    """
    by_time = sorted((each.operator_ms, each.events) for each in shards if each.events)
    if not by_time:
        return [0.0] * len(shares)
    reached = list(accumulate(events for _, events in by_time))
    return [by_time[bisect_left(reached, share * reached[-1])][0] for share in shares]


class Ledger:
    """The epochs of one pipeline."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = checkpoint / FOLDER
        self._epochs = self.folder / "epochs"
        self._beginning = self.folder / "beginning.json"
        self.replayed = self.folder / "replayed"
        self._between = self.folder / "between"

    def write(self, entry: EpochEntry) -> None:
        """Keep an epoch durably; an entry of the same epoch is replaced."""
        write_whole(self._epochs / f"{entry.epoch}.json", msgspec.json.encode(entry))

    def read(self, epoch: int) -> EpochEntry | None:
        """One epoch's entry, None if there is none. Raises `LedgerDamaged`."""
        return read_json(self._epochs / f"{epoch}.json", EpochEntry)

    def epochs(self) -> list[int]:
        """The epochs there are entries for, in order."""
        return sorted(numbered(self._epochs, ".json"))

    def forget_before(self, epoch: int) -> None:
        """Drop entries, and recorded ends, of epochs that nothing will go back to."""
        for number in self.epochs():
            if number < epoch:
                (self._epochs / f"{number}.json").unlink(missing_ok=True)

    def begin(self, first: SourceOffset) -> SourceOffset:
        """Where the pipeline's first epoch starts: `first`, or what an earlier start has kept.

        Spark does not keep it; an epoch 0 that runs again must not start somewhere else.
        """
        kept = self.beginning()
        if kept is None:
            write_whole(self._beginning, msgspec.json.encode(first))
        return kept or first

    def begin_anew(self, first: SourceOffset) -> None:
        """Let the pipeline have begun there; for a checkpoint whose earlier epochs are gone."""
        write_whole(self._beginning, msgspec.json.encode(first))

    def beginning(self) -> SourceOffset | None:
        """What `begin` has kept, None before the first start."""
        return read_json(self._beginning, SourceOffset)

    def first(self) -> SourceOffset:
        """Where epoch 0 starts. Raises `LedgerDamaged`."""
        first = self.beginning()
        if first is None:
            raise LedgerDamaged(
                f"{self._beginning} is missing: where does epoch 0 start?",
                hint="Put a copy of the file back, or restore a savepoint.",
            )
        return first

    def base(self, epoch: int) -> "EpochEntry | None":
        """The entry that an epoch builds on, None for the first. Raises `LedgerDamaged`."""
        if epoch == 0:
            return None
        entry = self.read(epoch - 1)
        if entry is None:
            raise LedgerDamaged(
                f"The ledger {self.folder} has no entry of epoch {epoch - 1}, which Spark "
                "committed.",
                hint="Restore the checkpoint before it: catchwater recovery restore FILE "
                f"--checkpoint {epoch - 2}.",
            )
        return entry

    def start_of(self, epoch: int) -> SourceOffset:
        """Where an epoch that Spark has planned starts. Raises `LedgerDamaged`."""
        if epoch > 0:
            return read_offset(self.checkpoint / "offsets" / str(epoch - 1))
        return self.first()

    def recorded_end(self, epoch: int) -> SourceOffset | None:
        """Where this epoch ended when it ran before a restore went back behind it.

        Its file may be what the restore went back for: our own entry says the same, and so does
        that of the epoch after it. Raises `LedgerDamaged` where none of them can be read.
        """
        if max(self.recorded_epochs(), default=-1) < epoch:
            return None
        path = self.replayed / "offsets" / str(epoch)
        ways: tuple[Callable[[], SourceOffset], ...] = (
            lambda: read_offset(path),
            lambda: self._recorded(epoch).end,
            lambda: self._recorded(epoch + 1).start,
            lambda: self._passed(epoch).end,
        )
        for read in ways:
            with suppress(LedgerDamaged, FileNotFoundError):
                return read()
        raise LedgerDamaged(
            f"{path} is missing or damaged, and so are the ledger's entries in "
            f"{self.replayed / 'epochs'} that would say where epoch {epoch} ended.",
            hint="Put a copy of one of them back, or restore a savepoint.",
        )

    def recorded_sinks(self, epoch: int) -> dict[str, SinkEpoch]:
        """What the sinks made of this epoch when it ran before a restore went back behind it."""
        if max(self.recorded_epochs(), default=-1) < epoch:
            return {}
        ways: tuple[Callable[[int], EpochEntry | Passed], ...] = (self._recorded, self._passed)
        for read in ways:
            with suppress(LedgerDamaged, FileNotFoundError):
                return read(epoch).sinks
        return {}

    def _recorded(self, epoch: int) -> EpochEntry:
        path = self.replayed / "epochs" / f"{epoch}.json"
        entry = read_json(path, EpochEntry)
        if entry is None:
            raise FileNotFoundError(path)
        return entry

    def recorded_epochs(self) -> list[int]:
        """The epochs that ran before a restore went back behind them."""
        return sorted(numbered(self.replayed / "offsets"))

    # The epochs between two restore points.

    def pass_over(self, epochs: Sequence[Passed]) -> None:
        """Keep durably where these epochs ended, the oldest first, and what sinks made of them."""
        packed = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(epochs)))
        name = f"{epochs[0].end.epoch}-{epochs[-1].end.epoch}.epochs"
        write_whole(self._between / name, _MAGIC + crc32c(packed).to_bytes(4, "big") + packed)

    def passed_files(self) -> list[tuple[int, int, Path]]:
        """The first and the last epoch that each file of them names, and its path."""
        found = between(path.name for path in self._between.glob("*.epochs"))
        return [(a, b, self._between / f"{a}-{b}.epochs") for a, b in found]

    def recent(self, entries: Sequence[EpochEntry]) -> list[EpochEntry]:
        """Those of these entries, oldest first, behind which no epoch was passed over."""
        newest = entries[-1].epoch if entries else -1
        gone = max((last for _, last, _ in self.passed_files() if last < newest), default=-1)
        return [entry for entry in entries if entry.epoch > gone]

    def read_passed(self, path: Path) -> list[Passed]:
        """What `pass_over` has kept. Raises `LedgerDamaged`, `FileNotFoundError`."""
        data = path.read_bytes()
        try:
            if data[:4] != _MAGIC or crc32c(data[8:]) != int.from_bytes(data[4:8], "big"):
                raise ValueError("its checksum does not fit")
            plain = bytes(cramjam.zstd.decompress(data[8:]))
            return msgspec.msgpack.decode(plain, type=list[Passed])
        except (ValueError, cramjam.DecompressionError) as error:
            raise _damaged(path, error) from error

    def _passed(self, epoch: int) -> Passed:
        for first, last, path in self.passed_files():
            if first <= epoch <= last:
                for each in self.read_passed(path):
                    if each.end.epoch == epoch:
                        return each
        raise FileNotFoundError(self._between)


def between(names: Iterable[str]) -> list[tuple[int, int]]:
    """The first and the last epoch in the names of files in `between/`, in order."""
    found = (_BETWEEN.fullmatch(name) for name in names)
    return sorted((int(each[1]), int(each[2])) for each in found if each)


def read_offset(path: Path) -> SourceOffset:
    """Our source's offset in one file of Spark's offset log.

    Raises `LedgerDamaged`, and `FileNotFoundError` for one that Spark has purged.
    """
    try:
        version, planned, end = path.read_text().splitlines()
        if version != "v1":
            raise ValueError(f"its format is {version!r}, not 'v1'")
        msgspec.json.decode(planned, type=dict[str, Any])  # Spark's own, which it reads at a start
        return msgspec.json.decode(end, type=SourceOffset)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise LedgerDamaged(
            f"Spark's offset file {path} cannot be read: {error}.",
            hint="Restore an older checkpoint: catchwater recovery restore FILE --checkpoint N.",
        ) from error


def numbered(folder: Path, suffix: str = "") -> Iterator[int]:
    """The numbers that name files in the folder, such as 12 for `12.json`."""
    if folder.is_dir():
        for path in folder.iterdir():
            stem = path.name.removesuffix(suffix)
            if path.name.endswith(suffix) and stem.isascii() and stem.isdigit():
                yield int(stem)


def read_json(path: Path, kind: type[StructT]) -> StructT | None:
    """The struct a file holds, None if there is no file. Raises `LedgerDamaged`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def read_lines(path: Path, kind: type[StructT]) -> list[StructT]:
    """The structs in a file's lines, none if there is no file. Raises `LedgerDamaged`."""
    try:
        return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]
    except FileNotFoundError:
        return []
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> LedgerDamaged:
    return LedgerDamaged(
        f"{path} is damaged: {error}.", hint="Restore an older checkpoint, or a copy of the file."
    )


def write_whole(path: Path, data: bytes) -> None:
    """Give the file this content, atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names given, or taken away, in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the URL of a checkpoint ----------------------------------------------------------------------


class Url(msgspec.Struct, frozen=True):
    """`url.json`, beside the files that are published: which URL the folder is the scratch of.

    A checkpoint that is a folder has no such file.
    """

    url: str
    token: str = ""
    """Of the last claim that was made from here."""
    elsewhere: str = ""
    """Who held the lease when the folder was last brought up to date, if not a process here."""
    read_ms: int = 0
    """When that was; 0: never."""


class NotAtUrl(CatchwaterError):
    """What was asked for needs a checkpoint that is a folder."""

    exit_code = 2


def folder_of(url: str, cache: Path) -> Path:
    """The folder here of the checkpoint at this URL; there afterwards."""
    named = re.sub(r"[^A-Za-z0-9-]+", "-", url.partition("://")[2].partition("?")[0]).strip("-")
    folder = cache / "checkpoints" / f"{named}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    try:
        known = url_of(folder)
    except LedgerDamaged:
        known = None
    if known != url:
        keep_url(folder, Url(url))
    return folder


def url_of(folder: Path) -> str | None:
    """The URL that the folder is scratch of; None: it is a checkpoint itself."""
    kept = read_url(folder)
    return kept.url if kept else None


def shown(folder: Path) -> str:
    """The checkpoint as the pipeline's file names it, for people; raises nothing."""
    try:
        return url_of(folder) or str(folder)
    except (LedgerDamaged, OSError):
        return str(folder)


def refuse_url(folder: Path, what: str) -> None:
    """Raise `NotAtUrl` for what needs a second checkpoint beside this one."""
    if (url := url_of(folder)) is not None:
        raise NotAtUrl(
            f"{what} needs a checkpoint that is a folder, and this one is {url}.",
            hint="Take a savepoint and restore it by a file that names a folder: catchwater "
            "savepoint create FILE; savepoint restore FILE NAME.",
        )


def read_url(folder: Path) -> Url | None:
    """What the file says; None: there is none. Raises `LedgerDamaged`."""
    return read_json(_url_file(folder), Url)


def keep_url(folder: Path, at: Url) -> None:
    """Write the file."""
    write_whole(_url_file(folder), msgspec.json.encode(at))


def _url_file(folder: Path) -> Path:
    return folder / FOLDER / "url.json"
