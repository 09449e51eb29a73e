"""A range of the log to a folder of Parquet files: `export(spark, options, target)`.

For jobs that only move data: each task decodes its part of the log and writes it as Parquet itself,
so no row passes the JVM. One file a task, in the columns of the source.

Promises every wanted offset in exactly one file, also after retries and speculation, and that the
target shows all of them or nothing (in a bucket: that `_SUCCESS` comes last).
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import msgspec
from pyspark.sql import SparkSession

from catchwater.clock import SYSTEM, Clock
from catchwater.replay.export.file import COMPRESSIONS
from catchwater.replay.export.place import ExportRefused, open_place
from catchwater.replay.export.source import OPTION, ExportSource, Settings
from catchwater.replay.plan import OffsetRange, joined
from catchwater.replay.source import loaded


@dataclass(frozen=True, slots=True, order=True)
class ExportedFile:
    """One file of an export."""

    name: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written; `_SUCCESS` holds the same as JSON."""

    url: str
    files: tuple[ExportedFile, ...]
    ranges: tuple[OffsetRange, ...]
    """The offsets that the files stand for, in order; those side by side are one range."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


def export(
    spark: SparkSession,
    options: Mapping[str, str],
    target: str,
    *,
    compression: str = COMPRESSIONS[0],
    clock: Clock = SYSTEM,
) -> Exported:
    """Write what `format("catchwater")` reads with these options as Parquet; see docs/replay.md.

    `target` is a folder that is not there or empty, a path or a `file://` URL, or an `s3://` URL.
    Raises `ExportRefused`, what the source raises, and what Spark raises when a task fails; nothing
    is left behind then.
    """
    if compression not in COMPRESSIONS:
        raise ExportRefused(
            f"Files cannot be compressed by {compression!r}.",
            hint=f"Choose one of: {', '.join(COMPRESSIONS)}.",
        )
    loaded(options)  # raises here, rather than in a process of Spark's
    settings = Settings(target, clock.token(), compression)
    place = open_place(target, settings.token)
    place.begin()
    spark.dataSource.register(ExportSource)
    named = {**options, OPTION: msgspec.json.encode(settings).decode()}
    with ExitStack() as undo:
        undo.callback(place.abandon)
        rows = spark.read.format(ExportSource.name()).options(**named).load().collect()
        files = sorted(ExportedFile(*row[:3]) for row in rows)
        pieces = [OffsetRange(*each) for row in rows for each in msgspec.json.decode(row.ranges)]
        exported = Exported(place.url, tuple(files), tuple(joined(sorted(pieces))))
        place.publish(msgspec.json.encode(asdict(exported)))
        undo.pop_all()
    return exported
