"""Bringing a stopped pipeline's checkpoint to rest: an epoch that is complete counts as done.

An epoch's entry in the ledger says that its outputs are in the sinks and names where its state
stands; Spark's own commit follows. A pipeline that stopped between the two would run the epoch
again, to the same end. Another version of its function would not: so the commit is made up here.
"""

from pathlib import Path

from catchwater.recovery import checkpoint as checkpoints
from catchwater.recovery.ledger import Ledger


def settle(checkpoint: Path) -> int:
    """The last epoch that is done, -1 if none is. The caller holds the checkpoint's lock."""
    last = checkpoints.last_commit(checkpoint)
    entry = Ledger(checkpoint).read(last + 1)
    planned = checkpoints.read(checkpoint).planned
    if entry is None or planned is None or planned != entry.end:
        return last
    checkpoints.write_commit(checkpoint, entry.epoch, entry.finished_ms)
    return entry.epoch
