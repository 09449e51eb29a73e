"""Fetch and Produce from the client's side, with kio's messages as the other side."""

from datetime import timedelta
from struct import pack

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.fetch.v11 import FetchRequest, FetchResponse
from kio.schema.fetch.v11 import response as fetch
from kio.schema.produce.v7 import ProduceRequest, ProduceResponse
from kio.schema.produce.v7 import response as produce

from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import FETCH, FetchLimits, encode_fetch, parse_fetch_reply
from catchwater.wire.fields import MalformedMessage, encode_header
from catchwater.wire.frames import decode_header
from catchwater.wire.messages import decode_request, encode_reply
from catchwater.wire.produce import PRODUCE, Produced, encode_produce, parse_produce_reply

LIMITS = FetchLimits(1000, 100, 1, 500, True)


def fetch_reply() -> bytes:
    partitions = (
        fetch.PartitionData(
            partition_index=2,
            error_code=KioErrorCode.none,
            high_watermark=90,
            last_stable_offset=80,
            log_start_offset=10,
            aborted_transactions=(
                fetch.AbortedTransaction(producer_id=7, first_offset=20),
                fetch.AbortedTransaction(producer_id=8, first_offset=30),
            ),
            preferred_read_replica=-1,
            records=b"some bytes",
        ),
        fetch.PartitionData(
            partition_index=3,
            error_code=KioErrorCode.offset_out_of_range,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=None,
        ),
    )
    reply = FetchResponse(
        throttle_time=timedelta(milliseconds=30),
        error_code=KioErrorCode.none,
        session_id=0,
        responses=(fetch.FetchableTopicResponse(topic="t", partitions=partitions),),
    )
    return b"".join(encode_reply(5, reply))


def produce_reply() -> bytes:
    partitions = tuple(
        produce.PartitionProduceResponse(
            index=index, error_code=code, base_offset=base, log_append_time=None, log_start_offset=0
        )
        for index, code, base in (
            (0, KioErrorCode.none, 11),
            (1, KioErrorCode.message_too_large, -1),
        )
    )
    reply = ProduceResponse(
        responses=(produce.TopicProduceResponse(name="t", partition_responses=partitions),),
        throttle_time=timedelta(milliseconds=40),
    )
    return b"".join(encode_reply(5, reply))


def test_a_fetch_asks_for_each_partition_of_each_topic() -> None:
    wanted = {("a", 0): 5, ("b", 1): 6, ("a", 2): 7}
    frame = memoryview(b"".join([encode_header(FETCH, 9, "me"), *encode_fetch(wanted, LIMITS)]))
    header = decode_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id) == (1, 11, 9)
    assert header.client_id == "me"
    request = decode_request(header, frame)
    assert isinstance(request, FetchRequest)
    assert (request.max_bytes, request.min_bytes, request.isolation_level) == (1000, 1, 1)
    assert request.max_wait == timedelta(milliseconds=500)
    assert (request.session_id, request.session_epoch) == (0, -1)
    asked = {
        (topic.topic, each.partition): (each.fetch_offset, each.partition_max_bytes)
        for topic in request.topics
        for each in topic.partitions
    }
    assert asked == {key: (offset, 100) for key, offset in wanted.items()}


def test_a_fetch_reply_is_read_without_copying_records() -> None:
    reply = fetch_reply()
    throttle_ms, fetched = parse_fetch_reply(memoryview(reply))
    assert throttle_ms == 30
    whole = fetched["t", 2]
    assert whole.records == b"some bytes" and whole.records.obj is reply
    assert (whole.high_watermark, whole.log_start, whole.error) == (90, 10, ErrorCode.NONE)
    assert whole.aborted == ((7, 20), (8, 30))
    assert fetched["t", 3].error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(fetched["t", 3].records) == 0


def test_a_produce_carries_a_batch_for_each_partition() -> None:
    batches = {("a", 0): b"first", ("a", 1): b"second", ("b", 0): b"third"}
    parts = [encode_header(PRODUCE, 1, "me"), *encode_produce(batches, timeout_ms=3000)]
    frame = memoryview(b"".join(parts))
    request = decode_request(decode_header(frame), frame)
    assert isinstance(request, ProduceRequest)
    assert (request.acks, request.timeout) == (-1, timedelta(seconds=3))
    assert request.transactional_id is None
    sent = {
        (topic.name, each.index): each.records
        for topic in request.topic_data
        for each in topic.partition_data
    }
    assert sent == batches


def test_a_produce_reply_tells_what_became_of_each_batch() -> None:
    throttle_ms, produced = parse_produce_reply(memoryview(produce_reply()))
    assert throttle_ms == 40
    assert produced == {
        ("t", 0): Produced(ErrorCode.NONE, 11),
        ("t", 1): Produced(ErrorCode.MESSAGE_TOO_LARGE, -1),
    }


def test_an_error_that_is_newer_than_our_list_is_unknown() -> None:
    code = pack(">h", ErrorCode.OFFSET_OUT_OF_RANGE)
    reply = fetch_reply()
    assert reply.count(pack(">i", 3) + code) == 1
    newer = reply.replace(pack(">i", 3) + code, pack(">ih", 3, 32_000))
    _, fetched = parse_fetch_reply(memoryview(newer))
    assert fetched["t", 3].error is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("parse", "reply"),
    [(parse_fetch_reply, fetch_reply()), (parse_produce_reply, produce_reply())],
    ids=["fetch", "produce"],
)
def test_a_reply_cut_short_is_malformed(parse, reply) -> None:  # type: ignore[no-untyped-def]
    for size in range(4, len(reply)):
        with pytest.raises(MalformedMessage):
            parse(memoryview(reply)[:size])
