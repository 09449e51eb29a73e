"""Spark's files in a checkpoint folder: which epochs it can go back to, and moving them aside.

Spark writes `offsets/N` before it runs batch N and `commits/N` after; a batch with both is a
checkpoint that can be restored. The position of the state is in our ledger's entry of the same
number. Works without Spark, on the local file layout. A restore changes what Spark will read, so
these files are written here as well, as Spark spells them.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import (
    FOLDER,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
    read_json,
    read_offset,
    shown,
    sync_folder,
    write_whole,
)

_LONGEST_COMMIT_MS = 60_000
"""A commit so long after its epoch was written by a restore of an earlier release."""


class NoSuchCheckpoint(CatchwaterError):
    """The epoch asked for is not one that Spark committed and still has."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One epoch that Spark committed, and where its input ended."""

    epoch: int
    end: SourceOffset


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a checkpoint folder holds."""

    committed: list[Checkpoint]
    """Oldest first; each can be restored as long as the log still has its offsets."""
    planned: SourceOffset | None
    """The end of a batch that was planned and not committed: it runs again at the next start."""

    @property
    def last(self) -> Checkpoint | None:
        """The newest committed one."""
        return self.committed[-1] if self.committed else None

    def retained(self, count: int) -> list[Checkpoint]:
        """The newest so many."""
        return self.committed[-count:]


def read(folder: Path) -> Checkpoints:
    """Read the folder; one that does not exist yet has nothing. Raises `LedgerDamaged`.

    A batch whose offset file is damaged is an error; Spark itself would stop there as well.
    """
    both = (read_one(folder, epoch) for epoch in committed_epochs(folder))
    committed = [checkpoint for checkpoint in both if checkpoint]
    newest = max(numbered(folder / "offsets"), default=-1)
    planned = None if newest in numbered(folder / "commits") else read_one(folder, newest)
    end = planned.end if planned else None
    return Checkpoints(committed, end)


def last_commit(folder: Path) -> int:
    """The newest batch that Spark committed, -1 if none; one listing, for polling."""
    return max(numbered(folder / "commits"), default=-1)


def committed_epochs(folder: Path) -> list[int]:
    """The epochs one can go back to, oldest first; does not look into their files.

    Spark keeps its files of an epoch for longer than we do: without ours there is no state for it.
    """
    both = sorted({*numbered(folder / "offsets")} & {*numbered(folder / "commits")})
    oldest = min([oldest_kept(folder), *both[-1:]])
    return [epoch for epoch in both if epoch >= oldest]


def oldest_kept(folder: Path) -> int:
    """The oldest epoch that we have not forgotten; its contract goes before its entry does."""
    ours = [numbered(folder / FOLDER / each, ".json") for each in ("epochs", "contracts")]
    return min(chain(*ours), default=0)


def read_one(folder: Path, epoch: int) -> Checkpoint | None:
    """The checkpoint of an epoch, None if it is not there (any more). Raises `LedgerDamaged`."""
    path = folder / "offsets" / str(epoch)
    try:
        end = read_offset(path)
    except FileNotFoundError:
        return None
    if end.epoch != epoch:
        raise LedgerDamaged(f"{path} says that it ends epoch {end.epoch}, not {epoch}.")
    return Checkpoint(epoch, end)


class Query(msgspec.Struct, frozen=True):
    """Spark's `metadata`."""

    id: str


def read_query(folder: Path) -> Query | None:
    """The query whose checkpoint this is to Spark. Raises `LedgerDamaged`."""
    return read_json(folder / "metadata", Query)


def name_query(folder: Path, clock: Clock) -> None:
    """Give Spark an id for its query where it finds none that it can read; nothing rests on it."""
    try:
        known = read_query(folder)
    except LedgerDamaged:
        known = None
    if known is None:
        _write_log(folder / "metadata", [_compact({"id": str(clock.uuid())})])


def write_offset(folder: Path, end: SourceOffset) -> None:
    """Write where a batch ended, for Spark."""
    planned = {"batchWatermarkMs": 0, "batchTimestampMs": end.clock_ms, "conf": {}}
    _write_log(folder / "offsets" / str(end.epoch), ["v1", _compact(planned), end.to_text()])


