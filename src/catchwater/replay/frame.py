"""The records of a query as a DataFrame that Spark's generated code cuts from bundles.

`format("catchwater")` hands Spark Arrow, of which it copies every column of every row into rows of
its own. Here tasks hand over bundles (see `bundles`), and a projection that Spark compiles makes
the columns, each only where the query uses it. What a source cannot add to its own plan, a function
can.

Relies on the source for everything but the form of the rows. Promises its schema and its rows, in
their order within a partition, and in a stream the same offsets: a checkpoint of the one serves the
other. Where bundles gain nothing (`value` is not asked for, or decoded), it is the source itself.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from catchwater.replay.options import BUNDLES, SourceOptions
from catchwater.replay.source import loaded, register
from catchwater.values.settings import ValueFormat
from catchwater.wire.bundle import (
    AT_BITS,
    GAP_BITS,
    GAP_SHIFT,
    KEY_BITS,
    KEY_SHIFT,
    NO_KEY,
    NO_VALUE,
    TIME_SHIFT,
    VALUE_BITS,
    VALUE_SHIFT,
)

_INDEX, _PLACE = "bundle_index", "bundle_place"


def _bits(shift: int, bits: int) -> str:
    """A part of the long, which fits an int."""
    moved = f"shiftrightunsigned({_PLACE}, {shift})" if shift else _PLACE
    return f"cast({moved} & {2**bits - 1}L as int)"


_AT = _bits(0, AT_BITS)
_GAP = _bits(GAP_SHIFT, GAP_BITS)
_VALUE_SIZE = _bits(VALUE_SHIFT, VALUE_BITS)
_KEY_SIZE = _bits(KEY_SHIFT, KEY_BITS)
# Spark counts bytes from 1; without a length, there is nothing.
_VALUE = f"substring(data, {_AT} + 1, nullif({_VALUE_SIZE}, {NO_VALUE}))"
_KEY = f"substring(data, {_AT} + 1 - {_GAP} - {_KEY_SIZE}, nullif({_KEY_SIZE}, {NO_KEY}))"
_TIME = f"oldest_ms + shiftrightunsigned({_PLACE}, {TIME_SHIFT})"

_CUT = {
    "key": f"coalesce(get(keys, {_INDEX}), {_KEY})",
    "value": f"coalesce(get(values, {_INDEX}), {_VALUE})",
    "topic": "topic",
    "partition": "partition",
    "offset": f"coalesce(get(offsets, {_INDEX}), first_offset + {_INDEX})",
    "timestamp": f"timestamp_millis(coalesce(get(times, {_INDEX}), {_TIME}))",
    "timestampType": "timestampType",
    "headers": f"get(headers, {_INDEX})",
}
"""How each column is cut: as the bundle's array says, or else the long."""


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """What `spark.read.format("catchwater")` gives with these options; see docs/replay.md.

    Raises what it raises.
    """
    register(spark)
    return _records(spark.read.format("catchwater"), options)


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """What `spark.readStream.format("catchwater")` gives with these options."""
    register(spark)
    return _records(spark.readStream.format("catchwater"), options)


def _records(reader: DataFrameReader | DataStreamReader, options: Mapping[str, str]) -> DataFrame:
    wanted = loaded(options)
    if not _is_bundled(wanted):
        return reader.options(**options).load()
    bundles = reader.options(**options, **{BUNDLES: "true"}).load()
    each = bundles.select("*", f.posexplode("places").alias(_INDEX, _PLACE))
    return each.select([f.expr(_CUT[name]).alias(name) for name in wanted.columns])


def _is_bundled(options: SourceOptions) -> bool:
    return "value" in options.columns and options.values.format is ValueFormat.BINARY
