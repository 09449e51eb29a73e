"""The table of a sink in a database: claiming it for one writer, creating it, checking its columns.

`Database` is the part of SQLite and PostgreSQL that a table sink needs. It distinguishes errors for
the sink and its user: an unavailable database (`SinkUnavailable`), a refused login (`NotAdmitted`),
a full disk (`SinkFull`), a table with other columns (`TargetDiffers`), and a row that the table
refuses (`RowUnfit`).

Two tables of ours are in the database of a target: `catchwater_sinks` (the writer and generation of
every table) and `catchwater_epochs` (the marks). Only `alter` changes an existing target, by adding
columns; before that, an error names the missing ones and the statement that would add them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from catchwater.config import ConfigError
from catchwater.recovery.fenced import Claim, parse_claim
from catchwater.sinks.base import TargetDiffers, TargetState, TargetTaken
from catchwater.sinks.columns import ROW_COLUMNS, Column, ColumnKind
from catchwater.sinks.epochs import Owner, refuse_superseded

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,55}(?:\.[A-Za-z_][A-Za-z0-9_]{0,55})?")


CHANGED = (
    "What the sink needs there was dropped or altered while it wrote. Put it back, or start the "
    "pipeline again: what is missing is made, and what it held comes back by catchwater sink "
    "repair."
)
"""The hint for a statement that failed although the table was checked before."""
UNFIT = (
    "Let the function put out what the column takes, or alter the column; then start the pipeline "
    "again: the epoch runs again."
)
"""The hint where a row is refused."""


class TableColumn(NamedTuple):
    """A column of an existing table."""

    type: str
    required: bool
    """Whether it needs a value: not null and without a default."""


class Transaction(Protocol):
    """One transaction: committed at the end of its block, rolled back by any error."""

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for values; the resulting rows."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Insert many rows, as fast as the database can; the iterable is consumed row by row."""
        ...

    def lock(self, name: str) -> None:
        """Take a lock of this name, which is held until the transaction ends."""
        ...

    def seize(self, name: str) -> None:
        """The same, and undo the transactions that hold it, as far as that can be done."""
        ...


