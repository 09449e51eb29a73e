"""One transaction on a database, and the statements it runs.

Statements are called by their names in `queries.sql`, which both databases share; `postgres.sql`
has a second version of those that PostgreSQL needs otherwise (locks, many rows at once). Both files
are read when this module is loaded: a write must not fail because a file could not be opened then.

What is written over a `Db` runs in SQLite and in PostgreSQL; the catalog that makes the `Db` begins
and ends the transaction.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Literal, Protocol

from catchwater.catalog.rows import Notice, RunRow

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

    def add_runs(self, runs: Sequence[RunRow]) -> None:
        """As `run_insert` with each of the runs; those of a partition together, in offset order."""
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
