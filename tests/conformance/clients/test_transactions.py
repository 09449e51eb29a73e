"""Transactions by real clients: all or nothing, in order, also through a broker's death.

librdkafka and the Python clients speak the first version of transactions (KIP-98); the second
(KIP-890) is spoken by the Java client (`test_java.py`).
"""

import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import BrokerProcess

from catchwater.wire.client import Client

DEADLINE_S = 60.0


def create(broker: BrokerProcess, topic: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
    return topic


def producer(broker: BrokerProcess, transactional_id: str, **settings: object) -> Producer:
    client = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id}
        | {key.replace("_", "."): value for key, value in settings.items()}
    )
    client.init_transactions(DEADLINE_S)
    return client


def read(
    broker: BrokerProcess, topic: str, partitions: int = 1, level: str = "read_committed"
) -> list[bytes]:
    """All values up to the end that this isolation level sees."""
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reads-on-its-own",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    client.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values, ends, deadline = [], set(), time.monotonic() + DEADLINE_S
    while len(ends) < partitions:
        assert time.monotonic() < deadline, (values, ends)
        for message in client.consume(1000, 0.1):
            if message.error() is None:
                values.append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ends.add(message.partition())
    client.close()
    return values


def send(client: Producer, topic: str, values: list[str], partitions: int = 1) -> None:
    for index, value in enumerate(values):
        client.produce(topic, value, partition=index % partitions)
    assert client.flush(DEADLINE_S) == 0


def test_what_was_committed_is_read_and_what_was_aborted_is_not(broker: BrokerProcess) -> None:
    topic = create(broker, "both-ends", 3)
    client = producer(broker, "both-ends")
    for round_ in range(6):
        client.begin_transaction()
        send(client, topic, [f"{round_}-{n}" for n in range(6)], 3)
        if round_ % 2:
            client.abort_transaction(DEADLINE_S)
        else:
            client.commit_transaction(DEADLINE_S)
    kept = sorted(f"{round_}-{n}".encode() for round_ in (0, 2, 4) for n in range(6))
    every = sorted(f"{round_}-{n}".encode() for round_ in range(6) for n in range(6))
    assert sorted(read(broker, topic, 3)) == kept
    assert sorted(read(broker, topic, 3, "read_uncommitted")) == every


def test_an_open_transaction_hides_what_comes_after_it(broker: BrokerProcess) -> None:
    topic = create(broker, "hides")
    open_one, other = producer(broker, "hides-open"), producer(broker, "hides-other")
    open_one.begin_transaction()
    send(open_one, topic, ["first"])
    other.begin_transaction()
    send(other, topic, ["second"])
    other.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == []
    assert read(broker, topic, level="read_uncommitted") == [b"first", b"second"]
    open_one.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == [b"first", b"second"]


def test_a_second_producer_of_an_id_fences_the_first(broker: BrokerProcess) -> None:
    topic = create(broker, "fences")
    first = producer(broker, "fences")
    first.begin_transaction()
    send(first, topic, ["of the first"])
    second = producer(broker, "fences")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    second.begin_transaction()
    send(second, topic, ["of the second"])
    second.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == [b"of the second"]


def test_positions_and_output_are_committed_together(broker: BrokerProcess) -> None:
    source, target = create(broker, "loop-in", 2), create(broker, "loop-out", 2)
    feeding = Producer({"bootstrap.servers": broker.bootstrap})
    wanted = sorted(f"r{n}" for n in range(40))
    send(feeding, source, wanted, 2)
    client = producer(broker, "loop")
    seen: set[str] = set()
    for life in range(4):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "loop",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([source])
        messages, deadline = [], time.monotonic() + DEADLINE_S
        while len(messages) < 10 and time.monotonic() < deadline:
            messages += [m for m in consumer.consume(10 - len(messages), 1.0) if not m.error()]
        client.begin_transaction()
        for message in messages:
            client.produce(target, message.value(), partition=message.partition())
        positions = [
            TopicPartition(each.topic, each.partition, each.offset, "metadata")
            for each in consumer.position(consumer.assignment())
        ]
        client.send_offsets_to_transaction(
            positions, consumer.consumer_group_metadata(), DEADLINE_S
        )
        if life == 1:
            client.abort_transaction(DEADLINE_S)
        else:
            client.commit_transaction(DEADLINE_S)
            seen |= {message.value().decode() for message in messages}
        consumer.close()
    out = sorted(value.decode() for value in read(broker, target, 2))
    assert out == sorted(seen)
    assert len(out) == len(set(out)) == 30


def test_a_transaction_goes_on_after_the_broker_was_killed(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker()
    topic = create(broker, "killed", 2)
    client = producer(broker, "killed")
    client.begin_transaction()
    send(client, topic, ["a", "b"], 2)
    broker.kill()
    broker.start()
    assert read(broker, topic, 2) == []
    send(client, topic, ["c", "d"], 2)
    client.commit_transaction(DEADLINE_S)
    assert sorted(read(broker, topic, 2)) == [b"a", b"b", b"c", b"d"]


def test_a_transaction_nobody_ends_is_aborted_when_its_time_is_out(broker: BrokerProcess) -> None:
    topic = create(broker, "hung")
    hung, other = producer(broker, "hung", transaction_timeout_ms=2000), producer(broker, "well")
    hung.begin_transaction()
    send(hung, topic, ["never ended"])
    other.begin_transaction()
    send(other, topic, ["ended"])
    other.commit_transaction(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while (found := read(broker, topic)) != [b"ended"]:
        assert found == [] and time.monotonic() < deadline
    with pytest.raises(KafkaException):
        hung.commit_transaction(DEADLINE_S)


async def test_aiokafka_agrees(broker: BrokerProcess) -> None:
    topic = create(broker, "aiokafka-txn")
    client = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="aiokafka")
    await client.start()
    async with client.transaction():
        await client.send_and_wait(topic, b"a", partition=0)
    with pytest.raises(ZeroDivisionError):
        async with client.transaction():
            await client.send_and_wait(topic, b"b", partition=0)
            raise ZeroDivisionError
    async with client.transaction():
        await client.send_and_wait(topic, b"c", partition=0)
        await client.send_offsets_to_transaction(
            {AioTopicPartition(topic, 0): OffsetAndMetadata(5, "")}, "aiokafka"
        )
    await client.stop()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", group_id="aiokafka"
    )
    await consumer.start()
    at = AioTopicPartition(topic, 0)
    consumer.assign([at])
    assert await consumer.committed(at) == 5
    await consumer.seek_to_beginning(at)
    values = [(await consumer.getone()).value for _ in range(2)]
    await consumer.stop()
    assert values == read(broker, topic) == [b"a", b"c"]


def test_a_hanging_transaction_is_found_and_aborted_by_hand(broker: BrokerProcess) -> None:
    topic = create(broker, "by-hand")
    hanging = producer(broker, "by-hand")
    hanging.begin_transaction()
    send(hanging, topic, ["hangs"])
    with Client(broker.bootstrap, client_id="operator") as operator:
        assert operator.transactions()["by-hand"][1] == "Ongoing"
        operator.init_producer_id("by-hand")
        assert operator.transactions()["by-hand"][1] == "Empty"
    assert read(broker, topic) == []
    assert read(broker, topic, level="read_uncommitted") == [b"hangs"]
    with pytest.raises(KafkaException):
        hanging.commit_transaction(DEADLINE_S)
