"""A log's history as one DataFrame: Parquet through Spark's own reader, the rest as Arrow.

A Python source cannot hand Spark a native plan, so this is a function. It plans once, like a batch
query of the source. Where the topic is a table, Spark's Parquet reader reads of its files what is
wanted of the topic, as far as the table has it: also what the log has no more. Of what is left,
segments whose Parquet object lies whole within the wanted offsets, with nothing in it that an
aborted transaction wrote if only committed records are read, are read so, too; all other offsets,
named by exact ranges, come by `format("catchwater")`. So does all of it where a quota binds the
query, for Spark's reader pays from none.

Relies on objects never changing, and on a plan's `parquet_first` and `parquet_stop`. Promises the
rows and columns that the source gives, or once gave, each offset once, fixed when the frame is
made: what is appended, packed or written as Parquet later changes nothing. Nobody would renew the
query's pin while Spark reads Parquet, so a thread of the driver does, until the frame is released
or Spark has stopped.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import reduce
from itertools import groupby
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql.functions import col, lit, nullif

from catchwater.config import CatchwaterError
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import RANGES, SourceOptions
from catchwater.replay.pin import held, planned
from catchwater.replay.plan import (
    Missing,
    OffsetRange,
    PlanRange,
    Slice,
    TableFiles,
    joined,
    without,
)
from catchwater.replay.source import SPARK_TYPES, loaded, register, schema_of
from catchwater.replay.subscription import Subscription
from catchwater.values.settings import MALFORMED, OnMalformed, ValueFormat, identity
from catchwater.values.typed import open_decoder

_FIELDS = "fields"
"""The column of a Parquet object that holds the values as the declared schema types them."""

_READER_OPTIONS = {
    # Over the session's own settings: rows must never be left out.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Our dates and times are those of the proleptic calendar, as Spark's own are.
    "datetimeRebaseMode": "CORRECTED",
    # As batches are verified before they are decoded.
    "parquet.page.verify-checksum.enabled": "true",
}
_PATTERN_SIGN = re.compile(r"[\\{}\[\]*?]")

_NOWHERE = "Neither the log nor, as it is asked for, the topic's table holds"
_PLACED = ("subscribe", "subscribepattern", "assign", RANGES.lower())
_POSITIONED = ("starting", "ending")

_held: WeakKeyDictionary[DataFrame, ExitStack] = WeakKeyDictionary()
"""What ends the pin of each frame."""


class ParquetUnlisted(CatchwaterError):
    """Spark's reader does not see the Parquet objects that the plan names."""


class Parts(NamedTuple):
    """Who reads what: every planned offset is in exactly one of the two."""

    files: list[str]
    """URLs of Parquet objects, each to be read whole."""
    rest: list[OffsetRange]


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """What `format("catchwater")` reads with these options, once; see docs/replay.md.

    Offsets before the log's start come from the topic's table.

    Raises what the source raises, at once. The rows come in no order.
    """
    register(spark)
    settings = loaded(options)
    with closing(Subscription(settings)) as subscription, ExitStack() as undo:
        by_place = not settings.ranges
        older = subscription.before_start(subscription.wanted()) if by_place else []
        slices, pin = planned(subscription, older=older)
        if pin:
            undo.callback(held(pin, lambda: _is_running(spark)))
        slices = sorted([*map(_slice, older), *slices], key=lambda s: (s.topic, s.partition))
        is_free = subscription.quota is None  # Spark's reader pays from none.
        found = subscription.tables(slices) if is_free and by_place else []
        tables = [each for each in found if _stands_for(each, settings)]
        rest = without(slices, tables)
        begins = {(each.topic, each.partition): each.end for each in older}
        lost = [each for each in rest if each.stop <= begins.get((each.topic, each.partition), 0)]
        if lost:
            as_records, gone = subscription.in_tables([*map(_missing, lost)])
            if gone is not None:
                reason = _NOWHERE if found else subscription.absence
                subscription.go_on_without(HistoryLost(gone.missing, reason, gone.remedy))
            kept = [each for each in rest if each not in lost]
            rest = sorted([*kept, *as_records], key=lambda s: (s.topic, s.partition, s.first))
        parts = split(rest, lambda each: is_free and _is_readable(each, settings))
        frame = _frame(spark, parts, tables, settings, options)
        _held[frame] = undo.pop_all()
    return frame


def release(frame: DataFrame) -> None:
    """End the pin of a frame that `read` returned: neither it nor what is made of it is read again.

    One that has no pin, or none any more, is no error.
    """
    _held.pop(frame, ExitStack()).close()


def _slice(each: Missing) -> Slice:
    return Slice(*each)


def _missing(each: Slice) -> Missing:
    return Missing(each.topic, each.partition, each.first, each.stop)


def split(slices: Sequence[Slice], is_readable: Callable[[PlanRange], bool]) -> Parts:
    """Who reads these slices, which are in order of topic, partition and offset. Pure."""
    files: list[str] = []
    rest: list[OffsetRange] = []
    for (topic, partition, url), group in groupby(slices, key=_object):
        of_object = list(group)
        if url and _is_whole(of_object) and is_readable(_range(of_object[0])):
            files.append(url)
        else:
            rest += (OffsetRange(topic, partition, each.first, each.stop) for each in of_object)
    return Parts(files, joined(rest))


def _object(each: Slice) -> tuple[str, int, str]:
    return each.topic, each.partition, each.range.parquet if each.range else ""


def _range(each: Slice) -> PlanRange:
    assert each.range is not None, "only a range of storage names a Parquet object"
    return each.range


