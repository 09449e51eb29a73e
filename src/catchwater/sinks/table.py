"""Outputs as rows of a table: an epoch's rows and its mark in one transaction.

Every row has its identity in ROW_COLUMNS. `mode = "append"` inserts rows; `mode = "upsert"`
replaces them by the function's `output_id`, and keeps the replaced rows so that an epoch can be
withdrawn.

After a commit whose answer was lost the mark shows whether it was applied. Transactions of one sink
exclude each other, so a driver that was believed dead finds the marks of its successor. The SQL is
the same for SQLite and PostgreSQL, the two kinds.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    Fix,
    OutputRecord,
    RowId,
    SinkRow,
    SinkUnavailable,
    Staged,
    TargetDiffers,
    TargetState,
    TargetTaken,
    patiently,
)
from catchwater.sinks.columns import Codec, RowUnfit, Values, codec_of, digest_of
from catchwater.sinks.config import Guarantee, ImpossibleDelivery, SinkConfig
from catchwater.sinks.epochs import Mark, TargetEpochs, admit, refuse_superseded
from catchwater.sinks.table_target import (
    UNDO_COLUMNS,
    Database,
    Target,
    Transaction,
    Writer,
    checked_names,
    claim_of,
    quoted,
)

if TYPE_CHECKING:
    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive, StagedFile

_SWEEP_EPOCHS = 64
"""Marks and undo rows are deleted for this many epochs at a time."""
NO_ROW = (None, None, None)
"""In place of epoch, shard and row: there must be no row with this identity."""

_FRESH = "catchwater_fresh"
_OURS = "pipeline = ? AND sink = ?"


# The declarations that both kinds share

MODES = ("append", "upsert")
MODE = "add rows, or let them replace each other by the `output_id`"
"""Documentation of `mode`."""


def table_guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    """See `Kind.guarantee`."""
    if config.options.mode == "upsert":
        if not output_id:
            raise ImpossibleDelivery(
                f'The sink {config.name!r} has mode = "upsert", but the function declares no '
                "output_id: nothing says which row an output replaces.",
                hint='Declare output_id=("field", …) in @function, or choose mode = "append".',
            )
        if not config.exactly_once:
            return Guarantee("idempotent", f"rows are replaced by {', '.join(output_id)}")
    if config.exactly_once:
        return Guarantee("exactly-once", "rows and the epoch's mark in one transaction")
    return Guarantee(
        "at-least-once", "rows without a mark; catchwater_epoch, _shard and _row tell them"
    )


def table_aside(config: SinkConfig, label: str) -> str:
    """See `Kind.aside`."""
    table = f"{config.named}__{label.replace('-', '_')}"
    try:
        checked_names(table)
    except ConfigError as error:
        raise ConfigError(
            f"The rebuild would write to {table}, whose name is too long for a table.",
            hint="Choose a shorter label.",
        ) from error
    return table


def rows_replaced(options: Any) -> str:
    """See `Kind.replaces`."""
    return "those of the same output_id" if options.mode == "upsert" else ""


def open_table(
    database: Database, config: SinkConfig, context: "SinkContext", truth: "Archive"
) -> "TableSink":
    """See `Kind.open`; does not connect yet."""
    codec = codec_of(context.output_type)
    return TableSink(database, _writer(config, context), codec, config, truth, context.clock)


def target_table(database: Database, config: SinkConfig, context: "SinkContext") -> Target:
    """The sink's table; does not connect. Raises `ConfigError` for names that are not allowed."""
    return Target(database, _writer(config, context), codec_of(context.output_type).columns)


def look_at_table(database: Database, config: SinkConfig, context: "SinkContext") -> TargetState:
    """See `Kind.look`."""
    target = target_table(database, config, context)
    with closing(database):
        return target.look()


def alter_table(database: Database, config: SinkConfig, context: "SinkContext") -> None:
    """See `Kind.alter`."""
    target = target_table(database, config, context)
    with closing(database):
        target.alter()


def _writer(config: SinkConfig, context: "SinkContext") -> Writer:
    return Writer(
        context.owner(config.name),
        config.options.table,
        context.output_id if config.options.mode == "upsert" else (),
    )


# The sink


