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
from catchwater.recovery.checkpoint import Checkpoint, committed_epochs, last_commit
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.intact import check_files, newest_intact
from catchwater.recovery.ledger import Ledger, LedgerDamaged, SourceOffset

_log = logging.getLogger("catchwater.recovery")

DAMAGED = frozenset({"LedgerDamaged", "ShardDamaged"})
"""Kinds of failures after which a start looks for the newest whole checkpoint."""


class NothingWhole(CatchwaterError):
    """No checkpoint is whole and covered by the log."""

    exit_code = 5


def fall_back(folder: Path, tails: Mapping[tuple[str, int], PartitionTail]) -> Checkpoint:
    """Make the newest whole checkpoint the newest one. Raises `NothingWhole`; then nothing moved.

    Where the newest is whole after all, only broken older ones are moved aside.
    """
    newest = last_commit(folder)
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
    for epoch in committed_epochs(folder):
        if epoch < found.epoch and not _is_whole(folder, epoch):
            restore.set_aside(folder, epoch)
            _log.warning("Checkpoint %d is broken and can no longer be restored.", epoch)
    return found


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
        try:
            entry = Ledger(folder).read(epoch)
        except LedgerDamaged:
            continue
        if entry is not None:
            return f"{epochs}, {_records(found.end, entry.end)} records at least,"
    return epochs


def _records(start: SourceOffset, end: SourceOffset) -> int:
    return sum(
        offset - start.offsets.get(topic, {}).get(partition, 0)
        for topic, partitions in end.offsets.items()
        for partition, offset in partitions.items()
    )
