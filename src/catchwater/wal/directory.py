"""The files of write-ahead logs in one directory, of all writers: read, found, removed.

    <root>/wal/<20 digits>.wal                                       of a broker alone
    <root>/wal/<broker id>-<session epoch>/<20 digits>.wal           of one among many

Writing is `wal.file`. Any number of threads and processes may use one directory.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.objects.base import ObjectInfo, ObjectTruncated, Part, StoreUnavailable
from catchwater.objects.local import read_file_into, read_file_range, sync_folder
from catchwater.objects.seal import SealBroken
from catchwater.room import NO_DESCRIPTORS
from catchwater.wal.base import WalReadError, WalUnavailable
from catchwater.wal.frames import SEALED_HEADER_BYTES
from catchwater.wal.sealed import SealedFiles

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys

FILE_NAME = re.compile(r"wal/(\d+-\d+/)?(\d{20})\.wal")
"""A file's name: the prefix of a broker among many, and the first sequence."""


class WalDirectory:
    """The files below `<root>/wal`; part of every WAL that keeps files."""

    def __init__(self, root: Path, keys: "Keys | None" = None) -> None:
        """`keys` open those that are sealed."""
        self._root = root
        self._sealed = SealedFiles(root, keys)

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a file; of a sealed one as they were before."""
        with self._named(file):
            if self._is_sealed(file, offset):
                return self._sealed.read(file, offset, size)
            return read_file_range(self._root / file, offset, size)

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with bytes of a file."""
        with self._named(file):
            if self._is_sealed(file, offset):
                self._sealed.read_into(file, offset, into)
            else:
                read_file_into(self._root / file, offset, into)

    def _is_sealed(self, file: str, offset: int) -> bool:
        return file in self._sealed and offset >= SEALED_HEADER_BYTES

    @contextmanager
    def _named(self, file: str) -> Iterator[None]:
        """Turn errors of reading the file into those of a WAL, with its path."""
        assert FILE_NAME.fullmatch(file), f"{file} is the name of a WAL file"
        try:
            yield
        except (ObjectTruncated, SealBroken) as error:
            raise WalReadError(str(error), hint=error.hint) from error
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise StoreUnavailable(
                    f"{self._root / file} cannot be read now: {error.strerror}.",
                    hint="Raise the limit of open files (ulimit -n); it may be tried again.",
                ) from error
            raise WalReadError(f"{self._root / file} cannot be read: {error.strerror}.") from error

    def url(self, file: str, part: Part | None = None) -> str:
        """A `file:` URL of the file; of a part of a sealed one, one for readers with the keys."""
        with suppress(OSError):
            if part is not None and file in self._sealed:
                return self._sealed.url(file, part[0])
        return (self._root / file).absolute().as_uri()

    def listing(self) -> Iterator[ObjectInfo]:
        """The files of all writers."""
        for path in (self._root / "wal").rglob("*.wal"):
            file = path.relative_to(self._root).as_posix()
            if FILE_NAME.fullmatch(file):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # removed since the directory was read
                yield ObjectInfo(file, status.st_size, status.st_mtime_ns // 1_000_000)

    def remove(self, file: str) -> None:
        """Delete a file, and the folder of its session when that is empty then."""
        assert FILE_NAME.fullmatch(file), f"{file} is the name of a WAL file"
        path = self._root / file
        self._sealed.forget(file)
        try:
            path.unlink(missing_ok=True)
            if path.parent.exists():
                sync_folder(path.parent)
        except OSError as error:
            raise WalUnavailable(f"{path} could not be removed: {error.strerror}.") from error
        if path.parent.name != "wal":
            with suppress(OSError):  # it holds other files, or is gone
                path.parent.rmdir()
