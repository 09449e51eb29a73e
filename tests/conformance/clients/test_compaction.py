"""A compacted topic as clients see it: every hole is crossed."""

import contextlib
import shutil
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.clients.test_java import jars, java

from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange, Slice, Task, cut, slices_of
from catchwater.replay.read import ReadSettings, read_task

__all__ = ["jars", "java"]

DEADLINE_S = 90.0
KEYS = 50
TOPIC = "compacted"


@pytest.fixture(scope="module")
def cleaned(make_broker):
    """A broker whose topic was written over and over, in and out of transactions, then cleaned."""
    broker = make_broker(
        {
            "catchwater.pack.interval.ms": "100",
            "catchwater.retention.interval.ms": "200",
            "catchwater.cache.bytes": "0",  # else the newest bytes are served as they were written
        }
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
    }
    for future in admin.create_topics([NewTopic(TOPIC, 1, config=config)]).values():
        future.result(DEADLINE_S)
    for codec in ("none", "zstd", "lz4"):
        write(broker, [(f"k{n % KEYS}", f"{codec}{n}") for n in range(1000)], codec)
    for commit in (False, True):
        ended(broker, [("in-txn", f"{commit}"), (f"only-{commit}", "x")], commit)
    write(broker, [("gone", "x"), ("gone", None)], "none")
    await_cleaned(broker)
    write(broker, [("behind the hole", "x")], "none")  # cleaned again, without the tombstone
    await_cleaned(broker)
    return broker


def write(broker, records, codec):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
    for key, value in records:
        producer.produce(TOPIC, value, key)
    assert producer.flush(DEADLINE_S) == 0


def ended(broker, records, commit):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for key, value in records:
        producer.produce(TOPIC, value, key)
    assert producer.flush(DEADLINE_S) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)


def await_cleaned(broker):
    """Until the plan of the whole topic names cleaned segments alone."""
    control = Control(broker.control_url)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        end = control.request("GET", f"/api/v1/topics/{TOPIC}")["offsets"][0]["high_watermark"]
        plan = control.plan([OffsetRange(TOPIC, 0, 0, end)])
        if {each.kind for each in plan.ranges} == {"cleaned"}:
            return
        time.sleep(0.05)
    raise AssertionError(f"not cleaned: {plan}\n{broker.log()}")


def end_of(broker):
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-"})
    with contextlib.closing(client):
        return client.get_watermark_offsets(TopicPartition(TOPIC, 0), DEADLINE_S)[1]


def expected():
    last = {f"k{n % KEYS}": f"lz4{n}" for n in range(1000)}
    return last | {"in-txn": "True", "only-True": "x", "behind the hole": "x"}


def assert_cleaned(rows):
    """Ascending offsets, one row for every key, with its last value."""
    offsets = [offset for offset, *_ in rows]
    assert offsets == sorted(set(offsets))
    assert {key: value for _, key, value in rows} == expected()
    assert len(rows) == len(expected())


def by_librdkafka(broker, offset):
    """What there is from this offset on, until librdkafka itself says that it is at the end."""
    client = Consumer({
        "bootstrap.servers": broker.bootstrap,
        "group.id": "-",
        "enable.partition.eof": True,
    })  # fmt: skip
    client.assign([TopicPartition(TOPIC, 0, offset)])
    rows = []
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.closing(client):
        while time.monotonic() < deadline:
            for message in client.consume(1000, 0.1):
                if message.error() is None:
                    value = message.value()
                    rows.append((message.offset(), message.key().decode(), value.decode()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return rows, message.offset()
                else:
                    raise KafkaException(message.error())
    raise AssertionError(f"not at the end after {rows[-1:]}")


def test_librdkafka_gets_to_the_end_from_any_offset(cleaned):
    end = end_of(cleaned)
    rows, reached = by_librdkafka(cleaned, 0)
    assert_cleaned(rows)
    assert reached == end
    for offset in (1, 2949, 2960, 3000, 3003, end - 2, end - 1):
        wanted = [row for row in rows if row[0] >= offset]
        assert by_librdkafka(cleaned, offset) == (wanted, end)


@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
def test_the_java_client_gets_past_the_holes(cleaned, java):
    out = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cleaned.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--max-messages", str(len(expected())), "--timeout-ms", "120000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--isolation-level", "read_committed"),
    )
    rows = [line.split("\t") for line in out.splitlines()]
    assert_cleaned([(int(at.removeprefix("Offset:")), key, value) for at, key, value in rows])


@pytest.mark.parametrize("from_storage", [True, False], ids=["storage", "leader"])
def test_our_own_replay_gets_past_the_holes(cleaned, from_storage):
    wanted = [OffsetRange(TOPIC, 0, 0, end_of(cleaned))]
    control = Control(cleaned.control_url)
    columns = ("offset", "key", "value")
    if from_storage:
        tasks = cut(slices_of(wanted, control.plan(wanted).ranges))
        settings = ReadSettings(cleaned.bootstrap, columns, cleaned.control_url)
    else:
        tasks = [Task((Slice(TOPIC, 0, 0, wanted[0].end),))]
        settings = ReadSettings(cleaned.bootstrap, columns)
    rows = [row for task in tasks for rows in read_task(task, settings) for row in rows.to_pylist()]
    assert_cleaned([(r["offset"], r["key"].decode(), r["value"].decode()) for r in rows])


def test_a_record_without_a_key_is_refused(cleaned):
    producer = Producer({"bootstrap.servers": cleaned.bootstrap})
    errors = []
    producer.produce(TOPIC, "no key", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]


def test_records_are_deleted_by_the_admin_client(cleaned):
    admin = AdminClient({"bootstrap.servers": cleaned.bootstrap})
    for future in admin.create_topics([NewTopic("shortened", 1)]).values():
        future.result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": cleaned.bootstrap})
    for n in range(10):
        producer.produce("shortened", f"{n}")
    assert producer.flush(DEADLINE_S) == 0
    [future] = admin.delete_records([TopicPartition("shortened", 0, 4)]).values()
    assert future.result(DEADLINE_S).low_watermark == 4
    [future] = admin.delete_records([TopicPartition(TOPIC, 0, 4)]).values()
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        future.result(DEADLINE_S)
