"""`format("catchwater")`: a Spark data source, batch and streaming, over our log or any Kafka.

Options and columns are those of Spark's Kafka source (see `options`), and so are the offsets in a
checkpoint. The driver's side asks for offsets and plans; the tasks read storage, or fetch from the
leaders, and hand Spark Arrow. A thin shell: all it decides is when to ask, and when to wait.

Relies on Spark 4.2's admission control for Python sources. Promises that a micro-batch repeated
after a restart reads exactly the same offsets. Does not write.
"""

import gc
import logging
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession, types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.replay.bundles import bundle_schema
from catchwater.replay.offsets import admit, behind, from_json, to_json
from catchwater.replay.options import BadOption, Offsets, SourceOptions, parse_options
from catchwater.replay.pin import MovingPin, ReadPin, planned, renewed
from catchwater.replay.plan import Task
from catchwater.replay.subscription import Subscription
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings, load
from catchwater.values.typed import read_columns, typed, value_fields
from catchwater.wire.client import LATEST

_LOG = logging.getLogger(__name__)

_IN_A_LOOP_S = 0.1
"""Without a trigger interval Spark asks again within this time."""
_ASK_EVERY_S = 1.0
"""Partitions that appear or go are noticed within this time."""

SPARK_TYPES: Mapping[str, types.DataType] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(
        types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    ),
}


_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_two_lines(method: _Method) -> _Method:
    """Let Spark tell an error of ours that this raises by its sentence and its hint alone.

    Else Spark gives it with the traceback of a process that its reader does not know, twice. That
    is settled by a variable of the process, which Spark ends after an error.
    """

    @wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with _in_two_lines():
            result = method(*arguments, **named)
        return _each(result) if isinstance(result, Generator) else result

    return wrapped  # type: ignore[return-value]


@contextmanager
def _in_two_lines() -> Iterator[None]:
    try:
        yield
    except CatchwaterError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _each(items: Iterator[Any]) -> Iterator[Any]:
    with _in_two_lines():
        yield from items


def register(spark: SparkSession) -> None:
    """Make `format("catchwater")` known to this session."""
    spark.dataSource.register(CatchwaterSource)


@dataclass
class SourcePartition(InputPartition):  # type: ignore[misc]
    """One task, where it may ask for a new plan, and the pin that it renews."""

    task: Task
    control_url: str | None = field(repr=False)
    pin: ReadPin | None = None
    planned_ms: int = field(default_factory=SYSTEM.now_ms, compare=False)
    """By the driver's wall clock."""


class CatchwaterSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name; it reads the options, and files that they name."""

    @classmethod
    def name(cls) -> str:
        return "catchwater"

    @in_two_lines
    def schema(self) -> types.StructType:
        return schema_of(loaded(self.options))

    @in_two_lines
    def reader(self, schema: object) -> DataSourceReader:
        return BatchReader(loaded(self.options))

    @in_two_lines
    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return StreamReader(loaded(self.options))


def loaded(options: Mapping[str, str]) -> SourceOptions:
    """The options and what is in the files that they name. Raises what `parse_options` does."""
    parsed = parse_options(options)
    # On the driver, where the files are: executors get what is in them with the reader.
    values = load(parsed.values)
    if values.registry is not None and not values.schema:
        values = _with_newest(values, parsed)
    return replace(parsed, values=values, security=parsed.security.loaded())


def _with_newest(values: ValueSettings, options: SourceOptions) -> ValueSettings:
    """The columns are those of the newest schema that the registry has for the topic."""
    from catchwater.values.subjects import newest

    assert values.registry is not None, "it has just been looked at"
    if len(options.topics) != 1:
        raise BadSchema(
            "valueSchema is left out; the registry's newest stands in for it with one topic only.",
            hint="Name a schema: valueSchema.",
        )
    return replace(values, schema=newest(values.registry, options.topics[0]))


def schema_of(options: SourceOptions) -> types.StructType:
    """The columns of a query; the value's fields in the place of `value` where it is decoded.

    Or those of the bundles that hold them.
    """
    if options.bundled:
        return from_arrow_schema(bundle_schema(options.columns))
    fields = []
    for name in options.columns:
        if name == "value" and options.values.format is not ValueFormat.BINARY:
            fields += value_fields(options.values, options.columns)
        else:
            fields.append(types.StructField(name, SPARK_TYPES[name]))
    return types.StructType(fields)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """From the starting to the ending offsets, once; by default everything there is.

    What it reads from our storage is pinned until the job has ended.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._subscription = Subscription(options)

    @in_two_lines
    def partitions(self) -> Sequence[InputPartition]:
        slices, pin = planned(self._subscription)
        control_url = self._subscription.control_url() if slices else None
        tasks = self._subscription.cut(slices)
        partitions = [SourcePartition(task, control_url, pin) for task in tasks]
        self._subscription.close()
        # Spark reads a list without elements as one partition without a value.
        return partitions or [SourcePartition(Task(()), None)]

    @in_two_lines
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourcePartition), "Spark hands back what it was given"
        return renewed(read_partition(self._subscription.options, partition), partition.pin)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """From one set of offsets to the next; partitions that appear are read from their beginning."""

    def __init__(self, options: SourceOptions, clock: Clock = SYSTEM) -> None:
        if options.ending is not None or options.ranges:
            raise BadOption(
                "A streaming query has no end, so it takes no endingOffsets, no ending time and no "
                "assignRanges.",
                hint="Leave them out, or use read instead of readStream.",
            )
        self._subscription = Subscription(options, clock)
        self._clock = clock
        self._pin = MovingPin(options.stream_pin_lease_ms, clock)
        # What was there when Trigger.AvailableNow began: nothing beyond it is read.
        self._goal: Offsets | None = None
        self._latest: Offsets | None = None
        # When a micro-batch was last let through; none before the first, which waits for nothing.
        self._triggered_s: float | None = None
        # When the last answer was that there is nothing new, and when the log was last asked; by
        # the monotonic clock, long ago if never.
        self._idle_s = self._asked_s = -math.inf

    @in_two_lines
    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._subscription.starting(LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._subscription.options
        # Python sources have no limit of two parts: with both, the lower one is seen to below.
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @in_two_lines
    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._subscription.latest()

    @in_two_lines
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._pin.renew()
        begin = from_json(start)
        if not self._may_have_more(begin):
            return self._nothing_new(start)
        self._asked_s = self._clock.monotonic_s()
        self._latest = self._subscription.latest() if self._goal is None else dict(self._goal)
        self._subscription.check_present(begin, self._latest)
        if not isinstance(limit, ReadAllAvailable) and self._waits(begin, self._latest):
            return self._nothing_new(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = admit(begin, self._latest, most)
        return to_json(ends) if ends != begin else self._nothing_new(start)

    def _nothing_new(self, start: dict[str, Any]) -> dict[str, Any]:
        """The answer that there is nothing new."""
        self._idle_s = self._clock.monotonic_s()
        return start

    def _may_have_more(self, begin: Offsets) -> bool:
        """Wait for records, if that is worth it; False if there are none and no need to ask.

        A query with a trigger interval comes back seldom, and does not wait here.
        """
        options, now_s = self._subscription.options, self._clock.monotonic_s()
        is_in_a_loop = now_s - self._idle_s < _IN_A_LOOP_S
        if not is_in_a_loop or self._goal is not None or not self._latest:
            return True
        has_come = self._subscription.wait(self._latest, options.wait_ms / 1000)
        return has_come or begin != self._latest or now_s - self._asked_s >= _ASK_EVERY_S

    def _waits(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether there is too little yet for a micro-batch, and the last one is not long ago."""
        options = self._subscription.options
        least = options.min_offsets_per_trigger
        # Trigger.AvailableNow ends when nothing new is offered, so it must not wait.
        if least is None or self._goal is not None:
            return False
        now_s = self._clock.monotonic_s()
        due = (
            self._triggered_s is None
            or now_s - self._triggered_s >= options.max_trigger_delay_ms / 1000
        )
        if not due and sum(behind(begin, latest).values()) < least:
            return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_json(self._latest)

    @in_two_lines
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks, pin = self._pin.planned(self._subscription, from_json(start), from_json(end))
        control_url = self._subscription.control_url() if tasks else None
        return [SourcePartition(task, control_url, pin) for task in tasks]

    @in_two_lines
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourcePartition), "Spark hands back what it was given"
        return renewed(read_partition(self._subscription.options, partition), partition.pin)

    def stop(self) -> None:
        self._subscription.close()


@cache
def _settle() -> None:
    """Keep the collector, which Spark's worker runs after each task, out of what stays for good.

    Walking the decoder's modules took 0.1 s a task, as long as reading 64 MiB.
    """
    gc.freeze()


def _say_if_again(partition: SourcePartition) -> None:
    """What a failed attempt has cost is known to nobody but who makes the next."""
    task = TaskContext.get()
    if task is not None and task.attemptNumber():
        _LOG.warning(
            "%s is read again: attempt %d begins %.1f s after its plan.",
            partition.task,
            task.attemptNumber() + 1,
            max(SYSTEM.now_ms() - partition.planned_ms, 0) / 1000,
        )


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What an executor reads for one of a reader's partitions."""
    # Only executors decode; loading the decoder would cost the planning processes a second.
    from catchwater.replay.read import ReadSettings, read_task

    assert isinstance(partition, SourcePartition), "Spark hands back the partitions it was given"
    _settle()
    _say_if_again(partition)
    decoded = options.values.format is not ValueFormat.BINARY
    settings = ReadSettings(
        options.bootstrap,
        read_columns(options.columns) if decoded else options.columns,
        partition.control_url,
        options.read_committed,
        options.fail_on_data_loss,
        options.security,
        options.client_id,
        options.bundled,
        options.locations,
    )
    batches = read_task(partition.task, settings)
    return typed(batches, options.values, options.columns) if decoded else batches
