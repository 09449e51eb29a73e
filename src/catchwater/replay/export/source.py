"""The Spark job of an export: reading a partition of it writes a file and yields one row about it.

A data source like `catchwater` itself, with the same options, plans, pins and quotas; what it hands
Spark is not the records but where they were written. So Spark's own retries, speculation and
locality do for the files what they do for rows: of several attempts one row arrives.

The option OPTION holds where to write, as JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from catchwater.replay.export.place import open_place
from catchwater.replay.options import SourceOptions
from catchwater.replay.source import BatchReader, SourcePartition, loaded, schema_of

OPTION = "catchwater.export"


class Settings(msgspec.Struct, frozen=True):
    """Where an export goes; `token` is its own."""

    target: str
    token: str
    compression: str


@dataclass
class ExportPartition(InputPartition):  # type: ignore[misc]
    """What one task writes, and which of the files that is."""

    index: int
    read: SourcePartition


class ExportSource(DataSource):  # type: ignore[misc]
    """What Spark looks up by name."""

    @classmethod
    def name(cls) -> str:
        return "catchwater-export"

    def schema(self) -> str:
        return "name string, records long, size_bytes long, ranges string"

    def reader(self, schema: object) -> DataSourceReader:
        options, settings = split(self.options)
        return ExportReader(loaded(options), settings)


class ExportReader(BatchReader):
    """Writes where `BatchReader` reads."""

    def __init__(self, options: SourceOptions, settings: Settings) -> None:
        super().__init__(options)
        self._settings = settings
        self._schema = schema_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        return [ExportPartition(index, each) for index, each in enumerate(super().partitions())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Only executors write Parquet.
        from catchwater.replay.export.file import write

        assert isinstance(partition, ExportPartition), "Spark hands back what it was given"
        settings = self._settings
        name = f"part-{partition.index:05d}-{settings.token}.parquet"
        columns: pa.Schema = to_arrow_schema(self._schema, timezone="UTC")
        batches = super().read(partition.read)
        with open_place(settings.target, settings.token).file(name) as path:
            records = write(path, columns, batches, settings.compression)
            size_bytes = path.stat().st_size
        slices = partition.read.task.slices
        ranges = [(each.topic, each.partition, each.first, each.stop) for each in slices]
        yield name, records, size_bytes, msgspec.json.encode(ranges).decode()


def split(options: Mapping[str, str]) -> tuple[dict[str, str], Settings]:
    """The options of the source alone, and what OPTION holds."""
    rest = {name: value for name, value in options.items() if name.lower() != OPTION}
    return rest, msgspec.json.decode(options[OPTION], type=Settings)