class TableSink:
    """See `base.Sink`."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        codec: Codec,
        config: SinkConfig,
        truth: "Archive",
        clock: Clock,
    ) -> None:
        """Claims the table, and creates it if it is missing. Raises as `Target.prepare`."""
        self.name = writer.owner.sink
        self.truth = truth
        self._database = database
        self._writer = writer
        self._codec = codec
        self.retracts = bool(writer.output_id)
        self._exactly_once = config.exactly_once
        self._retry_ms = config.options.retry_ms
        self._clock = clock
        self._owner = writer.owner
        self._who = writer.owner.name
        self._target = Target(database, writer, codec.columns)
        self._swept = 0
        try:
            patiently(self._target.prepare, clock, self._retry_ms)
        except CatchwaterError:
            database.close()
            raise

    def stager(self) -> "StagedFile":
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        try:
            patiently(lambda: self._commit(mark, pieces), self._clock, self._retry_ms)
        except (TargetDiffers, RowUnfit):
            # If the table was altered meanwhile, raise the same description as at a start; if it
            # fits or cannot be read, the error itself is the best description.
            with suppress(SinkUnavailable), self._database.transaction() as transaction:
                self._target.check_fits(transaction)
            raise
        return mark.sink_epoch(self._writer.table)

    def last_epoch(self) -> int | None:

        def last() -> int | None:
            with self._database.transaction() as transaction:
                return self._last(transaction)

        return patiently(last, self._clock, self._retry_ms)

    def withdraw(self, after: int) -> None:
        """Undo the rows that older generations wrote after this epoch."""
        if patiently(lambda: self._withdraw(after), self._clock, self._retry_ms):
            self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        """The values of `output_id` in upsert mode, where a later row with them replaces it."""
        if not self._writer.output_id:
            return None
        return msgspec.json.encode(self._id_of(self._codec.values(record)))

    def digest(self, record: OutputRecord) -> bytes:
        """Over the columns' values, as the database returns them."""
        return digest_of(self._codec.columns, self._codec.values(record))

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        columns = self._codec.columns
        width = len(columns)
        sql = (
            f"SELECT {quoted(self._target.columns)} FROM {self._target.name} "
            "WHERE catchwater_epoch BETWEEN ? AND ?"
        )
        for row in self._database.scan(sql, [first, last]):
            epoch, shard, at = (int(value) for value in row[width:])
            yield SinkRow(RowId(epoch, shard, at), b"", digest_of(columns, row[:width]))

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Delete the rows with these identities and insert the records; repairs all of them."""
        with self._database.transaction() as transaction:
            transaction.lock(str(self._owner))
            for fix in fixes:
                self._repair(transaction, fix)
        return []

    def take_place(self, pipeline: str, table: str) -> int:
        """Replace another pipeline's rows and marks with this table's, in one transaction.

        The other one's sink has this one's name, and goes on with this one's epochs. Gives how many
        rows there are now, -1 if it was done before. This sink's own table is gone then.
        """
        live = self._writer._replace(owner=self._owner._replace(pipeline=pipeline), table=table)
        theirs = Target(self._database, live, self._codec.columns)
        with self._database.transaction() as transaction:
            for owner in sorted(map(str, (self._owner, live.owner))):
                transaction.lock(owner)
            return _take_place(transaction, self._target, theirs, live)

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Delete earlier epochs: staged pieces, and from time to time marks and undo rows."""
        self.truth.sweep(oldest, now_ms)
        oldest = min(oldest, self.truth.oldest(oldest))  # `keep` reaches farther back, perhaps
        if oldest - self._swept >= _SWEEP_EPOCHS:
            # Deleting can wait if the database is unavailable; the next epoch raises that.
            with suppress(SinkUnavailable):
                self._sweep(oldest)

    def _sweep(self, oldest: int) -> None:
        with self._database.transaction() as transaction:
            transaction.execute(
                f"DELETE FROM catchwater_epochs WHERE {_OURS} AND epoch < ?", [*self._who, oldest]
            )
            if self._writer.output_id:
                sql = f"DELETE FROM {self._target.undo} WHERE catchwater_undo_epoch < ?"
                transaction.execute(sql, [oldest])
        self._swept = oldest

    def close(self) -> None:
        self._database.close()

    def _commit(self, mark: Mark, pieces: Sequence[Staged]) -> None:
        with self._database.transaction() as transaction:
            # Another driver of this sink waits here, and finds our marks afterwards.
            transaction.lock(str(self._owner))
            generation = self._generation(transaction)
            if self._owner.claim is not None:
                claim = claim_of(transaction, self._owner)
                refuse_superseded(self._owner, generation, claim)
            if not self._exactly_once:
                refuse_superseded(self._owner, generation)
            elif admit(self._owner, self._known(transaction, generation, mark.epoch), mark):
                return
            self.truth.record(mark.epoch, pieces, self._clock.now_ms())
            self._write(transaction, mark.epoch, pieces)
            if self._exactly_once:
                transaction.execute(
                    "INSERT INTO catchwater_epochs "
                    "(pipeline, sink, epoch, generation, records, checksum) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    [*self._who, mark.epoch, mark.generation, mark.records, mark.checksum],
                )

    def _generation(self, transaction: Transaction) -> int:
        """The generation that writes to the table. Raises `TargetTaken` for another writer."""
        claims = transaction.execute(
            f"SELECT generation FROM catchwater_sinks WHERE {_OURS}", self._who
        )
        if not claims:
            raise TargetTaken(
                f"The sink {self.name!r} of {self._owner.pipeline!r} no longer has its row in "
                f"catchwater_sinks: another pipeline may have taken {self._writer.table}.",
                hint="If none has, start the pipeline again: it claims the table.",
            )
        return int(claims[0][0])

    def _known(self, transaction: Transaction, generation: int, epoch: int) -> TargetEpochs:
        marks = transaction.execute(
            "SELECT epoch, generation, records, checksum FROM catchwater_epochs "
            f"WHERE {_OURS} AND epoch = ?",
            [*self._who, epoch],
        )
        if marks:
            return TargetEpochs(generation, epoch, Mark(*marks[0]))
        return TargetEpochs(generation, self._last(transaction))

    def _write(self, transaction: Transaction, epoch: int, pieces: Sequence[Staged]) -> None:
        target = self._target
        if not self._writer.output_id:
            rows = (row for piece in pieces for row in self._rows_of(epoch, piece))
            transaction.insert(target.name, target.columns, rows)
            return
        for piece in pieces:
            newest = {self._id_of(row): row for row in self._rows_of(epoch, piece)}
            output_id = self._writer.output_id
            replace_rows(transaction, target, output_id, epoch, newest.values())

    def _rows_of(self, epoch: int, piece: Staged) -> Iterator[Values]:
        values, shard = self._codec.values, piece.shard
        for at, record in enumerate(self.truth.records(piece)):
            if record.retracts:
                yield *values(record), *NO_ROW
            else:
                yield *values(record), epoch, shard, at

    def _id_of(self, values: Values) -> Values:
        names = self._target.columns
        return tuple(values[names.index(name)] for name in self._writer.output_id)

    def _last(self, transaction: Transaction) -> int | None:
        ((last,),) = transaction.execute(
            f"SELECT max(epoch) FROM catchwater_epochs WHERE {_OURS}", self._who
        )
        return None if last is None else int(last)

    def _withdraw(self, after: int) -> bool:
        with self._database.transaction() as transaction:
            transaction.lock(str(self._owner))
            claim = claim_of(transaction, self._owner) if self._owner.claim else None
            refuse_superseded(self._owner, self._generation(transaction), claim)
            raised = transaction.execute(
                f"UPDATE catchwater_sinks SET generation = ? WHERE {_OURS} AND generation < ? "
                "RETURNING generation",
                [self._owner.generation, *self._who, self._owner.generation],
            )
            if not raised:
                return False  # all rows are this generation's own
            if self._writer.output_id:
                put_back(transaction, self._target, self._writer.output_id, after)
            else:
                sql = f"DELETE FROM {self._target.name} WHERE catchwater_epoch > ?"
                transaction.execute(sql, [after])
            transaction.execute(
                f"DELETE FROM catchwater_epochs WHERE {_OURS} AND epoch > ?", [*self._who, after]
            )
            return True

    def _repair(self, transaction: Transaction, fix: Fix) -> None:
        target = self._target
        by_row = "catchwater_epoch = ? AND catchwater_shard = ? AND catchwater_row = ?"
        transaction.execute(f"DELETE FROM {target.name} WHERE {by_row}", fix.id)
        if fix.record is None:
            return
        values = self._codec.values(fix.record)
        if self._writer.output_id:
            same = " AND ".join(f'"{name}" = ?' for name in self._writer.output_id)
            transaction.execute(f"DELETE FROM {target.name} WHERE {same}", self._id_of(values))
        transaction.insert(target.name, target.columns, [(*values, *fix.id)])


