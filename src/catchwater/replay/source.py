"""`format("catchwater")`: a Spark data source, batch and streaming, over our log or any Kafka.

Options and columns are those of Spark's Kafka source (see `options`), and so are the offsets in a
checkpoint. The driver's side asks for offsets and plans; the tasks read storage, or fetch from the
leaders, and hand Spark Arrow. A thin shell: all it decides is when to ask.

Relies on Spark 4.2's admission control for Python sources. Promises that a micro-batch repeated
after a restart reads exactly the same offsets. Does not write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession, types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from catchwater.replay.offsets import admit, from_json, to_json
from catchwater.replay.options import Offsets, SourceOptions, parse_options
from catchwater.replay.plan import Task
from catchwater.replay.subscription import Subscription
from catchwater.wire.client import EARLIEST, LATEST

_SPARK_TYPES: Mapping[str, types.DataType] = {
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


def register(spark: SparkSession) -> None:
    """Make `format("catchwater")` known to this session."""
    spark.dataSource.register(CatchwaterSource)


@dataclass
class SourcePartition(InputPartition):  # type: ignore[misc]
    """One task, and where it may ask for a new plan."""

    task: Task
    control_url: str | None


class CatchwaterSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name; it reads the options and opens nothing."""

    @classmethod
    def name(cls) -> str:
        return "catchwater"

    def schema(self) -> types.StructType:
        fields = [types.StructField(name, _SPARK_TYPES[name]) for name in self._parsed().columns]
        return types.StructType(fields)

    def reader(self, schema: object) -> DataSourceReader:
        return BatchReader(self._parsed())

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return StreamReader(self._parsed())

    def _parsed(self) -> SourceOptions:
        return parse_options(self.options)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """From the starting to the ending offsets, once; by default everything there is."""

    def __init__(self, options: SourceOptions) -> None:
        self._subscription = Subscription(options)

    def partitions(self) -> Sequence[InputPartition]:
        start = self._subscription.starting(EARLIEST)
        end = self._subscription.ending()
        partitions = input_partitions(self._subscription, start, end)
        self._subscription.close()
        # Spark reads a list without elements as one partition without a value.
        return partitions or [SourcePartition(Task(()), None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._subscription.options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """From one set of offsets to the next; partitions that appear are read from their beginning."""

    def __init__(self, options: SourceOptions) -> None:
        self._subscription = Subscription(options)
        # What was there when Trigger.AvailableNow began: nothing beyond it is read.
        self._goal: Offsets | None = None
        self._latest: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._subscription.starting(LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._subscription.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._subscription.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        self._latest = self._subscription.latest() if self._goal is None else dict(self._goal)
        self._subscription.check_present(begin, self._latest)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(admit(begin, self._latest, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return input_partitions(self._subscription, from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._subscription.options, partition)

    def stop(self) -> None:
        self._subscription.close()


def input_partitions(
    subscription: Subscription, start: Offsets, end: Offsets
) -> list[SourcePartition]:
    """The tasks between two sets of offsets, in the form that Spark sends to executors."""
    tasks = subscription.tasks(start, end)
    control_url = subscription.control_url() if tasks else None
    return [SourcePartition(task, control_url) for task in tasks]


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What an executor reads for one of `input_partitions`."""
    # Only executors decode; loading the decoder would cost the planning processes a second.
    from catchwater.replay.read import ReadSettings, read_task

    assert isinstance(partition, SourcePartition), "Spark hands back the partitions it was given"
    settings = ReadSettings(
        options.bootstrap,
        options.columns,
        partition.control_url,
        options.read_committed,
        options.fail_on_data_loss,
    )
    return read_task(partition.task, settings)