class Database(Protocol):
    """A connection that is opened when needed, and again after it was lost."""

    types: Mapping[ColumnKind, str]
    """The column type of a kind in a new table."""
    accepted: Mapping[ColumnKind, Sequence[str]]
    """The types that a column of the kind may have in a table that is there; lower case."""

    @property
    def name(self) -> str:
        """The unique name of the database, without credentials."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that may write."""
        ...

    def reading(self) -> AbstractContextManager[Transaction]:
        """A read-only transaction, which does not create a missing database either."""
        ...

    def columns(self, transaction: Transaction, table: str) -> Mapping[str, TableColumn]:
        """The columns of a table; none if there is no such table."""
        ...

    def unique(self, transaction: Transaction, table: str) -> set[frozenset[str]]:
        """The sets of columns with a unique constraint or index."""
        ...

    def full_names(self, transaction: Transaction, tables: Sequence[str]) -> list[str]:
        """The tables' names, in a spelling that is unique for each table."""
        ...

    def scan(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, without holding all of them in memory."""
        ...

    def close(self) -> None:
        """Close the connection."""
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


def definition(columns: Sequence[Column], types: Mapping[ColumnKind, str]) -> str:
    """The columns for CREATE TABLE."""
    return ", ".join(f'"{column.name}" {types[column.kind]}' for column in columns)


_SINKS = """
CREATE TABLE IF NOT EXISTS catchwater_sinks (
  pipeline text NOT NULL, sink text NOT NULL, target text NOT NULL UNIQUE,
  generation integer NOT NULL, PRIMARY KEY (pipeline, sink))
"""
_EPOCHS = """
CREATE TABLE IF NOT EXISTS catchwater_epochs (
  pipeline text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, generation integer NOT NULL,
  records bigint NOT NULL, checksum text NOT NULL, PRIMARY KEY (pipeline, sink, epoch))
"""

UNDO_COLUMNS = ("catchwater_undo_epoch", "catchwater_existed")
"""The undo table's own columns, which come before those of the table."""

_CLAIM = "ALTER TABLE catchwater_sinks ADD COLUMN claim text"
"""Only where a checkpoint is at a URL; the fence of the driver that writes."""


class Writer(NamedTuple):
    """The writer of a table, the table, and the mode."""

    owner: Owner
    table: str
    output_id: tuple[str, ...] = ()
    """If not empty, a later row with the same values in these columns replaces an earlier one."""


def claim_of(transaction: Transaction, owner: Owner) -> Claim | None:
    """The fence of the driver that has last opened the sink; only for one that has one itself."""
    found = transaction.execute(
        "SELECT claim FROM catchwater_sinks WHERE pipeline = ? AND sink = ?", owner.name
    )
    return parse_claim(found[0][0]) if found else None


def checked_names(table: str) -> tuple[str, str]:
    """The table and its undo table, quoted. Raises `ConfigError`."""
    return checked_table(table), checked_table(f"{table}_catchwater_undo")


class Target:
    """The table that one sink writes to."""

    def __init__(self, database: Database, writer: Writer, columns: Sequence[Column]) -> None:
        """Checks names only. Raises `ConfigError`."""
        self._database = database
        self._writer = writer
        self._outputs = columns
        self.name, self.undo = checked_names(writer.table)
        self.columns = [*(column.name for column in columns), *ROW_COLUMNS]
        self._check_names()

    @property
    def owner(self) -> tuple[str, str]:
        """The pipeline and the sink that write to it."""
        return self._writer.owner.name

    def check_fits(self, transaction: Transaction) -> None:
        """Raise `TargetDiffers` unless the table exists and can take the outputs."""
        found = self._database.columns(transaction, self.name)
        if not found:
            raise TargetDiffers(
                f"The table {self._writer.table} is gone.",
                hint="Restore it, or start the pipeline again: it makes the table anew, and what "
                "it held comes back by catchwater sink repair, as far as that is kept.",
            )
        self._compare(transaction)

    def look(self) -> TargetState:
        """The present state; changes nothing. Raises what a transaction raises."""
        with self._database.reading() as transaction:
            claims = self._claims(transaction)
            try:
                self._refuse_claimed(transaction, claims)
                self._compare(transaction)
                differs: TargetDiffers | None = None
            except TargetDiffers as error:
                differs = error
            is_ours = self.owner in [(pipeline, sink) for pipeline, sink, _ in claims]
            oldest, newest = self._marked(transaction)
            # Append deletes by the rows' own epochs; what was replaced goes with the marks.
            return TargetState(is_ours, newest, differs, oldest if self._writer.output_id else None)

    def alter(self) -> None:
        """Add the columns that the table lacks. Raises `TargetDiffers` if that is not enough."""
        with self._database.transaction() as transaction:
            transaction.lock("catchwater sinks")
            try:
                self._compare(transaction)
            except TargetDiffers as differs:
                for statement in differs.alter:
                    transaction.execute(statement)
                self._compare(transaction)

    def prepare(self) -> None:
        """Claim the table, and create it or check its columns.

        Raises `TargetTaken` and `TargetDiffers`, and what a transaction raises.
        """
        with self._database.transaction() as transaction:
            transaction.lock("catchwater sinks")
            # Checked first, because CREATE TABLE IF NOT EXISTS needs a right that may be missing.
            for table, statement in (("catchwater_sinks", _SINKS), ("catchwater_epochs", _EPOCHS)):
                if not self._database.columns(transaction, checked_table(table)):
                    transaction.execute(statement)
            self._claim(transaction)
            self._fence(transaction)
            self._compare(transaction)
            if self.name not in self._there(transaction):
                transaction.execute(self._definition())
                table = self._writer.table.rpartition(".")[2]
                index = checked_table(f"{table}_by_epoch")
                transaction.execute(f"CREATE INDEX {index} ON {self.name} (catchwater_epoch)")
            if self._writer.output_id and not self._database.columns(transaction, self.undo):
                transaction.execute(self._undo_definition())

    def _check_names(self) -> None:
        outputs = [column.name for column in self._outputs]
        for name in outputs:
            if any(sign in name for sign in '"?%\0') or name.lower() in ROW_COLUMNS:
                raise ConfigError(
                    f"The output's field {name!r} cannot be the name of a column.",
                    hint="Give the field another name; in JSON is enough (msgspec: rename).",
                )
        for name in self._writer.output_id:
            if name not in outputs:
                raise ConfigError(
                    f"The sink {self._writer.owner.sink!r} replaces rows by {name!r}, which is no "
                    f"column of its table: those are {', '.join(outputs)}."
                )

    def _claims(self, transaction: Transaction) -> list[tuple[str, str, str]]:
        """Pipeline, sink and table of every writer; none in a database without our tables."""
        if not self._database.columns(transaction, checked_table("catchwater_sinks")):
            return []
        return [
            (str(pipeline), str(sink), str(target))
            for pipeline, sink, target in transaction.execute(
                "SELECT pipeline, sink, target FROM catchwater_sinks"
            )
        ]

    def _marked(self, transaction: Transaction) -> tuple[int | None, int | None]:
        """The oldest and the newest epoch that have a mark; None if none has."""
        if not self._database.columns(transaction, checked_table("catchwater_epochs")):
            return None, None
        ((oldest, newest),) = transaction.execute(
            "SELECT min(epoch), max(epoch) FROM catchwater_epochs WHERE pipeline = ? AND sink = ?",
            self.owner,
        )
        return (None, None) if newest is None else (int(oldest), int(newest))

    def _claim(self, transaction: Transaction) -> None:
        claims = self._claims(transaction)
        self._refuse_claimed(transaction, claims)
        if self.owner in [(pipeline, sink) for pipeline, sink, _ in claims]:
            return
        transaction.execute(
            "INSERT INTO catchwater_sinks (pipeline, sink, target, generation) VALUES (?, ?, ?, ?)",
            [*self.owner, self._writer.table, self._writer.owner.generation],
        )

    def _fence(self, transaction: Transaction) -> None:
        """Let no earlier driver of the checkpoint write any more. Raises `Superseded`."""
        owner = self._writer.owner
        if owner.claim is None:
            return
        if "claim" not in self._database.columns(transaction, checked_table("catchwater_sinks")):
            transaction.execute(_CLAIM)
        refuse_superseded(owner, owner.generation, claim_of(transaction, owner))
        # One that stands still amid an epoch would keep all others waiting.
        transaction.seize(str(owner))
        transaction.execute(
            "UPDATE catchwater_sinks SET claim = ? WHERE pipeline = ? AND sink = ?",
            [str(owner.claim), *owner.name],
        )

    def _refuse_claimed(
        self, transaction: Transaction, claims: Sequence[tuple[str, str, str]]
    ) -> None:
        (pipeline, sink), table = self._writer.owner.name, self._writer.table
        tables = [table, *(target for _, _, target in claims)]
        wanted, *taken = self._database.full_names(transaction, tables)
        for (owner, name, target), full_name in zip(claims, taken, strict=True):
            same = full_name == wanted
            if same and (owner, name) != (pipeline, sink):
                raise TargetTaken(
                    f"The table {table} is written by the sink {name!r} of the pipeline "
                    f"{owner!r}; two writers would undo each other's epochs.",
                    hint="Name another table. If that pipeline is gone for good, delete its row "
                    "from catchwater_sinks.",
                )
            if not same and (owner, name) == (pipeline, sink):
                raise TargetDiffers(
                    f"The sink {sink!r} of {pipeline!r} has written to the table {target} so far, "
                    f"and is now to write to {table}.",
                    hint="Give the sink another name, or leave the table as it was.",
                )

    def _compare(self, transaction: Transaction) -> None:
        """Raise `TargetDiffers` if the existing table or its undo table lacks something."""
        there = self._there(transaction)
        missing = [
            f"{name} is missing" + (" from the table for undoing" if table == self.undo else "")
            for table, found in there.items()
            for name in self._missing(found)
        ]
        unfit = self._unfit(there.get(self.name, {}))
        if self.name in there and self._writer.output_id:
            unfit += self._unkeyed(transaction)
        alter = [each for table, found in there.items() for each in self._additions(table, found)]
        if missing or unfit:
            raise TargetDiffers(
                f"The table {self._writer.table} cannot take the outputs: "
                f"{'; '.join([*missing, *unfit])}.",
                hint=f"Alter it, name another one, or let it be created: {self._definition()}"
                if unfit
                else f"Alter it: {' '.join(f'{each};' for each in alter)}",
                alter=() if unfit else alter,
            )

    def _there(self, transaction: Transaction) -> dict[str, Mapping[str, TableColumn]]:
        """The columns of the table and, in upsert mode, of its undo table; of existing ones."""
        tables = [self.name, self.undo] if self._writer.output_id else [self.name]
        found = {table: self._database.columns(transaction, table) for table in tables}
        return {table: columns for table, columns in found.items() if columns}

    def _missing(self, found: Mapping[str, TableColumn]) -> list[str]:
        return [name for name in self.columns if name not in found]

    def _additions(self, table: str, found: Mapping[str, TableColumn]) -> list[str]:
        types = self._database.types
        kinds: dict[str, str] = {column.name: types[column.kind] for column in self._outputs}
        return [
            f'ALTER TABLE {table} ADD COLUMN "{name}" {kinds.get(name, types["integer"])}'
            for name in self._missing(found)
        ]

    def _unfit(self, found: Mapping[str, TableColumn]) -> list[str]:
        """Differences that adding columns would not resolve."""
        accepted = self._database.accepted
        wanted = {column.name: accepted[column.kind] for column in self._outputs}
        wanted.update(dict.fromkeys(ROW_COLUMNS, accepted["integer"]))
        other = [
            f"{name} is {found[name].type}"
            for name, kinds in wanted.items()
            if name in found and found[name].type not in kinds
        ]
        return other + [
            f"{name} must be given a value and is no field of the output"
            for name, column in found.items()
            if column.required and name not in wanted
        ]

    def _unkeyed(self, transaction: Transaction) -> list[str]:
        output_id = self._writer.output_id
        if frozenset(output_id) in self._database.unique(transaction, self.name):
            return []
        return [f"nothing says that {', '.join(output_id)}, the output_id, is unique"]

    def _definition(self) -> str:
        types = self._database.types
        rows = ", ".join(f'"{name}" {types["integer"]} NOT NULL' for name in ROW_COLUMNS)
        identity = self._writer.output_id
        key = f", PRIMARY KEY ({quoted(identity)})" if identity else ""
        return f"CREATE TABLE {self.name} ({definition(self._outputs, types)}, {rows}{key})"

    def _undo_definition(self) -> str:
        """Create the table of replaced rows; for an inserted row it has only the identity."""
        types = self._database.types
        rows = ", ".join(f'"{name}" {types["integer"]}' for name in ROW_COLUMNS)
        return (
            f"CREATE TABLE IF NOT EXISTS {self.undo} ("
            f"catchwater_undo_epoch {types['integer']} NOT NULL, "
            f"catchwater_existed {types['boolean']} NOT NULL, "
            f"{definition(self._outputs, types)}, {rows}, "
            f"PRIMARY KEY (catchwater_undo_epoch, {quoted(self._writer.output_id)}))"
        )
