"""Frames that Spark cuts from bundles, row for row beside `format("catchwater")`.

The corpus in `test_history_corpus` goes through both as well; here are the records that a bundle's
long cannot say, the options, and streams.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col

from catchwater import spark as frames
from catchwater.replay.options import BadOption
from catchwater.wire.arrow import Record, encode_batch
from catchwater.wire.bundle import BUNDLE_BYTES
from catchwater.wire.client import Client

pytestmark = pytest.mark.spark

NOW_MS = 1_700_000_000_000
SIZES = (0, 1, 63, 64, 510, 511, 8191, 8192, 32_766, 32_767, BUNDLE_BYTES + 1)
TOPIC = {"max.message.bytes": str(40 * 2**20), "retention.ms": "-1"}
HUGE = 17 * 2**20


def records() -> Iterator[list[Record]]:
    """Batches of records on both sides of every bound of a bundle's long."""
    rng = Random(5)
    yield [(b"%d" % n, b'{"n": %d}' % n * 10, NOW_MS + n, ()) for n in range(9000)]
    yield [(b"k" * size, None, NOW_MS, ()) for size in SIZES[:-1]]
    yield [(None, b"v" * size, NOW_MS, [("h", b"v"), ("n", None)]) for size in SIZES]
    yield [(None, None, NOW_MS, ()), (b"", b"", NOW_MS, ())]
    for far in (2**20 - 1, 2**20, 2**45):
        yield [(b"k", b"v", NOW_MS, ()), (b"k", b"v", NOW_MS - far, ())]
    yield [(b"k", rng.randbytes(rng.choice(SIZES)), at, ()) for at in (-1, 0, 1, -(2**40), 2**40)]
    yield [(b"huge", b"v" * HUGE, NOW_MS, ()), (b"after", b"v", NOW_MS, ())]


@pytest.fixture(scope="module")
def options(broker: Any) -> dict[str, str]:
    """Of a query of both topics: every codec, in two partitions."""
    with Client(broker.bootstrap) as client:
        client.create_topics({"edges": 2, "edges-too": 1}, TOPIC)
        for at, batch in enumerate(records()):
            for codec in range(5):
                places = (("edges", codec % 2), ("edges-too", 0))
                client.produce([(places[at % 2], encode_batch(batch, codec=codec))])
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribePattern": "edges.*",
        "includeHeaders": "true",
    }


def both(spark: Any, options: dict[str, str]) -> tuple[Any, Any]:
    frames.register(spark)
    return frames.read(spark, options), spark.read.format("catchwater").options(**options).load()


@pytest.mark.parametrize(
    "more",
    [
        {"catchwater.read": "direct"},
        {"catchwater.read": "kafka", "minPartitions": "7"},
        {"columns": "offset,value,timestamp", "maxRecordsPerPartition": "1000"},
        {
            "startingTimestamp": str(NOW_MS + 5000),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {
            "assign": '{"edges": [0]}', "subscribePattern": "",
            "startingOffsets": '{"edges": {"0": 5}}', "endingOffsets": '{"edges": {"0": 9007}}',
        },
        {"columns": "key,topic,headers"},
    ],
    ids=["direct", "kafka", "columns", "timestamp", "offsets", "without values"],
)  # fmt: skip
def test_what_is_cut_is_what_the_source_hands_over(
    spark: Any, options: dict[str, str], more: dict[str, str]
) -> None:
    cut, rows = both(spark, options | more)
    assert cut.schema == rows.schema
    found, wanted = cut.toArrow(), rows.toArrow()
    assert found.num_rows > 1000
    assert found == wanted, "in the same order"


def test_each_column_alone_is_as_in_the_source(spark: Any, options: dict[str, str]) -> None:
    cut, rows = both(spark, options)
    assert cut.count() == rows.count()
    for name in cut.columns:
        assert cut.select(name).toArrow() == rows.select(name).toArrow(), name
    few = [each.where("value is null and offset % 2 = 1").select("key") for each in (cut, rows)]
    assert few[0].toArrow() == few[1].toArrow()
    assert cut.limit(3).collect() == rows.limit(3).collect()


def test_values_that_are_decoded_come_from_the_source(spark: Any, options: dict[str, str]) -> None:
    typed = {"valueFormat": "json", "valueSchema": "n long", "onMalformed": "null"}
    cut, rows = both(spark, options | typed | {"columns": "value,offset"})
    assert cut.columns == ["n", "_malformed", "offset"]
    assert cut.where("n = 7").toArrow() == rows.where("n = 7").toArrow()


def test_mistakes_are_those_of_the_source(spark: Any, options: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="no option 'startingoffset'"):
        frames.read(spark, {**options, "startingOffset": "earliest"})
    absent = {**options, "subscribePattern": "", "subscribe": "nothing"}
    with pytest.raises(PySparkException, match="no topic or partition nothing"):
        frames.read(spark, absent).count()


class Batches(dict[int, Any]):
    """What each micro-batch brought, in order."""

    def __call__(self, frame: Any, number: int) -> None:
        self[number] = frame.orderBy("offset").select("offset", "value").toArrow()


def test_a_stream_goes_on_from_a_checkpoint_of_the_source_and_the_source_from_its(
    spark: Any, broker: Any, tmp_path: Path
) -> None:
    with Client(broker.bootstrap) as client:
        client.create_topics({"cut-stream": 1}, TOPIC)
        batch = [(b"k", b"%d" % n, NOW_MS, ()) for n in range(300)]
        client.produce([(("cut-stream", 0), encode_batch(batch, codec=4))] * 5)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "cut-stream",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400",
    }
    frames.register(spark)
    offsets = {}
    for name in ("source", "cut", "both"):
        batches = Batches()
        for turn in range(2):
            is_cut = name == "cut" or (name == "both" and turn == 0)
            if is_cut:
                frame = frames.read_stream(spark, options)
            else:
                frame = spark.readStream.format("catchwater").options(**options).load()
            if turn == 1:  # as after a kill: the last micro-batch was not committed
                (tmp_path / name / "commits" / "3").unlink()
            query = frame.writeStream.foreachBatch(batches)
            query = query.option("checkpointLocation", str(tmp_path / name))
            assert query.trigger(availableNow=True).start().awaitTermination(600)
        assert [each.num_rows for each in batches.values()] == [400, 400, 400, 300]
        offsets[name] = [
            json.loads((tmp_path / name / "offsets" / str(number)).read_text().splitlines()[-1])
            for number in batches
        ]
        if name == "source":
            wanted = batches
        assert batches == wanted
    assert offsets["cut"] == offsets["both"] == offsets["source"]
    assert offsets["cut"][0] == {"cut-stream": {"0": 400}}


def test_columns_that_a_query_does_not_use_are_not_cut(spark: Any, options: dict[str, str]) -> None:
    """By its plan: only what is used is left of the projection."""
    cut, _ = both(spark, options)
    plan = cut.select((col("offset") % 2).alias("odd"))._jdf.queryExecution().executedPlan()
    assert "substring" not in plan.toString() and "timestamp_millis" not in plan.toString()
