"""Bytes by object key, wherever they lie: WAL files in the WAL, all else in the object store.

The catalog's runs point into both alike. This is the one place that tells them apart, by the
beginning of the key.
"""

from catchwater.objects.base import ObjectMissing, ObjectStore, ObjectTruncated
from catchwater.wal.base import Wal, WalReadError

WAL = "wal/"
STAGED = "staged/"
SEGMENTS = "segments/"

UNREADABLE = (ObjectMissing, ObjectTruncated, WalReadError)
"""What `Storage.read` raises where bytes that the catalog knows of are not there (any more)."""


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
        if not key.startswith(WAL):
            self.objects.delete(key)
        elif key in {file.name for file in self.wal.files()}:
            self.wal.remove(key)
