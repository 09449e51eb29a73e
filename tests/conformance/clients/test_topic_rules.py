"""Topics that ask more of batches, as real clients see it: LogAppendTime, compression.type."""

import asyncio
import time
import warnings

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.conformance.corpus import by_librdkafka, by_replay

from catchwater.wire.batch import split
from catchwater.wire.client import Client

with warnings.catch_warnings():
    # It reads its message schemas by a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves sockets to the collector when it connects anew.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

DEADLINE_S = 60.0
LONG_AGO_MS = 1_000
CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RARER = ("gzip", "snappy", "lz4")


def create(broker, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(DEADLINE_S)


async def by_aiokafka(bootstrap: str, topic: str) -> tuple[list, object]:
    """Write a record with a time of its own; what is told of it, and what is read."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    told = await producer.send_and_wait(topic, b"aiokafka", timestamp_ms=LONG_AGO_MS, partition=0)
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    records = [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(3)]
    await consumer.stop()
    return records, told


def test_everybody_is_told_the_time_of_the_append(broker) -> None:
    topic = "log-append-time"
    create(broker, topic, message_timestamp_type="LogAppendTime")
    began_ms = int(time.time() * 1000)
    told = []
    rdkafka = Producer({"bootstrap.servers": broker.bootstrap})
    rdkafka.produce(
        topic, b"librdkafka", timestamp=LONG_AGO_MS, on_delivery=lambda e, m: told.append(m)
    )
    assert rdkafka.flush(DEADLINE_S) == 0
    kind, first_ms = told[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="gzip")
    second = producer.send(topic, b"kafka-python", timestamp_ms=LONG_AGO_MS).get(DEADLINE_S)
    producer.close()
    records, third = asyncio.run(by_aiokafka(broker.bootstrap, topic))
    ended_ms = int(time.time() * 1000)

    times = [first_ms, second.timestamp, third.timestamp]
    assert began_ms <= times[0] <= times[1] <= times[2] <= ended_ms
    assert [(r.timestamp_type, r.timestamp) for r in records] == [(1, at) for at in times]
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    records = [next(consumer) for _ in range(3)]
    consumer.close()
    assert [(r.timestamp_type, r.timestamp) for r in records] == [(1, at) for at in times]
    reads = [by_librdkafka(broker.bootstrap, topic, {0: 0}, committed=False)]
    for path in ("direct", "kafka"):
        reads.append(by_replay(broker.bootstrap, topic, {0: 0}, False, path, 1))
    for rows in reads:
        assert [(row.timestamp_type, row.timestamp) for row in rows[0]] == [(1, at) for at in times]


def test_the_newest_record_is_found_by_an_admin_client(broker) -> None:
    create(broker, "newest")
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for later_ms in (0, 500, -500):
        producer.produce("newest", b"x", timestamp=now_ms + later_ms)
        assert producer.flush(DEADLINE_S) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    place = Place("newest", 0)
    found = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(DEADLINE_S)
    assert (found.offset, found.timestamp) == (1, now_ms + 500)


def stored_codecs(broker, topic: str) -> set[int]:
    """The codecs of the batches that a fetch brings."""
    with Client(broker.bootstrap) as client:
        fetched = client.fetch({(topic, 0): 0})[topic, 0]
    return {header.compression for header, _ in split(fetched.records)}


@pytest.mark.parametrize(
    "wanted",
    ["uncompressed", "zstd", *(pytest.param(name, marks=pytest.mark.slow) for name in RARER)],
)
def test_batches_come_back_in_the_topics_codec(broker, wanted) -> None:
    topic = f"compressed-{wanted}"
    create(broker, topic, compression_type=wanted)
    values = [b"%d:" % number + b"water" * 50 for number in range(500)]
    for codec in ("none", "gzip", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for value in values:
            producer.produce(topic, value, b"k")
        assert producer.flush(DEADLINE_S) == 0
    rows = by_librdkafka(broker.bootstrap, topic, {0: 0}, committed=False)[0]
    assert [(row.offset, row.value) for row in rows] == list(enumerate(values * 3))
    assert stored_codecs(broker, topic) == {CODECS[wanted]}


def test_transactions_on_a_compressed_topic_are_whole(broker) -> None:
    create(broker, "compressed-txn", compression_type="zstd")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "compressed"})
    producer.init_transactions(DEADLINE_S)
    for value, commits in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        for number in range(100):
            producer.produce("compressed-txn", value * 100 + b"%d" % number)
        if commits:
            producer.commit_transaction(DEADLINE_S)
        else:
            assert producer.flush(DEADLINE_S) == 0
            producer.abort_transaction(DEADLINE_S)
    rows = by_librdkafka(broker.bootstrap, "compressed-txn", {0: 0}, committed=True)[0]
    assert [row.value for row in rows] == [
        value * 100 + b"%d" % number for value in (b"a", b"c") for number in range(100)
    ]


def test_a_keyless_record_for_a_compacted_topic_fails_and_the_producer_knows_why(broker) -> None:
    create(broker, "compacted-keys", cleanup_policy="compact")
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("compacted-keys", b"v", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert failed[0].code() == KafkaError.INVALID_RECORD
