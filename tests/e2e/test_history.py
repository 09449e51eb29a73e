"""A log's history as one DataFrame on real Spark: native Parquet and Arrow, together exact."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyarrow.parquet import ParquetFile

from catchwater.clock import SYSTEM
from catchwater.log.format.parquet import SCHEMA
from catchwater.replay import history
from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange, PlanRange
from catchwater.replay.source import register
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import LATEST, Client

pytestmark = pytest.mark.spark

TOPIC = "history"
PARTITIONS = {TOPIC: 2, "typed": 1}
PLAIN = 1_500
"""Records of each partition before the transactions, in batches of every codec."""
PACKING = {"catchwater.pack.interval.ms": "100"}
NO_PACKING = {"catchwater.pack.interval.ms": "600000"}
DEADLINE_S = 120.0

DDL = (
    "card string, amount decimal(12, 2), at timestamp, day date, raw binary, ok boolean, b byte, "
    "s short, i int, n long, f float, d double, tags array<string>, m map<string, struct<x: int>>"
)
DECLARED = {
    "catchwater.history.value.format": "json",
    "catchwater.history.value.schema": DDL,
}

Read = Callable[..., Any]


@pytest.fixture(scope="module")
def written(make_broker: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose topic has Parquet in each partition, and behind it what lies in chunks.

    There is more than one segment in each; the last ones of partition 0 hold an aborted transaction
    and a committed one.
    """
    broker = make_broker(
        PACKING
        | {
            "log.dirs": str(tmp_path_factory.mktemp("data") / "a [b] {c}*"),
            "catchwater.history.parquet.after.ms": "0",
            "catchwater.retention.interval.ms": "100",
            "catchwater.delete.grace.ms": "1",
        }
    )
    with Client(broker.bootstrap) as client:
        asking = {"catchwater.history.parquet": "true"}
        client.create_topics({TOPIC: PARTITIONS[TOPIC]}, asking)
        client.create_topics({"typed": PARTITIONS["typed"]}, asking | DECLARED)
        client.produce([(("typed", 0), encode_batch(typed_records()))])
        for partition in range(PARTITIONS[TOPIC]):
            produce(client, partition, 0, PLAIN)
        wait_for_parquet(broker)
        in_transactions(broker)
        produce(client, 1, PLAIN, 100)
        wait_for_parquet(broker)
    restart(broker, NO_PACKING)
    with Client(broker.bootstrap) as client:
        for partition in range(PARTITIONS[TOPIC]):
            produce(client, partition, 2 * PLAIN, 100)
    return broker


def restart(broker: Any, settings: dict[str, str]) -> None:
    broker.settings |= settings
    broker.restart()


