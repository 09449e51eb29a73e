"""Objects as files below one directory.

An object is written to a file in `.incoming`, synced, and only then given its name by rename (or by
link, which fails if the name exists); the directories above it are synced too. Files that a killed
process leaves in `.incoming` are invisible, and deleted by an open a day later. Relies on POSIX
rename and link within one file system; does not cache (the page cache does).

The write-ahead log is often on the same disk, and an acknowledgement waits for its sync. So a large
object is synced piece by piece, with a pause after each: the sync of a whole segment holds all
others up until it is over.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    Part,
    StoreError,
    StoreFull,
    StoreUnavailable,
    check_key,
    check_range,
)
from catchwater.room import NO_DESCRIPTORS, NO_SPACE

_INCOMING = ".incoming"
_ABANDONED_MS = 24 * 3600 * 1000
_MAX_PARTS = 1024  # IOV_MAX on Linux
PIECE_BYTES = 1 << 20
"""How much of a file is written before it is synced."""
_LONGEST_PAUSE_S = 0.05


class LocalStore:
    """An object store in a directory, shared by all processes that can access it."""

    def __init__(self, root: Path, clock: Clock = SYSTEM) -> None:
        """Open the store, creating the directory. Raises `StoreError`."""
        self.root = root.absolute()
        self._incoming = self.root / _INCOMING
        with _named(self.root, "opened"):
            self._incoming.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned(clock.now_ms() - _ABANDONED_MS)

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        path = self._path(key)
        with _named(path, "written"), self._incoming_file(parts) as (temporary, size):
            make_folders(path.parent)
            os.replace(temporary, path)
            sync_folder(path.parent)
        return size

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        path = self._path(key)
        with _named(path, "written"), self._incoming_file(parts) as (temporary, size):
            make_folders(path.parent)
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise ObjectExists(f"There is an object {key} already, at {path}.") from None
            sync_folder(path.parent)
        return size

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _named(path, "read"):
            return path.read_bytes()

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        path = self._path(key)
        with _named(path, "read"):
            return read_file_range(path, offset, size)

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        path = self._path(key)
        with _named(path, "read"), path.open("rb") as file:
            file.seek(offset)
            return file.read(max_bytes)

    def size(self, key: str) -> int:
        path = self._path(key)
        with _named(path, "found"):
            return path.stat().st_size

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _named(path, "deleted"):
            path.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self.root / prefix.rpartition("/")[0]
        paths = {path.relative_to(self.root).as_posix(): path for path in self._files(folder)}
        for key, path in sorted(paths.items()):
            if key.startswith(prefix):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def url(self, key: str = "", part: Part | None = None) -> str:
        return (self._path(key) if key else self.root).as_uri()

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _files(self, directory: Path) -> Iterator[Path]:
        for parent, names, files in os.walk(directory):
            names[:] = [name for name in names if not name.startswith(".")]
            yield from (Path(parent, name) for name in files if not name.startswith("."))

    @contextmanager
    def _incoming_file(self, parts: Sequence[Buffer]) -> Iterator[tuple[str, int]]:
        """A synced file with these bytes, under a temporary name that is removed afterwards."""
        temporary = str(self._incoming / SYSTEM.token())
        # By open(2), not mkstemp(3): who may read an object is for the umask to say.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                size = _write_all(descriptor, parts)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary, size
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _remove_abandoned(self, modified_before_ms: int) -> None:
        for path in self._incoming.iterdir():
            try:
                if path.stat().st_mtime_ns // 1_000_000 < modified_before_ms:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process finished or removed it


def read_file_range(path: Path, offset: int, size: int) -> bytes:
    """Exactly `size` bytes of a file from `offset`. Raises `ObjectTruncated` and `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_range(str(path), offset, size, os.fstat(descriptor).st_size)
        data = os.pread(descriptor, size, offset)
        if len(data) == size:
            return data
        more = bytearray(size - len(data))  # one call reads at most 2 GiB
        fill(descriptor, str(path), offset + len(data), memoryview(more))
        return data + more
    finally:
        os.close(descriptor)


def read_file_into(path: Path, offset: int, into: memoryview) -> None:
    """Fill memory with the bytes of a file from `offset`. Raises as `read_file_range`.

    Fresh memory costs more than what is read into it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_range(str(path), offset, len(into), os.fstat(descriptor).st_size)
        fill(descriptor, str(path), offset, into)
    finally:
        os.close(descriptor)


def fill(descriptor: int, name: str, offset: int, into: memoryview) -> None:
    """Fill memory with the bytes of an open file from `offset`; `name` is for the error."""
    done = 0
    while done < len(into):
        read = os.preadv(descriptor, [into[done:]], offset + done)
        if not read:
            check_range(name, offset, len(into), offset + done)  # which it is not any more
        done += read


@contextmanager
def _named(path: Path, done: str) -> Iterator[None]:
    """Turn the system's errors into ours, with the file and the failed operation."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"There is no object at {path}.") from error
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise StoreUnavailable(
                f"{path} could not be {done} now: {error.strerror}.",
                hint="Raise the limit of open files (ulimit -n); it may be tried again.",
            ) from error
        if error.errno in NO_SPACE:
            raise StoreFull(
                f"{path} was not written: the file system is full.",
                hint="Free some space; nothing was left behind and the write may be repeated.",
            ) from error
        raise StoreError(f"{path} could not be {done}: {error.strerror or error}.") from error


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> int:
    """Write the parts in as few calls as the system allows; return their size."""
    views = (memoryview(part).cast("B") for part in parts)
    pending = [v[at : at + PIECE_BYTES] for v in views for at in range(0, len(v), PIECE_BYTES)]
    total = sum(map(len, pending))
    first, unsynced = 0, 0
    while first < len(pending):
        if unsynced >= PIECE_BYTES:
            sync_and_pause(descriptor)
            unsynced = 0
        ends = accumulate(map(len, pending[first : first + _MAX_PARTS]), initial=unsynced)
        count = sum(end <= PIECE_BYTES for end in ends) - 1
        written = os.writev(descriptor, pending[first : first + max(1, count)])
        unsynced += written
        while first < len(pending) and written >= len(pending[first]):
            written -= len(pending[first])
            first += 1
        if written:
            pending[first] = pending[first][written:]
    return total


def sync_and_pause(descriptor: int) -> None:
    """Sync what was written, then leave the disk to others for as long as that took."""
    began_s = SYSTEM.monotonic_s()
    os.fdatasync(descriptor)
    SYSTEM.pause(min(SYSTEM.monotonic_s() - began_s, _LONGEST_PAUSE_S))


def make_folders(folder: Path) -> None:
    """Create the folder and those above it, and make their names durable."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_folder(directory: Path) -> None:
    """Make the names in a folder durable: given, changed and taken away."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
