"""The one thread that writes to SQLite: chunks trail by a second, barriers are synced together.

Two things wait for the thread: the *trail*, what chunks have changed since the last transaction,
and *barriers*, changes somebody waits for. Every transaction takes the whole trail and all the
barriers there are, so a thousand waiting barriers cost one sync, and a barrier is never durable
without the chunks before it. A barrier that refuses (`CatchwaterError`) is rolled back to its
savepoint alone.

A full disk fails the barriers and keeps the trail for the next try; a locked database keeps both.
Anything else is the end: what the file holds is then unknown, and every later call says so.
"""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from catchwater.catalog.base import (
    CatalogDead,
    CatalogFull,
)
from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
)
from catchwater.catalog.statements import sql
from catchwater.config import CatchwaterError

T = TypeVar("T")

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Trail:
    """Changes of consecutive chunks, the newest row of each partition and producer only."""

    def __init__(self) -> None:
        self.sequence = 0
        self.runs: dict[PartitionKey, list[RunRow]] = {}
        self._partitions: dict[PartitionKey, PartitionRow] = {}
        self._producers: dict[tuple[bytes, int, int], ProducerRow] = {}
        self._objects: dict[str, ObjectRow] = {}

    def add(self, sequence: int, changes: Changes) -> None:
        """Take the changes of the next chunk."""
        self.sequence = sequence
        for run in changes.runs:
            self.runs.setdefault(run[:2], []).append(run)
        for partition in changes.partitions:
            self._partitions[partition[:2]] = partition
        for producer in changes.producers:
            self._producers[producer[:3]] = producer
        for row in changes.objects:
            self._objects[row.key] = row

    def extend(self, newer: "Trail") -> None:
        """Take what another trail holds, whose chunks all came later."""
        self.sequence = max(self.sequence, newer.sequence)
        for key, runs in newer.runs.items():
            self.runs.setdefault(key, []).extend(runs)
        self._partitions |= newer._partitions
        self._producers |= newer._producers
        self._objects |= newer._objects

    def write(self, db: sqlite3.Connection) -> None:
        """Write everything, inside the caller's transaction."""
        runs = [run for of_partition in self.runs.values() for run in of_partition]
        write_changes(
            db,
            Changes(
                runs,
                list(self._partitions.values()),
                list(self._producers.values()),
                list(self._objects.values()),
            ),
        )
        db.execute(sql("log_advance"), (self.sequence,))


def write_changes(db: sqlite3.Connection, changes: Changes) -> None:
    """Insert runs with their objects, and store rows of partitions and producers."""
    db.executemany(sql("object_upsert"), changes.objects)
    db.executemany(sql("run_insert"), changes.runs)
    db.executemany(sql("partition_upsert"), changes.partitions)
    db.executemany(
        sql("producer_upsert"),
        [
            (*row[:4], msgspec.json.encode(row.batches).decode(), row.last_ms)
            for row in changes.producers
        ],
    )


class _Barrier(NamedTuple):
    change: Callable[[sqlite3.Connection], Any]
    done: "Future[Any]"


class Writer:
    """Owns the writing connection. `apply` and `commit` may be called from any thread."""

    def __init__(self, db: sqlite3.Connection, path: str, lag_s: float) -> None:
        self._db = db
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

    def commit(self, change: Callable[[sqlite3.Connection], T]) -> "Future[T]":
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
        with self._wake:
            barriers, self._barriers = self._barriers, []
            if self._trail.sequence:
                self._writing, self._trail = self._trail, Trail()
        if not barriers and self._writing is None:
            return
        try:
            outcomes = self._transaction(barriers)
        except sqlite3.Error as error:
            self._failed(error, barriers, last_try=last_try)
            return
        with self._wake:
            self._writing = None
        for barrier, (result, refusal) in zip(barriers, outcomes, strict=True):
            if refusal is None:
                barrier.done.set_result(result)
            else:
                barrier.done.set_exception(refusal)

    def _transaction(self, barriers: list[_Barrier]) -> list[tuple[Any, CatchwaterError | None]]:
        self._db.execute("BEGIN IMMEDIATE")
        if self._writing is not None:
            self._writing.write(self._db)
        outcomes = [self._barrier(barrier) for barrier in barriers]
        self._db.execute("COMMIT")
        return outcomes

    def _barrier(self, barrier: _Barrier) -> tuple[Any, CatchwaterError | None]:
        self._db.execute("SAVEPOINT barrier")
        try:
            result = barrier.change(self._db)
        except CatchwaterError as refusal:
            self._db.execute("ROLLBACK TO barrier")
            self._db.execute("RELEASE barrier")
            return None, refusal
        self._db.execute("RELEASE barrier")
        return result, None

    def _failed(self, error: sqlite3.Error, barriers: list[_Barrier], *, last_try: bool) -> None:
        """The transaction came to nothing: say so, or keep its content for the next one."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        with suppress(sqlite3.Error):
            self._db.rollback()
        with self._wake:
            if self._writing is not None:
                self._writing.extend(self._trail)
                self._trail, self._writing = self._writing, None
        if code in _LOCKED and not last_try:
            with self._wake:
                self._barriers[:0] = barriers
            return
        failure: CatchwaterError
        if code == sqlite3.SQLITE_FULL and not last_try:
            failure = CatalogFull(
                f"There is no space for the catalog {self._path}.",
                hint="Free space on this file system and try again.",
            )
        else:
            failure = self._die(error)
        for barrier in barriers:
            barrier.done.set_exception(failure)

    def _die(self, error: sqlite3.Error) -> CatalogDead:
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
