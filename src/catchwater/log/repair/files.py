"""Reads the bytes of a log without opening the log, for `fsck` and `rebuild`.

WAL files are in a directory, in the object store, or payloads in the catalog; all other bytes are
in the object store. What is sealed is opened with the keys of the environment. This module writes,
truncates and deletes nothing. All calls block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from catchwater.log.storage import WAL
from catchwater.objects.base import ObjectMissing, ObjectStore, ObjectTruncated, Part, StoreError
from catchwater.objects.local import read_file_range
from catchwater.objects.open import given_keys
from catchwater.objects.seal import SealBroken
from catchwater.wal.base import Position
from catchwater.wal.directory import FILE_NAME
from catchwater.wal.frames import Scan, scan
from catchwater.wal.sealed import SealedFiles
from catchwater.wal.sealed import payload as payload_of

Payload = Callable[[str, int, int], bytes | None]
Scanned = tuple[bytes, Scan, Iterator[tuple[Position, memoryview | None]]]


class LogFiles:
    """WAL files and objects by key."""

    def __init__(
        self, objects: ObjectStore, wal_root: Path | None, row: Payload | None = None
    ) -> None:
        """`wal_root` is the directory that contains `wal/`; without one WAL files are objects.

        `row` reads WAL files that are rows of the catalog.
        """
        self.objects = objects
        self._wal_root = wal_root
        self._row = row
        self._keys = given_keys()
        self._sealed = SealedFiles(wal_root or Path(), self._keys)

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
        if self._row is not None and key.startswith(WAL):
            data = self._row(key, offset, size)
            if data is not None:
                if len(data) != size:
                    raise ObjectTruncated(f"{key} ends before byte {offset + size}.")
                return data
        path = self._path(key)
        if path is None:
            return self.objects.get_range(key, offset, size)
        with _named(path):
            if key in self._sealed:
                return self._sealed.read(key, offset, size)
            return read_file_range(path, offset, size)

    def url(self, key: str, part: Part | None = None) -> str:
        """The object's URL for other processes; not for rows of the catalog."""
        path = self._path(key)
        if path is None:
            return self.objects.url(key, part)
        with _named(path):
            if part is not None and key in self._sealed:
                return self._sealed.url(key, part[0])
        return path.absolute().as_uri()

    def read_all(self, key: str) -> bytes:
        """The whole object; of a WAL file its bytes as they are."""
        path = self._path(key)
        if path is None:
            return self.read(key, 0, self.size(key))
        with _named(path):
            return path.read_bytes()

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
        for index, (_, file) in enumerate(files):
            if index + 1 < len(files) and files[index + 1][0] <= after + 1:
                continue
            for position, payload in self.frames(file):
                if position.sequence > after:
                    yield position, payload

    def frames(self, file: str) -> Iterator[tuple[Position, memoryview]]:
        """The undamaged frames of one WAL file, in order."""
        for position, payload in self.scanned(file)[2]:
            if payload is not None:
                yield position, payload

    def scanned(self, file: str) -> Scanned:
        """A WAL file's bytes, what frames are in them, and of each what it holds.

        That is None where a sealed frame is not what was written. Raises `KeysNeeded` and other
        `StoreError` where there are no keys that open the file.
        """
        match = FILE_NAME.fullmatch(file)
        assert match, f"{file} is the name of a WAL file"
        data = self.read_all(file)
        found = scan(file, data, int(match[2]))
        return data, found, self._payloads(file, data, found)

    def _payloads(
        self, file: str, data: bytes, found: Scan
    ) -> Iterator[tuple[Position, memoryview | None]]:
        for frame in found.frames:
            view = None
            with suppress(SealBroken):
                view = payload_of(found, file, data, frame, self._keys)
            yield Position(frame.sequence, file, frame.payload, frame.size), view

    def _path(self, key: str) -> Path | None:
        if self._wal_root is None or not key.startswith(WAL):
            return None
        return self._wal_root / key


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ObjectMissing(f"There is no file {path}.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