def _is_whole(slices: Sequence[Slice]) -> bool:
    """Whether these slices of one segment are all of it, and nothing in it was aborted."""
    at = _range(slices[0]).parquet_first
    for each in slices:
        if each.first != at or each.aborted:
            return False
        at = each.stop
    return at == _range(slices[0]).parquet_stop


def _is_readable(each: PlanRange, settings: SourceOptions) -> bool:
    """Whether Spark can read the object, and it has the values as they are asked for."""
    if urlsplit(each.parquet).scheme != "file":
        return False  # Spark's reader takes no signed URL.
    return not _is_typed(settings) or each.parquet_schema == identity(settings.values)


def _is_typed(settings: SourceOptions) -> bool:
    return settings.values.format is not ValueFormat.BINARY


def _stands_for(each: TableFiles, settings: SourceOptions) -> bool:
    """Whether a table's rows are what the source would give of these offsets."""
    wanted = identity(settings.values) if _is_typed(settings) else ""
    if each.values != wanted or (each.left_out and not settings.read_committed):
        return False
    # With a malformed value the source says where it lies, and stops.
    return not each.malformed or settings.values.on_malformed is OnMalformed.NULL


def _frame(
    spark: SparkSession,
    parts: Parts,
    tables: Sequence[TableFiles],
    settings: SourceOptions,
    options: Mapping[str, str],
) -> DataFrame:
    schema = schema_of(settings)
    frames = []
    for each in tables:
        if each.whole:
            frames.append(_of_table(spark, each, each.whole, settings))
        if each.partly:
            frames.append(_of_table(spark, each, each.partly, settings, _place_in(each)))
    if parts.files:
        frames.append(_natively(spark, parts.files, settings))
    if parts.rest:
        named = {**_without_place(options), RANGES: _ranges_json(parts.rest)}
        frames.append(spark.read.format("catchwater").options(**named).load())
    return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], schema)


def _natively(spark: SparkSession, urls: Sequence[str], settings: SourceOptions) -> DataFrame:
    """The rows of these objects in the columns of the source; Spark reads what is used of them."""
    stored = [types.StructField(name, kind) for name, kind in SPARK_TYPES.items()]
    fields = list(open_decoder(settings.values).fields) if _is_typed(settings) else []
    if fields:
        stored.append(types.StructField(_FIELDS, types.StructType(fields)))
    reader = spark.read.schema(types.StructType(stored)).options(**_READER_OPTIONS)
    rows = reader.parquet(*map(_path, urls))
    _check_seen(rows, urls)
    return rows.select(*_columns(settings, fields))


def _of_table(
    spark: SparkSession,
    table: TableFiles,
    urls: Sequence[str],
    settings: SourceOptions,
    where: Column | None = None,
) -> DataFrame:
    """Rows of a topic's table in the columns of the source."""
    stored = [
        types.StructField(name, kind)
        for name, kind in SPARK_TYPES.items()
        if name not in ("topic", "value")
    ]
    fields = [types.StructField("value", types.BinaryType())]
    if _is_typed(settings):
        malformed = types.StructField(MALFORMED, types.BinaryType())
        fields = [*open_decoder(settings.values).fields, malformed]
    reader = spark.read.schema(types.StructType([*stored, *fields])).options(**_READER_OPTIONS)
    rows = reader.parquet(*(f"file://{_literal(url.removeprefix('file://'))}" for url in urls))
    _check_seen(rows, urls)
    columns = []
    for name in settings.columns:
        if name == "topic":
            # As in the source the column may be null, though it never is.
            columns.append(nullif(lit(table.topic), lit("")).alias(name))
        elif name == "value" and _is_typed(settings):
            is_null = settings.values.on_malformed is OnMalformed.NULL
            columns += [col(f"`{each.name}`") for each in (fields if is_null else fields[:-1])]
        else:
            columns.append(col(name))
    return (rows if where is None else rows.where(where)).select(*columns)


def _place_in(table: TableFiles) -> Column:
    """Whether a row is one of the table's offsets."""
    places = [
        (col("partition") == partition) & (col("offset") >= first) & (col("offset") < stop)
        for partition, (first, stop) in table.spans.items()
    ]
    return reduce(lambda some, more: some | more, places)


def _check_seen(rows: DataFrame, urls: Sequence[str]) -> None:
    seen = len(rows.inputFiles())
    if seen != len(urls):
        raise ParquetUnlisted(
            f"The plan names {len(urls)} Parquet objects, of which Spark's reader sees {seen}; the "
            f"first is {urls[0]}.",
            hint='Read by format("catchwater"), and check the object store.',
        )


def _literal(path: str) -> str:
    return _PATTERN_SIGN.sub(r"\\\g<0>", path)


def _path(url: str) -> str:
    """The object's path as Spark takes it, which reads patterns and unquotes nothing."""
    return "file://" + _literal(unquote(urlsplit(url).path))


def _columns(settings: SourceOptions, fields: Sequence[types.StructField]) -> Iterator[Column]:
    for name in settings.columns:
        if name != "value" or not fields:
            yield col(name)
            continue
        yield from (col(_FIELDS).getField(each.name).alias(each.name) for each in fields)
        if settings.values.on_malformed is OnMalformed.NULL:
            # Values lie as fields only where every one of the segment is as declared.
            yield lit(None).cast(types.BinaryType()).alias(MALFORMED)


def _without_place(options: Mapping[str, str]) -> dict[str, str]:
    """The options but for those that say which offsets are read."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _PLACED and not name.lower().startswith(_POSITIONED)
    }


def _ranges_json(ranges: Iterable[OffsetRange]) -> str:
    content: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for topic, partition, start, end in ranges:
        content.setdefault(topic, {}).setdefault(str(partition), []).append((start, end))
    return json.dumps(content)


def _is_running(spark: SparkSession) -> bool:
    return spark.sparkContext._jsc is not None
