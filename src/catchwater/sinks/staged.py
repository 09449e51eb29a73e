"""What shards put out, as objects beside the checkpoint: staged, then kept as the truth.

One object holds one shard's records of an epoch, `<folder>/<epoch>-<shard>-<token>.rows`: a header
(magic, CRC-32C, uncompressed size) and zstd-compressed msgpack. Every attempt draws its own token,
so a failed one is never read for another. Which pieces make up an epoch is said by its index,
`<folder>/<epoch>-index.json`, which is there before the epoch's commit has returned.

Sinks that cannot be staged in their own target commit from here; all are verified against it and
mended from it. Relies on the object store to write whole objects durably. Listing is used to find
what can be forgotten, and by commands that look at everything that is kept.
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
from catchwater.sinks.base import Expected, OutputRecord, RowId, Staged, checksum_of

_HEADER = struct.Struct(">4sII")
_MAGIC = b"CWR1"
_LEVEL = 1
_NAME = re.compile(r"(\d{20})-(index\.json|\d{5}-[0-9a-f]+\.rows)")


class PieceDamaged(CatchwaterError):
    """A staged object is missing, or its bytes are not those that were staged."""

    exit_code = 5


class _Index(msgspec.Struct, frozen=True):
    """The pieces of one epoch, in the order of their shards."""

    epoch: int
    pieces: list[Staged]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The task's half: one object per shard and epoch."""

    objects: str
    """The object store's URL, as `open_store` takes it."""
    folder: str
    """`staged/<sink>`."""

    def stage(
        self, epoch: int, shard: int, records: Sequence[OutputRecord], clock: Clock = SYSTEM
    ) -> Staged:
        """Put the records into one object; nothing is put where there are none."""
        if not records:
            return Staged(shard, "", 0, 0, 0)
        key = f"{self.folder}/{epoch:020d}-{shard:05d}-{clock.token()}.rows"
        size = store_at(self.objects).put(key, _encode(records))
        return Staged(shard, key, len(records), size, checksum_of(records))


class Archive:
    """All that is kept of one sink's epochs: the driver's half, and `base.Truth`."""

    def __init__(self, stager: StagedFile, *, keep_ms: int | None = None) -> None:
        self._stager = stager
        self._keep_ms = keep_ms
        self._ages: dict[int, int] | None = None
        """Epoch → when its newest object was written, ms; None until the first sweep listed it."""

    @property
    def store(self) -> ObjectStore:
        """Where the objects lie."""
        return store_at(self._stager.objects)

    @property
    def folder(self) -> str:
        """The prefix of all keys, without the slash at the end."""
        return self._stager.folder

    def stager(self) -> StagedFile:
        """What the tasks stage with."""
        return self._stager

    def record(self, epoch: int, pieces: Sequence[Staged], now_ms: int) -> None:
        """Say which pieces the epoch is made of, before it is committed."""
        index = _Index(epoch, [piece for piece in pieces if piece.records])
        self.store.put(self._index_key(epoch), [msgspec.json.encode(index)])
        if self._ages is not None:
            self._ages[epoch] = now_ms

    def pieces(self, epoch: int) -> list[Staged] | None:
        """The pieces of an epoch; None if it is not kept."""
        key = self._index_key(epoch)
        try:
            return msgspec.json.decode(self.store.get(key), type=_Index).pieces
        except ObjectMissing:
            return None
        except msgspec.DecodeError as error:
            raise PieceDamaged(f"{place(self.store, key)} is damaged: {error}.") from error

    def records(self, piece: Staged) -> list[OutputRecord]:
        """The records of a piece, in their order. Raises `PieceDamaged`."""
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
        """The epochs that are kept, in order; perhaps the newest was never committed."""
        return sorted(epoch for epoch, what, _ in self._listed() if what == "index.json")

    def rows(self, epoch: int) -> Iterator[Expected]:
        """The epoch's outputs, by shard and row. Raises `PieceDamaged`."""
        for piece in self.pieces(epoch) or ():
            for row, record in enumerate(self.records(piece)):
                yield Expected(RowId(epoch, piece.shard, row), record)

    def sweep(self, oldest: int, now_ms: int) -> bool:
        """Forget epochs before `oldest` that are older than `keep`; whether there were any."""
        if self._ages is None:
            self._ages = {}
            for epoch, _, modified_ms in self._listed():
                self._ages[epoch] = max(modified_ms, self._ages.get(epoch, 0))
        since_ms = now_ms - (self._keep_ms or 0)
        # A copy: the thread that commits adds to it meanwhile.
        ages = list(self._ages.items())
        stale = [epoch for epoch, at in ages if epoch < oldest and at <= since_ms]
        for epoch in stale:
            self._forget(epoch)
            del self._ages[epoch]
        return bool(stale)

    def withdraw(self, after: int) -> None:
        """Forget all epochs after this one; they were undone."""
        for epoch in {epoch for epoch, _, _ in self._listed() if epoch > after}:
            self._forget(epoch)
        self._ages = None

    def _forget(self, epoch: int) -> None:
        """The index first: a comparison meanwhile then sees a forgotten epoch, not a damaged one.

        Then the pieces, also of attempts that failed; after a crash the listing finds them again.
        """
        self.store.delete(self._index_key(epoch))
        for info in list(self.store.list(f"{self.folder}/{epoch:020d}-")):
            self.store.delete(info.key)

    def _listed(self) -> Iterator[tuple[int, str, int]]:
        """(epoch, the rest of the name, when it was written in ms) of every object."""
        for info in self.store.list(f"{self.folder}/"):
            match = _NAME.fullmatch(info.key.removeprefix(f"{self.folder}/"))
            if match:
                yield int(match[1]), match[2], info.modified_ms

    def _index_key(self, epoch: int) -> str:
        return f"{self.folder}/{epoch:020d}-index.json"


def staged_folder(*names: str) -> str:
    """Where outputs are staged in an object store: `staged/`, then a folder for each name.

    A name that may not stand in an object's key is replaced by a digest of it.
    """
    return "/".join(("staged", *map(_folder, names)))


def _folder(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@cache
def store_at(url: str) -> ObjectStore:
    """The store of a URL; one set of connections a process."""
    return open_store(url, SYSTEM)


def _encode(records: Iterable[OutputRecord]) -> list[bytes]:
    plain = msgspec.msgpack.encode(records)
    packed = bytes(cramjam.zstd.compress(plain, level=_LEVEL))
    return [_HEADER.pack(_MAGIC, crc32c(packed, len(plain)), len(plain)), packed]


def _decode(data: bytes) -> list[OutputRecord]:
    """The records; ValueError or one of its kind if the bytes are not what was written."""
    if len(data) < _HEADER.size:
        raise ValueError(f"it ends after {len(data)} bytes")
    magic, checksum, size = _HEADER.unpack_from(data)
    packed = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or crc32c(packed, size) != checksum:
        raise ValueError("its checksum does not fit")
    plain = bytes(cramjam.zstd.decompress(packed, output_len=size))
    return msgspec.msgpack.decode(plain, type=list[OutputRecord])
