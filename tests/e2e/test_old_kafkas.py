"""The source against the releases of Apache Kafka that people still run, from 2.8 on.

Each has the corpus (all codecs, transactions that were aborted and one that is open, headers, empty
and megabyte records) and a topic that the broker stamps; every option on where a query begins and
ends; a stream; and, with 2.8 and its ZooKeeper, a leader that is killed under a stream.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kafka_jars import MavenMissing
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.corpus import (
    CODECS,
    DEADLINE_S,
    NOW_MS,
    Content,
    Row,
    Rows,
    Writer,
    assert_same,
    by_librdkafka,
    contents,
    of_arrow,
)
from tests.conformance.corpus_topics import COMPACTED, MIXED, Corpus, starts_of
from tests.conformance.old_kafka import RELEASES, ZOOKEEPER_RELEASE, OldKafka, old_kafka

from catchwater.replay.source import register
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

STAMPED, TIMED, MOVING = "stamped", "timed", "moving"
STEP_MS = 1000
TIMED_RECORDS = 40

Options = dict[str, str]


class Written:
    """A Kafka with the corpus and two topics more."""

    def __init__(self, kafka: OldKafka) -> None:
        self.kafka = kafka
        self.corpus = Corpus(kafka.bootstrap, 50)
        self.writer = Writer(kafka.bootstrap)
        create(kafka, NewTopic(STAMPED, 2, 1, config={"message.timestamp.type": "LogAppendTime"}))
        create(kafka, NewTopic(TIMED, 2, 1))
        for seed, codec in enumerate(CODECS):
            self.writer.send(self.writer.producer(codec), STAMPED, 0, contents(20, seed=seed))
            self.writer.overlapping(STAMPED, 1, codec)
        timed = [Content(b"", b"", (), NOW_MS + n * STEP_MS) for n in range(TIMED_RECORDS)]
        for partition in range(2):
            self.writer.send(self.writer.producer(), TIMED, partition, timed)


def create(kafka: OldKafka, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([topic])[topic.topic].result(DEADLINE_S)


@pytest.fixture(scope="module", params=RELEASES)
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    try:
        with old_kafka(request.param) as kafka:
            yield Written(kafka)
    except (MavenMissing, FileNotFoundError) as reason:
        pytest.skip(str(reason))


def options(written: Written, topic: str, more: Options) -> Options:
    least = {"kafka.bootstrap.servers": written.kafka.bootstrap, "includeHeaders": "true"}
    return least | ({} if "subscribePattern" in more or "assign" in more else {"subscribe": topic})


@pytest.fixture
def read(spark: Any, written: Written) -> Callable[..., Rows]:
    """`read(topic, committed, option=value)`: what a batch query finds in a topic."""
    register(spark)

    def start(topic: str, committed: bool = False, **more: str) -> Rows:
        isolation = isolated(committed)
        given = options(written, topic, more) | isolation | more
        frame = spark.read.format("catchwater").options(**given).load()
        return by_partition(of_arrow(frame.toArrow()), topic)

    return start


def isolated(committed: bool) -> Options:
    return {"kafka.isolation.level": "read_committed" if committed else "read_uncommitted"}


def by_partition(rows: Iterator[Row], topic: str) -> Rows:
    found: Rows = {partition: [] for partition in partitions(topic)}
    for row in sorted(rows, key=lambda row: row.offset):
        found[row.partition].append(row)
    return found


def partitions(topic: str) -> dict[int, int]:
    return starts_of(topic) if topic in (MIXED, COMPACTED) else {0: 0, 1: 0}


@pytest.mark.parametrize("committed", [False, True], ids=["read_uncommitted", "read_committed"])
def test_everything_that_a_log_can_hold_is_read(
    written: Written, read: Callable[..., Rows], committed: bool
) -> None:
    for topic in (MIXED, COMPACTED):
        wanted = written.corpus.expected(topic, committed=committed)
        assert_same(read(topic, committed), wanted, f"{topic} of {written.kafka.release}")
    theirs = by_librdkafka(written.kafka.bootstrap, STAMPED, partitions(STAMPED), committed)
    found = read(STAMPED, committed)
    assert_same(found, theirs, f"{STAMPED} of {written.kafka.release}")
    assert {row.timestamp_type for rows in found.values() for row in rows} == {1}


def at(step: float) -> str:
    return str(NOW_MS + round(step * STEP_MS))


@pytest.mark.parametrize(
    ("more", "first", "stop"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (0, 0), (40, 40)),
        ({"startingOffsets": "latest"}, (40, 40), (40, 40)),
        (
            {
                "startingOffsets": json.dumps({TIMED: {"0": 7, "1": -2}}),
                "endingOffsets": json.dumps({TIMED: {"0": 31, "1": -1}}),
            },
            (7, 0),
            (31, 40),
        ),
        ({"startingTimestamp": at(9.5), "endingTimestamp": at(20)}, (10, 10), (20, 20)),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({TIMED: {"0": int(at(3)), "1": 0}}),
                "endingOffsetsByTimestamp": json.dumps({TIMED: {"0": int(at(5)), "1": int(at(6))}}),
            },
            (3, 0),
            (5, 6),
        ),
        (
            {
                "startingTimestamp": at(1000),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            (40, 40),
            (40, 40),
        ),
        ({"subscribePattern": "time.", "minPartitions": "6"}, (0, 0), (40, 40)),
        ({"assign": json.dumps({TIMED: [1]})}, (40, 0), (40, 40)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_query_begins_and_ends_where_it_is_told(
    written: Written,
    read: Callable[..., Rows],
    more: Options,
    first: tuple[int, int],
    stop: tuple[int, int],
) -> None:
    found = read(TIMED, **more)
    whole = written.writer.rows(TIMED, committed=False)
    wanted = {p: rows[first[p] : stop[p]] for p, rows in whole.items()}
    assert_same(found, wanted, f"{more} of {written.kafka.release}")


def streamed(
    spark: Any,
    written: Written,
    topic: str,
    folder: Path,
    beside: Callable[[int], None],
    **more: str,
) -> Rows:
    """What a stream brings, in micro-batches that are told to `beside` by number."""
    found: list[Row] = []

    def take(frame: Any, number: int) -> None:
        found.extend(of_arrow(frame.toArrow()))
        beside(number)

    register(spark)
    given = options(written, topic, more) | more
    query = (
        spark.readStream.format("catchwater").options(**given).load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination(900)
    assert query.exception() is None and not query.isActive
    return by_partition(iter(found), topic)


def test_a_stream_reads_every_committed_record_once(
    spark: Any, written: Written, tmp_path: Path
) -> None:
    epochs: list[int] = []
    found = streamed(
        spark, written, MIXED, tmp_path, epochs.append,
        startingOffsets="earliest", maxOffsetsPerTrigger="200", **isolated(True),
    )  # fmt: skip
    wanted = written.corpus.expected(MIXED, committed=True)
    assert_same(found, wanted, f"a stream of {written.kafka.release}")
    assert len(epochs) > 2


@pytest.mark.parametrize("written", [ZOOKEEPER_RELEASE], indirect=True)
def test_a_stream_goes_on_when_the_leader_is_killed(
    spark: Any, written: Written, tmp_path: Path
) -> None:
    """The last test of this Kafka, which has a broker less from here on."""
    kafka = written.kafka
    create(kafka, NewTopic(MOVING, 2, 2))
    for partition in range(2):
        written.writer.send(written.writer.producer(), MOVING, partition, contents(300, seed=1))
    killed: list[int] = []

    def kill(epoch: int) -> None:
        if epoch != 1:
            return
        with Client(kafka.bootstrap) as client:
            killed.append(client.metadata([MOVING]).leaders[MOVING, 0])
        kafka.kill(killed[0])

    began = time.monotonic()
    found = streamed(
        spark, written, MOVING, tmp_path, kill,
        startingOffsets="earliest", maxOffsetsPerTrigger="100",
    )  # fmt: skip
    wanted = written.writer.rows(MOVING, committed=False)
    assert_same(found, wanted, f"a stream over the death of broker {killed}")
    with Client(kafka.bootstrap) as client:
        leaders = set(client.metadata([MOVING]).leaders.values())
    assert leaders == {1, 2} - set(killed)
    print(f"read on over the death of a leader in {time.monotonic() - began:.0f} s")
