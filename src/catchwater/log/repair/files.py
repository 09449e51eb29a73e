"""Reads the bytes of a log without opening the log, for `fsck` and `rebuild`.

WAL files are in a directory, in the object store, or payloads in the catalog; all other bytes are
in the object store. This module writes, truncates and deletes nothing. All calls block.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from catchwater.log.storage import WAL
from catchwater.objects.base import ObjectMissing, ObjectStore, ObjectTruncated, Part, StoreError
from catchwater.objects.local import read_file_range
from catchwater.wal.base import Position
from catchwater.wal.directory import FILE_NAME
from catchwater.wal.file import scan

Payload = Callable[[str, int, int], bytes | None]


class LogFiles:
    """WAL files and objects by key."""

    def __init__(
        self, objects: ObjectStore, wal_root: Path | None, payload: Payload | None = None
    ) -> None:
        """`wal_root` is the directory that contains `wal/`; without one WAL files are objects.

        `payload` reads WAL files that are rows of the catalog.
        """
        self.objects = objects
        self._wal_root = wal_root
        self._payload = payload

    def size(self, key: str) -> int:
        """The object's size in bytes. Raises `ObjectMissing` or another `StoreError`."""
        path = self._path(key)
        if path is None:
            return self.objects.size(key)
        try:
            return path.stat().st_size
        except FileNotFoundError:
            raise ObjectMissing(f"There is no file {path}.") from None

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises `ObjectMissing`, `ObjectTruncated` or `StoreError`."""
        if self._payload is not None and key.startswith(WAL):
            data = self._payload(key, offset, size)
            if data is not None:
                if len(data) != size:
                    raise ObjectTruncated(f"{key} ends before byte {offset + size}.")
                return data
        path = self._path(key)
        if path is None:
            return self.objects.get_range(key, offset, size)
        try:
            return read_file_range(path, offset, size)
        except FileNotFoundError:
            raise ObjectMissing(f"There is no file {path}.") from None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}.") from error

    def url(self, key: str, part: Part | None = None) -> str:
        """The object's URL for other processes; not for rows of the catalog."""
        path = self._path(key)
        return self.objects.url(key, part) if path is None else path.absolute().as_uri()

    def read_all(self, key: str) -> bytes:
        """The whole object."""
        return self.read(key, 0, self.size(key))

    def wal_files(self) -> Iterator[str]:
        """The keys of all WAL files in the directory or the object store, in order."""
        if self._wal_root is None:
            yield from (info.key for info in self.objects.list(WAL))
            return
        root = self._wal_root
        for path in sorted((root / WAL).glob("**/*.wal")):
            key = path.relative_to(root).as_posix()
            if FILE_NAME.fullmatch(key):
                yield key

    def own_frames(self, after: int = 0) -> Iterator[tuple[Position, memoryview]]:
        """The undamaged frames above `after` in the WAL of a lone broker, in order."""
        names = (FILE_NAME.fullmatch(file) for file in self.wal_files())
        files = sorted((int(name[2]), name[0]) for name in names if name and not name[1])
        for index, (first, file) in enumerate(files):
            if index + 1 < len(files) and files[index + 1][0] <= after + 1:
                continue
            data = self.read_all(file)
            for frame in scan(file, data, first).frames:
                if frame.sequence > after:
                    position = Position(frame.sequence, file, frame.payload, frame.size)
                    yield position, memoryview(data)[frame.payload : frame.payload + frame.size]

    def _path(self, key: str) -> Path | None:
        if self._wal_root is None or not key.startswith(WAL):
            return None
        return self._wal_root / key
