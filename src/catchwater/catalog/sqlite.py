"""The catalog of one broker, in SQLite; and that catalog looked at from outside.

One thread writes; queries run in their callers' threads on connections of their own, which a pool
keeps. SQLite runs in WAL mode with every transaction synced, and with checksums of its pages
(`sums.py`).

Two things wait for the thread: the *trail*, what chunks have changed since the last transaction,
and *barriers*, changes whose callers wait. Every transaction takes the whole trail and all the
barriers there are, so a thousand waiting barriers cost one sync, and a barrier is never durable
without the chunks before it. A barrier that raises is rolled back to its savepoint alone, and its
future has what it raised. Chunks alone are written within a second.

On a full disk the transaction is tried once more on the reserve. Where that is gone too, or a file
cannot be opened for want of descriptors, the barriers fail and the trail is kept for the next try;
a locked database keeps both. Anything else is the end: what the file holds is then unknown, and
every later call says so.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from catchwater.catalog.base import Catalog, EmbeddedCatalog
from catchwater.catalog.commit import write_changes
from catchwater.catalog.db import STATEMENTS, Db, Rows, migrations
from catchwater.catalog.errors import (
    CatalogDead,
    CatalogFull,
    CatalogRetriable,
    CatalogTooNew,
    CatalogUnavailable,
)
from catchwater.catalog.rows import (
    AbortedRow,
    Changes,
    EndedTxn,
    Notice,
    ObjectRow,
    OpenTxnRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
    Topic,
    TxnRow,
)
from catchwater.catalog.sums import PageSums
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.room import Reserve

T = TypeVar("T")

_LOCK_WAIT_S = 5.0
_ROWS_A_LOOK = 100
"""That many changed rows put at most a few hundred pages into `-wal`: see `CHECKPOINT_PAGES`."""
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_STATEMENTS = STATEMENTS["sqlite"]


def retriable(error: sqlite3.Error, path: str) -> CatalogRetriable | None:
    """The error of a failure that may pass and does not put in doubt what the file holds."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return CatalogFull(
            f"There is no space for the catalog {path}.",
            hint="Delete topics or records, or free space on this file system, and try again.",
        )
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        return CatalogUnavailable(
            f"A file of the catalog {path} cannot be opened now.",
            hint="Look at the limit of open files (ulimit -n), and whether this user may open it.",
        )
    return None


