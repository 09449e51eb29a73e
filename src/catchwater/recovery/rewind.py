"""Going back within a checkpoint: to an epoch that is kept, to the newest whole, to a savepoint.

**To an epoch** (`rewind`, and `fall_back` where something is broken): what was written after it is
moved into `catchwater/replayed/`: Spark's offset and commit files, our ledger entries and
contracts. Nothing is deleted, and state is not touched: the entry of the epoch names its own. The
moved offset files are what the source issues again, so that the epochs after are the same epochs,
and sinks stay true. A checkpoint whose input the log no longer holds is refused with both offsets.

**To a savepoint** (`roll_back`): its state is brought back into the checkpoint, and what Spark and
the ledger have of later epochs is moved into `catchwater/withdrawn/`: another version writes them.

A marker stands from the first file that is moved to the last (`handover.Work`). Every step may be
repeated: the next process that takes the checkpoint ends a rewind, the same command a rollback.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectStore
from catchwater.objects.open import open_store
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.checkpoint import (
    Checkpoint,
    committed_epochs,
    find,
    last_commit,
    read_one,
)
from catchwater.recovery.contract import PartitionTail, check_covered
from catchwater.recovery.folder import home_of, lock
from catchwater.recovery.intact import check_files, newest_intact
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
    read_offset,
    sync_folder,
)
from catchwater.recovery.savepoint.create import Progress
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.restore import bring_state, write_epoch

_log = logging.getLogger("catchwater.recovery")

ASIDE = "withdrawn"
"""Where a rollback keeps what it has undone, in the ledger's folder, by generation."""


class NothingWhole(CatchwaterError):
    """No checkpoint is whole and covered by the log."""

    exit_code = 5


# Taking a checkpoint: what was cut short is ended first.


def make_ready(folder: Path, clock: Clock) -> None:
    """End what was cut short, before a start. The caller holds the lock.

    Raises `HandedOver`, `RestoreUnfinished` where no driver may start here.
    """
    handover.forget_dead_shadow(folder)
    finish(folder)
    respell(folder)
    if last_commit(folder) >= 0:
        checkpoint.name_query(folder, clock)


@contextmanager
def stopped(folder: Path, clock: Clock) -> Iterator[None]:
    """Hold a checkpoint that still leads, and stays so; the pipeline was asked to stop.

    The caller is `alone`, so a version that had asked to take over and did not is gone, and its
    fence would only let a later start hand over to it. Raises `CheckpointInUse`, `HandedOver`.
    """
    with lock(folder, clock):
        handover.forget(folder)  # refused if it has handed over when it was stopped
        finish(folder)
        yield


def finish(folder: Path) -> None:
    """Complete a rewind that was interrupted, if there is one. The caller holds the lock."""
    under_way = handover.rewind_under_way(folder)
    if under_way is None:
        return
    aside = Ledger(folder).replayed
    for path in _later(folder, under_way.epoch):
        _move(path, aside / path.parent.name)
    handover.end_rewind(folder)


def respell(folder: Path) -> None:
    """Let Spark see nothing new where there is nothing new. The caller holds the lock.

    Restores of earlier versions have spelled offsets otherwise than our source does. Where a query
    was started since, Spark has taken that for input, and has planned an epoch with nothing in it.
    """
    last, ahead = last_commit(folder), max(numbered(folder / "offsets"), default=-1)
    try:
        end = _end(folder, last)
        if ahead == last + 1 and _end(folder, ahead) == end:
            _set_aside(folder, ahead)
        checkpoint.respell_offset(folder, last)
    except (LedgerDamaged, FileNotFoundError):
        return  # what is damaged, or missing, the start will name


def _end(folder: Path, epoch: int) -> SourceOffset:
    return read_offset(folder / "offsets" / str(epoch))


# To an epoch.


def rewind(folder: Path, epoch: int, tails: Mapping[tuple[str, int], PartitionTail]) -> Checkpoint:
    """Make the checkpoint of this epoch the newest one. The pipeline must not be running.

    Raises `NoSuchCheckpoint`, `HistoryGone`, `LogBehind`, `CheckpointInUse`, and
    `RestoreUnfinished` within a rollback that was cut short; then nothing was moved.
    """
    found = find(folder, epoch)
    check_covered(found.end, tails)
    with lock(folder, wait_s=0):
        go_back(folder, epoch)
    return found


def go_back(folder: Path, epoch: int) -> None:
    """Move aside what came after the epoch. The caller holds the lock and has looked at it."""
    handover.begin_rewind(folder, epoch)
    finish(folder)


def fall_back(folder: Path, tails: Mapping[tuple[str, int], PartitionTail]) -> Checkpoint | None:
    """Make the newest whole checkpoint the newest one; None: no epoch was committed yet.

    Where the newest is whole after all, only broken older ones are moved aside, and a plan of the
    next epoch that cannot be read. Raises `NothingWhole`; then nothing moved.
    """
    newest = last_commit(folder)
    if newest < 0:
        _take_back_plan(folder, newest)
        return None
    found, problems = newest_intact(folder, tails)
    if found is None:
        raise NothingWhole(
            f"No checkpoint in {folder} is whole and covered by the log. {' '.join(problems)}",
            hint="Restore a savepoint (catchwater savepoint restore FILE NAME), or a copy of the "
            "files.",
        )
    for problem in problems:
        _log.warning("%s", problem)
    if found.epoch < newest:
        replayed = _replayed(folder, found, newest)
        go_back(folder, found.epoch)
        _log.warning(
            "Going on from checkpoint %d, not %d: %s again.", found.epoch, newest, replayed
        )
    else:
        _take_back_plan(folder, newest)
    for epoch in committed_epochs(folder):
        if epoch < found.epoch and not _is_whole(folder, epoch):
            _set_aside(folder, epoch)
            _log.warning("Checkpoint %d is broken and can no longer be restored.", epoch)
    return found


