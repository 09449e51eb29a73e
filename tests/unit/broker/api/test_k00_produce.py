"""Produce: good batches are appended, bad ones answered each for itself, never appended."""

import asyncio
import os
import random
import struct
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.produce.v3 import request as v3
from kio.schema.produce.v9 import request as v9
from kio.schema.produce.v13 import request as v13

from catchwater.broker.api import k00_produce
from catchwater.broker.api.k00_produce import Unanswered
from catchwater.log.topic_settings import LATEST_MS
from catchwater.log.write import prepare
from catchwater.log.write.prepare import MAX_OPENED_BYTES
from catchwater.log.write.writer import Appended
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import HEADER_BYTES, assembled, check, read_single
from catchwater.wire.codecs import compress
from catchwater.wire.errors import ErrorCode


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
    for number in range(2):  # the first request of a topic goes the careful way, the second not
        assert await client.send(produce((0, batch(1)), acks=0)) is None
        assert client.log.state((topic.id, 0)).high_watermark == number + 1


async def test_an_error_of_the_log_is_answered_either_way(client, batch, monkeypatch) -> None:
    await client.send(produce((0, batch(1))))  # from now on the plain way
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def refuse(batches, answer, frame) -> None:
        frame.release()
        answer.set_result([Appended(code, -1, -1, 0) for _ in batches])

    monkeypatch.setattr(client.log, "append", refuse)
    for asked in (produce((0, batch(1))), produce((0, batch(1)), (1, batch(1)))):
        given = answers(await client.send(asked))
        assert [(name, offset) for _, name, offset in given] == [
            ("out_of_order_sequence_number", -1)
        ] * len(given)


def changed(data: bytes, at: int, value: int, size: int) -> bytes:
    return data[:at] + value.to_bytes(size, "big", signed=value < 0) + data[at + size :]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda batch: b"", "invalid_record"),
        (lambda batch: batch(1)[:-1], "invalid_record"),
        (lambda batch: changed(batch(1), 16, 1, 1), "invalid_record"),
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
    client.broker.clock.advance(1_700_000_000_000 - LATEST_MS - 1 - now_ms)
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
    assert [answer[1] for answer in answers(reply)] == ["message_too_large"]


def stored(client, topic, index: int = 0) -> list:
    """Headers of what is in a partition, every batch checked."""
    headers = []
    for _, _, data in client.log.batches[topic.id, index]:
        header = read_single(memoryview(data))
        check(memoryview(data), header._replace(base_offset=0))
        headers.append(header)
    return headers


async def test_the_records_to_blame_are_named(client) -> None:
    await client.log.create_topic("c", 1, {"cleanup.policy": "compact"})
    data = encode_batch([(b"k", b"v", 0, ()), (None, b"v", 0, ()), (None, b"w", 0, ())])
    reply = await client.send(produce((0, data), topic="c"))
    (answer,) = reply.responses[0].partition_responses
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert "needs a key" in answer.record_errors[0].batch_index_error_message
    assert "needs a key" in answer.error_message


async def test_the_time_of_the_append_is_written_and_told_where_a_topic_asks(client, batch) -> None:
    topic = await client.log.create_topic("l", 1, {"message.timestamp.type": "LogAppendTime"})
    now_ms = client.broker.clock.now_ms() + LATEST_MS
    client.broker.clock.advance(LATEST_MS)
    old = batch(3)
    reply = await client.send(produce((0, old), topic="l"))
    (answer,) = reply.responses[0].partition_responses
    assert (answer.error_code.name, answer.base_offset) == ("none", 0)
    assert answer.log_append_time.timestamp() * 1000 == now_ms
    (header,) = stored(client, topic)
    assert (header.log_append_time, header.max_timestamp) == (True, now_ms)
    plain = await client.send(produce((0, old)))
    assert plain.responses[0].partition_responses[0].log_append_time is None


async def test_a_client_does_not_give_the_brokers_time_itself(client, batch) -> None:
    data = changed(batch(1), 21, 0x08, 2)
    assert answers(await client.send(produce((0, data)))) == [(0, "invalid_timestamp", -1)]


