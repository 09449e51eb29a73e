"""The outputs of shards as objects beside the checkpoint: staged, and kept as the truth.

One object has one shard's records of an epoch, `<folder>/<epoch>-<shard>-<token>.rows`: a header
(magic, CRC-32C, uncompressed size) and zstd-compressed msgpack. Every attempt has its own token, so
the object of a failed one is never read. The pieces of an epoch are listed in its index,
`<folder>/<epoch>-index.json`, which is written before the epoch's commit returns.

Sinks that cannot stage in their own target commit from these objects; all are verified against them
and repaired from them. Relies on the object store to write objects atomically and durably. Objects
are listed only to find expired ones, and by commands that show everything.
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.objects.open import open_store, place
from catchwater.sinks.base import OutputRecord, RowId, Staged, StagedRow, checksum_of

_HEADER = struct.Struct(">4sII")
_MAGIC = b"CWR1"
_LEVEL = 1
_NAME = re.compile(r"(\d{20})-(index\.json|\d{5}-[0-9a-f]+\.rows)")


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
