"""A shared catalog in memory, for simulations and tests: SQLite called where it stands.

No thread and no file: every future is done when it is returned. Brokers of one simulation each
open a `MemoryCatalog` over the same `MemoryDatabase`, which passes on notices of each other's
changes as PostgreSQL does. A crash is to drop the catalog without `close`.
"""

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import RLock
from typing import TypeVar

from catchwater.catalog.db import STATEMENTS, Db, migrations
from catchwater.catalog.rows import Notice
from catchwater.catalog.shared import SharedCatalog
from catchwater.catalog.sqlite import SqliteDb
from catchwater.clock import Clock
from catchwater.config import CatchwaterError

T = TypeVar("T")

Notify = Callable[[Notice], None]


class MemoryDatabase:
    """What PostgreSQL is to real brokers: it outlives them. `clock` keeps the deadlines."""

    def __init__(self, clock: Clock, schedule: Callable[[Callable[[], None]], object]) -> None:
        """`schedule` is given every call of a listener, to make it now or later."""
        self._schedule = schedule
        self._notices: list[Notice] = []
        self._listeners: list[Notify] = []
        self.lock = RLock()
        """Held while the connection is used: tests call from threads."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for script in migrations():
            connection.executescript(script)
        connection.execute(STATEMENTS["sqlite"]["log_insert"], (clock.uuid().hex,))
        self.db = SqliteDb(connection, clock, self._notices.append)

    def commit(self, body: Callable[[Db], T]) -> T:
        """Run it in a transaction; what it raises undoes it."""
        connection = self.db.connection
        with self.lock:
            connection.execute("BEGIN")
            try:
                result = body(self.db)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                    self._notices.clear()
            notices, self._notices[:] = self._notices[:], []
        for notice in notices:
            self.notify(notice)
        return result

    def notify(self, notice: Notice) -> None:
        """Give a notice to all listeners; a simulation sends `resync` for a lost connection."""
        for notify in self._listeners:
            self._schedule(partial(notify, notice))

    def add_listener(self, notify: Notify) -> None:
        """Call it with every notice from now on."""
        self._listeners.append(notify)

    def remove_listener(self, notify: Notify) -> None:
        """Call it no more."""
        self._listeners.remove(notify)

    def close(self) -> None:
        """The end of the database."""
        with self.lock:
            self.db.connection.close()


def call_now(call: Callable[[], None]) -> None:
    """The simplest `schedule`."""
    call()


class MemoryCatalog(SharedCatalog):
    """One broker's connection to a `MemoryDatabase`."""

    def __init__(self, database: MemoryDatabase) -> None:
        """Several may be open over one database."""
        self._database = database
        self._listening: list[Notify] = []

    def listen(self, notify: Notify) -> None:
        self._listening.append(notify)
        self._database.add_listener(notify)

    def close(self) -> None:
        while self._listening:
            self._database.remove_listener(self._listening.pop())

    def _commit(self, body: Callable[[Db], T]) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(self._database.commit(body))
        except CatchwaterError as refusal:
            done.set_exception(refusal)
        return done

    def _query(self, body: Callable[[Db], T]) -> T:
        with self._database.lock:
            return body(self._database.db)