@pytest.mark.parametrize(("wanted", "codec"), [("gzip", 1), ("zstd", 4), ("uncompressed", 0)])
async def test_batches_are_compressed_as_the_topic_asks(client, batch, wanted, codec) -> None:
    topic = await client.log.create_topic("z", 1, {"compression.type": wanted})
    idempotent = {"producer_id": 7, "producer_epoch": 1}
    for sequence, source in ((0, 0), (5, 2), (10, codec)):
        data = batch(5, codec=source, base_sequence=sequence, **idempotent)
        assert answers(await client.send(produce((0, data), topic="z"))) == [(0, "none", sequence)]
    for sequence, header in zip((0, 5, 10), stored(client, topic), strict=True):
        assert header.compression == codec
        assert header[9:] == (7, 1, sequence, 5)


async def test_what_is_opened_keeps_its_place_among_what_is_not(client, batch) -> None:
    await client.log.create_topic("z", 2, {"compression.type": "lz4"})
    broken = bytearray(batch(1))
    broken[-1] ^= 1
    request = produce((0, batch(1)), (1, bytes(broken)), (0, batch(2)), topic="z")
    both = v9.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=request.timeout,
        topic_data=(*request.topic_data, *produce((0, batch(4)), (9, batch(1))).topic_data),
    )
    reply = await client.send(both)
    found = [
        (p.index, p.error_code.name, p.base_offset)
        for topic in reply.responses
        for p in topic.partition_responses
    ]
    assert found == [
        (0, "none", 0),
        (1, "corrupt_message", -1),
        (0, "none", 1),
        (0, "none", 0),
        (9, "unknown_topic_or_partition", -1),
    ]


async def test_a_batch_that_grows_past_the_limit_is_refused(client) -> None:
    settings = {"compression.type": "uncompressed", "max.message.bytes": "1000"}
    await client.log.create_topic("z", 1, settings)
    data = encode_batch([(b"k", bytes(2000), 0, ())], codec=4)
    assert len(data) < 1000
    reply = await client.send(produce((0, data), topic="z"))
    assert answers(reply) == [(0, "message_too_large", -1)]


async def test_records_out_of_the_topics_times_are_refused(client) -> None:
    now_ms = client.broker.clock.now_ms()
    limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "10"}
    await client.log.create_topic("n", 1, limits)
    for at, error in ((-1001, "invalid_timestamp"), (-1000, "none"), (11, "invalid_timestamp")):
        data = encode_batch([(b"k", b"v", now_ms, ()), (b"k", b"v", now_ms + at, ())])
        reply = await client.send(produce((0, data), topic="n"))
        assert answers(reply)[0][1] == error, at


async def test_an_old_request_may_not_bring_zstd(client, batch) -> None:
    topic = v3.TopicProduceData(
        name="t",
        partition_data=(v3.PartitionProduceData(index=0, records=batch(1, codec=4)),),
    )
    request = v3.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=v9.i32Timedelta.parse(timedelta(seconds=1)),
        topic_data=(topic,),
    )
    assert answers(await client.send(request)) == [(0, "unsupported_compression_type", -1)]


async def test_a_topic_that_asks_no_more_still_has_its_batches_in_order(client, batch) -> None:
    topic = await client.log.create_topic("z", 1, {"compression.type": "gzip"})
    first = asyncio.ensure_future(client.send(produce((0, batch(1)), topic="z")))
    await asyncio.sleep(0)
    client.log.topics.all["z"] = replace(topic, config={})
    assert answers(await client.send(produce((0, batch(2)), topic="z"))) == [(0, "none", 1)]
    assert answers(await first) == [(0, "none", 0)]
    assert [header.compression for header in stored(client, topic)] == [1, 0]


# What lies inside of a batch.

NOW_MS = 1_700_000_000_000
RECORDS = encode_batch([(b"k", b"v%d" % i, NOW_MS + i, ()) for i in range(3)])[HEADER_BYTES:]


