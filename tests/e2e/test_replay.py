"""`format("catchwater")` on real Spark: batch and streaming, from storage and over the protocol."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from catchwater.clock import SYSTEM
from catchwater.replay.source import register
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import EARLIEST, LATEST, Client

pytestmark = pytest.mark.spark

COUNT = 3_000
"""Records of each of the two partitions of the topic that the batch queries read."""


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: Any) -> None:
    register(spark)


@pytest.fixture(scope="module")
def client(broker: Any) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


def produce(client: Client, topic: str, partition: int, first: int, count: int) -> None:
    """Records numbered from `first` on, in batches of every codec."""
    now_ms = SYSTEM.now_ms()
    batches = []
    for start in range(first, first + count, 100):
        numbers = range(start, min(start + 100, first + count))
        records = [
            (b"k%d" % n, b"%d:%d" % (partition, n), now_ms + n, [("n", b"%d" % n)]) for n in numbers
        ]
        batches.append(((topic, partition), encode_batch(records, codec=start // 100 % 5)))
    client.produce(batches)


@pytest.fixture(scope="module")
def topic(client: Client) -> str:
    client.create_topics({"replayed": 2})
    for partition in (0, 1):
        produce(client, "replayed", partition, 0, COUNT)
    return "replayed"


@pytest.fixture(scope="module")
def apache_kafka() -> Iterator[str]:
    """The address of an Apache Kafka, for as long as a child process keeps it."""
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("Apache Kafka needs java, and mvn to fetch it")
    script = (
        "import sys\n"
        "from benchmarks.kafka_peer import apache_kafka\n"
        "with apache_kafka() as (servers, _):\n"
        "    print(servers, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        child.communicate()


@pytest.fixture
def reader(spark: Any, broker: Any) -> Any:
    return lambda **options: _with_options(spark.read, broker, options)


@pytest.fixture
def stream(spark: Any, broker: Any) -> Any:
    return lambda **options: _with_options(spark.readStream, broker, options)


def _with_options(start: Any, broker: Any, options: dict[str, object]) -> Any:
    source = start.format("catchwater").option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in options.items():
        source = source.option("catchwater.read" if name == "read" else name, value)
    return source.load()


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_a_batch_query_reads_every_record_once(reader: Any, topic: str, path: str) -> None:
    frame = reader(subscribe=topic, includeHeaders="true", read=path)
    rows = frame.orderBy("partition", "offset").collect()
    assert [(r.partition, r.offset) for r in rows] == [(p, n) for p in (0, 1) for n in range(COUNT)]
    for row in (rows[0], rows[4567], rows[-1]):
        assert row.topic == topic and row.timestampType == 0
        assert bytes(row.key) == b"k%d" % row.offset
        assert bytes(row.value) == b"%d:%d" % (row.partition, row.offset)
        assert row.headers[0].key == "n" and bytes(row.headers[0].value) == b"%d" % row.offset
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip


def test_ranges_columns_and_splits_are_as_asked(reader: Any, topic: str) -> None:
    frame = reader(
        subscribe=topic,
        columns="value,offset",
        startingOffsets=f'{{"{topic}": {{"0": 150, "1": -1}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 1234, "1": -1}}}}',
        minPartitions=3,
        read="kafka",
    )
    assert frame.columns == ["value", "offset"]
    assert sorted(row.offset for row in frame.collect()) == list(range(150, 1234))
    assert frame.rdd.getNumPartitions() == 3
    by_pattern = reader(subscribePattern="replay.*", endingOffsets="latest")
    assert by_pattern.count() == 2 * COUNT
    assert reader(assign=f'{{"{topic}": [1]}}').select("partition").distinct().count() == 1


def test_an_empty_range_is_an_empty_frame(reader: Any, topic: str) -> None:
    assert reader(subscribe=topic, startingOffsets="latest").count() == 0


class Batches:
    """What each run of each micro-batch brought, as (partition, value)."""

    def __init__(self) -> None:
        self.runs: dict[int, list[list[tuple[int, str]]]] = {}

    def __call__(self, frame: Any, number: int) -> None:
        rows = frame.orderBy("partition", "offset").collect()
        found = [(row.partition, bytes(row.value).decode()) for row in rows]
        self.runs.setdefault(number, []).append(found)

    def values(self) -> list[str]:
        """The values of the first run of every batch, in order of partition and batch."""
        rows = [row for number in sorted(self.runs) for row in self.runs[number][0]]
        return [value for _, value in sorted(rows, key=lambda row: row[0])]


def run(frame: Any, checkpoint: Path, batches: Batches) -> Any:
    """Until there is nothing more of what was there when it began."""
    query = (
        frame.writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    return query


def values(partition: int, stop: int) -> list[str]:
    return [f"{partition}:{n}" for n in range(stop)]


def test_a_stream_stops_at_what_there_was_goes_on_and_repeats_the_same(
    stream: Any, client: Client, broker: Any, tmp_path: Path
) -> None:
    client.create_topics({"flowing": 1})
    produce(client, "flowing", 0, 0, 1000)
    options = {
        "subscribePattern": "flow.*",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 400,
    }
    batches = Batches()
    query = run(stream(**options), tmp_path, batches)
    assert [len(runs[0]) for runs in batches.runs.values()] == [400, 400, 200]
    assert batches.values() == values(0, 1000)
    progress = query.lastProgress["sources"][0]
    assert json.loads(progress["endOffset"]) == json.loads(progress["latestOffset"])
    assert json.loads(progress["endOffset"]) == {"flowing": {"0": 1000}}

    broker.kill()
    broker.start()
    produce(client, "flowing", 0, 1000, 50)
    client.create_topics({"flow-of-late": 4})
    produce(client, "flow-of-late", 3, 0, 20)
    run(stream(**options), tmp_path, batches)
    assert batches.values() == values(0, 1050) + values(3, 20)

    last = max(batches.runs)
    (tmp_path / "commits" / str(last)).unlink()
    run(stream(**options), tmp_path, batches)
    assert len(batches.runs[last]) == 2 and max(batches.runs) == last
    assert batches.runs[last][0] == batches.runs[last][1], "the same offsets, once more"


def test_a_mistake_is_one_sentence(
    spark: Any, broker: Any, reader: Any, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="no topic or partition nothing") as refused:
        reader(subscribe="nothing").count()
    assert str(refused.value).count("\nhint: Is the name right?") == 1
    assert "Traceback" not in str(refused.value), "of a process that nobody here knows"
    with pytest.raises(PySparkException, match="no option 'startingoffset'"):
        reader(subscribe=topic, startingOffset="earliest").count()
    with pytest.raises(PySparkException, match=f"{topic}-0 offsets {COUNT} to"):
        ahead = f'{{"{topic}": {{"0": {COUNT + 5}, "1": 0}}}}'
        reader(subscribe=topic, startingOffsets=ahead).count()
    query = _with_options(spark.readStream, broker, {"subscribe": "nothing"}).writeStream
    with pytest.raises(PySparkException, match="no topic or partition nothing") as ended:
        query.format("noop").option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert "Traceback" not in str(ended.value).partition("=== Streaming Query")[0]


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_lost_history_is_named_by_topic_partition_and_offsets(
    spark: Any, make_broker: Callable[..., Any], path: str
) -> None:
    broker = make_broker({"catchwater.retention.interval.ms": "100"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"fleeting": 1}, {"retention.ms": "1"})
        produce(client, "fleeting", 0, 0, 300)
        deadline_s = SYSTEM.monotonic_s() + 120
        while client.list_offsets({("fleeting", 0): EARLIEST})["fleeting", 0] < 300:
            assert SYSTEM.monotonic_s() < deadline_s, "retention deletes what is a second old"
            SYSTEM.pause(0.1)
    options = {"subscribe": "fleeting", "startingOffsets": '{"fleeting": {"0": 7}}', "read": path}
    frame = _with_options(spark.read, broker, options)
    with pytest.raises(PySparkException, match="fleeting-0 offsets 7 to 299"):
        frame.count()
    forgiving = _with_options(spark.read, broker, {**options, "failOnDataLoss": "false"})
    assert forgiving.count() == 0
    broker.stop()


def test_another_kafka_is_read_by_the_same_source(spark: Any, apache_kafka: str) -> None:
    with Client(apache_kafka) as client:
        client.create_topics({"foreign": 1})
        produce(client, "foreign", 0, 0, 1)  # until there is a leader, batches may pass each other
        produce(client, "foreign", 0, 1, 999)
        assert client.list_offsets({("foreign", 0): LATEST}) == {("foreign", 0): 1000}
    producer = Producer({"bootstrap.servers": apache_kafka, "transactional.id": "one"})
    producer.init_transactions(180)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("foreign", end.__name__.encode())
        producer.flush(180)
        end(180)

    options = {"kafka.bootstrap.servers": apache_kafka, "subscribe": "foreign", "minPartitions": 3}
    everything = spark.read.format("catchwater").options(**options).load()
    assert everything.count() == 1002
    committed = {**options, "kafka.isolation.level": "read_committed"}
    rows = spark.read.format("catchwater").options(**committed).load().orderBy("offset").collect()
    assert [bytes(row.value).decode() for row in rows] == [*values(0, 1000), "commit_transaction"]
