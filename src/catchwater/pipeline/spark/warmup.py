"""A small query of the shape of every pipeline's, run so that the first real epoch need not wait.

Most of a first epoch is the JVM loading, linking and compiling what a query needs. A warm spare
runs this before its turn; the class-data archive is recorded over it. It reads a source that makes
up a row, and leaves nothing behind.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.rows import SPARK_SCHEMA, Row, to_arrow
from catchwater.pipeline.workers import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCHS = 5
PATIENCE_S = 60.0
_POLL_S = 0.01


class WarmUpSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "catchwater-warm-up"

    def schema(self) -> str:
        """That of the packed source."""
        return SPARK_SCHEMA

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """The reader, on the driver and in every task."""
        return WarmUpReader(int(self.options["tasks"]))


class WarmUpReader(DataSourceStreamReader):  # type: ignore[misc]
    """Always has something new."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._epoch = 0

    def initialOffset(self) -> dict[str, Any]:
        """Where the first epoch starts."""
        return {"epoch": 0}

    def latestOffset(self) -> dict[str, Any]:
        """Where the next one ends."""
        self._epoch += 1
        return {"epoch": self._epoch}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One a task."""
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield to_arrow([Row(partition.value, 0, 0, 0, b"")])


def warm_up(
    spark: "SparkSession", tasks: int, enough: Callable[[], bool], clock: Clock = SYSTEM
) -> bool:
    """Run some epochs of it, or fewer if it is `enough`; a query that fails is let go.

    False where that was before the last of them.
    """
    epochs: list[int] = []

    def write(rows: Any, epoch: int) -> None:
        rows.collect()
        epochs.append(epoch)

    spark.dataSource.register(WarmUpSource)
    source = spark.readStream.format(WarmUpSource.name()).option("tasks", str(tasks)).load()
    rows = source.repartition(tasks, "label").mapInArrow(_as_they_are, source.schema)
    with tempfile.TemporaryDirectory(dir=os.environ.get(FOLDER)) as checkpoint:
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query = writer.start()
        deadline_s = clock.monotonic_s() + PATIENCE_S
        while len(epochs) < EPOCHS and query.isActive and not enough():
            if clock.monotonic_s() > deadline_s:
                break
            clock.pause(_POLL_S)
        query.stop()
    return len(epochs) >= EPOCHS


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
