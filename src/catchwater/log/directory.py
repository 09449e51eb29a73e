"""The data directory: its lock, its format, and what lies in it.

    catchwater.lock   locked for the life of the broker, holds its process id
    format            the number of this layout
    catalog.db        the catalog
    reserve           space that is kept back for what frees space
    wal/              the write-ahead log
    objects/          the local object store

The lock goes with the process, however that ends. Opening checks the WAL behind what the catalog
has applied; it is for the log to replay it.
"""

import fcntl
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from catchwater.catalog.errors import CatalogFull
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectStore, StoreFull
from catchwater.objects.local import LocalStore
from catchwater.objects.open import open_store
from catchwater.room import NO_SPACE, Reserve
from catchwater.wal.file import SEGMENT_BYTES, FileWal

FORMAT = 1


class DirectoryInUse(CatchwaterError):
    """Another process has the data directory."""


class DirectoryTooNew(CatchwaterError):
    """A newer release wrote the data directory."""


class DirectoryUnusable(CatchwaterError):
    """The data directory cannot be created, read or written."""


class DirectoryFull(DirectoryUnusable):
    """The data directory's disk has no space for what opening it takes; nothing was lost."""


class DataDirectory:
    """A data directory that this process holds, with its stores open, until `close`."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        catalog_lag_s: float = 1.0,
        wal_segment_bytes: int = SEGMENT_BYTES,
        objects_url: str = "",
        reserve_bytes: int = 0,
    ) -> None:
        """Create the directory if need be, lock it, and open what lies in it.

        With `objects_url` the objects lie elsewhere: see `objects.open`. On a full disk it is
        opened on the reserve, if an earlier start has made one.

        Raises `DirectoryInUse`, `DirectoryTooNew`, `DirectoryFull`, `DirectoryUnusable`,
        `CatalogTooNew`, `CatalogDead`, `WalTooNew`, `WalCorrupt`, `StoreError` or `ConfigError`;
        nothing stays open then.
        """
        with ExitStack() as undo:
            with _named(path):
                path.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(
                    path / "catchwater.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
                )
                undo.callback(os.close, self._lock)
                _take_lock(self._lock, path)
                self.reserve = Reserve(path / "reserve", reserve_bytes)
                undo.callback(self.reserve.close)

            def open_all() -> None:
                with _named(path), ExitStack() as undo_all:
                    _write_pid(self._lock)
                    _check_format(path)
                    self.catalog = SqliteCatalog(
                        path / "catalog.db",
                        new_cluster_id=lambda: new_cluster_id(clock),
                        lag_s=catalog_lag_s,
                        reserve=self.reserve,
                    )
                    undo_all.callback(self.catalog.close)
                    self.snapshot = self.catalog.load()
                    self.objects: ObjectStore = (
                        open_store(objects_url, clock)
                        if objects_url
                        else LocalStore(path / "objects", clock)
                    )
                    self.wal = FileWal(
                        path,
                        clock,
                        applied=self.snapshot.applied_sequence,
                        segment_bytes=wal_segment_bytes,
                        reserve=self.reserve,
                    )
                    undo_all.pop_all()

            try:
                open_all()
            except DirectoryFull:
                if not self.reserve.give_up():
                    raise
                open_all()
            undo.pop_all()
        with _named(path):
            self.reserve.refill()

    def close(self) -> None:
        """Close the stores (the catalog writes what is left) and let another process have them.

        Raises `CatalogDead`; all is closed then too.
        """
        with ExitStack() as closing:
            closing.callback(os.close, self._lock)
            closing.callback(self.reserve.close)
            closing.callback(self.wal.close)
            closing.callback(self.catalog.close)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a data directory, created if need be, without opening it.

    Raises `DirectoryInUse`, `DirectoryFull` or `DirectoryUnusable`.
    """
    with _named(path):
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / "catchwater.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take_lock(fd, path)
        _write_pid(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the directory in what the system, or what lies in it, raises."""
    full = f"The disk of the data directory {path} is full"
    hint = "Make room on it, then start again; nothing was lost."
    try:
        yield
    except (CatalogFull, StoreFull) as error:
        raise DirectoryFull(f"{full}: {error}", hint=hint) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DirectoryFull(f"{full}: {error.strerror}.", hint=hint) from error
        raise DirectoryUnusable(
            f"The data directory {path} cannot be used: {error.strerror}.",
            hint="Name a directory that this user may write to in log.dirs.",
        ) from error


def _take_lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        raise DirectoryInUse(
            f"The data directory {path} is in use by process {holder or 'unknown'}.",
            hint="Stop that broker, or give this one a data directory of its own.",
        ) from error


def _write_pid(fd: int) -> None:
    """Write it over the last one, which takes no space on a full disk."""
    os.pwrite(fd, b"%-19d\n" % os.getpid(), 0)


def _check_format(path: Path) -> None:
    file = path / "format"
    text = file.read_text(errors="replace").strip() if file.exists() else ""
    if not text:
        file.write_text(f"{FORMAT}\n")
    elif not text.isdecimal():
        raise DirectoryUnusable(
            f"{file} should hold the number of a data format, but it says {text[:40]!r}.",
            hint="Name another data directory, or restore this one from a copy.",
        )
    elif int(text) > FORMAT:
        raise DirectoryTooNew(
            f"The data directory {path} has format {text}; this release reads format {FORMAT}.",
            hint="Start the release that wrote it, or a newer one.",
        )


def new_cluster_id(clock: Clock) -> str:
    """A UUID as Kafka prints a cluster id: 22 characters."""
    return urlsafe_b64encode(clock.uuid().bytes).decode().rstrip("=")
