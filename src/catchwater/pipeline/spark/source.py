"""The packed streaming source: what an epoch reads, already split by shard.

Spark pays for every row it hands to Python, so events travel as Arrow blobs: one row per batch
and shard, and one row without a blob for every shard in every epoch, because an epoch is also what
makes timers fire. An offset is the end of an epoch: the log's offsets, the watermark, the clock.
All three are decided here, on the driver, and stand in Spark's offset log, so that an epoch that
runs again sees what it saw.

The watermark is the largest event time of the epochs before, less the function's delay; what those
epochs saw is in the ledger. An epoch begins when there is something new to read, or when the
watermark reaches what a shard waits for. After a restore the recorded ends of the epochs that ran
before are issued again, so that their marks in the sinks stay true.

Relies on `replay` for offsets, plans and reading, and on the ledger entry of an epoch being written
before Spark commits it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from catchwater.pipeline.run.artefact import FunctionCode
from catchwater.pipeline.spark.operator import INPUT_SCHEMA
from catchwater.recovery.ledger import EpochEntry, Ledger, LedgerDamaged, SourceOffset
from catchwater.replay.offsets import admit, from_json, to_json
from catchwater.replay.options import Offsets, SourceOptions, parse_options
from catchwater.replay.plan import Task
from catchwater.replay.subscription import Subscription
from catchwater.wire.client import LATEST

FIRST_WATERMARK_MS = 0
"""The watermark before any event was seen, as in the harness."""

_COLUMNS = ("key", "value", "topic", "partition", "offset")
_SEQUENCES_PER_TASK = 2**32
_SETTINGS = "settings"

_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("sequence", pa.int64()),
        ("epoch", pa.int64()),
        ("watermark", pa.int64()),
        ("clock", pa.int64()),
        ("blob", pa.binary()),
    ]
)


class PackedSettings(msgspec.Struct, frozen=True):
    """What the source is told, as the one option Spark carries for it."""

    options: dict[str, str]
    checkpoint: str
    code: FunctionCode
    shards: int
    tasks: int
    record_key_is_function_key: bool

    def to_option(self) -> dict[str, str]:
        """The option's name and value."""
        return {_SETTINGS: msgspec.json.encode(self).decode()}


@dataclass
class PackedPartition(InputPartition):  # type: ignore[misc]
    """One task of one epoch; the first of an epoch also brings every shard's empty row."""

    index: int
    task: Task
    control_url: str | None
    end: SourceOffset


class PackedSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "catchwater-packed"

    def schema(self) -> str:
        """The rows the operator takes."""
        return INPUT_SCHEMA

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """The reader, on the driver and in every task."""
        return PackedReader(msgspec.json.decode(self.options[_SETTINGS], type=PackedSettings))


class PackedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Decides where epochs end (driver) and brings their rows (tasks)."""

    def __init__(self, settings: PackedSettings, clock: Clock = SYSTEM) -> None:
        self._settings = settings
        self._options: SourceOptions = parse_options(
            {**settings.options, "columns": ",".join(_COLUMNS)}
        )
        self._subscription = Subscription(self._options)
        self._ledger = Ledger(Path(settings.checkpoint))
        self._clock = clock
        # What was there when Trigger.AvailableNow began: nothing beyond it is read.
        self._goal: Offsets | None = None

    @cached_property
    def _spec(self) -> Any:
        return self._settings.code.load()

    def initialOffset(self) -> dict[str, Any]:
        """Before the first epoch: where the first start of this pipeline found it."""
        kept = self._ledger.beginning()
        if kept is None:
            offsets = to_json(self._subscription.starting(LATEST))
            first = SourceOffset(-1, offsets, FIRST_WATERMARK_MS, self._clock.now_ms())
            kept = self._ledger.begin(first)
        return kept.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the whole run."""
        self._goal = self._subscription.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next epoch ends, or `start` itself if there is none yet."""
        begin = SourceOffset.from_json(start)
        recorded = self._ledger.recorded_end(begin.epoch + 1)
        if recorded is not None:
            return recorded.to_json()
        latest = self._subscription.latest() if self._goal is None else dict(self._goal)
        offsets = from_json(begin.offsets)
        self._subscription.check_present(offsets, latest)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = admit(offsets, latest, most)
        last = self._last_entry(begin.epoch)
        watermark_ms = begin.watermark_ms
        if last is not None and last.max_event_time_ms is not None:
            watermark_ms = max(watermark_ms, last.max_event_time_ms - self._spec.watermark_ms)
        due_ms = None if last is None else last.next_due_ms
        idle = ends == offsets and (due_ms is None or watermark_ms < due_ms)
        if idle and last is not None:
            return start  # Spark runs its first batch in any case, so epoch 0 may be empty.
        clock_ms = max(begin.clock_ms, self._clock.now_ms())
        return SourceOffset(begin.epoch + 1, to_json(ends), watermark_ms, clock_ms).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The epoch's tasks; without anything to read, one that brings the empty rows."""
        until = SourceOffset.from_json(end)
        begin, finish = from_json(start["offsets"]), from_json(until.offsets)
        tasks = self._subscription.tasks(begin, finish, self._settings.tasks) or [Task(())]
        control_url = self._subscription.control_url()
        return [PackedPartition(i, task, control_url, until) for i, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's events, packed by shard, numbered in the order of the log."""
        # Spark runs three processes of ours that only plan; the decoders cost each a second.
        from catchwater.pipeline.pack import pack, shard_labels
        from catchwater.replay.read import ReadSettings, read_task

        assert isinstance(partition, PackedPartition), "Spark hands back what it was given"
        settings = ReadSettings(
            self._options.bootstrap,
            _COLUMNS,
            partition.control_url,
            self._options.read_committed,
            self._options.fail_on_data_loss,
        )
        labels = shard_labels(self._settings.shards)
        sequence = partition.index * _SEQUENCES_PER_TASK
        if partition.index == 0:
            yield _rows(partition.end, sequence, [(label, b"") for label in labels])
        with_keys = self._settings.record_key_is_function_key
        for batch in read_task(partition.task, settings):
            sequence += 1
            topic, number = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
            packed = pack(
                self._spec,
                batch.column("key") if with_keys else None,
                batch.column("value"),
                batch.column("offset"),
                origin=f"{topic}-{number}",
                labels=labels,
            )
            yield _rows(partition.end, sequence, packed)

    def stop(self) -> None:
        """Close the connections."""
        self._subscription.close()

    def _last_entry(self, epoch: int) -> EpochEntry | None:
        if epoch < 0:
            return None
        entry = self._ledger.read(epoch)
        if entry is None:
            raise LedgerDamaged(
                f"The ledger {self._ledger.folder} has no entry of epoch {epoch}, which Spark "
                "committed.",
                hint="Restore the checkpoint before it: catchwater recovery restore "
                f"--checkpoint {epoch - 1}.",
            )
        return entry


def _rows(end: SourceOffset, sequence: int, packed: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Rows of one sequence number, one for each shard named."""
    count = len(packed)
    columns = [
        pa.array([label for label, _ in packed], pa.int32()),
        *(
            pa.array([number] * count, pa.int64())
            for number in (sequence, end.epoch, end.watermark_ms, end.clock_ms)
        ),
        pa.array([blob for _, blob in packed], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)
