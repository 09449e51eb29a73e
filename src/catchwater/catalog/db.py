"""The little that a change or a query needs of a database, and SQLite's version of it.

Statements are named by their file. What is written over a `Db` is written once and runs in
SQLite and in PostgreSQL; whoever makes the `Db` opens and ends the transaction.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from catchwater.catalog.rows import Notice
from catchwater.catalog.statements import sql
from catchwater.clock import SYSTEM, Clock

Rows = list[tuple[Any, ...]]


class Db(Protocol):
    """One transaction, or a connection to read on."""

    def query(self, statement: str, *parameters: object) -> Rows:
        """Run a statement; what it returns."""
        ...

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        """Run a statement with each of the parameters; all that they return."""
        ...

    def ask(self, *questions: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        """Several statements, each as by `each`, one after the other, in one round trip."""
        ...

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement that returns nothing with each of the rows, in order."""
        ...

    def in_one_trip(self) -> AbstractContextManager[object]:
        """What `many` writes inside it is sent at once; its failures come at the end."""
        ...

    def now_ms(self) -> int:
        """The time by which deadlines are kept; the same for everybody who shares the database."""
        ...

    def tell(self, notice: Notice) -> None:
        """Let those who listen know, once the transaction is committed."""
        ...


class SqliteDb:
    """A `Db` over one SQLite connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Clock = SYSTEM,
        tell: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        """Nobody listens to an embedded catalog, which is told nothing."""
        self.connection = connection
        self._clock = clock
        self.tell = tell

    def query(self, statement: str, *parameters: object) -> Rows:
        """Run a statement; what it returns."""
        return self.connection.execute(sql(statement), parameters).fetchall()

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        """Run a statement with each of the parameters; all that they return."""
        return [row for key in keys for row in self.connection.execute(sql(statement), tuple(key))]

    def ask(self, *questions: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        """Several statements, each as by `each`."""
        return [self.each(statement, keys) for statement, keys in questions]

    def in_one_trip(self) -> AbstractContextManager[object]:
        """There are no round trips to save."""
        return nullcontext()

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement with each of the rows."""
        if rows:
            self.connection.executemany(sql(statement), rows)

    def now_ms(self) -> int:
        """The clock's time: nobody else shares the database."""
        return self._clock.now_ms()
