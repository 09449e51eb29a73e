"""Typed values on real Spark: batch and streaming, JSON and Avro and Protobuf, both paths."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import timestamp_pb2
from pyspark.errors import PySparkException

from catchwater.clock import SYSTEM
from catchwater.replay.source import register
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = pytest.mark.spark
COUNT = 500

NOW = SYSTEM.now_ms()
DDL = (
    "card string, amount decimal(10, 2), at timestamp, tags array<string>, "
    "m map<string, struct<x: int>>"
)


def value(n: int) -> bytes | None:
    if n % 100 == 99:
        return None
    if n == 250:
        return b'{"card": 7}'
    return json.dumps(
        {
            "card": f"c{n}",
            "amount": n / 4,
            "at": "2024-01-02T03:04:05Z",
            "tags": [str(n), None],
            "m": {"k": {"x": n}},
        }
    ).encode()


@pytest.fixture(scope="module", autouse=True)
def client(spark: Any, broker: Any) -> Iterator[Client]:
    register(spark)
    with Client(broker.bootstrap) as client:
        client.create_topics({"typed": 1, "times": 1})
        rows = [(b"k%d" % n, value(n), NOW + n, []) for n in range(COUNT)]
        client.produce([(("typed", 0), encode_batch(rows))])
        yield client


def load(start: Any, broker: Any, **options: str) -> Any:
    source = start.format("catchwater").option("kafka.bootstrap.servers", broker.bootstrap)
    for name, each in {
        "subscribe": "typed",
        "valueFormat": "json",
        "valueSchema": DDL,
        **options,
    }.items():
        source = source.option(name, each)
    return source.load()


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_a_batch_has_the_fields_as_columns(spark: Any, broker: Any, path: str) -> None:
    frame = load(spark.read, broker, onMalformed="null", **{"catchwater.read": path})
    assert frame.columns == [
        "key",
        "card",
        "amount",
        "at",
        "tags",
        "m",
        "_malformed",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    rows = frame.orderBy("offset").collect()
    assert len(rows) == COUNT
    for n, row in enumerate(rows):
        if n == 250:
            assert row.card is None and bytes(row._malformed) == value(n)
        elif n % 100 == 99:
            assert row.card is None and row._malformed is None and row.m is None
        else:
            assert (row.card, float(row.amount), row.tags, row.m["k"].x) == (
                f"c{n}",
                n / 4,
                [str(n), None],
                n,
            )
            assert row.offset == n
    assert frame.selectExpr("sum(amount)").first()[0] is not None
    assert frame.where("at = timestamp'2024-01-02T03:04:05Z'").count() == COUNT - 6


def test_a_malformed_value_is_named_by_its_place(spark: Any, broker: Any) -> None:
    with pytest.raises(PySparkException, match="The value of typed-0 at offset 250 is not json"):
        load(spark.read, broker).collect()


def test_a_stream_reads_some_fields_in_the_order_asked_for(
    spark: Any, broker: Any, tmp_path: Path
) -> None:
    frame = load(
        spark.readStream,
        broker,
        onMalformed="null",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="200",
        columns="value,offset",
        valueFields="amount,card",
    )
    assert frame.columns == ["amount", "card", "_malformed", "offset"]
    query = (
        frame.writeStream.format("memory")
        .queryName("typed_rows")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.sql("select count(*), count(card), count(_malformed) from typed_rows").first() == (
        500,
        494,
        1,
    )


def test_avro_and_protobuf_are_read(
    spark: Any, broker: Any, client: Client, tmp_path: Path
) -> None:
    fastavro = pytest.importorskip("fastavro")
    from google.protobuf import descriptor_pb2

    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "seconds", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    (tmp_path / "t.pb").write_bytes(files.SerializeToString())
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"seconds": 5, "at": 7})
    proto = timestamp_pb2.Timestamp(seconds=5, nanos=6).SerializeToString()
    client.produce(
        [(("times", 0), encode_batch([(b"", out.getvalue(), NOW, []), (b"", proto, NOW, [])]))]
    )
    avro = load(
        spark.read,
        broker,
        subscribe="times",
        valueFormat="avro",
        onMalformed="null",
        valueSchema=str(tmp_path / "r.avsc"),
        columns="value,offset",
    ).collect()
    assert (avro[0].seconds, avro[0].at.microsecond) == (5, 7)
    rows = load(
        spark.read,
        broker,
        subscribe="times",
        valueFormat="protobuf",
        startingOffsets='{"times": {"0": 1}}',
        valueSchema=str(tmp_path / "t.pb"),
        valueMessage="google.protobuf.Timestamp",
    ).collect()
    assert [(r.seconds, r.nanos) for r in rows] == [(5, 6)]


def test_a_wrong_schema_stops_at_load(spark: Any, broker: Any) -> None:
    with pytest.raises(PySparkException, match="valueSchema, character 3: 'lng' is no type"):
        load(spark.read, broker, valueSchema="a lng").collect()
