"""Bytes by object key, wherever they lie: WAL files in the WAL, all else in the object store.

The catalog's runs point into both alike. This is the one place that tells them apart, by the
beginning of the key.
"""

from collections.abc import Sequence
from typing import Protocol

from catchwater.catalog.rows import (
    Topic,
)
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import Chunk, ChunkError, decode
from catchwater.objects.base import BadKey, ObjectMissing, ObjectStore, ObjectTruncated
from catchwater.wal.base import Wal, WalReadError
from catchwater.wire.batch import NO_PRODUCER_ID

WAL = "wal/"
STAGED = "staged/"
PARQUET = "parquet/"
SEGMENTS = "segments/"

UNREADABLE = (ObjectMissing, ObjectTruncated, WalReadError)
"""What `Storage.read` raises where bytes that the catalog knows of are not there (any more)."""


class StagedDamaged(CatchwaterError):
    """A staged chunk is missing, damaged, or not meant for the topic; nothing was committed."""


class Readable(Protocol):
    """What of a log's bytes is needed to read and to plan."""

    @property
    def objects(self) -> ObjectStore:
        """Where all that is no WAL file lies."""
        ...

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises one of `UNREADABLE`, or `StoreError`."""
        ...

    def url(self, key: str) -> str:
        """Where a reader in another process finds the object."""
        ...


class Storage:
    """The WAL's files and the store's objects behind one `read`, `url` and `delete`."""

    def __init__(self, wal: Wal, objects: ObjectStore) -> None:
        self.wal = wal
        self.objects = objects

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises one of `UNREADABLE`, or `StoreError`."""
        if key.startswith(WAL):
            return self.wal.read(key, offset, size)
        return self.objects.get_range(key, offset, size)

    def url(self, key: str) -> str:
        """Where a reader in another process finds the object."""
        return self.wal.url(key) if key.startswith(WAL) else self.objects.url(key)

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
        if key.startswith(WAL):
            self.wal.remove(key)
        else:
            self.objects.delete(key)


def load_staged(objects: ObjectStore, topic: Topic, keys: Sequence[str]) -> dict[str, Chunk]:
    """The indexes of staged chunks meant for this topic, every byte of which was checked.

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
