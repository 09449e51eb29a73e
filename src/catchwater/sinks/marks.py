"""What a target knows of its epochs, where it has no tables of ours to keep marks in.

One small document (`Marks`, JSON) says who writes to the target and which epochs it has. An Iceberg
table keeps it as a property, a Kafka as the newest record of a compacted topic, a folder of files
as an object; each changes it together with the data, or right behind it.

Pure. The rules of `base.Sink.commit` stand here once: `Marks.admit`.
"""

from collections.abc import Sequence

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    EpochMissing,
    Staged,
    Superseded,
    TargetTaken,
    epoch_checksum,
    refuse_other,
)

MOST_MARKS = 1000
"""So many epochs are remembered where nobody says which are no longer needed."""


class MarksDamaged(CatchwaterError):
    """What a target says of its epochs is not what we wrote."""

    exit_code = 5


class Mark(msgspec.Struct, frozen=True):
    """One epoch that a target has."""

    epoch: int
    generation: int
    records: int
    checksum: str
    offsets: dict[str, tuple[int, int]] = {}
    """Partition (as text) → (first, last) offset; only of a log."""

    @classmethod
    def of(cls, epoch: int, generation: int, pieces: Sequence[Staged]) -> "Mark":
        """The mark of an epoch that is made up of these pieces."""
        records = sum(piece.records for piece in pieces)
        return cls(epoch, generation, records, epoch_checksum(pieces))

    def sink_epoch(self, target: str) -> SinkEpoch:
        """What the ledger keeps of it."""
        return SinkEpoch(target, self.records, self.checksum, self.offsets)


class Marks(msgspec.Struct, frozen=True):
    """All that a target knows; the epochs are consecutive and end with `newest`."""

    pipeline: str
    sink: str
    generation: int
    newest: int | None = None
    epochs: tuple[Mark, ...] = ()
    """Of those that a restore may go back to, oldest first."""

    def mark(self, epoch: int) -> Mark | None:
        """What is known of one epoch."""
        return next((mark for mark in self.epochs if mark.epoch == epoch), None)

    def admit(self, mark: Mark) -> Mark | None:
        """The mark that the epoch has already; None if it is to be written now.

        Raises `EpochDiffers`, `EpochMissing`, `Superseded`.
        """
        if mark.generation < self.generation:
            raise self._superseded(mark.generation)
        found = self.mark(mark.epoch)
        if found is not None:
            had, gave = found.checksum, mark.checksum
            refuse_other(self.sink, self.pipeline, mark.epoch, had, gave)
            return found
        if self.newest is not None and mark.epoch != self.newest + 1:
            raise EpochMissing(
                f"The sink {self.sink!r} has epochs of {self.pipeline!r} up to {self.newest} and "
                f"no mark of {mark.epoch}: it would not follow.",
                hint="Start from the checkpoint that this sink was written from.",
            )
        return None

    def owned_by(self, other: "Marks", target: str) -> None:
        """Raise `TargetTaken` if these marks are of another pipeline or sink than the others."""
        if (self.pipeline, self.sink) != (other.pipeline, other.sink):
            raise TargetTaken(
                f"{target} is written by the sink {self.sink!r} of the pipeline "
                f"{self.pipeline!r}; the sink {other.sink!r} of {other.pipeline!r} cannot write "
                "there, too.",
                hint="Give each sink a target of its own.",
            )

    def written(self, mark: Mark, oldest: int) -> "Marks":
        """With this epoch as the newest, and without those before `oldest`."""
        kept = [each for each in (*self.epochs, mark) if each.epoch >= oldest]
        return msgspec.structs.replace(
            self,
            generation=max(self.generation, mark.generation),
            newest=mark.epoch,
            epochs=tuple(kept[-MOST_MARKS:]),
        )

    def withdrawn(self, after: int, generation: int) -> tuple["Marks", list[int]]:
        """Without the epochs after this one that older generations wrote, and which those are."""
        if generation < self.generation:
            raise self._superseded(generation)
        gone = [m.epoch for m in self.epochs if m.epoch > after and m.generation < generation]
        left = tuple(mark for mark in self.epochs if mark.epoch not in gone)
        newest = min(gone) - 1 if gone else self.newest
        changed = msgspec.structs.replace(
            self,
            generation=generation,
            newest=None if newest is not None and newest < 0 else newest,
            epochs=left,
        )
        return changed, gone

    def _superseded(self, generation: int) -> Superseded:
        return Superseded(
            f"The sink {self.sink!r} of {self.pipeline!r} is written by generation "
            f"{self.generation}; this one is {generation}, and was rolled back.",
            hint="Another process has taken over; let this one end.",
        )

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def decode_marks(data: bytes | str, where: str) -> Marks:
    """The way back from `Marks.encode`. Raises `MarksDamaged`, naming where they lie."""
    try:
        return msgspec.json.decode(data, type=Marks)
    except msgspec.DecodeError as error:
        raise MarksDamaged(
            f"The marks of {where} cannot be read: {error}.",
            hint="Restore them from a copy, or give the sink a new target.",
        ) from error