class SqliteDb:
    """A `Db` over one SQLite connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock = SYSTEM,
        notify: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        """Without `notify`, notices are dropped: an embedded catalog has no listeners."""
        self.connection = connection
        self._clock = clock
        self._notify = notify

    def query(self, statement: str, *parameters: object) -> Rows:
        return self.connection.execute(_STATEMENTS[statement], parameters).fetchall()

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        text = _STATEMENTS[statement]
        return [row for key in keys for row in self.connection.execute(text, tuple(key))]

    def batch(self, *queries: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        return [self.each(statement, keys) for statement, keys in queries]

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self.connection.executemany(_STATEMENTS[statement], rows)

    def add_runs(self, runs: Sequence[RunRow]) -> None:
        # `run_insert` looks up the object and the largest timestamp so far for every row, which
        # takes as long as all the rest; of runs that follow each other both are known here.
        ids: dict[str, int] = {}
        rows: list[tuple[object, ...]] = []
        before: RunRow | None = None
        reach = -1
        for run in runs:
            if run.object not in ids:
                [(ids[run.object],)] = self.query("object_id", run.object)
            if before is None or before[:2] != run[:2]:
                reach = -1
            if before is None or before[:2] != run[:2] or before.last_offset + 1 != run.base_offset:
                stored = self.query("run_reach_before", *run[:3])
                reach = max(reach, stored[0][0] if stored else -1)
            reach = max(reach, run.max_timestamp)
            rows.append((*run[:4], ids[run.object], *run[5:], reach))
            before = run
        self.many("run_append", rows)

    def in_one_trip(self) -> AbstractContextManager[object]:
        return nullcontext()  # there are no round trips to save

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def notify(self, notice: Notice) -> None:
        self._notify(notice)


# --- the thread that writes ----------------------------------------------------------------------


class Trail:
    """Changes of consecutive chunks, the newest row of each partition and producer only."""

    def __init__(self) -> None:
        self.sequence = 0
        self.runs: dict[PartitionKey, list[RunRow]] = {}
        self._partitions: dict[PartitionKey, PartitionRow] = {}
        self._producers: dict[tuple[bytes, int, int], ProducerRow] = {}
        self._objects: dict[str, ObjectRow] = {}
        self._txns: dict[str, TxnRow] = {}
        self._open_txns: dict[tuple[bytes, int, int], OpenTxnRow | None] = {}
        """None: closed, if it was open."""
        self.aborted: list[AbortedRow] = []
        self._ended: list[EndedTxn] = []

    def add(self, sequence: int, changes: Changes) -> None:
        """Take the changes of the next chunk."""
        by_transact = changes.epochs or changes.payloads or changes.txn_offsets
        assert not by_transact, "no chunk brings these"
        self.sequence = sequence
        for run in changes.runs:
            self.runs.setdefault(run[:2], []).append(run)
        for partition in changes.partitions:
            self._partitions[partition[:2]] = partition
        for producer in changes.producers:
            self._producers[producer[:3]] = producer
        for object_row in changes.objects:
            self._objects[object_row.key] = object_row
        if changes.txns or changes.closed_txns or changes.open_txns:
            self._add_txns(changes)

    def _add_txns(self, changes: Changes) -> None:
        self._txns |= {row.transactional_id: row for row in changes.txns}
        self._open_txns |= dict.fromkeys(changes.closed_txns)
        self._open_txns |= {row[:3]: row for row in changes.open_txns}
        self.aborted += changes.aborted
        self._ended += changes.ended

    def extend(self, newer: "Trail") -> None:
        """Take what another trail holds, whose chunks all came later."""
        self.sequence = max(self.sequence, newer.sequence)
        for key, runs in newer.runs.items():
            self.runs.setdefault(key, []).extend(runs)
        self._partitions |= newer._partitions
        self._producers |= newer._producers
        self._objects |= newer._objects
        self._txns |= newer._txns
        self._open_txns |= newer._open_txns
        self.aborted += newer.aborted
        self._ended += newer._ended

    def write(self, db: Db) -> None:
        """Write everything, inside the caller's transaction."""
        changes = Changes(
            runs=[run for of_partition in self.runs.values() for run in of_partition],
            partitions=list(self._partitions.values()),
            producers=list(self._producers.values()),
            objects=list(self._objects.values()),
            txns=list(self._txns.values()),
            open_txns=[row for row in self._open_txns.values() if row],
            closed_txns=[key for key, row in self._open_txns.items() if not row],
            aborted=self.aborted,
            ended=self._ended,
        )
        write_changes(changes, db)
        db.query("log_advance", self.sequence, self.sequence)


class _Barrier(NamedTuple):
    change: Callable[[Db], Any]
    done: "Future[Any]"


