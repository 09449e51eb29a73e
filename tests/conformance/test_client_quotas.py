"""Quotas of clients under librdkafka: the rate that is held to, and the neighbour who is not."""

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.static.primitive import f64
from tests.conformance.corpus import DEADLINE_S

from catchwater.wire.frames import prefixed
from catchwater.wire.messages import decode_reply, encode_request

RECORD = b"v" * 10_000
SECONDS = 6.0
OFFERED = 5_000_000.0


@pytest.fixture(scope="module")
def quotas(make_broker: Any) -> Any:
    broker = make_broker()
    topics = [NewTopic(name, 1) for name in ("slow", "quick", "read")]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_topics(topics).values():
        done.result(DEADLINE_S)
    return broker


def limit(broker: Any, client_id: str, key: str, value: float) -> None:
    entity = EntityData(entity_type="client-id", entity_name=client_id)
    op = OpData(key=key, value=f64(float(value)), remove=False)
    entry = EntryData(entity=(entity,), ops=(op,))
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.sendall(b"".join(prefixed(encode_request(1, "c", request))))
        with connection.makefile("rb") as replies:
            size = int.from_bytes(replies.read(4), "big")
            _, reply = decode_reply(49, 1, memoryview(replies.read(size)))
    assert not reply.entries[0].error_code  # type: ignore[attr-defined]


def produced_bytes(
    broker: Any, topic: str, client_id: str, seconds: float, most: float = float("inf")
) -> float:
    """Bytes a second that were acknowledged, after the first second's advance.

    `most` is what is offered in a second.
    """
    taken, offered = [0], 0
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap, "client.id": client_id, "linger.ms": 5,
            "batch.size": 100_000, "queue.buffering.max.kbytes": 4_000,
        }
    )  # fmt: skip

    def taken_in(error: Any, message: Any) -> None:
        taken[0] += len(RECORD)

    began = time.monotonic()
    at_first = None
    while (now := time.monotonic()) - began < seconds + 2:
        if at_first is None and now - began > 2:
            at_first = (now, taken[0])
        if offered > most * (now - began):
            producer.poll(0.005)
            continue
        try:
            producer.produce(topic, RECORD, on_delivery=taken_in)
            offered += len(RECORD)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    assert at_first is not None
    rate = (taken[0] - at_first[1]) / (time.monotonic() - at_first[0])
    producer.purge()
    producer.flush(DEADLINE_S)
    return rate


@pytest.mark.slow
def test_a_producer_is_held_to_its_rate_and_a_neighbour_is_not(quotas: Any) -> None:
    limit(quotas, "slow", "producer_byte_rate", 1_000_000)
    rates: dict[str, float] = {}

    def flood() -> None:
        rates["slow"] = produced_bytes(quotas, "slow", "slow", SECONDS)

    thread = threading.Thread(target=flood)
    thread.start()
    rates["quick"] = produced_bytes(quotas, "quick", "quick", SECONDS)
    thread.join()
    print(rates)
    assert rates["slow"] == pytest.approx(1_000_000, rel=0.15)
    assert rates["quick"] > 5_000_000


def flood(bootstrap: str, seconds: float) -> None:
    """As fast as it can, as a client that is held to its rate."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "client.id": "flooding", "linger.ms": 0,
            "batch.size": 100_000, "queue.buffering.max.kbytes": 8_000,
        }
    )  # fmt: skip
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        try:
            producer.produce("slow", RECORD)
            producer.poll(0)
        except BufferError:
            producer.poll(0.02)
    producer.purge()


@contextmanager
def flooded(bootstrap: str, seconds: float) -> Iterator[None]:
    """By clients in processes of their own, so that only the broker's part is measured."""
    started = [
        get_context("spawn").Process(target=flood, args=(bootstrap, seconds)) for _ in range(3)
    ]
    for each in started:
        each.start()
    try:
        yield
    finally:
        for each in started:
            each.terminate()
            each.join()


@pytest.mark.slow
def test_a_flooded_neighbour_keeps_four_fifths_of_what_it_has_alone(quotas: Any) -> None:
    """Alone and beside the flood by turns, in one run, so that the machine is the same for both.

    It offers what a broker takes on any machine: how fast a busy one is at most changes from turn
    to turn by more than a flood does.
    """
    limit(quotas, "flooding", "producer_byte_rate", 1_000_000)
    alone, beside = [], []
    for _ in range(3):
        alone.append(produced_bytes(quotas, "quick", "neighbour", 2.0, OFFERED))
        with flooded(quotas.bootstrap, 30.0):
            beside.append(produced_bytes(quotas, "quick", "neighbour", 2.0, OFFERED))
    print("alone", alone, "beside", beside)
    assert statistics.median(beside) >= 0.8 * statistics.median(alone)


@pytest.mark.slow
def test_a_consumer_is_held_to_its_rate(quotas: Any) -> None:
    producer = Producer({"bootstrap.servers": quotas.bootstrap})
    for _ in range(1_500):
        producer.produce("read", RECORD)
    assert producer.flush(DEADLINE_S) == 0
    limit(quotas, "reader", "consumer_byte_rate", 1_000_000)
    consumer = Consumer(
        {
            "bootstrap.servers": quotas.bootstrap, "client.id": "reader", "group.id": "g",
            "fetch.max.bytes": 100_000, "message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 100,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition("read", 0, 0)])
    sizes: list[tuple[float, int]] = []
    began = time.monotonic()
    while time.monotonic() - began < SECONDS + 3:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None
            sizes.append((time.monotonic(), len(message.value())))
    consumer.close()
    # It comes in bursts; of the one with which the count begins only the time counts.
    begins = next(at for at, _ in sizes if at - began > 2)
    rate = sum(size for at, size in sizes if at > begins + 0.5) / (sizes[-1][0] - begins)
    assert rate == pytest.approx(1_000_000, rel=0.15)
