"""One corpus, three readers, before packing and after: nobody sees anything else than the others.

librdkafka, our read from storage and our read over the Kafka protocol are held against what the
producer was told when it wrote: (partition, offset, key, value, headers, timestamp, its type), for
readers of everything and of committed records only.
"""

import random
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.corpus import (
    CODECS,
    DEADLINE_S,
    Row,
    Rows,
    Writer,
    assert_same,
    by_librdkafka,
    by_replay,
    contents,
    megabytes,
)

from catchwater.replay.control import Control
from catchwater.replay.plan import CLEANED, SEGMENT, Wanted
from catchwater.wire.client import Client
from catchwater.wire.records import place

MIXED, COMPACTED = "mixed", "compacted"
FEW, LARGE, TXNS, OPEN, MANY = range(5)
BATCHES_OF_MANY = 1000
SMALL_RANGES = (sys.executable, str(Path(__file__).with_name("small_ranges_broker.py")))
NEVER_MS = "86400000"
TIMES = ["CreateTime", "LogAppendTime"]

isolations = pytest.mark.parametrize(
    "committed", [False, True], ids=["read_uncommitted", "read_committed"]
)
paths = pytest.mark.parametrize("path", ["librdkafka", "direct", "kafka"])


class Corpus:
    """A broker with the corpus on it, as it was written or packed and compacted since."""

    def __init__(self, make_broker, batches_of_many=BATCHES_OF_MANY) -> None:
        idle = {
            "catchwater.pack.interval.ms": NEVER_MS,
            "catchwater.retention.interval.ms": NEVER_MS,
        }
        self.broker = make_broker(idle, start=False)
        self.broker.start(*SMALL_RANGES)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        topics = [NewTopic(MIXED, 5), NewTopic(COMPACTED, 2, config=compact)]
        for future in admin.create_topics(topics).values():
            future.result(DEADLINE_S)
        self.writer = Writer(self.broker.bootstrap)
        self._write(batches_of_many)

    def _write(self, batches_of_many: int) -> None:
        writer = self.writer
        for seed, codec in enumerate(CODECS):
            producer = writer.producer(codec)
            for _ in range(2):
                writer.send(producer, MIXED, FEW, contents(10, seed=seed))
            writer.send(writer.producer(codec, 1), MIXED, LARGE, megabytes(seed=seed))
            writer.overlapping(MIXED, TXNS, codec)
            for partition in range(2):
                writer.send(producer, COMPACTED, partition, contents(300, seed=seed, keys=40))
                writer.overlapping(COMPACTED, partition, codec, keys=40)
            many = writer.producer(codec, 3)
            writer.send(many, MIXED, MANY, contents(3 * batches_of_many // 5, seed=seed))
        writer.send(writer.producer(), MIXED, OPEN, contents(20, seed=1))
        self._open = writer.transactional("lz4")
        self._held = writer.transact(self._open, MIXED, OPEN, contents(20, seed=2))
        writer.send(writer.producer(), MIXED, OPEN, contents(20, seed=3))

    def pack(self) -> None:
        """Start the broker again with a packer and a compactor, and wait until both are done."""
        self.broker.stop()
        self.broker.settings |= {
            "catchwater.pack.interval.ms": "50",
            "catchwater.pack.min.bytes": "1",
            "catchwater.retention.interval.ms": "100",
            "catchwater.cache.bytes": "0",
        }
        self.broker.start(*SMALL_RANGES)
        control = Control(self.broker.control_url)
        deadline = time.monotonic() + DEADLINE_S
        while (kinds := self._kinds(control)) != {MIXED: {SEGMENT}, COMPACTED: {CLEANED}}:
            assert time.monotonic() < deadline, f"not packed: {kinds}\n{self.broker.log()}"
            time.sleep(0.05)

    def _kinds(self, control: Control) -> dict[str, set[str]]:
        """In what the records of each topic lie."""
        kinds = {}
        for topic in (MIXED, COMPACTED):
            offsets = control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
            wanted = [Wanted(topic, p["partition"], 0, p["high_watermark"]) for p in offsets]
            kinds[topic] = {each.kind for each in control.plan(wanted).ranges}
        return kinds

    def range_count(self, partition: int) -> int:
        """Into how many ranges a plan cuts a partition of the mixed topic."""
        end = max(row.offset for row in self.expected(MIXED, committed=False)[partition])
        plan = Control(self.broker.control_url).plan([Wanted(MIXED, partition, 0, end)])
        return len(plan.ranges)

    def read(self, path: str, topic: str, starts, *, committed: bool, tasks: int = 4) -> Rows:
        bootstrap = self.broker.bootstrap
        if path == "librdkafka":
            return by_librdkafka(bootstrap, topic, starts, committed)
        return by_replay(bootstrap, topic, starts, committed, path, tasks)

    def expected(self, topic: str, *, committed: bool) -> Rows:
        """What was acknowledged, up to the transaction that is open for who reads committed."""
        rows = self.writer.rows(topic, committed=committed)
        if topic == MIXED and committed:
            rows[OPEN] = [row for row in rows[OPEN] if row.offset < min(self._held)]
        return rows


def starts_of(topic: str) -> dict[int, int]:
    return dict.fromkeys(range(5 if topic == MIXED else 2), 0)


@pytest.fixture(scope="module")
def written(make_broker):
    return Corpus(make_broker)


@pytest.fixture(scope="module")
def packed(written):
    """The same corpus, after the tests that read it as it was written."""
    written.pack()
    return written


def after_compaction(rows: Rows) -> Rows:
    """Of every key the last row; tombstones stay for a day."""
    return {
        partition: sorted({row.key: row for row in found}.values(), key=lambda row: row.offset)
        for partition, found in rows.items()
    }


def batch_count(bootstrap: str, partition: int) -> int:
    """How many batches a partition of the mixed topic has, fetched without looking into them."""
    key, count, offset = (MIXED, partition), 0, 0
    with Client(bootstrap) as client:
        while batches := place(client.fetch({key: offset}, max_wait_ms=1)[key].records,
                               partial_tail=True):  # fmt: skip
            count += len(batches)
            offset = batches[-1].next_offset
    return count


def test_the_corpus_has_few_batches_and_many(written):
    assert batch_count(written.broker.bootstrap, FEW) == 10
    assert batch_count(written.broker.bootstrap, MANY) >= BATCHES_OF_MANY


@isolations
@paths
@pytest.mark.parametrize("topic", [MIXED, COMPACTED])
def test_what_was_written_is_read(written, topic, path, committed):
    found = written.read(path, topic, starts_of(topic), committed=committed)
    assert_same(found, written.expected(topic, committed=committed), f"{topic} by {path}")


@isolations
@paths
def test_what_was_packed_is_read_as_it_was_written(packed, path, committed):
    found = packed.read(path, MIXED, starts_of(MIXED), committed=committed)
    assert_same(found, packed.expected(MIXED, committed=committed), f"packed by {path}")


@paths
def test_of_what_was_compacted_the_last_committed_records_are_read(packed, path):
    everything = packed.expected(COMPACTED, committed=True)
    found = packed.read(path, COMPACTED, starts_of(COMPACTED), committed=True)
    assert_same(found, after_compaction(everything), f"compacted by {path}")


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_of_what_was_compacted_everything_left_is_read_alike(packed, path):
    found = packed.read(path, COMPACTED, starts_of(COMPACTED), committed=False)
    theirs = packed.read("librdkafka", COMPACTED, starts_of(COMPACTED), committed=False)
    assert_same(found, theirs, f"compacted by {path}")


def test_a_partition_that_was_packed_is_read_range_by_range(packed):
    assert packed.range_count(MANY) > 100


@isolations
@pytest.mark.parametrize("path", ["direct", "kafka"])
@pytest.mark.parametrize("topic", [MIXED, COMPACTED])
def test_from_any_offset_the_rest_is_read_whatever_the_tasks(packed, topic, path, committed):
    """In the middle of batches, of transactions and of holes; one task, and more than ranges."""
    starts = starts_of(topic)
    whole = packed.read("librdkafka", topic, starts, committed=committed)
    rng = random.Random(f"{topic}{path}")
    for tasks in (1, 3, 64):
        ends = {partition: rows[-1].offset for partition, rows in whole.items()}
        starts = {partition: rng.randint(0, end) for partition, end in ends.items()}
        found = packed.read(path, topic, starts, committed=committed, tasks=tasks)
        rest = {p: [row for row in rows if row.offset >= starts[p]] for p, rows in whole.items()}
        assert_same(found, rest, f"{topic} by {path} from {starts} in {tasks} tasks")


@pytest.mark.slow
def test_ten_thousand_batches_are_read_alike(make_broker):
    corpus = Corpus(make_broker, 10_000)
    assert batch_count(corpus.broker.bootstrap, MANY) >= 10_000
    for stage in ("written", "packed"):
        for path in ("librdkafka", "direct", "kafka"):
            found = corpus.read(path, MIXED, starts_of(MIXED), committed=True)
            assert_same(found, corpus.expected(MIXED, committed=True), f"{stage} by {path}")
        if stage == "written":
            corpus.pack()


@pytest.fixture(scope="module")
def foreign(apache_kafka):
    """A Kafka that is not ours, with one topic of each type of timestamps; brokers of ours know
    the producer's alone."""
    admin = AdminClient({"bootstrap.servers": apache_kafka})
    topics = [NewTopic(kind, 2, config={"message.timestamp.type": kind}) for kind in TIMES]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_S)
    writer = Writer(apache_kafka)
    for kind in TIMES:
        for seed, codec in enumerate(CODECS):
            writer.send(writer.producer(codec), kind, 0, contents(50, seed=seed))
            writer.overlapping(kind, 0, codec)
            writer.send(writer.producer(codec, 1), kind, 1, megabytes(seed=seed))
    return writer


@isolations
@pytest.mark.parametrize("kind", TIMES)
def test_the_records_of_another_kafka_are_read_alike(foreign, kind, committed):
    starts = {0: 0, 1: 0}
    found = by_replay(foreign.bootstrap, kind, starts, committed, "kafka", 3)
    theirs = by_librdkafka(foreign.bootstrap, kind, starts, committed)
    assert_same(found, theirs, f"{kind} of another Kafka")
    types = {row.timestamp_type for rows in found.values() for row in rows}
    assert types == {TIMES.index(kind)}
    if kind == "CreateTime":
        assert_same(found, foreign.rows(kind, committed=committed), "what was written")


def test_a_difference_is_named_by_its_first_row():
    row = Row(0, 7, b"k", None, (), 1000, 0)
    other = row._replace(value=b"")
    assert_same({0: [row]}, {0: [row]}, "the same")
    with pytest.raises(AssertionError, match="row 1 of 2"):
        assert_same({0: [row, other]}, {0: [row, row]}, "a null")
    with pytest.raises(AssertionError, match="found    nothing"):
        assert_same({0: [row]}, {0: [row, row]}, "one less")
