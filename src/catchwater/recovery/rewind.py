"""Going back within a checkpoint: to an epoch, to the newest whole, to a savepoint, to no state.

**To an epoch** (`rewind`, and `fall_back` where something is broken): what was written after it is
moved into `catchwater/replayed/`: Spark's offset and commit files, our ledger entries and
contracts. Nothing is deleted, and state is not touched: the entry of the epoch names its own. The
moved offset files are what the source issues again, so that the epochs after are the same epochs,
and sinks stay true. A checkpoint whose input the log no longer holds is refused with both offsets.

**To a savepoint** (`roll_back`): its state is brought back into the checkpoint, and what Spark and
the ledger have of later epochs is moved into `catchwater/withdrawn/`: another version writes them.

**To no state** (`begin_anew`): the newest epoch becomes one that read nothing; all else, and what
it was before, is moved into `catchwater/reset/`.

A marker stands from the first file that is moved to the last (`handover.Work`). Every step may be
repeated: the next process that takes the checkpoint ends a rewind (`handover.make_ready`), the same
command a rollback.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectStore
from catchwater.objects.open import open_store
from catchwater.recovery import handover
from catchwater.recovery.checkpoint import (
    Checkpoint,
    committed_epochs,
    files_after,
    find,
    last_commit,
    log_files_after,
    move,
    read_one,
    set_aside,
)
from catchwater.recovery.contract import PartitionTail, check_covered
from catchwater.recovery.folder import home_of, lock
from catchwater.recovery.intact import check_files, newest_intact
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
    shown,
)
from catchwater.recovery.points import cut_off
from catchwater.recovery.savepoint.create import Progress
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.restore import bring_state, write_epoch

_log = logging.getLogger("catchwater.recovery")

ASIDE = "withdrawn"
"""Where a rollback keeps what it has undone, in the ledger's folder, by generation."""
RESET = "reset"
"""Where a reset keeps what there was, in the ledger's folder, by epoch and attempt."""


class NothingWhole(CatchwaterError):
    """No checkpoint is whole and covered by the log."""

    exit_code = 5


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
    handover.finish_rewind(folder)


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
            f"No checkpoint in {shown(folder)} is whole and covered by the log. "
            f"{' '.join(problems)}",
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
            set_aside(folder, epoch)
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
            set_aside(folder, ahead)


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
    still stands. The caller holds the checkpoint (`handover.stopped`).
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
    for path in (*files_after(folder, epoch), *log_files_after(recorded, epoch)):
        move(path, aside / path.parent.relative_to(folder))
    cut_off(folder, epoch, aside / FOLDER)


# To no state.


def begin_anew(folder: Path, entry: EpochEntry, clock: Clock) -> None:
    """Make this the newest epoch's entry, with nothing before it and nothing recorded behind it.

    The caller holds the checkpoint (`handover.stopped`), and the marker stands. Again: no harm.
    """
    ledger = Ledger(folder)
    aside = ledger.folder / RESET / f"{entry.epoch}-{clock.token()[:8]}"
    newest = {folder / log / str(entry.epoch) for log in ("offsets", "commits")}
    newest.add(ledger.folder / "epochs" / f"{entry.epoch}.json")
    for path in files_after(folder, -1):
        if path in newest:  # its number has to be found if this is cut short
            (aside / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, aside / path.parent.name)
        else:
            move(path, aside / path.parent.name)
    for path in log_files_after(ledger.replayed / "offsets", -1):
        move(path, aside / ledger.replayed.name / path.parent.name)
    cut_off(folder, -1, aside)
    ledger.begin_anew(msgspec.structs.replace(entry.end, epoch=-1))
    handover.lead(folder)
    write_epoch(folder, entry, clock)
