"""A running pipeline seen from outside, by the files of its checkpoint alone."""

from collections.abc import Mapping
from pathlib import Path

from catchwater.recovery import checkpoint
from catchwater.recovery.contract import Contract
from catchwater.recovery.ledger import EpochEntry, Ledger, numbered, read_json


class Watch:
    """What the epochs of one pipeline have done so far, one input topic in mind.

    Remembers every epoch it has seen, because the ledger forgets those that nothing can go back
    to; so `look` must be called more often than epochs are forgotten.
    """

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder
        self._topic = topic
        self._ledger = Ledger(folder)
        self._seen: dict[int, EpochEntry] = {}
        self.committed = -1
        """The last epoch that Spark committed."""

    def look(self) -> None:
        """Read what is new. An epoch that runs again after a kill must be the same again."""
        self.committed = checkpoint.last_commit(self._folder)
        for epoch in self._ledger.epochs():
            if epoch <= self.committed and epoch not in self._seen:
                entry = self._ledger.read(epoch)
                if entry is not None:
                    self._seen[epoch] = entry

    @property
    def in_flight(self) -> bool:
        """Whether an epoch is planned and not yet committed."""
        return max(numbered(self._folder / "offsets"), default=-1) > self.committed

    def total(self, field: str) -> int:
        """The sum of a shard's count over all epochs that were committed."""
        return sum(entry.total(field) for entry in self._seen.values())

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Whether the input was consumed up to these offsets (partition to offset)."""
        if not self._seen:
            return False
        position = self._seen[max(self._seen)].end.offsets.get(self._topic, {})
        return all(position.get(str(partition), 0) >= end for partition, end in ends.items())

    def contract(self) -> Contract | None:
        """The contract of the last checkpoint that has one."""
        folder = self._ledger.folder / "contracts"
        newest = max(numbered(folder, ".json"), default=-1)
        return read_json(folder / f"{newest}.json", Contract)
