"""PostgreSQL: rows by COPY, sessions in UTC, lost connections opened again."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

from catchwater.config import CatchwaterError, ConfigError
from catchwater.sinks.base import NotAdmitted, SinkFull, SinkUnavailable, TargetDiffers
from catchwater.sinks.columns import TYPES, ColumnKind, RowUnfit
from catchwater.sinks.config import (
    RETRY,
    RETRY_MS,
    Kind,
    SinkConfig,
    duration,
    one_of,
    option,
    text,
    without_secrets,
)
from catchwater.sinks.config import table as table_name
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

if TYPE_CHECKING:
    import psycopg

_CONNECT_S = 10
_SCAN_ROWS = 5000
_NOT_ADMITTED = re.compile(
    "password authentication failed|no password supplied|authentication failed for user"
    "|no pg_hba.conf entry|pg_hba.conf rejects|is not permitted to log in"
    '|(database|role) ".*" does not exist|permission denied for database'
    "|certificate verify failed|root certificate file"
)
"""What a server, or the client's library, says to a login in vain; there is no code of it."""
_SEARCH_PATH = re.compile(r"search_path\s*=\s*(\S+)")
_COLUMNS = """
SELECT a.attname, COALESCE(base.typname, t.typname),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type base ON base.oid = t.typbasetype AND t.typtype = 'd'
WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped
"""
"""Also of a table that the user may not read; reading it then says so."""

_UNIQUE = """
SELECT i.indexrelid::bigint, a.attname FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indpred IS NULL
  AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
"""


_END_HOLDERS = """
SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(?, 0)
  AND a.usename = current_user
"""


