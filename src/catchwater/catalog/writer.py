"""The one thread that writes to SQLite: chunks trail by a second, barriers are synced together.

Two things wait for the thread: the *trail*, what chunks have changed since the last transaction,
and *barriers*, changes whose callers wait. Every transaction takes the whole trail and all the
barriers there are, so a thousand waiting barriers cost one sync, and a barrier is never durable
without the chunks before it. A barrier that raises is rolled back to its savepoint alone, and its
future has what it raised.

On a full disk the transaction is tried once more on the reserve. Where that is gone too, or a file
cannot be opened for want of descriptors, the barriers fail and the trail is kept for the next try;
a locked database keeps both. Anything else is the end: what the file holds is then unknown, and
every later call says so.
"""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from catchwater.catalog.commit import write_changes
from catchwater.catalog.db import Db, SqliteDb
from catchwater.catalog.errors import CatalogDead, CatalogFull, CatalogRetriable, CatalogUnavailable
from catchwater.catalog.rows import (
    AbortedRow,
    Changes,
    EndedTxn,
    ObjectRow,
    OpenTxnRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
    TxnRow,
)
from catchwater.config import CatchwaterError
from catchwater.room import Reserve

T = TypeVar("T")

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


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
        self._partitions |= {row[:2]: row for row in changes.partitions}
        self._producers |= {row[:3]: row for row in changes.producers}
        self._objects |= {row.key: row for row in changes.objects}
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
        except Exception as error:  # noqa: BLE001 - a defect: callers still wait for an answer
            dead = self._die(error)
            for barrier in barriers:
                barrier.done.set_exception(dead)
            return
        # It is durable: queries see it, and those who wait may know.
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
        except Exception as refusal:  # noqa: BLE001 - it is the future's
            self._db.connection.execute("ROLLBACK TO barrier")
            self._db.connection.execute("RELEASE barrier")
            return None, refusal
        self._db.connection.execute("RELEASE barrier")
        return result, None

    def _failed(self, error: sqlite3.Error, barriers: list[_Barrier], *, last_try: bool) -> None:
        """The transaction came to nothing: say so, or keep its content for the next one."""
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
