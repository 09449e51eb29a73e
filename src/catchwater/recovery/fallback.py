"""When something of a checkpoint is broken: name it, and go on from the newest one that is whole.

Only if the log still covers it: what came after is moved aside, not deleted, and is replayed with
the same epoch boundaries, so that sinks stay true; how much that is, is said. The caller holds the
checkpoint's lock.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from catchwater.config import CatchwaterError
from catchwater.recovery import restore
from catchwater.recovery.checkpoint import Checkpoint, committed_epochs, last_commit, read_one
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.intact import check_files, newest_intact
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
)

_log = logging.getLogger("catchwater.recovery")


class NothingWhole(CatchwaterError):
    """No checkpoint is whole and covered by the log."""

    exit_code = 5


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
        restore.go_back(folder, found.epoch)
        _log.warning(
            "Going on from checkpoint %d, not %d: %s again.", found.epoch, newest, replayed
        )
    else:
        _take_back_plan(folder, newest)
    for epoch in committed_epochs(folder):
        if epoch < found.epoch and not _is_whole(folder, epoch):
            restore.set_aside(folder, epoch)
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
            restore.go_back(folder, last)
        else:
            restore.set_aside(folder, ahead)


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
