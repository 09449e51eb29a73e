"""The whole corpus through Spark: Parquet history and the source against another Kafka.

Beside them librdkafka, our read from storage and our read over the Kafka protocol, and all against
what the producer was told when it wrote: (partition, offset, key, value, headers, timestamp, its
type). The long form has ten thousand batches in a partition, and the same corpus in Apache Kafka.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.kafka_jars import MavenMissing
from benchmarks.kafka_peer import apache_kafka
from tests.conformance.corpus import DEADLINE_S, Rows, assert_same, of_arrow
from tests.conformance.corpus_topics import (
    COMPACTED,
    FEW,
    LARGE,
    MANY,
    MIXED,
    Corpus,
    PackedCorpus,
    after_compaction,
    batch_count,
    starts_of,
)

from catchwater import spark as frames
from catchwater.replay import history
from catchwater.replay.source import register

pytestmark = pytest.mark.spark

ASKING = {"catchwater.history.parquet": "true"}
AT_ONCE = {"catchwater.history.parquet.after.ms": "0"}
PROTOCOLS = ("librdkafka", "direct", "kafka")
TOPICS = (MIXED, COMPACTED)
ROLLING = {"segment.ms": "600000"}


def rows_of(frame: Any, topic: str) -> Rows:
    """What Spark makes of the frame; its rows are in no order."""
    rows: Rows = {partition: [] for partition in starts_of(topic)}
    for row in sorted(of_arrow(frame.toArrow()), key=lambda row: row.offset):
        rows[row.partition].append(row)
    return rows


def options(corpus: Corpus, topic: str, *, committed: bool, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": corpus.bootstrap,
        "subscribe": topic,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        **more,
    }


def by_history(spark: Any, corpus: Corpus, topic: str, *, committed: bool, **more: str) -> Any:
    """The rows of `history.read`, and of how many Parquet objects."""
    frame = history.read(spark, options(corpus, topic, committed=committed, **more))
    try:
        return rows_of(frame, topic), len(frame.inputFiles())
    finally:
        history.release(frame)


def by_source(spark: Any, corpus: Corpus, topic: str, *, committed: bool) -> Rows:
    register(spark)
    given = options(corpus, topic, committed=committed)
    return rows_of(spark.read.format("catchwater").options(**given).load(), topic)


def by_frame(spark: Any, corpus: Corpus, topic: str, *, committed: bool, path: str) -> Rows:
    """The rows that Spark cuts from bundles."""
    given = options(corpus, topic, committed=committed, **{"catchwater.read": path})
    return rows_of(frames.read(spark, given), topic)


def files(corpus: PackedCorpus, topic: str) -> dict[str, int]:
    """The Parquet objects of the topic, and of which partition each is."""
    return {each.parquet: each.partition for each in corpus.ranges(topic)}


def expected(corpus: Corpus, topic: str, *, committed: bool) -> Rows:
    """What a reader should find once what can be compacted is."""
    if topic == MIXED:
        return corpus.expected(MIXED, committed=committed)
    if committed:
        return after_compaction(corpus.expected(COMPACTED, committed=True))
    # Compaction leaves of aborted records what it likes: librdkafka says what there is.
    return corpus.read("librdkafka", COMPACTED, starts_of(COMPACTED), committed=False)


@pytest.fixture(scope="module")
def packed(make_broker: Callable[..., Any]) -> PackedCorpus:
    corpus = PackedCorpus(make_broker, 10, ASKING)
    corpus.pack(parquet=True, **AT_ONCE)
    return corpus


@pytest.mark.parametrize("committed", [False, True], ids=["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("topic", TOPICS)
def test_history_as_parquet_is_what_every_other_reader_reads(
    spark: Any, packed: PackedCorpus, topic: str, committed: bool
) -> None:
    wanted = expected(packed, topic, committed=committed)
    found, native = by_history(spark, packed, topic, committed=committed)
    assert_same(found, wanted, f"{topic} as Parquet")
    for path in PROTOCOLS:
        theirs = packed.read(path, topic, starts_of(topic), committed=committed)
        assert_same(theirs, wanted, f"{topic} by {path}")
    for path in PROTOCOLS[1:]:
        cut = by_frame(spark, packed, topic, committed=committed, path=path)
        assert_same(cut, wanted, f"{topic} cut by Spark, {path}")
    where = files(packed, topic)
    if not committed:
        assert native == len(where) >= len(wanted), "all of it was read as Parquet"
    elif topic == MIXED:
        assert native == sum(each in (FEW, LARGE, MANY) for each in where.values())


def test_from_any_offset_to_any_other_the_history_between_is_read(
    spark: Any, packed: PackedCorpus
) -> None:
    rng = random.Random(3)
    whole = packed.expected(MIXED, committed=False)
    ends = {partition: rows[-1].offset + 1 for partition, rows in whole.items()}
    stops = {partition: rng.randint(1, end) for partition, end in ends.items()}
    starts = {partition: rng.randint(0, stop) for partition, stop in stops.items()}
    starts[FEW], stops[FEW] = 0, ends[FEW]
    starts[MANY] = 0
    found, native = by_history(
        spark, packed, MIXED, committed=False,
        startingOffsets=json.dumps({MIXED: {str(p): at for p, at in starts.items()}}),
        endingOffsets=json.dumps({MIXED: {str(p): at for p, at in stops.items()}}),
    )  # fmt: skip
    between = {
        p: [row for row in rows if starts[p] <= row.offset < stops[p]] for p, rows in whole.items()
    }
    assert_same(found, between, f"from {starts} to {stops}")
    assert native == 1, "one partition was wanted whole"


@pytest.fixture
def compacting_kafka() -> Iterator[str]:
    """An Apache Kafka that looks for what to compact all the time."""
    try:
        with apache_kafka({"log.cleaner.backoff.ms": "100"}) as (bootstrap, _):
            yield bootstrap
    except (MavenMissing, FileNotFoundError) as reason:
        pytest.skip(str(reason))


def wait_until_compacted(corpus: Corpus) -> None:
    """Until of every key one record is left."""
    wanted = after_compaction(corpus.expected(COMPACTED, committed=True))
    deadline = time.monotonic() + DEADLINE_S
    while corpus.read("librdkafka", COMPACTED, starts_of(COMPACTED), committed=True) != wanted:
        assert time.monotonic() < deadline, "it does not compact"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_batches_are_the_same_on_every_path_and_in_another_kafka(
    spark: Any, make_broker: Callable[..., Any], compacting_kafka: str
) -> None:
    began = time.monotonic()
    ours = PackedCorpus(make_broker, 10_000, ASKING)
    theirs = Corpus(compacting_kafka, 10_000, compacted=ROLLING)
    for corpus in (ours, theirs):
        corpus.end_segments()
    assert batch_count(ours.bootstrap, MANY) >= 10_000
    ours.pack(parquet=True, **AT_ONCE, **{"catchwater.segment.bytes": str(2**20)})
    wait_until_compacted(theirs)
    assert sum(partition == MANY for partition in files(ours, MIXED).values()) > 1
    count = 0
    for topic in TOPICS:
        for committed in (False, True):
            wanted = expected(ours, topic, committed=committed)
            found, native = by_history(spark, ours, topic, committed=committed)
            assert native or committed
            assert_same(found, wanted, f"{topic} as Parquet")
            for path in ("direct", "kafka"):
                rows = ours.read(path, topic, starts_of(topic), committed=committed)
                assert_same(rows, wanted, f"{topic} by {path}")
            if topic == MIXED or committed:
                found = by_source(spark, theirs, topic, committed=committed)
                assert_same(found, wanted, f"{topic} of another Kafka")
                found = by_frame(spark, theirs, topic, committed=committed, path="kafka")
                assert_same(found, wanted, f"{topic} of another Kafka, cut by Spark")
            count += sum(map(len, wanted.values()))
    print(f"{count} rows alike on four paths in {time.monotonic() - began:.0f} s")