def _table_in_schema(value: str) -> str:
    try:
        parts = [table_name(part) for part in value.split(".")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 2:
        raise ValueError(
            "a table's name: letters, digits and underscores, at most 40; a schema may stand "
            "before a dot"
        )
    return value


@dataclass(frozen=True)
class PostgresOptions:
    """The keys of a PostgreSQL sink."""

    url: str = option(text, doc="postgresql://user@host/database; the password best as PGPASSWORD")
    table: str = option(_table_in_schema, doc="the table, which is made if it is missing")
    mode: str = option(one_of(*MODES), MODES[0], doc=MODE)
    retry_ms: int = option(duration, RETRY_MS, key="retry", doc=RETRY)


class PostgresTransaction:
    """See `table_target.Transaction`."""

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; the rows it gives."""
        cursor = self._connection.execute(_native(sql), values)
        return cursor.fetchall() if cursor.description else []

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Stream many rows in by COPY."""
        import psycopg

        names = ", ".join(f'"{name}"' for name in columns)
        with self._connection.cursor() as cursor:
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
                for row in rows:
                    try:
                        copy.write_row(row)
                    except psycopg.DataError as error:  # the server has not seen the row
                        place = ", ".join(map(str, row[-3:]))
                        raise psycopg.DataError(f"{error} (epoch, shard, row: {place})") from error

    def lock(self, name: str) -> None:
        """Keep other transactions with this name waiting until this one ends."""
        self.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", [name])

    def seize(self, name: str) -> None:
        """End this user's other sessions that hold it: a process that stands still never would."""
        self.execute(_END_HOLDERS, [name])
        self.lock(name)


class PostgresDatabase:
    """See `table_target.Database`."""

    types: Mapping[ColumnKind, str] = {each.kind: each.postgres for each in TYPES}
    accepted: Mapping[ColumnKind, Sequence[str]] = {
        each.kind: each.postgres_takes for each in TYPES
    }

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = _name_of(url)
        # One thread commits an epoch while another sweeps what is behind the one before.
        self._alone = RLock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """A transaction; its commit may have happened although `SinkUnavailable` is raised."""
        with self._alone, self._named():
            connection = self._connect()
            with connection.transaction():
                yield PostgresTransaction(connection)

    @contextmanager
    def reading(self) -> Iterator[PostgresTransaction]:
        """A transaction that the server lets change nothing."""
        with self.transaction() as transaction:
            transaction.execute("SET TRANSACTION READ ONLY")
            yield transaction

    def columns(self, transaction: Transaction, table: str) -> Mapping[str, TableColumn]:
        """The columns of a table; none if there is no such table."""
        rows = transaction.execute(_COLUMNS, [table])
        return {
            str(column): TableColumn(str(kind), bool(required)) for column, kind, required in rows
        }

    def unique(self, transaction: Transaction, table: str) -> set[frozenset[str]]:
        """By its primary key and its unique indexes of all rows."""
        found: dict[int, set[str]] = {}
        for index, column in transaction.execute(_UNIQUE, [table]):
            found.setdefault(int(index), set()).add(str(column))
        return {frozenset(columns) for columns in found.values()}

    def full_names(self, transaction: Transaction, tables: Sequence[str]) -> list[str]:
        """With their schemas; without one a table lies where a new one would."""
        ((schema,),) = transaction.execute("SELECT current_schema()")
        return [table if "." in table else f"{schema}.{table}" for table in tables]

    def scan(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query through a cursor on the server."""
        with self._alone, self._named():
            connection = self._connect()
            with connection.transaction(), connection.cursor(name="catchwater_scan") as cursor:
                cursor.itersize = _SCAN_ROWS
                yield from cursor.execute(_native(sql), values)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        import psycopg
        from psycopg.types.string import TextLoader

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                keepalives_idle=10,
                keepalives_interval=5,
                tcp_user_timeout=30_000,
                application_name="catchwater sink",
            )
            for kind in ("json", "jsonb"):  # a text in JSON is not to be taken for JSON's text
                self._connection.adapters.register_loader(kind, TextLoader)
            # Not by the option `options`, which the URL may have its own of.
            self._connection.execute("SET TimeZone TO 'UTC'")
        return self._connection

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into ours, naming the database without its password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                self.close()
            raise self._translated(error) from error

    def _translated(self, error: "psycopg.Error") -> CatchwaterError:
        import psycopg
        from psycopg import errors

        away = (
            errors.SerializationFailure,
            errors.DeadlockDetected,
            errors.LockNotAvailable,
            errors.ReadOnlySqlTransaction,  # a standby, until it is promoted
            psycopg.OperationalError,
            psycopg.InterfaceError,
        )
        text = " ".join(str(error).split())
        if isinstance(error, errors.DiskFull):
            return SinkFull(
                f"PostgreSQL at {self.name} has no space left: {text}. The epoch was undone.",
                hint="Free some space and start the pipeline again; the epoch runs again.",
            )
        if isinstance(error, psycopg.OperationalError) and _NOT_ADMITTED.search(text):
            return NotAdmitted(
                f"PostgreSQL at {self.name} does not let us in: {text}.",
                hint="Are user, password (PGPASSWORD, or in the URL) and database those that there "
                "are? Try them: psql URL.",
            )
        if isinstance(error, away):
            return SinkUnavailable(f"PostgreSQL at {self.name} is out of reach: {text}.")
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            # Neither the detail nor what stands in a data error's quotes: that is the output's.
            said = error.diag.message_primary or text
            if isinstance(error, psycopg.DataError):
                said = re.sub(r'".*"', '"…"', said, flags=re.DOTALL)
            return RowUnfit(f"A table at {self.name} refuses an output: {said}.", hint=UNFIT)
        return TargetDiffers(
            f"PostgreSQL at {self.name} cannot take the outputs: {text}.",
            hint=_HINTS.get(type(error).__name__, CHANGED),
        )


_HINTS = {
    "InsufficientPrivilege": "Let the user write to the table, to catchwater_sinks and "
    "catchwater_epochs, and make what is missing of them: GRANT USAGE, CREATE ON SCHEMA …; or make "
    "them as another user and grant SELECT, INSERT, UPDATE, DELETE.",
    "WrongObjectType": "Name a table: rows go in by COPY, which takes no view.",
    "InvalidSchemaName": "CREATE SCHEMA it, or name a table of a schema that is there.",
}
"""By psycopg's class: where it is not that something was changed."""


def _name_of(url: str) -> str:
    """Host, port and database, and the schema if one is chosen. Raises `ConfigError`."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(url) if url.startswith(("postgres://", "postgresql://")) else {}
    except psycopg.ProgrammingError:
        given = {}  # what it says may quote the password
    ports = str(given.get("port") or os.environ.get("PGPORT") or 5432)
    if not given.get("dbname") or not re.fullmatch(r"\d{1,5}(,\d{1,5})*", ports):
        raise ConfigError(
            # The value may hold a password.
            "url of a sink of kind postgres must be the URL of a PostgreSQL database.",
            hint="Write postgresql://user@host/database; a password may come from PGPASSWORD, and "
            "in the URL its / @ : % must be escaped (%2F %40 %3A %25).",
        )
    host = given.get("host") or os.environ.get("PGHOST") or "localhost"
    chosen = _SEARCH_PATH.search(str(given.get("options") or os.environ.get("PGOPTIONS") or ""))
    return f"{host}:{ports}/{given['dbname']}" + (f" schema {chosen[1]}" if chosen else "")


def _native(sql: str) -> bytes:
    """The statement with psycopg's placeholders."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _database(config: SinkConfig) -> PostgresDatabase:
    """Not connected yet. Raises `ConfigError`."""
    return PostgresDatabase(config.options.url)


KIND = Kind(
    name="postgres",
    options=PostgresOptions,
    guarantee=table_guarantee,
    target=lambda config, folder: f"{_name_of(config.options.url)} {config.options.table}",
    place=lambda options: f"{without_secrets(options.url)} {options.table}",
    named_by="table",
    check=lambda config, context: target_table(_database(config), config, context),
    open=lambda config, context, truth: open_table(_database(config), config, context, truth),
    look=lambda config, context: look_at_table(_database(config), config, context),
    alter=lambda config, context: alter_table(_database(config), config, context),
    modules=("psycopg", "psycopg.conninfo", "psycopg.types.string"),
    extra="postgres",
    one_writer=True,
    aside=table_aside,
    replaces=rows_replaced,
)
