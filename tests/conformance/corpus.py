"""A corpus of records that exercises the readers, and three ways to read it: what each row is.

Written by librdkafka, so that nothing of ours is in what was written. Every record is noted with
the offset that the broker acknowledged, so that there is a fourth account of the log, the
writer's, which no reader has had a hand in.
"""

import contextlib
import hashlib
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Producer, TopicPartition

from catchwater.replay import read as read_module
from catchwater.replay.options import parse_options
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.subscription import Subscription

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 120.0
MEGABYTE = 1_000_000
FETCH_BYTES = 20_000
"""So much is fetched at a time: less than most partitions have, so that replies follow replies."""
NOW_MS = int(time.time() * 1000)
"""When the corpus begins to be, so that it is the same however often this process writes it."""
TRANSACTION_MS = 900_000
"""What is left open must not be ended by the broker while slow tests read."""
COLUMNS = ("partition", "offset", "key", "value", "headers", "timestamp", "timestampType")

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record as a reader hands it out; `timestamp` in milliseconds, its type as Spark's."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    timestamp_type: int


class Content(NamedTuple):
    """A record as it is handed to a producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


Rows = dict[int, list[Row]]
"""Partition -> its rows in the order read."""


def contents(count: int, *, seed: int, keys: int | None = None) -> Iterator[Content]:
    """So many records: empty and null keys and values, headers of every kind, times in disorder.

    With `keys`, as a compacted topic takes them: out of so many, none of them null.
    """
    rng = random.Random(seed)
    now = NOW_MS - 3_600_000
    kinds: Sequence[Headers] = (
        (),
        (("h", b"v"),),
        (("twice", b"1"), ("twice", b"2"), ("null", None), ("empty", b"")),
        (("", b"no name"), ("ünïcode ☂", bytes(range(256)))),
    )
    for index in range(count):
        if keys is None:
            key = rng.choice((None, b"", b"%d" % rng.randrange(50), rng.randbytes(200)))
        else:
            key = rng.choice([b"", *(b"k%d" % n for n in range(keys))])
        value = rng.choice((None, b"", b"%d:" % index + b"water" * 20, rng.randbytes(300)))
        yield Content(key, value, kinds[rng.randrange(4)], now + index + rng.randrange(-5000, 5000))


def megabytes(*, seed: int) -> Iterator[Content]:
    """Records of a megabyte: one that compresses, one that does not, and a small one between."""
    rng = random.Random(seed)
    yield Content(b"large", b"w" * MEGABYTE, (), NOW_MS)
    yield Content(None, b"small", (), NOW_MS)
    yield Content(b"random", rng.randbytes(MEGABYTE), (("h", b"v"),), NOW_MS)


class Writer:
    """Writes and notes what was acknowledged, and which of it was aborted."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.written: dict[tuple[str, int], dict[int, Row]] = {}
        self.aborted: set[tuple[str, int, int]] = set()
        """(topic, partition, offset), of transactions that are open still as well."""
        self._ids = itertools.count()

    def producer(self, codec: str = "none", batch_records: int = 10, **more: Any) -> Producer:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": codec,
            "batch.num.messages": batch_records,
            "linger.ms": 60_000,  # a batch ends when full or flushed, on however slow a machine
            "message.max.bytes": 2 * MEGABYTE,
        }
        return Producer(settings | more)

    def transactional(self, codec: str) -> Producer:
        producer = self.producer(
            codec,
            **{
                "transactional.id": f"corpus-{next(self._ids)}",
                "transaction.timeout.ms": TRANSACTION_MS,
            },
        )
        producer.init_transactions(DEADLINE_S)
        return producer

    def send(
        self, producer: Producer, topic: str, partition: int, records: Iterable[Content]
    ) -> list[int]:
        """Write them, wait for the acknowledgements, and return the offsets."""
        offsets: list[int] = []
        noted = self.written.setdefault((topic, partition), {})

        def acknowledged(content: Content) -> Any:
            def note(error: KafkaError | None, message: Any) -> None:
                assert error is None, error
                offset = message.offset()
                assert offset not in noted
                noted[offset] = Row(
                    partition, offset, content.key, content.value, content.headers,
                    content.timestamp, 0,
                )  # fmt: skip
                offsets.append(offset)

            return note

        for content in records:
            while True:
                try:
                    producer.produce(
                        topic, content.value, content.key, partition,
                        on_delivery=acknowledged(content),
                        timestamp=content.timestamp, headers=list(content.headers),
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(DEADLINE_S) == 0
        return offsets

    def transact(
        self, producer: Producer, topic: str, partition: int, records: Iterable[Content]
    ) -> list[int]:
        """Begin a transaction, write them in it and leave it open."""
        producer.begin_transaction()
        offsets = self.send(producer, topic, partition, records)
        self.aborted |= {(topic, partition, offset) for offset in offsets}
        return offsets

    def end(self, producer: Producer, topic: str, partition: int, offsets: list[int]) -> None:
        """Commit what `transact` began."""
        producer.commit_transaction(DEADLINE_S)
        self.aborted -= {(topic, partition, offset) for offset in offsets}

    def overlapping(
        self, topic: str, partition: int, codec: str, *, keys: int | None = None
    ) -> None:
        """Transactions of two producers at a time, ended either way, with plain records between."""
        one, two, plain = self.transactional(codec), self.transactional(codec), self.producer()
        ends = [(True, False), (False, True), (False, False)]
        for seed, (one_commits, two_commits) in enumerate(ends):
            ones = self.transact(one, topic, partition, contents(15, seed=seed, keys=keys))
            twos = self.transact(two, topic, partition, contents(15, seed=seed + 9, keys=keys))
            self.send(plain, topic, partition, contents(5, seed=seed, keys=keys))
            for producer, offsets, commits in (one, ones, one_commits), (two, twos, two_commits):
                if commits:
                    self.end(producer, topic, partition, offsets)
                else:
                    producer.abort_transaction(DEADLINE_S)

    def rows(self, topic: str, *, committed: bool) -> Rows:
        """What a reader of the topic should find, as long as nothing is compacted."""
        return {
            partition: [
                row
                for offset, row in sorted(noted.items())
                if not (committed and (topic, partition, offset) in self.aborted)
            ]
            for (name, partition), noted in self.written.items()
            if name == topic
        }


def by_librdkafka(bootstrap: str, topic: str, starts: Mapping[int, int], committed: bool) -> Rows:
    """What librdkafka reads from these offsets on, until it says itself that it is at the end."""
    client = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "corpus",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    })  # fmt: skip
    client.assign([TopicPartition(topic, partition, at) for partition, at in starts.items()])
    rows: Rows = {partition: [] for partition in starts}
    left = set(starts)
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.closing(client):
        while left:
            assert time.monotonic() < deadline, f"not at the end of {topic} {sorted(left)}"
            for message in client.consume(1000, 0.1):
                if message.error() is None:
                    rows[message.partition()].append(_of_message(message))
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    left.discard(message.partition())
    return rows