# Rows that replace each other
#
# An epoch's rows go into a temporary table. The rows that they replace are copied into the undo
# table, and then replaced; a retraction only deletes. All of this is in the transaction of the
# epoch's mark. A withdrawal restores, for each row, what the oldest withdrawn epoch had replaced.


def replace_rows(
    transaction: Transaction,
    target: Target,
    output_id: Sequence[str],
    epoch: int,
    rows: Iterable[Sequence[object]],
) -> None:
    """Replace rows by new ones with the same identity, which must be unique among these.

    One that ends with NO_ROW deletes what it would replace.
    """
    columns = quoted(target.columns)
    others = [name for name in target.columns if name not in output_id]
    same = " AND ".join(f't."{name}" = f."{name}"' for name in output_id)
    found = ", ".join(
        f'f."{name}"' if name in output_id else f't."{name}"' for name in target.columns
    )
    updated = ", ".join(f'"{name}" = excluded."{name}"' for name in others)
    transaction.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {_FRESH} AS "
        f"SELECT {columns} FROM {target.name} WHERE 1 = 0"
    )
    transaction.insert(_FRESH, target.columns, rows)
    transaction.execute(
        f"INSERT INTO {target.undo} (catchwater_undo_epoch, catchwater_existed, {columns}) "
        f"SELECT ?, t.catchwater_epoch IS NOT NULL, {found} "
        f"FROM {_FRESH} f LEFT JOIN {target.name} t ON {same} WHERE 1 = 1 ON CONFLICT DO NOTHING",
        [epoch],
    )
    there = " AND ".join(f'f."{name}" = {target.name}."{name}"' for name in output_id)
    transaction.execute(
        f"DELETE FROM {target.name} WHERE EXISTS "
        f"(SELECT 1 FROM {_FRESH} f WHERE f.catchwater_epoch IS NULL AND {there})"
    )
    transaction.execute(
        f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {_FRESH} "
        "WHERE catchwater_epoch IS NOT NULL "
        f"ON CONFLICT ({quoted(output_id)}) DO UPDATE SET {updated}"
    )
    transaction.execute(f"DELETE FROM {_FRESH}")


