"""What a Spark session reads the log with: the data source `catchwater`, and frames faster than it.

`register` makes `format("catchwater")` known; `read` and `read_stream` give what it would give,
cut into columns by Spark's own code. A topic that `read` is given by name comes from its table and
its Parquet, as far as there is any, and only the rest as records.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from catchwater.replay import frame, history
from catchwater.replay.frame import read_stream
from catchwater.replay.source import register

__all__ = ["read", "read_stream", "register"]


def read(
    spark: SparkSession, what: str | Mapping[str, str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """A topic, by its name and the source's options; or what `format("catchwater")` gives with
    these options, in the source's order.

    Of a topic by name the rows come in no order, and its end is fixed now; see docs/replay.md.
    Raises what the source raises.
    """
    if isinstance(what, str):
        return history.read(spark, {**(options or {}), "subscribe": what})
    return frame.read(spark, {**what, **(options or {})})