def _of_message(message: Any) -> Row:
    kind, timestamp = message.timestamp()
    return Row(
        message.partition(), message.offset(), message.key(), message.value(),
        tuple(message.headers() or ()), timestamp, int(kind != TIMESTAMP_CREATE_TIME),
    )  # fmt: skip


def by_replay(
    bootstrap: str, topic: str, starts: Mapping[int, int], committed: bool, path: str, tasks: int
) -> Rows:
    """What Spark's tasks would read from storage (`direct`) or from the leaders (`kafka`)."""
    options = parse_options({
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "catchwater.read": path,
    })  # fmt: skip
    start = {(topic, partition): at for partition, at in starts.items()}
    with contextlib.closing(Subscription(options)) as subscription:
        ends = {key: end for key, end in subscription.ending().items() if key in start}
        start = {key: min(at, ends[key]) for key, at in start.items()}
        planned = subscription.tasks(start, ends, tasks)
        control_url = subscription.control_url()
    settings = ReadSettings(options.bootstrap, COLUMNS, control_url, options.read_committed)
    rows: Rows = {partition: [] for partition in starts}
    with patch.object(read_module, "_FETCH_BYTES", FETCH_BYTES):
        for task in planned:
            for batch in read_task(task, settings):
                for row in of_arrow(batch):
                    rows[row.partition].append(row)
    return rows


def of_arrow(table: pa.RecordBatch | pa.Table) -> Iterator[Row]:
    """The rows of what has the columns of the source."""
    return map(_of_arrow, table.to_pylist())


def _of_arrow(row: Mapping[str, Any]) -> Row:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    at = row["timestamp"]
    timestamp = round(at.timestamp() * 1000)
    return Row(
        row["partition"], row["offset"], row["key"], row["value"], headers, timestamp,
        row["timestampType"],
    )  # fmt: skip


def checksum(rows: Iterable[Row]) -> str:
    """Of every field of every row, in order; null and empty differ."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(tuple(row)).encode())
    return digest.hexdigest()


def assert_same(found: Rows, expected: Rows, what: str) -> None:
    """The same rows by checksum; else the first one that differs."""
    assert found.keys() == expected.keys(), what
    for partition, rows in expected.items():
        if checksum(found[partition]) == checksum(rows):
            continue
        pairs = itertools.zip_longest(found[partition], rows)
        index, (mine, theirs) = next(
            (index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]
        )
        raise AssertionError(
            f"{what}, partition {partition}, row {index} of {len(rows)}, "
            f"{len(found[partition])} found:\n"
            f" found    {_short(mine)}\n expected {_short(theirs)}"
        )


def _short(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return ", ".join(f"{name}={str(value)[:80]}" for name, value in row._asdict().items())
