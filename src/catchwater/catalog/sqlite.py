"""The catalog of one broker, in SQLite; and that catalog looked at from outside.

One thread writes (`writer.py`); queries run in their callers' threads on connections of their
own, which a pool keeps. SQLite runs in WAL mode with every transaction synced, and with checksums
of its pages (`sums.py`).
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from catchwater.catalog.base import Catalog, EmbeddedCatalog
from catchwater.catalog.db import STATEMENTS, Db, SqliteDb, migrations
from catchwater.catalog.errors import CatalogDead, CatalogFull, CatalogTooNew
from catchwater.catalog.rows import AbortedRow, Changes, PartitionKey, RunRow, Topic
from catchwater.catalog.sums import PageSums
from catchwater.catalog.writer import Writer, retriable
from catchwater.config import CatchwaterError
from catchwater.room import Reserve

T = TypeVar("T")

_LOCK_WAIT_S = 5.0


class SqliteCatalog(EmbeddedCatalog):
    """`catalog.db` of a data directory; to open it, hold the directory's lock."""

    def __init__(
        self,
        path: Path,
        *,
        new_cluster_id: Callable[[], str],
        lag_s: float = 1.0,
        reserve: Reserve | None = None,
    ) -> None:
        """Open or create. Raises `CatalogTooNew`, `CatalogDead` (damaged, unreadable),
        `CatalogFull` or `CatalogUnavailable`.
        """
        self._path = path
        self._reserve = reserve or Reserve()
        self._idle: deque[SqliteDb] = deque()
        self._sums = PageSums(path)
        with self._failing():
            db = self._connect()
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints are the sums' own
                _migrate(db, path, new_cluster_id)
                self._sums.begin(db)
            except (sqlite3.Error, OSError, CatchwaterError):
                db.close()
                self._sums.close()
                raise
        self._db = db
        self._writer = Writer(
            SqliteDb(db), str(path), lag_s, lambda: self._sums.keep_up(db), self._reserve
        )

    def apply(self, sequence: int, changes: Changes) -> None:
        self._writer.apply(sequence, changes)

    def create_topic(self, topic: Topic) -> Future[None]:
        """Also fails with `CatalogFull` while the reserve is not whole."""
        return self._without_reserve() or super().create_topic(topic)

    def add_partitions(self, topic_id: bytes, partitions: int) -> Future[None]:
        """Also fails with `CatalogFull` while the reserve is not whole."""
        return self._without_reserve() or super().add_partitions(topic_id, partitions)

    def _without_reserve(self) -> Future[None] | None:
        """The refusal of what only takes space, if what is left is kept for what frees some."""
        if self._reserve.refill():
            return None
        refused: Future[None] = Future()
        refused.set_exception(
            CatalogFull(
                f"There is no space for the catalog {self._path} but what is kept for deletions.",
                hint="Delete topics or records, or free space on this file system, and try again.",
            )
        )
        return refused

    def runs(
        self, key: PartitionKey, offset: int, *, max_bytes: int | None = None, limit: int = 1000
    ) -> list[RunRow]:
        # First what is not written yet: it can only become visible to the query in between.
        unwritten = self._writer.unwritten_runs(key)
        found = super().runs(key, offset, max_bytes=max_bytes, limit=limit)
        size_bytes = sum(run.byte_size for run in found)
        for run in unwritten:
            if len(found) == limit or (max_bytes is not None and size_bytes >= max_bytes):
                break
            if run.last_offset >= (found[-1].last_offset + 1 if found else offset):
                found.append(run)
                size_bytes += run.byte_size
        return found

    def run_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        unwritten = self._writer.unwritten_runs(key)
        found = super().run_for_timestamp(key, timestamp_ms)
        return found or next((run for run in unwritten if run.max_timestamp >= timestamp_ms), None)

    def aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedRow]:
        unwritten = self._writer.unwritten_aborted(key)
        found = super().aborted(key, start, end)
        newer = {row for row in unwritten if row.last_offset >= start and row.first_offset < end}
        return found + sorted(newer.difference(found), key=lambda row: row.last_offset)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            while self._idle:
                self._idle.pop().connection.close()
            with suppress(sqlite3.Error, OSError):  # the pages stay in `-wal` then
                self._sums.checkpoint(self._db)
            self._db.close()
            self._sums.close()

    def _commit(self, body: Callable[[Db], T]) -> Future[T]:
        return self._writer.commit(body)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
        # What a savepoint may have to undo would otherwise go to a file of its own, opened in the
        # middle of a transaction.
        db.execute("PRAGMA temp_store = MEMORY")
        return db

    def _query(self, body: Callable[[Db], T]) -> T:
        with self._failing():
            try:
                db = self._idle.pop()
            except IndexError:
                db = SqliteDb(self._connect())
            found = body(db)
            self._idle.append(db)
        return found

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if (passing := retriable(error, str(self._path))) is not None:
                raise passing from error
            raise CatalogDead(
                f"The catalog {self._path} cannot be read: {error}.",
                hint="Make it again with `catchwater log rebuild`, which leaves this file aside.",
            ) from error


class ReadOnlyCatalog(Catalog):
    """The catalog in one SQLite file, also while its broker is running: nothing is written.

    What the broker has applied and not yet written (a second at most) is not seen. Every change is
    refused, and so is a catalog of another schema version. For one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        """Raises `CatalogTooNew`, or `CatalogDead` for one that cannot be read."""
        self._path = path
        with self._failing():
            if not path.exists():
                raise sqlite3.OperationalError("there is no such file")
            uri = f"{path.absolute().as_uri()}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                [version] = self._db.execute("SELECT max(version) FROM schema_version").fetchone()
                if version != len(migrations()):
                    raise CatalogTooNew(
                        f"The catalog {path} has schema version {version}; this release reads "
                        f"version {len(migrations())}.",
                        hint="Use the release that wrote it; or start its broker with this one.",
                    )
            except (sqlite3.Error, CatalogTooNew):
                self._db.close()
                raise

    def _commit(self, body: Callable[[Db], T]) -> Future[T]:
        raise AssertionError("nothing is changed through a catalog opened for reading")

    def _query(self, body: Callable[[Db], T]) -> T:
        with self._failing():
            return body(SqliteDb(self._db))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._dead(error)
        except (ValueError, OverflowError) as error:  # what a flipped bit has made of a value
            self._dead(error)

    def _dead(self, error: Exception) -> NoReturn:
        raise CatalogDead(
            f"The catalog {self._path} cannot be read: {error}.",
            hint="Make it again with `catchwater log rebuild`.",
        ) from error

    def close(self) -> None:
        self._db.close()


def _migrate(db: sqlite3.Connection, path: Path, new_cluster_id: Callable[[], str]) -> None:
    """Bring a database of any older version, or an empty one, to the newest."""
    scripts = migrations()
    is_new = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    version = 0 if is_new else db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    if version > len(scripts):
        raise CatalogTooNew(
            f"The catalog {path} has schema version {version}; this release knows up to "
            f"{len(scripts)}.",
            hint="Start the release that wrote it, or a newer one.",
        )
    for script in scripts[version:]:
        # One transaction, so that a crash leaves the old version or the new one.
        insert = (
            STATEMENTS["sqlite"]["log_insert"].replace("?", f"'{new_cluster_id()}'")
            if is_new
            else ""
        )
        db.executescript(f"BEGIN IMMEDIATE;\n{script}\n{insert}\nCOMMIT;")
        is_new = False
