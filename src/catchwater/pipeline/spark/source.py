"""The packed streaming source: what an epoch reads, already split by shard.

An offset is the end of an epoch: the log's offsets, the watermarks, the clock. All of it is decided
here, on the driver, and stands in Spark's offset log, so that an epoch that runs again sees what it
saw. The positions that the shards' state starts from are those of the ledger entry before; they
travel in head rows, one for every shard of every stage in every epoch.

An epoch begins when there is something new to read, or when a shard waits for a watermark or a time
that has come (`watermark`). Spark would ask for it fifty times a second; a question that follows
one without an epoch blocks until there may be one. Tables are read to their end before the first
event is.
After a restore the recorded ends of the epochs that ran before are issued again, so that their
marks in the sinks stay true.

Relies on `replay` for offsets, plans and reading, and on the ledger entry of an epoch being written
before Spark commits it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.rows import (
    EVENTS,
    HEAD,
    PER_PART,
    SPARK_SCHEMA,
    TABLES,
    Head,
    Row,
    shard_labels,
    to_arrow,
)
from catchwater.pipeline.run.versions import FunctionCode
from catchwater.pipeline.watermark import FIRST_WATERMARK_MS, EventTime
from catchwater.recovery import handover
from catchwater.recovery.ledger import EpochEntry, Ledger, OffsetMap, SourceOffset
from catchwater.replay.offsets import admit, from_json, to_json
from catchwater.replay.options import TIMESTAMP_MS, Offsets, SourceOptions, parse_options
from catchwater.replay.plan import Task
from catchwater.replay.source import in_two_lines
from catchwater.replay.subscription import Subscription
from catchwater.state.roll import EMPTY
from catchwater.wire.client import EARLIEST, LATEST

_COLUMNS = ("key", "value", "topic", "partition", "offset", TIMESTAMP_MS)
_SETTINGS = "settings"
LONGEST_WAIT_S = 1.0
"""Partitions that appear, or are gone, are seen no later than this."""
_LOOK_S = 0.02
"""How often to look at the files by which another driver holds epochs up."""
RUN_BYTES = 32 << 20
"""Batches are packed together until they have so many bytes, so that a key is hashed but once."""


class PackedSettings(msgspec.Struct, frozen=True):
    """The settings of the source, which Spark carries as one option."""

    options: dict[str, str]
    checkpoint: str
    functions: list[FunctionCode]
    """Of the chain, in order."""
    shards: int
    tasks: int
    record_key_is_function_key: bool
    idle_timeout_ms: int | None = None
    inputs: dict[str, str] = {}
    """Topic → the first function's input; empty: it has one."""
    tables: dict[str, str] = {}
    """Table → topic."""
    table_options: dict[str, str] = {}
    until: OffsetMap | None = None
    """Where a run that ends with its input ends; None: where that is when it begins."""
    waits: bool = True
    """Whether the next epoch may be waited for; not where the trigger is a clock's."""

    def __repr__(self) -> str:
        # The options hold passwords.
        return f"{type(self).__name__}(checkpoint={self.checkpoint!r})"

    def to_option(self) -> dict[str, str]:
        """The option's name and value."""
        return {_SETTINGS: msgspec.json.encode(self).decode()}


@dataclass
class PackedPartition(InputPartition):  # type: ignore[misc]
    """One task of one epoch; the first of an epoch also brings the heads of all shards."""

    index: int
    task: Task
    control_url: str | None = field(repr=False)
    heads: list[Row]
    of_tables: bool = False

    @property
    def first(self) -> int:
        """The sequence of its first rows."""
        return (TABLES if self.of_tables else EVENTS) + self.index * PER_PART


class PackedSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "catchwater-packed"

    def schema(self) -> str:
        """The rows that all stages take."""
        return SPARK_SCHEMA

    @in_two_lines
    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """The reader, on the driver and in every task."""
        return PackedReader(msgspec.json.decode(self.options[_SETTINGS], type=PackedSettings))


