"""Reads bytes by object key: WAL files from the WAL, everything else from the object store.

The catalog's runs point into both. Only this module distinguishes them, by the key's prefix.
"""

from collections.abc import Sequence
from typing import Protocol

from catchwater.catalog.rows import (
    Topic,
)
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import Chunk, ChunkError, decode
from catchwater.objects.base import BadKey, ObjectMissing, ObjectStore, ObjectTruncated, Part
from catchwater.wal.base import Wal, WalReadError
from catchwater.wire.batch import NO_PRODUCER_ID

WAL = "wal/"
STAGED = "staged/"
PARQUET = "parquet/"
SEGMENTS = "segments/"

UNREADABLE = (ObjectMissing, ObjectTruncated, WalReadError)
"""What `Storage.read` raises if the bytes that a row names do not exist (any more)."""


class StagedDamaged(CatchwaterError):
    """A staged chunk is missing, damaged, or for another topic; nothing was committed."""


class Readable(Protocol):
    """The part of a storage that reading and planning need."""

    @property
    def objects(self) -> ObjectStore:
        """The store of all objects other than WAL files."""
        ...

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises one of `UNREADABLE`, or `StoreError`."""
        ...

    def url(self, key: str, part: Part | None = None) -> str:
        """The URL of the object, or of these bytes of it, for readers in other processes."""
        ...


class Storage:
    """The WAL's files and the store's objects behind one `read`, `url` and `delete`."""

    def __init__(self, wal: Wal, objects: ObjectStore) -> None:
        self.wal = wal
        self.objects = objects

    def read(self, key: str, offset: int, size: int) -> bytes:
        if key.startswith(WAL):
            return self.wal.read(key, offset, size)
        return self.objects.get_range(key, offset, size)

    def read_into(self, key: str, offset: int, into: memoryview) -> None:
        """Fill memory with these bytes, for those who use it again. Raises as `read`."""
        if key.startswith(WAL):
            self.wal.read_into(key, offset, into)
        else:
            into[:] = self.objects.get_range(key, offset, len(into))

    def url(self, key: str, part: Part | None = None) -> str:
        return self.wal.url(key, part) if key.startswith(WAL) else self.objects.url(key, part)

    def delete(self, key: str) -> None:
        """Delete the object; a missing one is no error."""
        if key.startswith(WAL):
            self.wal.remove(key)
        else:
            self.objects.delete(key)


def load_staged(objects: ObjectStore, topic: Topic, keys: Sequence[str]) -> dict[str, Chunk]:
    """The indexes of staged chunks for this topic, after checking every byte of them.

    Raises `StagedDamaged`.
    """
    chunks = {}
    for key in keys:
        if not key.startswith(STAGED) or key in chunks:
            raise StagedDamaged(f"{key} is named twice, or is no staged chunk.")
        try:
            chunk = decode(objects.get(key))
        except (ObjectMissing, BadKey, ChunkError) as error:
            raise StagedDamaged(f"The staged chunk {key} cannot be used: {error}") from error
        for entry in chunk.entries:
            if entry.topic_id != topic.id or not 0 <= entry.partition < topic.partitions:
                raise StagedDamaged(f"The staged chunk {key} is not meant for topic {topic.name}.")
            if entry.producer_id != NO_PRODUCER_ID:
                raise StagedDamaged(f"The staged chunk {key} has batches with a producer id.")
        chunks[key] = chunk
    return chunks
