"""What a table sink asks of a database; SQLite and PostgreSQL answer it.

Errors are told apart here, for the sink and its user: a database that is away
(`SinkUnavailable`), one that does not let us in (`NotAdmitted`), full (`SinkFull`), one whose table
is not as it should be (`TargetDiffers`), and a row that the table will not take (`RowUnfit`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from catchwater.config import ConfigError
from catchwater.sinks.relational.columns import Column, Kind

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,55}(?:\.[A-Za-z_][A-Za-z0-9_]{0,55})?")


CHANGED = (
    "What the sink needs there was dropped or altered while it wrote. Put it back, or start the "
    "pipeline again: what is missing is made, and what it held comes back by catchwater sink "
    "repair."
)
"""The hint where a statement fails that a moment before did not."""
UNFIT = (
    "Let the function put out what the column takes, or alter the column; then start the pipeline "
    "again: the epoch runs again."
)
"""The hint where a row is refused."""


class Found(NamedTuple):
    """A column of a table that is there."""

    type: str
    required: bool
    """It must be given a value: not null and without a default."""


class Transaction(Protocol):
    """One transaction: committed at the end of its block, undone by any error."""

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, `?` standing for values; the rows it gives."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Insert many rows, as fast as the database can; rows are taken one by one."""
        ...

    def lock(self, name: str) -> None:
        """Keep other transactions with this name waiting until this one ends."""
        ...


class Database(Protocol):
    """A connection that is opened when it is needed, and again when it was lost."""

    types: Mapping[Kind, str]
    """The column type of a kind in a new table."""
    accepted: Mapping[Kind, Sequence[str]]
    """The types that a column of the kind may have in a table that is there; lower case."""

    @property
    def name(self) -> str:
        """Which database it is, as no other is called; without what gives access to it."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that may write."""
        ...

    def reading(self) -> AbstractContextManager[Transaction]:
        """A transaction that changes nothing, nor makes a database that is not there."""
        ...

    def columns(self, transaction: Transaction, table: str) -> Mapping[str, Found]:
        """The columns of a table; none if there is no such table."""
        ...

    def unique(self, transaction: Transaction, table: str) -> set[frozenset[str]]:
        """The sets of columns that no two rows of the table have the same values of."""
        ...

    def full_names(self, transaction: Transaction, tables: Sequence[str]) -> list[str]:
        """The tables' names, each spelled as no other table's is."""
        ...

    def scan(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, without holding them all."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


def checked_table(name: str) -> str:
    """The table's name, quoted. Raises `ConfigError` for one that would need escaping."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"table = {name!r} is not the name of a table.",
            hint="Use letters, digits and underscores; a schema may stand before a dot.",
        )
    return ".".join(f'"{part}"' for part in name.split("."))


def quoted(columns: Iterable[str]) -> str:
    """Column names for a statement."""
    return ", ".join(f'"{name}"' for name in columns)


def definition(columns: Sequence[Column], types: Mapping[Kind, str]) -> str:
    """The columns for CREATE TABLE."""
    return ", ".join(f'"{column.name}" {types[column.kind]}' for column in columns)