def sealed(body: bytes, count: int, codec: int = 0, **header) -> bytes:
    """A batch whose header and CRC are right, whatever its records are."""
    told = read_single(memoryview(encode_batch([(b"k", b"v", NOW_MS, ())], **header)))
    attributes = told.attributes | codec
    told = told._replace(record_count=count, last_offset_delta=count - 1, attributes=attributes)
    return assembled(told, compress(codec, body))[1]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("body", "count", "reason"),
    [
        (b"\xff" * 50, 1, "Record 0 is damaged"),
        (bytes(40), 5, "Record 0 is damaged"),
        (RECORDS, 2, "Bytes follow"),
        (RECORDS, 4, "promises 4 records, but ends after 3"),
        (RECORDS[:10] + RECORDS, 4, "offset delta"),
        (RECORDS[:-1], 3, "Record 2 is damaged"),
    ],
)
async def test_records_that_are_not_sound_are_refused(
    client, body, count, reason, codec, topic
) -> None:
    assert RECORDS[0] >> 1 == 9, "the first record has ten bytes"
    data = sealed(body, count, codec)
    reply = await client.send(produce((0, data), (1, encode_batch([(b"k", b"v", 0, ())]))))
    # A count that cannot be is seen from outside.
    is_seen_from_outside = codec == 0 and count * 7 > len(body)
    assert answers(reply) == [(0, "invalid_record", -1), (1, "none", 0)]
    answer = reply.responses[0].partition_responses[0]
    assert is_seen_from_outside or reason in answer.error_message
    blamed = [error.batch_index for error in answer.record_errors]
    assert is_seen_from_outside or ("Record" in answer.error_message) == (len(blamed) == 1)
    assert client.log.state((topic.id, 0)).high_watermark == 0


async def test_five_thousand_promised_records_in_40_bytes_are_refused(client, topic) -> None:
    for codec in range(5):
        reply = await client.send(produce((0, sealed(bytes(40), 5_000, codec))))
        assert answers(reply) == [(0, "invalid_record", -1)], codec
    assert client.log.state((topic.id, 0)).high_watermark == 0


@pytest.mark.parametrize("codec", range(1, 5))
async def test_what_is_behind_compressed_records_is_refused(client, codec) -> None:
    whole = read_single(memoryview(sealed(RECORDS, 3, codec)))
    packed = bytes(compress(codec, RECORDS))
    for body in (packed + b"junk", packed + packed, packed[:-1], b""):
        data = assembled(whole, body)[1]
        reply = await client.send(produce((0, data)))
        assert answers(reply) == [(0, "invalid_record", -1)], body
    assert answers(await client.send(produce((0, assembled(whole, packed)[1])))) == [(0, "none", 0)]


async def test_a_bomb_is_refused_off_the_loop(client, is_on_loop, topic) -> None:
    seen = is_on_loop((prepare, "decompress_checked"))
    bomb = encode_batch([(b"k", bytes(MAX_OPENED_BYTES), 0, ())], codec=4)
    reply = await client.send(produce((0, bomb)))
    assert answers(reply) == [(0, "message_too_large", -1)]
    assert seen[-1] is False
    assert client.log.state((topic.id, 0)).high_watermark == 0


async def test_small_batches_are_looked_into_on_the_loop_and_large_ones_not(
    client, batch, is_on_loop
) -> None:
    seen = is_on_loop((k00_produce, "plain"), (prepare, "prepared"))
    for codec in range(5):
        assert answers(await client.send(produce((0, batch(3, codec=codec)))))[0][1] == "none"
    assert seen == [True] * (1 + 2 * 4)  # what is not compressed needs one look
    large = [
        encode_batch([(b"k", os.urandom(100_000), NOW_MS, ())], codec=codec) for codec in (1, 4)
    ]
    for data in (*large, batch(50_000)):
        assert answers(await client.send(produce((0, data))))[0][1] == "none"
    assert seen[9:] == [True, False] * 3


async def test_batches_keep_their_order_however_large_they_are(client, batch) -> None:
    sizes = (1, 30_000, 2, 1, 40_000, 3)
    found = await asyncio.gather(*(client.send(produce((0, batch(n, codec=2)))) for n in sizes))
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    assert [answers(reply) for reply in found] == [[(0, "none", first)] for first in firsts]


