"""The topics of the corpus: as they are written to any Kafka, and on a broker of ours that packs.

One topic holds all there can be in a log, a partition for each kind of it; the other is compacted.
Written twice, to two Kafkas, the corpus has the same records at the same offsets in both.
"""

import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.corpus import (
    CODECS,
    DEADLINE_S,
    NOW_MS,
    Content,
    Rows,
    Writer,
    by_librdkafka,
    by_replay,
    contents,
    megabytes,
)

from catchwater.replay.control import Control
from catchwater.replay.plan import CLEANED, SEGMENT, OffsetRange, PlanRange
from catchwater.wire.arrow import place
from catchwater.wire.client import Client

MIXED, COMPACTED = "mixed", "compacted"
FEW, LARGE, TXNS, OPEN, MANY = range(5)
SMALL_RANGES = (sys.executable, str(Path(__file__).with_name("small_ranges_broker.py")))
NEVER_MS = "86400000"
COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def starts_of(topic: str) -> dict[int, int]:
    """The first offset of every partition of one of the two topics."""
    return dict.fromkeys(range(5 if topic == MIXED else 2), 0)


class Corpus:
    """Both topics, written to a Kafka of any kind; a transaction stays open in one partition."""

    def __init__(
        self,
        bootstrap: str,
        batches_of_many: int,
        config: dict[str, str] | None = None,
        compacted: dict[str, str] | None = None,
    ) -> None:
        """`config` is of both topics, `compacted` of the one that is compacted."""
        self.bootstrap = bootstrap
        both = config or {}
        topics = [
            NewTopic(MIXED, 5, 1, config=both),
            NewTopic(COMPACTED, 2, 1, config={**both, **COMPACTING, **(compacted or {})}),
        ]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics(topics).values():
            future.result(DEADLINE_S)
        self.writer = Writer(bootstrap)
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

    def end_segments(self) -> None:
        """Append a record to what is compacted, by its time of another segment.

        Apache Kafka, by `segment.ms`, begins one, and compacts what lies before.
        """
        last = Content(b"the last", b"", (), NOW_MS + 1_800_000)
        for partition in range(2):
            self.writer.send(self.writer.producer(), COMPACTED, partition, [last])

    def expected(self, topic: str, *, committed: bool) -> Rows:
        """What was acknowledged, up to the transaction that is open for who reads committed."""
        rows = self.writer.rows(topic, committed=committed)
        if topic == MIXED and committed:
            rows[OPEN] = [row for row in rows[OPEN] if row.offset < min(self._held)]
        return rows

    def read(
        self, path: str, topic: str, starts: dict[int, int], *, committed: bool, tasks: int = 4
    ) -> Rows:
        """By `librdkafka`, or as Spark's tasks read: from storage (`direct`), or the leaders."""
        if path == "librdkafka":
            return by_librdkafka(self.bootstrap, topic, starts, committed)
        return by_replay(self.bootstrap, topic, starts, committed, path, tasks)


class PackedCorpus(Corpus):
    """A broker of ours with the corpus, as it was written, or packed and compacted since."""

    def __init__(
        self, make_broker, batches_of_many: int, config: dict[str, str] | None = None
    ) -> None:
        idle = {
            "catchwater.pack.interval.ms": NEVER_MS,
            "catchwater.retention.interval.ms": NEVER_MS,
        }
        self.broker = make_broker(idle, start=False)
        self.broker.start(*SMALL_RANGES)
        super().__init__(self.broker.bootstrap, batches_of_many, config)

    def pack(self, *, parquet: bool = False, **more: str) -> None:
        """Start the broker again with a packer and a compactor, and wait until both are done.

        With `parquet`, also until every segment has its Parquet; the topics have to ask for it.
        """
        self.broker.stop()
        self.broker.settings |= {
            "catchwater.pack.interval.ms": "50",
            "catchwater.pack.min.bytes": "1",
            "catchwater.pack.backlog.bytes": "1",
            "catchwater.retention.interval.ms": "100",
            "catchwater.cache.bytes": "0",
            **more,
        }
        self.broker.start(*SMALL_RANGES)
        wanted = {MIXED: {(SEGMENT, parquet)}, COMPACTED: {(CLEANED, parquet)}}
        deadline = time.monotonic() + DEADLINE_S
        while (kinds := self._kinds()) != wanted:
            assert time.monotonic() < deadline, f"not packed: {kinds}\n{self.broker.log()}"
            time.sleep(0.05)

    def _kinds(self) -> dict[str, set[tuple[str, bool]]]:
        """In what the records of each topic lie, and whether they are there as Parquet, too."""
        return {
            topic: {(each.kind, bool(each.parquet)) for each in self.ranges(topic)}
            for topic in (MIXED, COMPACTED)
        }

    def ranges(self, topic: str) -> list[PlanRange]:
        """Where the topic's records lie, as one who reads everything is told."""
        control = Control(self.broker.control_url)
        offsets = control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
        wanted = [OffsetRange(topic, p["partition"], 0, p["high_watermark"]) for p in offsets]
        return list(control.plan(wanted).ranges)


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
