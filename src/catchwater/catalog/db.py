"""One transaction on a database, the statements it runs, and SQLite's version of it.

Statements are called by their names in `queries.sql`, which both databases share; `postgres.sql`
has a second version of those that PostgreSQL needs otherwise (locks, many rows at once). Both files
are read when this module is loaded: a write must not fail because a file could not be opened then.

What is written over a `Db` runs in SQLite and in PostgreSQL; the catalog that makes the `Db` begins
and ends the transaction.
"""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any, Literal, Protocol

from catchwater.catalog.rows import Notice
from catchwater.clock import SYSTEM, Clock

Rows = list[tuple[Any, ...]]

Dialect = Literal["sqlite", "postgres"]

_FOLDER = files("catchwater.catalog")
_NAME = re.compile(r"^-- (\w+) --\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


def sections(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The statements of a file, by the name in the line `-- name --` above each.

    With `known` given, every name must be one of its names.
    """
    found: dict[str, str] = {}
    _, *parts = _NAME.split(text)
    for name, statement in zip(parts[::2], parts[1::2], strict=True):
        assert name not in found, f"two statements are called {name}"
        assert known is None or name in known, f"no statement is called {name}"
        found[name] = _COMMENT.sub("", statement).strip()
    return found


_SHARED = sections((_FOLDER / "queries.sql").read_text())
STATEMENTS: Mapping[Dialect, Mapping[str, str]] = {
    "sqlite": _SHARED,
    "postgres": _SHARED | sections((_FOLDER / "postgres.sql").read_text(), _SHARED),
}
"""By name, with `?` for parameters."""


def migrations(dialect: Dialect = "sqlite") -> list[str]:
    """The scripts in `migrations/`, in order; script n (from 1) leads to schema version n."""
    scripts = (_FOLDER / "migrations" / dialect).iterdir()
    return [script.read_text() for script in sorted(scripts, key=lambda script: script.name)]


class Db(Protocol):
    """One transaction, or a connection to read on."""

    def query(self, statement: str, *parameters: object) -> Rows:
        """Run a statement; what it returns."""
        ...

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        """Run a statement with each of the parameters; all that they return."""
        ...

    def batch(self, *queries: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        """Several statements, each as by `each`, one after the other, in one round trip."""
        ...

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement that returns nothing with each of the rows, in order."""
        ...

    def in_one_trip(self) -> AbstractContextManager[object]:
        """What `many` writes inside it is sent at once; its failures come at the end."""
        ...

    def now_ms(self) -> int:
        """The time by which deadlines are kept; the same for all who share the database."""
        ...

    def notify(self, notice: Notice) -> None:
        """Send a notice to all brokers, once the transaction is committed."""
        ...


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
        return self.connection.execute(_SHARED[statement], parameters).fetchall()

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        text = _SHARED[statement]
        return [row for key in keys for row in self.connection.execute(text, tuple(key))]

    def batch(self, *queries: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        return [self.each(statement, keys) for statement, keys in queries]

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self.connection.executemany(_SHARED[statement], rows)

    def in_one_trip(self) -> AbstractContextManager[object]:
        return nullcontext()  # there are no round trips to save

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def notify(self, notice: Notice) -> None:
        self._notify(notice)