async def test_an_error_without_an_answer_ends_the_connection(client, batch, topic) -> None:
    request = produce((0, sealed(b"\xff" * 50, 1)), (1, batch(1)), acks=0)
    with pytest.raises(Unanswered, match=r"INVALID_RECORD\. Record 0 is damaged"):
        await client.send(request)
    assert client.log.state((topic.id, 0)).high_watermark == 0
    assert client.log.state((topic.id, 1)).high_watermark == 1


async def test_a_largest_timestamp_that_is_not_the_records_is_put_right(client, topic) -> None:
    for codec in (0, 4):
        data = encode_batch([(b"k", b"v", NOW_MS + i, ()) for i in range(3)], codec=codec)
        header = read_single(memoryview(data))
        lie = assembled(header._replace(max_timestamp=5), data[HEADER_BYTES:])[1]
        assert answers(await client.send(produce((0, lie))))[0][1] == "none"
    assert [header.max_timestamp for header in stored(client, topic)] == [NOW_MS + 2] * 2


async def test_a_time_is_refused_whatever_the_header_says(client) -> None:
    now_ms = client.broker.clock.now_ms()
    data = encode_batch([(b"k", b"v", now_ms, ()), (b"k", b"v", now_ms + LATEST_MS + 1, ())])
    header = read_single(memoryview(data))
    lie = assembled(header._replace(max_timestamp=now_ms), data[HEADER_BYTES:])[1]
    reply = await client.send(produce((0, lie)))
    assert answers(reply) == [(0, "invalid_timestamp", -1)]
    errors = reply.responses[0].partition_responses[0].record_errors
    assert [error.batch_index for error in errors] == [1]
    for base_ms, ms in ((2**63 - 1, 1), (-(2**63), -1)):
        data = encode_batch([(b"k", b"v", 0, ()), (b"k", b"v", ms, ())])
        told = read_single(memoryview(data))._replace(base_timestamp=base_ms)
        reply = await client.send(produce((0, assembled(told, data[HEADER_BYTES:])[1])))
        assert answers(reply) == [(0, "invalid_timestamp", -1)]


EXTREMES = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 8, 16, 32, 255, 2**31 - 1, NOW_MS, 2**62)


def odd_batches(draw: random.Random, count: int):
    """Batches with something in the header, the records or the CRC that is mostly wrong."""
    for _ in range(count):
        first_ms = NOW_MS + draw.choice((0, 0, 0, 2 * LATEST_MS))
        producer = draw.choice(({}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}))
        good = encode_batch([(b"k", b"v%d" % i, first_ms + i, ()) for i in range(3)], **producer)
        header = read_single(memoryview(good))
        wide = header._fields[5:]
        new, records = header, bytearray(good[HEADER_BYTES:])
        if draw.random() < 0.5:
            field = draw.choice((*wide, "base_offset", "magic"))
            new = header._replace(**{field: draw.choice(EXTREMES)})
        if draw.random() < 0.3:
            records[draw.randrange(len(records))] = draw.randrange(256)
        try:
            data = bytearray(assembled(new, records)[1])
        except struct.error:  # too large for its field
            continue
        if draw.random() < 0.4:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        yield bytes(data[: len(data) - (draw.random() < 0.1)])


async def test_the_plain_way_and_the_careful_one_come_to_the_same(client, monkeypatch) -> None:
    settings = ({}, {"max.message.bytes": "90"}, {"message.timestamp.type": "LogAppendTime"})
    for name, config in zip("abc", settings, strict=True):
        await client.log.create_topic(name, 1, config)
    plain, ways = k00_produce._plain, []
    for nth, data in enumerate(odd_batches(random.Random(7), 600)):
        request = produce((0, data), topic="abc"[nth % 3])
        found = []
        for way in (plain, lambda *_: None):
            client.log.batches = {key: [] for key in client.log.batches}
            monkeypatch.setattr(k00_produce, "_plain", way)
            found.append((await client.send(request), client.log.batches))
        assert found[0] == found[1]
        ways.append(answers(found[0][0])[0][1])
    assert 10 < ways.count("none") < 500