def put_back(
    transaction: Transaction, target: Target, output_id: Sequence[str], after: int
) -> None:
    """Restore the table's content as of this epoch."""
    identity = quoted(output_id)
    columns = quoted(target.columns)
    same = " AND ".join(f'u."{name}" = {target.name}."{name}"' for name in output_id)
    oldest = " AND ".join(f'o."{name}" = u."{name}"' for name in output_id)
    transaction.execute(
        f"DELETE FROM {target.name} WHERE EXISTS "
        f"(SELECT 1 FROM {target.undo} u WHERE u.catchwater_undo_epoch > ? AND {same})",
        [after],
    )
    transaction.execute(
        f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {target.undo} u "
        f"WHERE u.catchwater_existed AND u.catchwater_undo_epoch = "
        f"(SELECT min(o.catchwater_undo_epoch) FROM {target.undo} o "
        f"WHERE o.catchwater_undo_epoch > ? AND {oldest}) "
        f"ON CONFLICT ({identity}) DO NOTHING",
        [after],
    )
    transaction.execute(f"DELETE FROM {target.undo} WHERE catchwater_undo_epoch > ?", [after])


# Replacing one table's content with another's
#
# Readers of the other table see its old rows or its new ones. The table itself is not replaced and
# keeps its indexes, its grants and the views on it.


def _take_place(transaction: Transaction, mine: Target, theirs: Target, live: Writer) -> int:
    """Move this table's rows and marks to the live writer's, and drop it; the number of rows.

    -1 if that was done before: then this table has no marks.
    """
    own, other = mine.owner, live.owner.name
    ((marks,),) = transaction.execute(f"SELECT count(*) FROM catchwater_epochs WHERE {_OURS}", own)
    rows = _move(transaction, mine, theirs, live) if marks else -1
    if marks:
        transaction.execute(f"DELETE FROM catchwater_epochs WHERE {_OURS}", other)
        transaction.execute(
            f"UPDATE catchwater_epochs SET pipeline = ?, sink = ? WHERE {_OURS}", [*other, *own]
        )
        transaction.execute(
            f"UPDATE catchwater_sinks SET generation = ? WHERE {_OURS}",
            [live.owner.generation, *other],
        )
    transaction.execute(f"DELETE FROM catchwater_sinks WHERE {_OURS}", own)
    transaction.execute(f"DROP TABLE {mine.name}")
    if live.output_id:
        transaction.execute(f"DROP TABLE {mine.undo}")
    return rows


def _move(transaction: Transaction, mine: Target, theirs: Target, live: Writer) -> int:
    theirs.check_fits(transaction)
    columns = quoted(mine.columns)
    transaction.execute(f"DELETE FROM {theirs.name}")
    transaction.execute(f"INSERT INTO {theirs.name} ({columns}) SELECT {columns} FROM {mine.name}")
    if live.output_id:
        transaction.execute(f"DELETE FROM {theirs.undo}")
        # By name, because added columns have another order.
        undone = quoted([*UNDO_COLUMNS, *mine.columns])
        transaction.execute(
            f"INSERT INTO {theirs.undo} ({undone}) SELECT {undone} FROM {mine.undo}"
        )
    ((rows,),) = transaction.execute(f"SELECT count(*) FROM {theirs.name}")
    return int(rows)
