"""What is kept of an epoch: its outputs beside the checkpoint, and its mark in the target.

**Outputs** are staged as objects, and stay the truth. One object has one shard's records of an
epoch, `<folder>/<epoch>-<shard>-<token>.rows`: a header (magic, CRC-32C, uncompressed size) and
zstd-compressed msgpack. Every attempt has its own token, so the object of a failed one is never
read. The pieces of an epoch are listed in its index, `<folder>/<epoch>-index.json`, which is
written before the epoch's commit returns.

Sinks that cannot stage in their own target commit from these objects; all are verified against them
and repaired from them. Relies on the object store to write objects atomically and durably. Objects
are listed only to find expired ones, and by commands that show everything.

**Marks.** `admit` is the rule of `base.Sink.commit` for all sinks: it returns the mark of a
repeated epoch, and refuses a stale driver, other content and a gap. Tables read its input from
their rows, a log from the catalog's answer. Pure.

A target without tables of ours stores one small JSON document, `Marks`: an Iceberg table as a
property, Kafka as the newest record of a compacted topic, a folder of files as an object. It is
changed together with the data, or right after it.
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.objects.open import open_store, place
from catchwater.recovery.fenced import Claim
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    EpochDiffers,
    EpochMissing,
    OutputRecord,
    RowId,
    Staged,
    StagedRow,
    Superseded,
    TargetTaken,
    checksum_of,
    epoch_checksum,
)

_HEADER = struct.Struct(">4sII")
_MAGIC = b"CWR1"
_LEVEL = 1
_NAME = re.compile(r"(\d{20})-(index\.json|\d{5}-[0-9a-f]+\.rows)")
MOST_MARKS = 1000
"""Bound on the epochs in `Marks`, in case no `oldest` drops them earlier."""


# --- outputs --------------------------------------------------------------------------------------


class PieceDamaged(CatchwaterError):
    """A staged object is missing or damaged."""

    exit_code = 5


class _Index(msgspec.Struct, frozen=True):
    """The pieces of one epoch, in the order of their shards."""

    epoch: int
    pieces: list[Staged]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The stager: one object per shard and epoch."""

    objects: str
    """The object store's URL, as `open_store` takes it."""
    folder: str
    """`staged/<sink>`."""

    def stage(
        self, epoch: int, shard: int, records: Sequence[OutputRecord], clock: Clock = SYSTEM
    ) -> Staged:
        """Write the records as one object; without records none is written."""
        if not records:
            return Staged(shard, "", 0, 0, 0)
        key = f"{self.folder}/{epoch:020d}-{shard:05d}-{clock.token()}.rows"
        size = store_at(self.objects).put(key, _encode(records))
        return Staged(shard, key, len(records), size, checksum_of(records))