class Writer:
    """Owns the writing connection. `apply` and `commit` may be called from any thread."""

    def __init__(
        self,
        db: SqliteDb,
        path: str,
        lag_s: float,
        after_commit: Callable[[], None] = lambda: None,
        reserve: Reserve | None = None,
    ) -> None:
        """`after_commit` is called in the thread; what it raises (`OSError`) is the end."""
        self._db = db
        self._reserve = reserve or Reserve()
        self._after_commit = after_commit
        self._path = path
        self._lag_s = lag_s
        self._wake = threading.Condition()
        self._trail = Trail()
        self._barriers: list[_Barrier] = []
        # What the transaction under way holds; a query must look here too until it is committed.
        self._writing: Trail | None = None
        self._closing = False
        self._dead: CatalogDead | None = None
        self._thread = threading.Thread(target=self._run, name="catalog-writer", daemon=True)
        self._thread.start()

    def apply(self, sequence: int, changes: Changes) -> None:
        """Add a chunk to the trail. Raises `CatalogDead`."""
        with self._wake:
            if self._dead is not None:
                raise self._dead
            self._trail.add(sequence, changes)

    def commit(self, change: Callable[[Db], T]) -> "Future[T]":
        """Run `change` in a transaction of the thread; done when that is synced."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        with self._wake:
            assert not self._closing, "nothing is committed to a closed catalog"
            if self._dead is not None:
                done.set_exception(self._dead)
            else:
                self._barriers.append(_Barrier(change, done))
                self._wake.notify()
        return done

    def unwritten_runs(self, key: PartitionKey) -> list[RunRow]:
        """Runs that were applied and that a query may not see yet, in offset order."""
        with self._wake:
            older = self._writing.runs.get(key, []) if self._writing else []
            return older + self._trail.runs.get(key, [])

    def unwritten_aborted(self, key: PartitionKey) -> list[AbortedRow]:
        """Aborted transactions that were applied and that a query may not see yet."""
        with self._wake:
            older = self._writing.aborted if self._writing else []
            return [row for row in older + self._trail.aborted if row[:2] == key]

    def close(self) -> None:
        """Write what is left and stop. Raises `CatalogDead` if it could not be written."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        if self._dead is not None:
            raise self._dead

    # --- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._wake:
                self._wake.wait_for(lambda: self._barriers or self._closing, self._lag_s)
                closing = self._closing
            self._write(last_try=closing)

    def _write(self, *, last_try: bool) -> None:
        # Take what waits; from here on queries find the trail in `_writing`.
        with self._wake:
            barriers, self._barriers = self._barriers, []
            if self._trail.sequence:
                self._writing, self._trail = self._trail, Trail()
        if not barriers and self._writing is None:
            return
        # One transaction for all of it, synced when it is committed.
        try:
            outcomes = self._with_reserve(barriers)
        except sqlite3.Error as error:
            self._failed(error, barriers, last_try=last_try)
            return
        # Nothing watches the thread: what a defect raises goes to the callers who wait for this
        # transaction, and to every call from then on.
        except Exception as error:  # noqa: BLE001
            dead = self._die(error)
            for barrier in barriers:
                barrier.done.set_exception(dead)
            return
        # It is durable: queries see it, and the waiting callers are answered.
        with self._wake:
            self._writing = None
        for barrier, (result, refusal) in zip(barriers, outcomes, strict=True):
            if refusal is None:
                barrier.done.set_result(result)
            else:
                barrier.done.set_exception(refusal)
        try:
            self._after_commit()
        except OSError as error:
            self._die(error)

    def _with_reserve(self, barriers: list[_Barrier]) -> list[tuple[Any, Exception | None]]:
        try:
            return self._transaction(barriers)
        except sqlite3.Error as error:
            is_full = isinstance(retriable(error, self._path), CatalogFull)
            if not is_full or not self._reserve.give_up():
                raise
        with suppress(sqlite3.Error):
            self._db.connection.rollback()
        return self._transaction(barriers)

    def _transaction(self, barriers: list[_Barrier]) -> list[tuple[Any, Exception | None]]:
        self._db.connection.execute("BEGIN IMMEDIATE")
        if self._writing is not None:
            self._writing.write(self._db)
        outcomes = [self._barrier(barrier) for barrier in barriers]
        self._db.connection.execute("COMMIT")
        return outcomes

    def _barrier(self, barrier: _Barrier) -> tuple[Any, Exception | None]:
        self._db.connection.execute("SAVEPOINT barrier")
        try:
            result = barrier.change(self._db)
        except sqlite3.Error:
            raise  # the whole transaction's
        # As with an executor, an error of any class goes to the caller of this change; the others
        # in this transaction do not fail with it.
        except Exception as refusal:  # noqa: BLE001
            self._db.connection.execute("ROLLBACK TO barrier")
            self._db.connection.execute("RELEASE barrier")
            return None, refusal
        self._db.connection.execute("RELEASE barrier")
        return result, None

    def _failed(self, error: sqlite3.Error, barriers: list[_Barrier], *, last_try: bool) -> None:
        """Nothing was changed: fail the barriers, or keep all for the next transaction."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        with suppress(sqlite3.Error):
            self._db.connection.rollback()
        with self._wake:
            if self._writing is not None:
                self._writing.extend(self._trail)
                self._trail, self._writing = self._writing, None
        if code in _LOCKED and not last_try:
            with self._wake:
                self._barriers[:0] = barriers
            return
        failure: CatchwaterError | None = None if last_try else retriable(error, self._path)
        if failure is None:
            failure = self._die(error)
        for barrier in barriers:
            barrier.done.set_exception(failure)

    def _die(self, error: Exception) -> CatalogDead:
        dead = CatalogDead(
            f"The catalog {self._path} could not be written: {error}.",
            hint="Check the disk, then start the broker again: the catalog is brought up to date "
            "from the write-ahead log.",
        )
        with self._wake:
            self._dead = dead
            waiting, self._barriers = self._barriers, []
        for barrier in waiting:
            barrier.done.set_exception(dead)
        return dead


# --- the catalogs --------------------------------------------------------------------------------


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
        self._looked_at = db.total_changes
        """Rows changed when the size of `-wal` was last looked at."""
        self._writer = Writer(SqliteDb(db), str(path), lag_s, self._keep_sums_up, self._reserve)

    def apply(self, sequence: int, changes: Changes) -> None:
        self._writer.apply(sequence, changes)

    def _keep_sums_up(self) -> None:
        # Looking takes a dozen system calls: too much for a single offset that was committed.
        if self._db.total_changes - self._looked_at >= _ROWS_A_LOOK:
            self._looked_at = self._db.total_changes
            self._sums.keep_up(self._db)

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
