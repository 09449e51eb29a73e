"""Where an export goes: a folder that appears whole, or a bucket where `_SUCCESS` comes last.

A folder is written beside the target, as `.NAME.TOKEN`, and gets its name by one rename. A bucket
has no such thing; there, as with Spark's own committers, the files are an export once `_SUCCESS`
is among them.

Any number of attempts may write a task's file, also late ones that nobody waits for: they write
the same rows under the same name, each atomically, so the last one changes nothing. Promises that
what was published is on disk, or in the store, whole.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.objects.open import open_store

SUCCESS = "_SUCCESS"
"""The file that says that all others are there, and what they hold."""

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class ExportRefused(CatchwaterError):
    """The target is no place for an export, or holds something."""

    exit_code = 2


class ExportGone(CatchwaterError):
    """Where the files are to be written is not there (any more)."""


class ExportUnwritable(CatchwaterError):
    """The file system refused a file."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that driver and tasks see; `token` tells one export from another."""

    target: Path
    token: str

    @property
    def url(self) -> str:
        return self.target.as_uri()

    @property
    def staging(self) -> Path:
        """The folder until it is published, on the same file system."""
        return self.target.with_name(f".{self.target.name}.{self.token}")

    def begin(self) -> None:
        """Make room; raises `ExportRefused` if the target is not free."""
        if self.target.exists() and (not self.target.is_dir() or any(self.target.iterdir())):
            raise _taken(self.url)
        with _named(self.staging):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.staging.mkdir()

    @contextmanager
    def file(self, name: str, clock: Clock = SYSTEM) -> Iterator[Path]:
        """Where to write a file, which is durable and there under its name afterwards."""
        path = self.staging / name
        unfinished = path.with_name(f".{name}.{clock.token()}")
        with _named(path):
            try:
                yield unfinished
                _sync(unfinished)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)

    def publish(self, manifest: bytes) -> None:
        """Let the folder appear; raises `ExportRefused` if its name was taken meanwhile."""
        with self.file(SUCCESS) as path:
            path.write_bytes(manifest)
        with _named(self.target):
            _sync(self.staging)
            try:
                self.staging.rename(self.target)
            except OSError as error:
                if error.errno in _TAKEN:
                    raise _taken(self.url) from error
                raise
            _sync(self.target.parent)
            # Of attempts that still wrote; under the old name they find nothing any more.
            for unfinished in self.target.glob(".part-*"):
                unfinished.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leave nothing behind, nor anything for attempts that still write to put a file into."""
        gone = self.staging.with_name(f"{self.staging.name}.gone")
        with suppress(FileNotFoundError):
            self.staging.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A prefix of an object store that driver and tasks have credentials for."""

    url: str
    token: str

    def begin(self) -> None:
        """Raises `ExportRefused` if there is anything, and `StoreError`."""
        if any(True for _ in open_store(self.url, SYSTEM, may_seal=False).list("")):
            raise _taken(self.url)

    @contextmanager
    def file(self, name: str, clock: Clock = SYSTEM) -> Iterator[Path]:
        """Where to write a file, which is stored under its name afterwards; raises `StoreError`."""
        with TemporaryDirectory(prefix="catchwater-export-") as folder:
            path = Path(folder, name)
            with _named(path):
                yield path
                file = path.open("rb")
            with file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                with memoryview(content) as view:
                    open_store(self.url, clock, may_seal=False).put(name, [view])

    def publish(self, manifest: bytes) -> None:
        """Say that all files are there."""
        open_store(self.url, SYSTEM, may_seal=False).put(SUCCESS, [manifest])

    def abandon(self) -> None:
        """Delete what has been stored; an attempt that still runs may store its file behind it."""
        store = open_store(self.url, SYSTEM, may_seal=False)
        for each in store.list("part-"):
            if self.token in each.key:
                store.delete(each.key)


Place = Folder | Bucket


def open_place(target: str, token: str) -> Place:
    """The place of a path, a `file://` or an `s3://` URL. Raises `ExportRefused`."""
    parts = urlsplit(target)
    if parts.scheme == "s3":
        return Bucket(target, token)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Folder(Path(unquote(parts.path)).resolve(), token)
    if "://" in target:
        raise ExportRefused(
            f"An export cannot be written to {target}.",
            hint="Give a folder, or s3://bucket/prefix?endpoint=http://host:port.",
        )
    return Folder(Path(target).resolve(), token)


def _taken(url: str) -> ExportRefused:
    return ExportRefused(
        f"{url} holds something already; an export is written to a place of its own.",
        hint="Give another folder, or delete this one.",
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise ExportGone(
            f"{path} cannot be written, for its folder is not there.",
            hint="Either its export has ended meanwhile, or this machine does not see the folder "
            "that the driver has made: give one that all executors see, or a bucket.",
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise ExportUnwritable(f"{path} could not be written: {reason}.") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