def respell_offset(folder: Path, epoch: int) -> None:
    """Give an offset the text that our source has for it (`SourceOffset.to_text`)."""
    path = folder / "offsets" / str(epoch)
    lines = path.read_text().splitlines()
    respelled = [*lines[:2], json.dumps(json.loads(lines[2]))]
    if respelled != lines:
        _write_log(path, respelled)


def write_commit(folder: Path, epoch: int, finished_ms: int) -> None:
    """Write that a batch is done, for Spark; the file is as old as the batch (`commit_ms`)."""
    path = folder / "commits" / str(epoch)
    _write_log(path, ["v1", _compact({"nextBatchWatermarkMs": 0})])
    os.utime(path, ns=(finished_ms * 1_000_000, finished_ms * 1_000_000))


def commit_ms(folder: Path, epoch: int, finished_ms: int) -> float | None:
    """How long Spark took to commit a batch that had finished then; None: not measured.

    A commit that we wrote in Spark's place is no later than its batch (`write_commit`).
    """
    try:
        committed_ns = (folder / "commits" / str(epoch)).stat().st_mtime_ns
    except OSError:
        return None
    taken_ms = (committed_ns - finished_ms * 1_000_000) / 1e6
    return taken_ms if 0 < taken_ms < _LONGEST_COMMIT_MS else None


def _compact(said: Mapping[str, Any]) -> str:
    """As Spark spells JSON."""
    return json.dumps(said, separators=(",", ":"))


def _write_log(path: Path, lines: Sequence[str]) -> None:
    """A file of Spark's, such as a log's: its version, then a line of JSON each.

    Hadoop's checksum of what was there before goes.
    """
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_whole(path, "\n".join(lines).encode())


def find(folder: Path, epoch: int) -> Checkpoint:
    """The committed checkpoint of this epoch. Raises `NoSuchCheckpoint` naming those there are."""
    committed = committed_epochs(folder)
    found = read_one(folder, epoch) if epoch in committed else None
    if found is not None:
        return found
    there = ", ".join(map(str, committed)) or "none"
    raise NoSuchCheckpoint(f"{shown(folder)} has no checkpoint {epoch}; there are: {there}.")


def find_by_name(folder: Path, place: str) -> Checkpoint:
    """The committed checkpoint that is meant: `last`, `-2` (two before it), or an ISO time.

    A time stands for the newest that is not younger. Raises `NoSuchCheckpoint`.
    """
    committed = committed_epochs(folder)
    if not committed:
        raise NoSuchCheckpoint(f"{shown(folder)} has no checkpoint yet.")
    if place == "last":
        return find(folder, committed[-1])
    if re.fullmatch(r"-\d+", place):
        back = int(place[1:])
        if back < len(committed):
            return find(folder, committed[-1 - back])
        raise NoSuchCheckpoint(
            f"There is no checkpoint {back} before the newest: {len(committed)} are kept, "
            f"{committed[0]} to {committed[-1]}.",
            hint="[recovery] retain says what is kept; older state may be in a savepoint.",
        )
    try:
        at = datetime.fromisoformat(place)
    except ValueError:
        raise NoSuchCheckpoint(
            f"{place!r} names no checkpoint.",
            hint="Give last, -2 for two before it, or an ISO time with its zone. A savepoint is "
            f"restored by: catchwater savepoint restore FILE {place}.",
        ) from None
    if at.tzinfo is None:
        raise NoSuchCheckpoint(f"{place!r} names no time zone.", hint=f"Is it {at.isoformat()}Z?")
    kept = [each for epoch in committed if (each := read_one(folder, epoch))]
    older = [each for each in kept if each.end.clock_ms <= at.timestamp() * 1000]
    if not older:
        oldest = datetime.fromtimestamp(kept[0].end.clock_ms / 1000, UTC)
        raise NoSuchCheckpoint(
            f"No checkpoint is as old as {place}: the oldest, {kept[0].epoch}, is of "
            f"{oldest:%Y-%m-%dT%H:%M:%SZ}.",
            hint="[recovery] retain says what is kept; older state may be in a savepoint.",
        )
    return older[-1]