def _take_back_plan(folder: Path, last: int) -> None:
    """Move a planned epoch aside whose plan cannot be read.

    If its outputs are in the sinks its entry in the ledger has its end; it then ends there again.
    """
    ahead = max(numbered(folder / "offsets"), default=-1)
    if ahead <= last:
        return
    try:
        read_one(folder, ahead)
    except LedgerDamaged as damage:
        _log.warning("%s", damage)
        if _entry(folder, ahead) is not None:
            go_back(folder, last)
        else:
            _set_aside(folder, ahead)


def _entry(folder: Path, epoch: int) -> EpochEntry | None:
    """What the ledger says of an epoch, if it can be read."""
    try:
        return Ledger(folder).read(epoch)
    except LedgerDamaged:
        return None


def _is_whole(folder: Path, epoch: int) -> bool:
    try:
        check_files(folder, epoch)
    except LedgerDamaged:
        return False
    return True


def _replayed(folder: Path, found: Checkpoint, newest: int) -> str:
    """What runs again, as far as a file can still tell."""
    epochs = f"{newest - found.epoch} epochs run"
    for epoch in range(newest, found.epoch, -1):
        if (entry := _entry(folder, epoch)) is not None:
            return f"{epochs}, {_records(found.end, entry.end)} records at least,"
    return epochs


def _records(start: SourceOffset, end: SourceOffset) -> int:
    return sum(
        offset - start.offsets.get(topic, {}).get(partition, 0)
        for topic, partitions in end.offsets.items()
        for partition, offset in partitions.items()
    )


# To a savepoint.


def roll_back(
    folder: Path,
    store: ObjectStore,
    savepoint: Savepoint,
    work: handover.Restore,
    *,
    shards: int,
    withdraw: Callable[[], int],
    before_it_may_run: Callable[[int], None],
    clock: Clock,
    progress: Progress | None = None,
) -> int:
    """Go back to a savepoint of this very checkpoint; the generation that writes from now on.

    `withdraw` takes back from the sinks what they have of later epochs, and says what generation
    that made necessary; `before_it_may_run` is called with it when all is there and the marker
    still stands. The caller holds the lock, and `stopped` the checkpoint.
    """
    handover.begin_restore(folder, work)
    # State first: it is only added, and damage to the savepoint is found before a sink loses rows.
    entry = bring_state(store, savepoint, open_store(home_of(folder), clock), shards, progress)
    generation = withdraw()
    move_aside(folder, savepoint.epoch, generation)
    handover.lead(folder)
    write_epoch(folder, entry, clock)
    before_it_may_run(generation)
    handover.end_restore(folder)
    return generation


def move_aside(folder: Path, epoch: int, generation: int) -> None:
    """Take away what Spark and the ledger have of later epochs; those to replay, too."""
    aside = Ledger(folder).folder / ASIDE / str(generation)
    recorded = Ledger(folder).replayed / "offsets"
    again = [path for n in _after(recorded, epoch) for path in _with_checksum(recorded / str(n))]
    for path in (*_later(folder, epoch), *again):
        _move(path, aside / path.parent.relative_to(folder))


# Files.


def _set_aside(folder: Path, epoch: int) -> None:
    """Take a broken checkpoint's files out of Spark's logs and ours, into `catchwater/broken/`."""
    ours = Ledger(folder).folder
    logs = (folder / log / str(epoch) for log in ("commits", "offsets"))
    spark = (each for path in logs for each in _with_checksum(path))
    for path in (*spark, *(ours / name / f"{epoch}.json" for name in ("contracts", "epochs"))):
        if path.exists():
            _move(path, ours / "broken" / path.parent.name)


def _move(path: Path, into: Path) -> None:
    """Give the file another folder, durably."""
    into.mkdir(parents=True, exist_ok=True)
    path.replace(into / path.name)
    sync_folder(into)
    sync_folder(path.parent)


def _later(folder: Path, epoch: int) -> list[Path]:
    """The files of what came after the epoch; commits first, so that no commit lacks an entry."""
    logs = [folder / "commits", folder / "offsets"]
    spark = (_with_checksum(log / str(n)) for log in logs for n in _after(log, epoch))
    ours = [Ledger(folder).folder / name for name in ("contracts", "epochs")]
    return [*chain(*spark), *(at / f"{n}.json" for at in ours for n in _after(at, epoch, ".json"))]


def _after(folder: Path, epoch: int, suffix: str = "") -> list[int]:
    """The files' numbers beyond the epoch, newest first."""
    return sorted((n for n in numbered(folder, suffix) if n > epoch), reverse=True)


def _with_checksum(path: Path) -> Iterator[Path]:
    yield path
    beside = path.with_name(f".{path.name}.crc")
    if beside.exists():
        yield beside