@dataclass(frozen=True)
class _Idle:
    """There is no epoch after this one yet, and what it waits for."""

    epoch: int
    ends: Offsets | None = None
    """A record at one of these, in topics and tables; None: another driver."""
    due_ms: int | None = None
    """Or this time of the clock."""


class PackedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Decides where epochs end (driver) and brings their rows (tasks)."""

    def __init__(self, settings: PackedSettings, clock: Clock = SYSTEM) -> None:
        self._settings = settings
        options = parse_options({**settings.options, "columns": "value"})
        # Certificates are read here, where their files are; tasks get what is in them.
        self._options: SourceOptions = replace(options, security=options.security.loaded())
        self._subscription = Subscription(self._options)
        self._tables: Subscription | None = None
        if settings.tables:
            self._tables = Subscription(parse_options(settings.table_options))
        self._ledger = Ledger(Path(settings.checkpoint))
        self._clock = clock
        # What was there when Trigger.AvailableNow began: nothing beyond it is read.
        self._goal: Offsets | None = None
        self._planned_ms = 0
        self._idle: _Idle | None = None
        """What the last answer was, where it was that there is no next epoch yet."""

    @cached_property
    def _specs(self) -> list[FunctionSpec]:
        return [code.load() for code in self._settings.functions]

    @cached_property
    def _labels(self) -> list[int]:
        return shard_labels(self._settings.shards)

    @cached_property
    def _time(self) -> EventTime:
        settings = self._settings
        return EventTime(
            self._specs[0].watermark_ms, len(settings.functions), settings.idle_timeout_ms
        )

    @in_two_lines
    def initialOffset(self) -> dict[str, Any]:
        """Before the first epoch: where the first start of this pipeline found it."""
        kept = self._ledger.beginning()
        if kept is None:
            offsets = to_json(self._subscription.starting(LATEST))
            watermarks = [FIRST_WATERMARK_MS] * len(self._settings.functions)
            now_ms = self._clock.now_ms()
            tables = to_json(self._tables.starting(EARLIEST)) if self._tables else {}
            first = SourceOffset(-1, offsets, watermarks, now_ms, tables, now_ms)
            kept = self._ledger.begin(first)
        return kept.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @in_two_lines
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the whole run."""
        until = self._settings.until
        self._goal = self._subscription.latest() if until is None else from_json(until)

    @in_two_lines
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next epoch ends, or `start` itself if there is none yet."""
        begin = SourceOffset.from_json(start)
        if self._idle is not None and self._idle.epoch == begin.epoch:
            self._wait(self._idle)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = self._next(begin, most)
        if isinstance(found, SourceOffset):
            self._idle = None
            return found.to_json()
        # A run that ends with its input ends when there is no next epoch.
        self._idle = found if self._settings.waits and self._goal is None else None
        return start

    def _next(self, begin: SourceOffset, most: int | None) -> "SourceOffset | _Idle":
        """The end of the epoch after `begin`, or what is to be waited for."""
        recorded = self._ledger.recorded_end(begin.epoch + 1)
        if recorded is not None:
            return recorded
        folder = self._ledger.checkpoint
        if handover.is_shadow(folder, begin.epoch + 1):
            led = handover.leaders_end(folder, begin.epoch + 1)
            return led or _Idle(begin.epoch)
        now_ms = self._clock.now_ms()
        if self._is_held_up(begin.epoch, now_ms):
            return _Idle(begin.epoch)
        offsets, tables = from_json(begin.offsets), from_json(begin.tables)
        latest = self._subscription.latest() if self._goal is None else dict(self._goal)
        self._subscription.check_present(offsets, latest)
        ends = admit(offsets, latest, most)
        latest_tables = self._latest_tables(tables)
        table_ends = admit(tables, latest_tables, most)
        if table_ends != latest_tables and begin.offsets == self._first.offsets:
            ends = offsets
        clock_ms = max(begin.clock_ms, self._clock.now_ms())
        last = self._ledger.base(begin.epoch + 1)
        unread = {key: end for key, end in latest.items() if end > offsets.get(key, 0)}
        seen = last.seen if last else {}
        watermarks = self._time.advance(begin, seen, unread, clock_ms - begin.input_ms)
        idle = (ends, table_ends) == (offsets, tables)
        # Spark runs its first batch in any case, so epoch 0 may be empty.
        if last and idle and not self._time.is_due(last, watermarks[0], clock_ms):
            due_ms = self._time.due_at_ms(begin, last)
            return _Idle(begin.epoch, {**latest_tables, **latest}, due_ms)
        self._planned_ms = now_ms
        return SourceOffset(
            begin.epoch + 1,
            to_json(ends),
            watermarks,
            clock_ms,
            to_json(table_ends),
            clock_ms if ends != offsets else begin.input_ms,
        )

    def _is_held_up(self, epoch: int, now_ms: int) -> bool:
        """Whether another driver's files say that the epoch after this one is not to begin yet."""
        folder = self._ledger.checkpoint
        if handover.is_shadow(folder, epoch + 1):
            return handover.leaders_end(folder, epoch + 1) is None
        if handover.fenced_by(folder):
            return True
        return now_ms < self._planned_ms + handover.pace(folder, now_ms)

    def _wait(self, idle: "_Idle") -> None:
        """Until there may be a next epoch, at most so long that Spark is not kept from anything."""
        until_s = self._clock.monotonic_s() + LONGEST_WAIT_S
        if idle.ends is None:
            while self._is_held_up(idle.epoch, self._clock.now_ms()):
                if self._clock.monotonic_s() > until_s:
                    break
                self._clock.pause(_LOOK_S)
            return
        wait_s = LONGEST_WAIT_S
        if idle.due_ms is not None:
            wait_s = min(wait_s, max(0, idle.due_ms - self._clock.now_ms()) / 1000)
        self._subscription.wait(idle.ends, wait_s)

    @cached_property
    def _first(self) -> SourceOffset:
        return self._ledger.first()

    def _latest_tables(self, tables: Offsets) -> Offsets:
        """Where the tables' topics end now."""
        if self._tables is None:
            return tables
        latest = self._tables.latest()
        self._tables.check_present(tables, latest)
        return latest

    @in_two_lines
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The epoch's tasks; without anything to read, one that brings the heads."""
        begin, until = SourceOffset.from_json(start), SourceOffset.from_json(end)
        heads = self._heads(until, self._ledger.base(until.epoch))
        found = [
            *self._parts(self._tables, begin.tables, until.tables, of_tables=True),
            *self._parts(self._subscription, begin.offsets, until.offsets, of_tables=False),
        ] or [PackedPartition(0, Task(()), None, [])]
        found[0].heads = heads
        return found

    def _parts(
        self, of: Subscription | None, begin: OffsetMap, end: OffsetMap, *, of_tables: bool
    ) -> list[PackedPartition]:
        if of is None or begin == end:
            return []
        tasks = of.tasks(from_json(begin), from_json(end), self._settings.tasks)
        url = of.control_url()
        return [PackedPartition(i, task, url, [], of_tables) for i, task in enumerate(tasks)]

    def _heads(self, end: SourceOffset, base: EpochEntry | None) -> list[Row]:
        before = {(each.stage, each.shard): each for each in base.shards} if base else {}
        rows = []
        for stage in range(len(self._settings.functions)):
            for shard, label in enumerate(self._labels):
                stood = before.get((stage, shard))
                head = Head(
                    end.epoch,
                    end.watermark_of(stage),
                    end.clock_ms,
                    stood.position if stood else EMPTY,
                    stood.keys if stood else 0,
                )
                rows.append(Row(label, stage, shard, HEAD, msgspec.msgpack.encode(head)))
        return rows

    @in_two_lines
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's records, packed by shard, numbered in the order of the log."""
        # Spark runs three processes of ours that only plan; the decoders cost each a second.
        from catchwater.replay.read import ReadSettings, read_task

        assert isinstance(partition, PackedPartition), "Spark hands back what it was given"
        settings = ReadSettings(
            self._options.bootstrap,
            (*_COLUMNS, "headers") if self._specs[0].headers else _COLUMNS,
            partition.control_url,
            self._options.read_committed,
            self._options.fail_on_data_loss,
            self._options.security,
            self._options.client_id,
            locations=self._options.locations,
        )
        if partition.heads:
            yield to_arrow(partition.heads)
        pack = self._table_rows if partition.of_tables else self._event_rows
        read = (part for batch in read_task(partition.task, settings) for part in cut(batch))
        sequences = count(partition.first)
        for run in runs(read):
            for rows in pack(run, sequences):
                if rows:
                    yield to_arrow(rows)

    def _event_rows(
        self, run: Sequence[pa.RecordBatch], sequences: Iterator[int]
    ) -> Iterator[list[Row]]:
        """The rows of each batch of a run, which is of one partition."""
        from catchwater.pipeline.pack import Records, pack_run

        settings, topic = self._settings, run[0].column("topic")[0].as_py()
        keyed = settings.record_key_is_function_key
        batches = [
            Records(
                each.column("key") if keyed else None,
                each.column("value"),
                each.column("offset"),
                each.column(TIMESTAMP_MS),
                each.column("headers") if self._specs[0].headers else None,
            )
            for each in run
        ]
        packed = pack_run(
            self._specs[0],
            batches,
            origin=f"{topic}-{run[0].column('partition')[0].as_py()}",
            shards=settings.shards,
            input=settings.inputs.get(topic, ""),
        )
        for blobs, sequence in zip(packed, sequences, strict=False):
            yield [Row(self._labels[shard], 0, shard, sequence, blob) for shard, blob in blobs]

    def _table_rows(
        self, run: Sequence[pa.RecordBatch], sequences: Iterator[int]
    ) -> Iterator[list[Row]]:
        return (list(self._rows_of_tables(*each)) for each in zip(run, sequences, strict=False))

    def _rows_of_tables(self, batch: pa.RecordBatch, sequence: int) -> Iterator[Row]:
        """For every stage that declares the table."""
        from catchwater.pipeline.pack import pack_table

        settings, topic = self._settings, batch.column("topic")[0].as_py()
        for stage, spec in enumerate(self._specs):
            for name in (n for n in spec.tables if settings.tables.get(n) == topic):
                packed = pack_table(
                    spec,
                    name,
                    batch.column("key"),
                    batch.column("value"),
                    batch.column("offset"),
                    origin=f"{topic}-{batch.column('partition')[0].as_py()}",
                    shards=settings.shards,
                )
                for shard, blob in packed:
                    yield Row(self._labels[shard], stage, shard, sequence, blob)

    def stop(self) -> None:
        """Close the connections."""
        self._subscription.close()
        if self._tables is not None:
            self._tables.close()


def runs(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """What follows one another of one partition, together; each run is of some `RUN_BYTES`."""
    run: list[pa.RecordBatch] = []
    size, of = 0, None
    for batch in batches:
        partition = batch.column("topic")[0], batch.column("partition")[0]
        if run and (size >= RUN_BYTES or partition != of):
            yield run
            run, size = [], 0
        run.append(batch)
        size, of = size + batch.nbytes, partition
    if run:
        yield run


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """One batch for each run of records of one partition: small ones of several come together."""
    import pyarrow.compute as pc

    columns = (batch.column("topic"), batch.column("partition"))
    ends = {end for each in columns for end in pc.run_end_encode(each).run_ends.to_pylist()}
    start = 0
    for end in sorted(ends):
        yield batch.slice(start, end - start)
        start = end