def settle(folder: Path) -> int:
    """Bring a stopped pipeline's checkpoint to rest; the last epoch that is done, -1 if none is.

    An epoch's entry in the ledger says that its outputs are in the sinks and names where its state
    stands; Spark's own commit follows. A pipeline that stopped between the two would run the epoch
    again, to the same end. Another version of its function would not: so the commit is made up
    here. The caller holds the lock.
    """
    last = last_commit(folder)
    entry = Ledger(folder).read(last + 1)
    planned = read(folder).planned
    if entry is None or planned is None or planned != entry.end:
        return last
    write_commit(folder, entry.epoch, entry.finished_ms)
    return entry.epoch


# The files of single epochs, moved aside. The caller holds the lock.


def respell(folder: Path) -> None:
    """Spell the last offset as our source does, so that Spark does not take it for new input.

    Restores of earlier versions spelled it differently. If a query was started since, Spark has
    planned an epoch with nothing in it, which is set aside.
    """
    last, ahead = last_commit(folder), max(numbered(folder / "offsets"), default=-1)
    try:
        end = _end(folder, last)
        if ahead == last + 1 and _end(folder, ahead) == end:
            set_aside(folder, ahead)
        respell_offset(folder, last)
    except (LedgerDamaged, FileNotFoundError):
        return  # the start names what is damaged or missing


def _end(folder: Path, epoch: int) -> SourceOffset:
    return read_offset(folder / "offsets" / str(epoch))


def set_aside(folder: Path, epoch: int) -> None:
    """Take a broken checkpoint's files out of Spark's logs and ours, into `catchwater/broken/`."""
    ours = Ledger(folder).folder
    logs = (folder / log / str(epoch) for log in ("commits", "offsets"))
    spark = (each for path in logs for each in _with_checksum(path))
    for path in (*spark, *(ours / name / f"{epoch}.json" for name in ("contracts", "epochs"))):
        if path.exists():
            move(path, ours / "broken" / path.parent.name)


def forget(folder: Path, epoch: int) -> None:
    """Delete an epoch's files, Spark's and ours; its commit first, so that nothing goes back to it.

    State is swept by itself.
    """
    logs = (folder / log / str(epoch) for log in ("commits", "offsets"))
    spark = (each for path in logs for each in _with_checksum(path))
    ours = (Ledger(folder).folder / name for name in ("contracts", "epochs"))
    for path in (*spark, *(each / f"{epoch}.json" for each in ours)):
        path.unlink(missing_ok=True)


def move(path: Path, into: Path) -> None:
    """Give the file another folder, durably."""
    into.mkdir(parents=True, exist_ok=True)
    path.replace(into / path.name)
    sync_folder(into)
    sync_folder(path.parent)


def files_after(folder: Path, epoch: int) -> list[Path]:
    """The files of what came after the epoch; commits first, so that no commit lacks an entry."""
    spark = (log_files_after(folder / log, epoch) for log in ("commits", "offsets"))
    ours = (Ledger(folder).folder / name for name in ("contracts", "epochs"))
    return [
        *chain(*spark),
        *(at / f"{n}.json" for at in ours for n in _numbers_after(at, epoch, ".json")),
    ]


def log_files_after(log: Path, epoch: int) -> list[Path]:
    """The files of one of Spark's logs beyond the epoch, newest first, with their checksums."""
    return [path for n in _numbers_after(log, epoch) for path in _with_checksum(log / str(n))]


def _numbers_after(folder: Path, epoch: int, suffix: str = "") -> list[int]:
    """The files' numbers beyond the epoch, newest first."""
    return sorted((n for n in numbered(folder, suffix) if n > epoch), reverse=True)


def _with_checksum(path: Path) -> Iterator[Path]:
    yield path
    beside = path.with_name(f".{path.name}.crc")
    if beside.exists():
        yield beside
