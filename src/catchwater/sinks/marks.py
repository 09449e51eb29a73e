"""The writer of a target, its marks of epochs, and the rule of which epoch may be written next.

`admit` is the rule of `base.Sink.commit` for all sinks: it returns the mark of a repeated epoch,
and refuses a stale driver, other content and a gap. Tables read its input from their rows, a log
from the catalog's answer.

A target without tables of ours stores one small JSON document, `Marks`: an Iceberg table as a
property, Kafka as the newest record of a compacted topic, a folder of files as an object. It is
changed together with the data, or right after it.

Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.fenced import Claim
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    EpochDiffers,
    EpochMissing,
    Staged,
    Superseded,
    TargetTaken,
    epoch_checksum,
)

MOST_MARKS = 1000
"""Bound on the epochs in `Marks`, in case no `oldest` drops them earlier."""


class MarksDamaged(CatchwaterError):
    """A target's marks cannot be read."""

    exit_code = 5


class Owner(NamedTuple):
    """The one writer of a target: a sink of a pipeline, in one generation of it."""

    pipeline: str
    sink: str
    generation: int = 0
    """Raised by a rollback, which withdraws what older generations wrote after it."""
    claim: Claim | None = None
    """The fence of the driver that writes; None: its checkpoint is a folder, or it only reads."""

    def __str__(self) -> str:
        """As targets store it."""
        return f"{self.pipeline}/{self.sink}"

    @property
    def name(self) -> tuple[str, str]:
        """The part that is the same in all generations."""
        return self.pipeline, self.sink


class Mark(msgspec.Struct, frozen=True):
    """One epoch that a target has."""

    epoch: int
    generation: int
    records: int
    checksum: str
    offsets: dict[str, tuple[int, int]] = {}
    """Partition (as text) → (first, last) offset; only in logs."""

    @classmethod
    def of(cls, epoch: int, generation: int, pieces: Sequence[Staged]) -> "Mark":
        """The mark of an epoch with these pieces."""
        records = sum(piece.records for piece in pieces)
        return cls(epoch, generation, records, epoch_checksum(pieces))

    def sink_epoch(self, target: str) -> SinkEpoch:
        """The ledger's form of it."""
        return SinkEpoch(target, self.records, self.checksum, self.offsets)


class TargetEpochs(NamedTuple):
    """What `admit` must know of a target."""

    generation: int
    """The generation of its newest writer."""
    newest: int | None = None
    """The newest epoch with a mark; None if there is none."""
    mark: Mark | None = None
    """The mark of the epoch to be written, if it has one."""
    claim: Claim | None = None
    """The fence of the last driver that has opened it to write."""


def admit(owner: Owner, known: TargetEpochs, mark: Mark) -> Mark | None:
    """The mark that the epoch has already; None if it must be written now.

    Raises `Superseded`, `EpochDiffers`, `EpochMissing`.
    """
    refuse_superseded(owner, known.generation, known.claim)
    if known.mark is not None:
        if known.mark.checksum != mark.checksum:
            raise EpochDiffers(
                f"The sink {owner.sink!r} has epoch {mark.epoch} of {owner.pipeline!r} with "
                f"checksum {known.mark.checksum}; this run of the epoch gave {mark.checksum}.",
                hint="The function is not deterministic, or the checkpoint is not the one this "
                "sink was written from. Give the pipeline another name to write anew.",
            )
        return known.mark
    if known.newest is not None and mark.epoch != known.newest + 1:
        raise EpochMissing(
            f"The sink {owner.sink!r} has epochs of {owner.pipeline!r} up to {known.newest} and "
            f"no mark of {mark.epoch}: it would not follow.",
            hint="If the target was restored from an older copy: catchwater sink repair FILE. "
            "Otherwise start from the checkpoint this sink was written from.",
        )
    return None


def refuse_superseded(owner: Owner, generation: int, claim: Claim | None = None) -> None:
    """Raise `Superseded` if a newer generation, or a later driver, writes to the target."""
    if owner.claim is not None and owner.claim.is_before(claim):
        raise Superseded(
            f"The sink {owner.sink!r} of {owner.pipeline!r} was taken over by another driver "
            "of its checkpoint; nothing was written to it from here since.",
            hint="Nothing is to be done: the pipeline goes on there. This driver was silent for "
            "longer than its lease.",
        )
    if generation > owner.generation:
        raise Superseded(
            f"The sink {owner.sink!r} of {owner.pipeline!r} is written by generation {generation}; "
            f"this is generation {owner.generation}, which was rolled back.",
            hint="Stop this pipeline: another one runs in its place.",
        )


class Marks(msgspec.Struct, frozen=True):
    """All marks of a target; the epochs are consecutive and end with `newest`."""

    pipeline: str
    sink: str
    generation: int
    newest: int | None = None
    epochs: tuple[Mark, ...] = ()
    """Epochs to which a restore may go back, oldest first."""
    claim: Claim | None = None
    """The fence of the last driver that has written here, or is about to."""

    @classmethod
    def none(cls, owner: Owner) -> "Marks":
        """Those of a target in which nothing is yet."""
        return cls(owner.pipeline, owner.sink, owner.generation)

    def claimed(self, owner: Owner) -> "Marks":
        """The marks as this driver may change them. Raises `Superseded` if a later one may."""
        refuse_superseded(owner, owner.generation, self.claim)
        return self if owner.claim is None else msgspec.structs.replace(self, claim=owner.claim)

    @property
    def owner(self) -> Owner:
        """The writer of these marks."""
        return Owner(self.pipeline, self.sink, self.generation)

    def mark(self, epoch: int) -> Mark | None:
        """The mark of one epoch, or None."""
        return next((mark for mark in self.epochs if mark.epoch == epoch), None)

    def admit(self, mark: Mark) -> Mark | None:
        """See `admit`; the mark has the generation of the writer."""
        known = TargetEpochs(self.generation, self.newest, self.mark(mark.epoch))
        return admit(self.owner._replace(generation=mark.generation), known, mark)

    def owned_by(self, owner: Owner, target: str) -> None:
        """Raise `TargetTaken` if these marks are of another pipeline or sink."""
        if self.owner.name != owner.name:
            raise TargetTaken(
                f"{target} is written by the sink {self.sink!r} of the pipeline "
                f"{self.pipeline!r}; the sink {owner.sink!r} of {owner.pipeline!r} cannot write "
                "there, too.",
                hint="Give each sink a target of its own.",
            )

    def written(self, mark: Mark, oldest: int) -> "Marks":
        """The marks with this epoch as the newest, and without those before `oldest`."""
        kept = [each for each in (*self.epochs, mark) if each.epoch >= oldest]
        return msgspec.structs.replace(
            self,
            generation=max(self.generation, mark.generation),
            newest=mark.epoch,
            epochs=tuple(kept[-MOST_MARKS:]),
        )

    def withdrawn(self, after: int, generation: int) -> tuple["Marks", list[int]]:
        """The marks without epochs after this one by older generations, and those epochs."""
        refuse_superseded(self.owner._replace(generation=generation), self.generation)
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

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def decode_marks(data: bytes | str, where: str) -> Marks:
    """The inverse of `Marks.encode`. Raises `MarksDamaged`, which names the place."""
    try:
        return msgspec.json.decode(data, type=Marks)
    except msgspec.DecodeError as error:
        raise MarksDamaged(
            f"The marks of {where} cannot be read: {error}.",
            hint="Restore them from a copy, or give the sink a new target.",
        ) from error
