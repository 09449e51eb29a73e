"""The pipeline's own folder in a checkpoint: what it is, and what each epoch saw.

Everything lies under `<checkpoint>/catchwater/`: `pipeline.json` (identity), `epochs/N.json` (one
entry an epoch, written before Spark commits it), `contracts/N.json`, `beginning.json` (where epoch
0 starts), `restores.jsonl`, and `replayed/` (the epochs that a restore went back behind, to be
issued again with the same ends).

A file is written whole or not at all and is synced, with its folder, before the call returns.
Relies on the checkpoint being a local or shared directory. Imports no Spark: the source, the
query and the commands all read it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from catchwater.config import CatchwaterError

FOLDER = "catchwater"

OffsetMap = dict[str, dict[str, int]]
"""Topic → partition (as text, as in Spark's JSON) → next offset to read."""

StructT = TypeVar("StructT")


class LedgerDamaged(CatchwaterError):
    """A file of the ledger is not what we wrote."""


class SourceOffset(msgspec.Struct, frozen=True):
    """Where an epoch ends: what Spark's offset log holds of our source.

    Watermark and clock lie beside the offsets, so that a replay of the epoch sees the same times.
    """

    epoch: int
    """The epoch that ends here; -1 before the first."""
    offsets: OffsetMap
    watermark_ms: int
    clock_ms: int

    def to_json(self) -> dict[str, Any]:
        """As Spark wants it: plain dicts of plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

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


class ShardEpoch(msgspec.Struct, frozen=True):
    """What one shard did in an epoch: its manifest row, without what was staged."""

    label: int
    events: int = 0
    outputs: int = 0
    late: int = 0
    duplicates: int = 0
    timers: int = 0
    max_event_time_ms: int | None = None
    next_due_ms: int | None = None
    version: int = 0
    token: str = ""
    state_bytes: int = 0
    """Snapshot and deltas in Spark's state store: what a restore of the shard must read."""
    delta_bytes: int = 0
    rebuilt_bytes: int = 0
    """Read to rebuild the local store; 0 where it was as Spark's state says."""
    restore_s: float = 0.0


class EpochEntry(msgspec.Struct, frozen=True):
    """One epoch as it was run, or run again: everything but `finished_ms` is then the same."""

    epoch: int
    start: SourceOffset
    end: SourceOffset
    shards: list[ShardEpoch]
    sinks: dict[str, SinkEpoch]
    finished_ms: int

    def total(self, field: str) -> int:
        """The sum of a field over the shards."""
        return sum(getattr(shard, field) for shard in self.shards)

    @property
    def next_due_ms(self) -> int | None:
        """The watermark at which some shard wants a tick; None: no shard does."""
        due = [shard.next_due_ms for shard in self.shards if shard.next_due_ms is not None]
        return min(due, default=None)

    @property
    def max_event_time_ms(self) -> int | None:
        """The largest event time of this epoch; None if it had no event."""
        seen = [s.max_event_time_ms for s in self.shards if s.max_event_time_ms is not None]
        return max(seen, default=None)


class Ledger:
    """The epochs of one pipeline."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = checkpoint / FOLDER
        self._epochs = self.folder / "epochs"
        self._beginning = self.folder / "beginning.json"
        self.replayed = self.folder / "replayed"

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

    def beginning(self) -> SourceOffset | None:
        """What `begin` has kept, None before the first start."""
        return read_json(self._beginning, SourceOffset)

    def start_of(self, epoch: int) -> SourceOffset:
        """Where an epoch that Spark has planned starts. Raises `LedgerDamaged`."""
        if epoch > 0:
            return read_offset(self.checkpoint / "offsets" / str(epoch - 1))
        first = self.beginning()
        if first is None:
            raise LedgerDamaged(f"{self._beginning} is missing: where does epoch 0 start?")
        return first

    def recorded_end(self, epoch: int) -> SourceOffset | None:
        """Where this epoch ended when it ran before a restore went back behind it."""
        path = self.replayed / "offsets" / str(epoch)
        return read_offset(path) if path.exists() else None

    def recorded_epochs(self) -> list[int]:
        """The epochs that ran before a restore went back behind them."""
        return sorted(numbered(self.replayed / "offsets"))


def read_offset(path: Path) -> SourceOffset:
    """Our source's offset in one file of Spark's offset log.

    Raises `LedgerDamaged`, and `FileNotFoundError` for one that Spark has purged.
    """
    lines = path.read_text(errors="replace").splitlines()
    try:
        if lines[0] != "v1":
            raise ValueError(f"its format is {lines[0]!r}, not 'v1'")
        return msgspec.json.decode(lines[2], type=SourceOffset)
    except (ValueError, IndexError, msgspec.DecodeError) as error:
        raise LedgerDamaged(
            f"Spark's offset file {path} cannot be read: {error}.",
            hint="Restore an older checkpoint: catchwater recovery restore --checkpoint N.",
        ) from error


def numbered(folder: Path, suffix: str = "") -> Iterator[int]:
    """The numbers that name files in the folder, such as 12 for `12.json`."""
    if folder.is_dir():
        for path in folder.iterdir():
            stem = path.name.removesuffix(suffix)
            if path.name.endswith(suffix) and stem.isdigit():
                yield int(stem)


def read_json(path: Path, kind: type[StructT]) -> StructT | None:
    """The struct a file holds, None if there is no file. Raises `LedgerDamaged`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise LedgerDamaged(
            f"{path} is damaged: {error}.",
            hint="Restore an older checkpoint, or a copy of the file.",
        ) from error


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
