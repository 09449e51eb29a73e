"""The table sink: an epoch's rows and its mark in one transaction.

Every row carries its identity in ROW_COLUMNS. `mode = "append"` inserts rows; `mode = "upsert"`
replaces them by the function's `output_id`.

An answer that is lost after a commit is asked for again: the mark tells. Transactions of one sink
wait for each other, so a driver that was thought dead finds the marks of its successor.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    EpochMissing,
    Fix,
    OutputRecord,
    RowId,
    SinkRow,
    SinkUnavailable,
    Staged,
    Superseded,
    TargetDiffers,
    TargetTaken,
    epoch_checksum,
    refuse_other,
)
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.patience import patiently
from catchwater.sinks.relational.columns import Codec, RowUnfit, Values, digest_of
from catchwater.sinks.relational.database import Database, Transaction, quoted
from catchwater.sinks.relational.tables import Target, Writer
from catchwater.sinks.relational.takeover import take_place
from catchwater.sinks.relational.upsert import NO_ROW, put_back, replace_rows
from catchwater.sinks.staged import Archive, StagedFile

_SWEEP_EPOCHS = 64
"""Marks and undo rows are deleted for so many epochs at once."""
_OURS = "pipeline = ? AND sink = ?"


class TableSink:
    """The driver's half; see `base.Sink`."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        codec: Codec,
        config: SinkConfig,
        truth: Archive,
        clock: Clock,
    ) -> None:
        """Claims the table and creates it where it is missing. Raises as `Target.prepare`."""
        self.name = writer.sink
        self.truth = truth
        self._database = database
        self._writer = writer
        self._codec = codec
        self.retracts = bool(writer.output_id)
        self._exactly_once = config.exactly_once
        self._retry_ms = config.milliseconds("retry")
        self._clock = clock
        self._who = (writer.pipeline, writer.sink)
        self._target = Target(database, writer, codec.columns)
        self._swept = 0
        try:
            patiently(self._target.prepare, clock, self._retry_ms)
        except CatchwaterError:
            database.close()
            raise

    def stager(self) -> StagedFile:
        """What the tasks stage with."""
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Write the epoch's rows with its mark, once."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        records = sum(piece.records for piece in pieces)
        done = SinkEpoch(self._writer.table, records, epoch_checksum(pieces))
        try:
            patiently(lambda: self._commit(epoch, pieces, done), self._clock, self._retry_ms)
        except (TargetDiffers, RowUnfit):
            # A table that was changed meanwhile is told as at a start: what is wrong, and what it
            # should be. Where it fits, or cannot be asked, the error itself says most.
            with suppress(SinkUnavailable), self._database.transaction() as transaction:
                self._target.check_fits(transaction)
            raise
        return done

    def last_epoch(self) -> int | None:
        """The newest epoch that has a mark."""

        def last() -> int | None:
            with self._database.transaction() as transaction:
                return self._last(transaction)

        return patiently(last, self._clock, self._retry_ms)

    def withdraw(self, after: int) -> None:
        """Delete, or put back, what older generations wrote after this epoch."""
        if patiently(lambda: self._withdraw(after), self._clock, self._retry_ms):
            self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        """The values of `output_id` in upsert mode: a later row of the same ones replaces it."""
        if not self._writer.output_id:
            return None
        return msgspec.json.encode(self._id_of(self._codec.values(record)))

    def digest(self, record: OutputRecord) -> bytes:
        """Of the columns' values, as the database gives them back."""
        return digest_of(self._codec.columns, self._codec.values(record))

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """The table's rows of these epochs."""
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
        """Delete what stands in a row's place and insert what belongs there; mends them all."""
        with self._database.transaction() as transaction:
            transaction.lock("/".join(self._who))
            for fix in fixes:
                self._repair(transaction, fix)
        return []

    def take_place(self, pipeline: str, table: str) -> int:
        """Put its table's rows and marks in the place of another pipeline's, at once.

        The other one's sink has this one's name, and goes on with this one's epochs. Gives how many
        rows there are now, -1 if it was done before. This sink's own table is gone then.
        """
        live = self._writer._replace(pipeline=pipeline, table=table)
        theirs = Target(self._database, live, self._codec.columns)
        with self._database.transaction() as transaction:
            for owner in sorted([self._who, (pipeline, self.name)]):
                transaction.lock("/".join(owner))
            return take_place(transaction, self._target, theirs, live)

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget staged pieces, and now and then marks and undo rows, of epochs before."""
        self.truth.sweep(oldest, now_ms)
        if oldest - self._swept >= _SWEEP_EPOCHS:
            # What is behind can wait for a database that is away; the next epoch will say so.
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
        """Close the connection."""
        self._database.close()

    def _commit(self, epoch: int, pieces: Sequence[Staged], done: SinkEpoch) -> None:
        with self._database.transaction() as transaction:
            transaction.lock("/".join(self._who))
            self._refuse_superseded(transaction)
            if self._exactly_once and self._has_mark(transaction, epoch, done):
                return
            self.truth.record(epoch, pieces, self._clock.now_ms())
            self._write(transaction, epoch, pieces)
            if self._exactly_once:
                transaction.execute(
                    "INSERT INTO catchwater_epochs "
                    "(pipeline, sink, epoch, generation, records, checksum) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    [*self._who, epoch, self._writer.generation, done.records, done.checksum],
                )

    def _refuse_superseded(self, transaction: Transaction) -> None:
        claims = transaction.execute(
            f"SELECT generation FROM catchwater_sinks WHERE {_OURS}", self._who
        )
        if not claims:
            raise TargetTaken(
                f"The sink {self.name!r} of {self._who[0]!r} no longer has its row in "
                f"catchwater_sinks: another pipeline may have taken {self._writer.table}.",
                hint="If none has, start the pipeline again: it claims the table.",
            )
        generation = claims[0][0]
        if int(generation) > self._writer.generation:
            raise Superseded(
                f"The sink {self.name!r} of {self._who[0]!r} is written by generation "
                f"{generation} of the pipeline; this is generation {self._writer.generation}, "
                "which was rolled back.",
                hint="Stop this pipeline: another one runs in its place.",
            )

    def _has_mark(self, transaction: Transaction, epoch: int, done: SinkEpoch) -> bool:
        """Whether the epoch was written. Raises `EpochDiffers` or `EpochMissing`."""
        marks = transaction.execute(
            f"SELECT checksum FROM catchwater_epochs WHERE {_OURS} AND epoch = ?",
            [*self._who, epoch],
        )
        if marks:
            refuse_other(self.name, self._who[0], epoch, marks[0][0], done.checksum)
            return True
        last = self._last(transaction)
        if last is not None and epoch != last + 1:
            raise EpochMissing(
                f"The sink {self.name!r} has epoch {last} of {self._who[0]!r}; epoch {epoch} does "
                "not follow it.",
                hint="If the table was restored from an older copy: catchwater sink repair FILE. "
                "Otherwise start from the checkpoint this sink was written from.",
            )
        return False

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
            transaction.lock("/".join(self._who))
            self._refuse_superseded(transaction)
            raised = transaction.execute(
                f"UPDATE catchwater_sinks SET generation = ? WHERE {_OURS} AND generation < ? "
                "RETURNING generation",
                [self._writer.generation, *self._who, self._writer.generation],
            )
            if not raised:
                return False  # what is there now is this generation's own
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