def produce(client: Client, partition: int, first: int, count: int) -> None:
    """Records with and without key, value and headers, numbered, in batches of every codec."""
    now_ms = SYSTEM.now_ms()
    batches = []
    for start in range(first, first + count, 100):
        records = [
            (
                b"k%d" % n if n % 5 else None,
                b"%d:%d" % (partition, n) if n % 7 else None,
                now_ms + n,
                [("n", b"%d" % n), ("none", None)] if n % 3 else [],
            )
            for n in range(start, start + 100)
        ]
        batches.append(((TOPIC, partition), encode_batch(records, codec=start // 100 % 5)))
    client.produce(batches)


def typed_records() -> list[Any]:
    """Values as `DDL` says; some null, some without any field."""
    now_ms = SYSTEM.now_ms()
    values = []
    for n in range(300):
        card = {
            "card": f"c{n}", "amount": n / 4, "at": "2024-01-02T03:04:05.000006Z",
            "day": "1582-10-04", "raw": "AAE=", "ok": n % 2 == 0, "b": n % 100 - 50, "s": -n,
            "i": n, "n": n << 40, "f": n / 2, "d": n / 3, "tags": [str(n), None],
            "m": {"k": {"x": n}, "null": None},
        }  # fmt: skip
        values.append(None if n % 50 == 7 else json.dumps(card if n % 9 else {}).encode())
    return [(b"%d" % n, value, now_ms + n, []) for n, value in enumerate(values)]


def in_transactions(broker: Any) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "t"}
    producer = Producer(settings)
    producer.init_transactions(DEADLINE_S)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for n in range(50):
            producer.produce(TOPIC, f"{end.__name__} {n}", partition=0)
        producer.flush(DEADLINE_S)
        end(DEADLINE_S)


def wait_for_parquet(broker: Any) -> None:
    """Wait until all that the topics hold is packed and has Parquet."""
    deadline = time.monotonic() + DEADLINE_S
    while not all(each.parquet for topic in PARTITIONS for each in ranges(broker, topic)):
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.05)


def ranges(broker: Any, topic: str = TOPIC) -> list[PlanRange]:
    """Where a topic's records lie now."""
    keys = [(topic, number) for number in range(PARTITIONS[topic])]
    with Client(broker.bootstrap) as client:
        ends = client.list_offsets(dict.fromkeys(keys, LATEST))
    wanted = [OffsetRange(*key, 0, end) for key, end in ends.items()]
    return list(Control(broker.control_url).plan(wanted).ranges)


def parquet(broker: Any) -> set[str]:
    """The Parquet objects that the topic has now."""
    return {each.parquet for each in ranges(broker)} - {""}


@pytest.fixture
def read(spark: Any, written: Any) -> Iterator[Read]:
    """`read(option=value)`: the frame of `history.read`, released at the test's end."""
    frames = []

    def start(**options: str) -> Any:
        frames.append(history.read(spark, named(written, options)))
        return frames[-1]

    yield start
    for frame in frames:
        history.release(frame)


@pytest.fixture
def source(spark: Any, written: Any) -> Read:
    """`source(option=value)`: the frame of `format("catchwater")`."""
    register(spark)
    return lambda **options: (
        spark.read.format("catchwater").options(**named(written, options)).load()
    )


def named(broker: Any, options: dict[str, str]) -> dict[str, str]:
    least = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
    return least | {name.replace("__", "."): value for name, value in options.items()}


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


@pytest.fixture(params=["false", "true"], ids=["rows", "vectors"])
def batched(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether Spark's Parquet reader hands on batches, as it does in a session of its own."""
    setting = "spark.sql.codegen.wholeStage"
    before = spark.conf.get(setting)
    spark.conf.set(setting, request.param)
    yield request.param
    spark.conf.set(setting, before)


def test_every_record_is_there_once_from_parquet_and_from_chunks(
    read: Read, source: Read, written: Any, batched: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, expected = read(includeHeaders="true"), source(includeHeaders="true")
    assert frame.schema == expected.schema
    found = rows(frame)
    assert found == rows(expected)
    assert len(found) == PARTITIONS[TOPIC] * (PLAIN + 100) + 200
    assert len(frame.inputFiles()) == len(parquet(written)) >= 4
    frame.explain()
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan and "BatchScan catchwater" in plan
    assert f"Batched: {batched}" in plan


@pytest.mark.parametrize(
    ("options", "has_native"),
    [
        ({"kafka__isolation__level": "read_committed"}, True),
        (
            {
                "startingOffsets": json.dumps({TOPIC: {"0": 700, "1": 0}}),
                "endingOffsets": json.dumps({TOPIC: {"0": -1, "1": PLAIN + 50}}),
                "columns": "value,offset,partition",
            },
            True,
        ),
        ({"catchwater__read": "kafka"}, False),
    ],
    ids=["committed", "bounded", "leaders"],
)
def test_what_parquet_cannot_give_exactly_comes_as_arrow(
    read: Read, source: Read, written: Any, options: dict[str, str], has_native: bool
) -> None:
    frame, expected = read(**options), source(**options)
    assert frame.columns == expected.columns
    assert rows(frame) == rows(expected)
    files = len(frame.inputFiles())
    assert (0 < files < len(parquet(written))) if has_native else files == 0


def test_spark_reads_of_parquet_what_the_query_uses(
    read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = json.dumps({TOPIC: {"0": PLAIN, "1": PLAIN}})
    frame = read(endingOffsets=ended)
    frame.selectExpr("sum(length(value))").explain()
    assert "ReadSchema: struct<value:binary>" in capsys.readouterr().out
    frame.groupBy().count().explain()
    plan = capsys.readouterr().out
    assert "ReadSchema: struct<>" in plan and "catchwater" not in plan
    assert frame.count() == PARTITIONS[TOPIC] * PLAIN


def test_declared_values_are_columns_of_parquet(
    read: Read, source: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = {"subscribe": "typed", "valueFormat": "json", "valueSchema": DDL, "onMalformed": "null"}
    frame, expected = read(**typed), source(**typed)
    assert frame.schema == expected.schema
    assert rows(frame) == rows(expected)
    frame.selectExpr("sum(amount)").explain()
    plan = capsys.readouterr().out
    assert "ReadSchema: struct<fields:struct<amount:decimal(12,2)>>" in plan
    assert "catchwater" not in plan
    some = {**typed, "valueFields": "m,card", "columns": "value,partition,offset"}
    assert read(**some).columns == source(**some).columns
    assert rows(read(**some)) == rows(source(**some))
    other = {**typed, "valueSchema": "n long"}
    assert read(**other).inputFiles() == []
    assert rows(read(**other)) == rows(source(**other))


def test_packing_between_plan_and_read_changes_nothing(
    read: Read, source: Read, written: Any
) -> None:
    frame, expected = read(), rows(source())
    before = parquet(written)
    restart(written, PACKING)
    with Client(written.bootstrap) as client:
        produce(client, 0, 3 * PLAIN, 100)
    wait_for_parquet(written)
    assert rows(frame) == expected
    assert before < parquet(written)
    assert len(read().inputFiles()) == len(parquet(written))


def test_a_pin_holds_what_the_frame_reads_until_it_is_released(spark: Any, written: Any) -> None:
    control = Control(written.control_url)
    before = {pin["id"] for pin in control.pins()}
    start = json.dumps({TOPIC: {"0": 5, "1": 7}})
    frame = history.read(spark, named(written, {"startingOffsets": start}))
    (pin,) = (pin for pin in control.pins() if pin["id"] not in before)
    places = [(each["partition"], each["offset"]) for each in pin["positions"]]
    assert places == [(0, 5), (1, 7)]
    history.release(frame)
    assert {pin["id"] for pin in control.pins()} <= before  # leases of others may end meanwhile
    history.release(frame)
    unpinned = history.read(spark, named(written, {"catchwater.pin.lease": "0"}))
    assert {pin["id"] for pin in control.pins()} <= before
    history.release(unpinned)


def test_parquet_that_is_damaged_or_gone_is_an_error_whatever_the_session_ignores(
    spark: Any, read: Read
) -> None:
    frame = read(columns="key")
    files = [Path(unquote(urlsplit(each).path)) for each in frame.inputFiles()]
    # One that holds no more than the end of a transaction has no rows that could be damaged.
    file = next(each for each in files if ParquetFile(each).metadata.num_row_groups)
    content = file.read_bytes()
    keys = ParquetFile(file).metadata.row_group(0).column(SCHEMA.get_field_index("key"))
    middle = keys.data_page_offset + keys.total_compressed_size // 2
    ignored = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for setting in ignored:
        spark.conf.set(setting, "true")
    try:
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            frame.collect()
        file.unlink()
        with pytest.raises(Py4JJavaError, match=f"{re.escape(file.name)} does not exist"):
            frame.collect()
    finally:
        for setting in ignored:
            spark.conf.unset(setting)
        file.write_bytes(content)
