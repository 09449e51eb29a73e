"""SQLite: one file, WAL mode, synced at every commit.

If the file is removed or replaced while it is open, rows would be written where no reader sees
them; so it is checked before every transaction.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from catchwater.config import CatchwaterError
from catchwater.sinks.base import SinkFull, SinkUnavailable, TargetDiffers
from catchwater.sinks.columns import TYPES, ColumnKind, RowUnfit
from catchwater.sinks.config import (
    RETRY,
    RETRY_MS,
    Kind,
    SinkConfig,
    duration,
    one_of,
    option,
    table,
    text,
)
from catchwater.sinks.table import (
    MODE,
    MODES,
    alter_table,
    look_at_table,
    open_table,
    rows_replaced,
    table_aside,
    table_guarantee,
    target_table,
)
from catchwater.sinks.table_target import CHANGED, UNFIT, TableColumn, Transaction

_BUSY_S = 5.0
_SCAN_ROWS = 1000
_AWAY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY)


@dataclass(frozen=True)
class SqliteOptions:
    """The keys of a SQLite sink."""

    path: str = option(text, doc="the database's file, from the pipeline file's folder")
    table: str = option(table, doc="the table, which is made if it is missing")
    mode: str = option(one_of(*MODES), MODES[0], doc=MODE)
    retry_ms: int = option(duration, RETRY_MS, key="retry", doc=RETRY)


class SqliteTransaction:
    """See `table_target.Transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; the rows it gives."""
        return self._connection.execute(sql, values).fetchall()

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Insert many rows through one prepared statement."""
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)

    def lock(self, name: str) -> None:
        """Nothing to do: a writing transaction of SQLite is alone."""

    def seize(self, name: str) -> None:
        """Nothing to do: taking the lock of the file has waited for its holder."""


class SqliteDatabase:
    """See `table_target.Database`."""

    types: Mapping[ColumnKind, str] = {each.kind: each.sqlite for each in TYPES}
    accepted: Mapping[ColumnKind, Sequence[str]] = {each.kind: each.sqlite_takes for each in TYPES}

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path.resolve())
        # One thread commits an epoch while another sweeps what is behind the one before.
        self._alone = RLock()
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        """Device and inode of the file that is open."""

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """A transaction that is the only writer from its beginning."""
        with self._alone, self._named():
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteTransaction(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[SqliteTransaction]:
        """A transaction of the file as it is; one that is not there is empty."""
        self._check_place()
        place = f"{self._path.resolve().as_uri()}?mode=ro" if self._path.exists() else ":memory:"
        with self._named():
            with closing(sqlite3.connect(place, timeout=_BUSY_S, uri=True)) as connection:
                connection.execute("BEGIN")
                yield SqliteTransaction(connection)

    def columns(self, transaction: Transaction, table: str) -> Mapping[str, TableColumn]:
        """The columns of a table; none if there is no such table."""
        rows = transaction.execute(f"PRAGMA table_info({table})")
        return {
            str(name): TableColumn(
                str(kind).lower().partition("(")[0].strip(), bool(required) and default is None
            )
            for _, name, kind, required, default, _ in rows
        }

    def unique(self, transaction: Transaction, table: str) -> set[frozenset[str]]:
        """By the primary key, and by indexes of all rows."""
        columns = transaction.execute(f"PRAGMA table_info({table})")
        found = {frozenset(str(name) for _, name, *_, key in columns if key)}
        for _, index, is_unique, _, is_partial in transaction.execute(
            f"PRAGMA index_list({table})"
        ):
            if is_unique and not is_partial:
                name = str(index).replace('"', '""')
                rows = transaction.execute(f'PRAGMA index_info("{name}")')
                found.add(frozenset(str(column) for *_, column in rows))
        return found

    def full_names(self, transaction: Transaction, tables: Sequence[str]) -> list[str]:
        """SQLite takes no notice of case."""
        return [table.lower() for table in tables]

    def scan(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, some at a time."""
        with self._alone, self._named():
            cursor = self._connect().execute(sql, values)
            while rows := cursor.fetchmany(_SCAN_ROWS):
                yield from rows

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and _file(self._path) != self._file:
            raise TargetDiffers(
                f"The SQLite database {self._path} was removed or replaced while it was written.",
                hint="Put it back, or start the pipeline again: what is missing is made, and what "
                "it held comes back by catchwater sink repair.",
            )
        if self._connection is None:
            self._check_place()
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            self._connection, self._file = connection, _file(self._path)
        return self._connection

    def _check_place(self) -> None:
        if not self._path.parent.is_dir() or self._path.is_dir():
            wrong = (
                "is a folder" if self._path.is_dir() else "would lie in a folder that is not there"
            )
            raise TargetDiffers(
                f"The SQLite database {self._path} {wrong}.",
                hint="Make the folder, or give the sink another path.",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, naming the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error) from error
        except OverflowError as error:
            raise RowUnfit(
                f"An output has a number that SQLite cannot hold in {self._path}: {error}.",
                hint=UNFIT,
            ) from error

    def _translated(self, error: sqlite3.Error) -> CatchwaterError:
        primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if primary == sqlite3.SQLITE_FULL:
            return SinkFull(
                f"{self._path} cannot grow: {error}. The epoch was undone.",
                hint="Free some space and start the pipeline again; the epoch runs again.",
            )
        if primary in _AWAY:
            return SinkUnavailable(f"The SQLite database {self._path} is out of reach: {error}.")
        if primary in _DAMAGED:
            return TargetDiffers(
                f"{self._path} cannot be written as a SQLite database: {error}.",
                hint="Give the sink another path, or restore the file from a copy.",
            )
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.InterfaceError):
            return RowUnfit(f"A table of {self._path} refuses an output: {error}.", hint=UNFIT)
        return TargetDiffers(f"{self._path} cannot take the outputs: {error}.", hint=CHANGED)


def _file(path: Path) -> tuple[int, int]:
    """Device and inode of the file; zeros where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _database(config: SinkConfig, folder: Path) -> SqliteDatabase:
    """Not opened yet."""
    return SqliteDatabase(folder / config.options.path)


KIND = Kind(
    name="sqlite",
    options=SqliteOptions,
    guarantee=table_guarantee,
    target=lambda config, folder: f"{_database(config, folder).name} {config.options.table}",
    place=lambda options: f"{options.path} {options.table}",
    named_by="table",
    check=lambda config, context: target_table(_database(config, context.folder), config, context),
    open=lambda config, context, truth: open_table(
        _database(config, context.folder), config, context, truth
    ),
    look=lambda config, context: look_at_table(_database(config, context.folder), config, context),
    alter=lambda config, context: alter_table(_database(config, context.folder), config, context),
    one_writer=True,
    aside=table_aside,
    replaces=rows_replaced,
)