class Archive:
    """The kept epochs of one sink: the driver's half, and its `base.Truth`."""

    def __init__(self, stager: StagedFile, *, keep_ms: int | None = None) -> None:
        self._stager = stager
        self._keep_ms = keep_ms
        self._ages: dict[int, int] | None = None
        """Epoch → when its newest object was written, ms; None until the first sweep lists them."""

    @property
    def store(self) -> ObjectStore:
        """The store of the objects."""
        return store_at(self._stager.objects)

    @property
    def folder(self) -> str:
        """The prefix of all keys, without the final slash."""
        return self._stager.folder

    def stager(self) -> StagedFile:
        """The stager for the tasks."""
        return self._stager

    def record(self, epoch: int, pieces: Sequence[Staged], now_ms: int) -> None:
        """Write the index of an epoch's pieces, before it is committed."""
        index = _Index(epoch, [piece for piece in pieces if piece.records])
        self.store.put(self._index_key(epoch), [msgspec.json.encode(index)])
        if self._ages is not None:
            self._ages[epoch] = now_ms

    def pieces(self, epoch: int) -> list[Staged] | None:
        key = self._index_key(epoch)
        try:
            return msgspec.json.decode(self.store.get(key), type=_Index).pieces
        except ObjectMissing:
            return None
        except msgspec.DecodeError as error:
            raise PieceDamaged(f"{place(self.store, key)} is damaged: {error}.") from error

    def records(self, piece: Staged) -> list[OutputRecord]:
        """The records of a piece, in order. Raises `PieceDamaged`."""
        if not piece.records:
            return []
        key = piece.kept or piece.location
        try:
            records = _decode(self.store.get(key))
            if (len(records), checksum_of(records)) != (piece.records, piece.checksum):
                raise ValueError("it holds other records than were staged")
        except (
            ObjectMissing,
            ValueError,
            msgspec.DecodeError,
            cramjam.DecompressionError,
        ) as error:
            raise PieceDamaged(
                f"What was staged at {place(self.store, key)} cannot be read: {error}.",
                hint="Start the pipeline again: an epoch that is not committed is staged anew.",
            ) from error
        return records

    def epochs(self) -> list[int]:
        return sorted(epoch for epoch, what, _ in self._listed() if what == "index.json")

    def rows(self, epoch: int) -> Iterator[StagedRow]:
        """The epoch's outputs, by shard and row. Raises `PieceDamaged`."""
        for piece in self.pieces(epoch) or ():
            for row, record in enumerate(self.records(piece)):
                yield StagedRow(RowId(epoch, piece.shard, row), record)

    def sweep(self, oldest: int, now_ms: int) -> bool:
        """Delete epochs before `oldest` that are older than `keep`; whether there were any."""
        if self._ages is None:
            self._ages = {}
            for epoch, _, modified_ms in self._listed():
                self._ages[epoch] = max(modified_ms, self._ages.get(epoch, 0))
        since_ms = now_ms - (self._keep_ms or 0)
        # A copy, because the committing thread adds to it meanwhile.
        ages = list(self._ages.items())
        stale = [epoch for epoch, at in ages if epoch < oldest and at <= since_ms]
        for epoch in stale:
            self._forget(epoch)
            del self._ages[epoch]
        return bool(stale)

    def whole_from(self, newest: int) -> int:
        """The first of the epochs up to this one of which none is missing; behind it, if it is."""
        kept, first = {*self.epochs()}, newest + 1
        while first - 1 in kept:
            first -= 1
        return first

    def oldest(self, otherwise: int) -> int:
        """The oldest epoch that is kept, as far as sweeping has seen."""
        return min(self._ages or (), default=otherwise)

    def withdraw(self, after: int) -> None:
        for epoch in {epoch for epoch, _, _ in self._listed() if epoch > after}:
            self._forget(epoch)
        self._ages = None

    def _forget(self, epoch: int) -> None:
        """Delete an epoch's index, then its pieces, including those of failed attempts.

        In this order a comparison meanwhile sees no epoch instead of a damaged one; after a crash
        the listing finds the rest.
        """
        self.store.delete(self._index_key(epoch))
        for info in list(self.store.list(f"{self.folder}/{epoch:020d}-")):
            self.store.delete(info.key)

    def _listed(self) -> Iterator[tuple[int, str, int]]:
        """(epoch, rest of the name, time written in ms) of every object."""
        for info in self.store.list(f"{self.folder}/"):
            match = _NAME.fullmatch(info.key.removeprefix(f"{self.folder}/"))
            if match:
                yield int(match[1]), match[2], info.modified_ms

    def _index_key(self, epoch: int) -> str:
        return f"{self.folder}/{epoch:020d}-index.json"


def staged_folder(*names: str) -> str:
    """The folder of staged outputs in an object store: `staged/`, then a folder for each name.

    A name that is not allowed in an object's key is replaced by its digest.
    """
    return "/".join(("staged", *map(_folder, names)))


def _folder(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@cache
def store_at(url: str) -> ObjectStore:
    """The store of a URL, cached: one set of connections for each process."""
    return open_store(url, SYSTEM)


def _encode(records: Iterable[OutputRecord]) -> list[bytes]:
    plain = msgspec.msgpack.encode(records)
    packed = bytes(cramjam.zstd.compress(plain, level=_LEVEL))
    return [_HEADER.pack(_MAGIC, crc32c(packed, len(plain)), len(plain)), packed]


def _decode(data: bytes) -> list[OutputRecord]:
    """The records. Raises `ValueError` or a subclass if the bytes are damaged."""
    if len(data) < _HEADER.size:
        raise ValueError(f"it ends after {len(data)} bytes")
    magic, checksum, size = _HEADER.unpack_from(data)
    packed = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or crc32c(packed, size) != checksum:
        raise ValueError("its checksum does not fit")
    plain = bytes(cramjam.zstd.decompress(packed, output_len=size))
    return msgspec.msgpack.decode(plain, type=list[OutputRecord])


# --- marks ----------------------------------------------------------------------------------------


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
        """The marks of a target that is still empty."""
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
        newest, own = self.newest, any(mark.epoch > after for mark in left)
        # Epochs whose marks were dropped are not among those that are gone, and go all the same.
        if (
            newest is not None
            and newest > after
            and not own
            and (gone or generation > self.generation)
        ):
            newest = after if after >= 0 else None
        changed = msgspec.structs.replace(
            self, generation=generation, newest=newest, epochs=left
        )  # fmt: skip
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
