"""A Spark checkpoint folder read from outside: which epochs it can go back to.

Spark writes `offsets/N` before it runs batch N and `commits/N` after; a batch with both is a
checkpoint one can restore. Where the state stood is in our ledger's entry of the same number. Reads
only, needs no Spark, and expects the local file layout.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from catchwater.recovery.ledger import LedgerDamaged, SourceOffset, numbered, read_offset


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One epoch that Spark committed: where its input ended, and when it began."""

    epoch: int
    end: SourceOffset
    planned_ms: int


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
    """The epochs that have both files, oldest first, whatever is in them."""
    return sorted({*numbered(folder / "offsets")} & {*numbered(folder / "commits")})


def read_one(folder: Path, epoch: int) -> Checkpoint | None:
    """The checkpoint of an epoch, None if it is not there (any more). Raises `LedgerDamaged`."""
    path = folder / "offsets" / str(epoch)
    try:
        end = read_offset(path)
        planned_ms = int(json.loads(path.read_text().splitlines()[1])["batchTimestampMs"])
    except FileNotFoundError:
        return None
    if end.epoch != epoch:
        raise LedgerDamaged(f"{path} says that it ends epoch {end.epoch}, not {epoch}.")
    return Checkpoint(epoch, end, planned_ms)
