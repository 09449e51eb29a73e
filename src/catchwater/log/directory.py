"""The data directory of a lone broker: its lock, its format and its files.

    catchwater.lock   locked while the broker runs, contains its process id
    format            the number of this layout
    catalog.db        the catalog
    reserve           space kept back for operations that free space
    wal/              the write-ahead log
    objects/          the local object store

The operating system releases the lock when the process ends. Opening checks the WAL after the frame
that the catalog has applied; `log.open` replays it.
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
from catchwater.objects.open import given_keys, open_store, sealed, seals_local
from catchwater.objects.retry import ONCE, RetryingStore
from catchwater.room import NO_SPACE, Reserve
from catchwater.wal.file import SEGMENT_BYTES, FileWal

FORMAT = 1


class DirectoryInUse(CatchwaterError):
    """Another process has locked the data directory."""


class DirectoryTooNew(CatchwaterError):
    """A newer release wrote the data directory."""


class DirectoryUnusable(CatchwaterError):
    """The data directory cannot be created, read or written."""


class DirectoryFull(DirectoryUnusable):
    """The data directory's disk has too little space to open it; nothing was lost."""


class DataDirectory:
    """A data directory locked by this process, with its stores open, until `close`."""

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
        """Create the directory if needed, lock it, and open its stores.

        With `objects_url` the objects are elsewhere: see `objects.open`. On a full disk opening
        uses up the reserve, if an earlier start has made one.

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
                        else RetryingStore(sealed(LocalStore(path / "objects", clock)), clock, ONCE)
                    )
                    self.wal = FileWal(
                        path,
                        clock,
                        applied=self.snapshot.applied_sequence,
                        segment_bytes=wal_segment_bytes,
                        reserve=self.reserve,
                        keys=given_keys(),
                        seals=seals_local(),
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
        """Close the stores, of which the catalog writes its last changes, and unlock the directory.

        Raises `CatalogDead`; everything is closed then too.
        """
        with ExitStack() as closing:
            closing.callback(os.close, self._lock)
            closing.callback(self.reserve.close)
            closing.callback(self.wal.close)
            closing.callback(self.catalog.close)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a data directory, created if needed, without opening it.

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
    """Turn errors of the system and the stores into errors that name the directory."""
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
    """Overwrite the last process id, which needs no space on a full disk."""
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
