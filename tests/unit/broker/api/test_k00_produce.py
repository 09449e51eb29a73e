"""Produce: good batches are appended, bad ones answered each for itself, never appended."""

import uuid
from datetime import timedelta

import pytest
from kio.schema.produce.v9 import request as v9
from kio.schema.produce.v13 import request as v13

from catchwater.broker.api.k00_produce import LATEST_TIMESTAMP_MS, MAX_OPENED_BYTES
from catchwater.wire.records import encode_batch


def produce(*partitions, topic="t", acks=-1, transactional_id=None):
    return v9.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=v9.i32Timedelta.parse(timedelta(seconds=1)),
        topic_data=(
            v9.TopicProduceData(
                name=topic,
                partition_data=tuple(
                    v9.PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ),
            ),
        ),
    )


def answers(reply):
    return [
        (p.index, p.error_code.name, p.base_offset) for p in reply.responses[0].partition_responses
    ]


@pytest.fixture(autouse=True)
async def topic(client):
    return await client.log.create_topic("t", 2)


async def test_batches_get_consecutive_offsets(client, batch, topic) -> None:
    assert answers(await client.send(produce((0, batch(3))))) == [(0, "none", 0)]
    assert answers(await client.send(produce((0, batch(2)), (1, batch(1))))) == [
        (0, "none", 3),
        (1, "none", 0),
    ]
    assert client.log.state((topic.id, 0)).high_watermark == 5


async def test_one_bad_partition_does_not_hold_back_the_others(client, batch) -> None:
    broken = bytearray(batch(1))
    broken[-1] ^= 1
    reply = await client.send(produce((0, bytes(broken)), (1, batch(1)), (2, batch(1))))
    assert answers(reply) == [
        (0, "corrupt_message", -1),
        (1, "none", 0),
        (2, "unknown_topic_or_partition", -1),
    ]
    assert "CRC" in reply.responses[0].partition_responses[0].error_message


async def test_acks_0_appends_and_is_not_answered(client, batch, topic) -> None:
    assert await client.send(produce((0, batch(1)), acks=0)) is None
    assert client.log.state((topic.id, 0)).high_watermark == 1


def changed(data: bytes, at: int, value: int, size: int) -> bytes:
    return data[:at] + value.to_bytes(size, "big", signed=value < 0) + data[at + size :]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda batch: b"", "corrupt_message"),
        (lambda batch: batch(1)[:-1], "corrupt_message"),
        (lambda batch: changed(batch(1), 16, 1, 1), "unsupported_for_message_format"),
        (lambda batch: batch(1) + batch(1), "invalid_record"),
        (lambda batch: changed(batch(1), 57, 2**31 - 1, 4), "invalid_record"),
        (lambda batch: changed(batch(1), 57, -1, 4), "invalid_record"),
        (lambda batch: changed(batch(1), 0, 7, 8), "invalid_record"),
        (lambda batch: changed(batch(1), 21, 0x20, 2), "invalid_record"),
        (lambda batch: changed(batch(1), 21, 0x05, 2), "unsupported_compression_type"),
        (lambda batch: batch(20_000), "none"),
        (
            lambda batch: batch(
                1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=1
            ),
            "transactional_id_authorization_failed",
        ),
    ],
)
async def test_what_is_wrong_with_a_batch_is_named(client, batch, make, error, topic) -> None:
    ((_, name, _),) = answers(await client.send(produce((0, make(batch)))))
    assert name == error
    assert (client.log.state((topic.id, 0)).high_watermark > 0) == (error == "none")


async def test_a_batch_over_the_topics_limit_is_refused(client, batch) -> None:
    await client.log.create_topic("small", 1, {"max.message.bytes": "80"})
    reply = await client.send(produce((0, batch(10)), topic="small"))
    assert answers(reply) == [(0, "message_too_large", -1)]


async def test_a_record_from_the_far_future_is_refused(client, batch) -> None:
    now_ms = client.broker.clock.now_ms()
    client.broker.clock.advance(1_700_000_000_000 - LATEST_TIMESTAMP_MS - 1 - now_ms)
    reply = await client.send(produce((0, batch(1))))
    assert answers(reply) == [(0, "invalid_timestamp", -1)]


async def test_unknown_acks_and_topics_and_nameless_transactions_are_refused(client, batch) -> None:
    reply = await client.send(produce((0, batch(1)), acks=2))
    assert answers(reply) == [(0, "invalid_required_acks", -1)]
    reply = await client.send(produce((0, batch(1)), topic="nowhere"))
    assert answers(reply) == [(0, "unknown_topic_or_partition", -1)]
    data = batch(1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    reply = await client.send(produce((0, data)))
    assert answers(reply) == [(0, "transactional_id_authorization_failed", -1)]


async def test_topics_are_found_by_id(client, batch, topic) -> None:
    for topic_id, error in ((topic.id, "none"), (b"\x09" * 16, "unknown_topic_id")):
        request = v13.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=v9.i32Timedelta.parse(timedelta(seconds=1)),
            topic_data=(
                v13.TopicProduceData(
                    topic_id=uuid.UUID(bytes=topic_id),
                    partition_data=(v13.PartitionProduceData(index=0, records=batch(1)),),
                ),
            ),
        )
        (topic_reply,) = (await client.send(request)).responses
        assert topic_reply.partition_responses[0].error_code.name == error


async def test_the_frame_is_released_whatever_happens(client, batch) -> None:
    await client.send(produce((0, batch(1))))
    await client.send(produce((0, b"")))
    arena = client.arenas.take(1)
    assert arena.holders == 0
    assert len(client.arenas._free) == 0  # both requests used this one arena


async def test_a_compacted_topic_takes_no_record_without_a_key(client, batch) -> None:
    await client.log.create_topic("c", 1, {"cleanup.policy": "compact"})
    keyless = encode_batch([(b"k", b"v", 0, ()), (None, b"v", 0, ())], codec=4)
    for count, (data, error) in enumerate([(keyless, "invalid_record"), (batch(2), "none")]):
        reply = await client.send(produce((0, data), topic="c"))
        assert [answer[1] for answer in answers(reply)] == [error], count
    assert answers(await client.send(produce((0, keyless)))) == [(0, "none", 0)]


async def test_a_bomb_for_a_compacted_topic_is_refused_at_the_cap(client) -> None:
    await client.log.create_topic("c", 1, {"cleanup.policy": "compact"})
    bomb = encode_batch([(b"k", bytes(MAX_OPENED_BYTES), 0, ())], codec=4)
    assert len(bomb) < 100_000
    reply = await client.send(produce((0, bomb), topic="c"))
    assert [answer[1] for answer in answers(reply)] == ["invalid_record"]
