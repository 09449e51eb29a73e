"""One corpus, three readers, before packing and after: nobody sees anything else than the others.

librdkafka, our read from storage and our read over the Kafka protocol are held against what the
producer was told when it wrote: (partition, offset, key, value, headers, timestamp, its type), for
readers of everything and of committed records only.
"""

import random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.corpus import (
    CODECS,
    DEADLINE_S,
    Row,
    Writer,
    assert_same,
    by_librdkafka,
    by_replay,
    contents,
    megabytes,
)
from tests.conformance.corpus_topics import (
    COMPACTED,
    FEW,
    MANY,
    MIXED,
    PackedCorpus,
    after_compaction,
    batch_count,
    starts_of,
)

BATCHES_OF_MANY = 1000
TIMES = ["CreateTime", "LogAppendTime"]

isolations = pytest.mark.parametrize(
    "committed", [False, True], ids=["read_uncommitted", "read_committed"]
)
paths = pytest.mark.parametrize("path", ["librdkafka", "direct", "kafka"])


@pytest.fixture(scope="module")
def written(make_broker):
    return PackedCorpus(make_broker, BATCHES_OF_MANY)


@pytest.fixture(scope="module")
def packed(written):
    """The same corpus, after the tests that read it as it was written."""
    written.pack()
    return written


def test_the_corpus_has_few_batches_and_many(written):
    # Ten, or one more where the machine stood still and a linger ended early.
    assert 10 <= batch_count(written.broker.bootstrap, FEW) < BATCHES_OF_MANY / 10
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
    ranges = packed.ranges(MIXED)
    assert sum(each.partition == MANY for each in ranges) > 100


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
    corpus = PackedCorpus(make_broker, 10_000)
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
