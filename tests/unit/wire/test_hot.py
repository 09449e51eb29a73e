"""The hot messages: byte for byte what kio writes, value for value what it reads, no copies."""

import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.constants import EntityType

from catchwater.wire.fetch import (
    FETCH_VERSIONS,
    FetchPartition,
    FetchReplyPartition,
    FetchReplyTopic,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_reply,
    parse_fetch,
)
from catchwater.wire.fields import (
    MAX_REQUEST_ELEMENTS,
    Cursor,
    MalformedMessage,
    body_of,
)
from catchwater.wire.messages import decode, encode, encode_reply
from catchwater.wire.metadata import (
    METADATA_VERSIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataReply,
    MetadataTopic,
    encode_metadata_reply,
)
from catchwater.wire.produce import (
    PRODUCE_VERSIONS,
    ProducePartition,
    ProduceReplyPartition,
    ProduceReplyTopic,
    ProduceRequest,
    ProduceTopic,
    encode_one,
    encode_produce_reply,
    parse_one,
    parse_produce,
)

PRODUCE, FETCH, METADATA = 0, 1, 3

i8s, i16s = st.integers(-(2**7), 2**7 - 1), st.integers(-(2**15), 2**15 - 1)
i32s, i64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
error_codes = st.sampled_from([int(code) for code in KioErrorCode])
names = st.text(max_size=200).filter(lambda text: len(text.encode()) < 2**15)
topic_ids = st.binary(min_size=16, max_size=16)
few = st.integers(0, 3)


def kio(
    api_key: int, version: int, direction: EntityType, name: str, values: dict[str, Any]
) -> Any:
    """A struct of kio's, of those `values` that this version has."""
    struct = getattr(load_payload_module(api_key, version, direction), name)
    known = struct.__dataclass_fields__
    return struct(**{key: value for key, value in values.items() if key in known})


def milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def uuid(topic_id: bytes | None) -> UUID | None:
    return UUID(bytes=topic_id) if topic_id and any(topic_id) else None


def joined(parts: Sequence[Any]) -> bytes:
    return b"".join(map(bytes, parts))


@st.composite
def topics_of(draw: st.DrawFn, version_with_ids: int, version: int, partitions: Any) -> list[Any]:
    """(name, id, partitions), with a name or an id as the version has it."""
    by_id = version >= version_with_ids
    return [
        (None if by_id else draw(names), draw(topic_ids) if by_id else None, draw(partitions))
        for _ in range(draw(few))
    ]


@st.composite
def produce_requests(draw: st.DrawFn, version: int) -> tuple[ProduceRequest, Any]:
    records = st.none() | st.binary(max_size=300).map(memoryview)
    partitions = st.lists(st.builds(ProducePartition, i32s, records), max_size=3)
    request = ProduceRequest(
        draw(st.none() | names),
        draw(i16s),
        draw(i32s),
        [ProduceTopic(*topic) for topic in draw(topics_of(13, version, partitions))],
    )

    def of(struct: str, /, **values: Any) -> Any:
        return kio(PRODUCE, version, EntityType.request, struct, values)

    return request, of(
        "ProduceRequest",
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=milliseconds(request.timeout_ms),
        topic_data=tuple(
            of(
                "TopicProduceData",
                name=topic.name,
                topic_id=uuid(topic.id),
                partition_data=tuple(
                    of(
                        "PartitionProduceData",
                        index=partition.partition,
                        records=None if partition.records is None else bytes(partition.records),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


@st.composite
def fetch_requests(draw: st.DrawFn, version: int) -> tuple[FetchRequest, Any]:
    partition = st.builds(FetchPartition, i32s, i64s, i32s, i32s if version >= 9 else st.just(-1))
    request = FetchRequest(
        draw(i32s),
        draw(i32s),
        draw(i32s),
        draw(i32s),
        draw(i8s),
        draw(i32s) if version >= 7 else 0,
        draw(i32s) if version >= 7 else -1,
        [FetchTopic(*t) for t in draw(topics_of(13, version, st.lists(partition, max_size=3)))],
        [ForgottenTopic(*t) for t in draw(topics_of(13, version, st.lists(i32s, max_size=3)))]
        if version >= 7
        else [],
        draw(names) if version >= 11 else "",
    )
    return request, _kio_fetch_request(version, request, draw(i64s), draw(st.none() | names))


def _kio_fetch_request(version: int, request: FetchRequest, other: int, text: str | None) -> Any:
    """kio's form; `other` and `text` go where our value has no place."""

    def of(struct: str, /, **values: Any) -> Any:
        return kio(FETCH, version, EntityType.request, struct, values)

    replica = {"replica_id": request.replica_id, "replica_epoch": other}
    values = msgspec.structs.asdict(request) | {
        "cluster_id": text,
        "replica_id": request.replica_id,
        "max_wait": milliseconds(request.max_wait_ms),
        "rack_id": request.rack,
        "topics": tuple(
            of(
                "FetchTopic",
                topic=topic.name,
                topic_id=uuid(topic.id),
                partitions=tuple(
                    of(
                        "FetchPartition",
                        partition=partition.partition,
                        current_leader_epoch=partition.leader_epoch,
                        fetch_offset=partition.offset,
                        last_fetched_epoch=other >> 32,
                        log_start_offset=other,
                        partition_max_bytes=partition.max_bytes,
                        replica_directory_id=UUID(int=other % 2**128),
                        high_watermark=other,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
        "forgotten_topics_data": tuple(
            of(
                "ForgottenTopic",
                topic=topic.name,
                topic_id=uuid(topic.id),
                partitions=tuple(topic.partitions),
            )
            for topic in request.forgotten
        ),
    }
    if version >= 15:
        values["replica_state"] = of("ReplicaState", **replica)
    return of("FetchRequest", **values)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(deadline=None, max_examples=25)
@given(st.data(), st.binary(max_size=20))
def test_a_produce_request_is_read_as_it_was_written(
    version: int, data: st.DataObject, before: bytes
) -> None:
    request, written = data.draw(produce_requests(version))
    frame = memoryview(before + encode(written))
    assert parse_produce(Cursor(frame, len(before)), version) == request


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(deadline=None, max_examples=25)
@given(st.data(), st.binary(max_size=20))
def test_a_fetch_request_is_read_as_it_was_written(
    version: int, data: st.DataObject, before: bytes
) -> None:
    request, written = data.draw(fetch_requests(version))
    frame = memoryview(before + encode(written))
    assert parse_fetch(Cursor(frame, len(before)), version) == request


SIZES = (0, 1, 60, 126, 127, 128, 500, 16_382, 16_383, 16_384, 2**21 - 2, 2**21 - 1)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_request_of_one_batch_is_read_alike_in_both_ways(
    version: int, data: st.DataObject
) -> None:
    """Also where bytes are changed, removed, put in or cut off."""
    name = data.draw(st.sampled_from(["t", "ü" * 5, "n" * 126, "n" * 127, ""]) | names)
    index, size, acks = data.draw(st.tuples(i32s, st.sampled_from(SIZES), i16s))
    module = load_payload_module(PRODUCE, version, EntityType.request)
    partition = module.PartitionProduceData(index=index, records=bytes(size))
    values = {"name": name, "topic_id": UUID(int=7), "partition_data": (partition,)}
    known = module.TopicProduceData.__dataclass_fields__
    topic = module.TopicProduceData(**{k: v for k, v in values.items() if k in known})
    written = module.ProduceRequest(acks=acks, timeout=milliseconds(5), topic_data=(topic,))
    frame = bytearray(b"\x00" + encode(written) if version >= 9 else encode(written))
    one = parse_one(memoryview(frame), version, 0)
    assert (one is not None) == (
        9 <= version <= 12 and len(name.encode()) < 127 and 2**21 - 1 > size
    )
    for _ in range(4):
        changed = frame.copy()
        at = data.draw(st.integers(0, min(len(frame), 160)) | st.integers(0, len(frame)))
        end = at + data.draw(st.sampled_from([0, 1, 1, 2, len(frame)]))
        changed[at:end] = data.draw(st.binary(max_size=3))
        one = parse_one(memoryview(changed), version, 0)
        if one is not None:
            body = body_of(memoryview(changed), 0, flexible=True)
            assert one == parse_produce(body, version)
            assert body.at == len(changed)


@pytest.mark.parametrize("version", range(9, 13))
@given(name=st.text(min_size=1, max_size=40), numbers=st.tuples(i32s, i32s, i64s, i64s))
def test_a_reply_to_one_batch_is_written_alike_in_both_ways(
    version: int, name: str, numbers: tuple[int, int, int, int]
) -> None:
    correlation_id, index, base_offset, log_start = numbers
    topic = ProduceTopic(name, None, [ProducePartition(index, None)])
    answer = ProduceReplyPartition(index, 0, base_offset, -1, log_start)
    expected = encode_produce_reply(
        correlation_id, version, [ProduceReplyTopic(name, None, [answer])]
    )
    assert encode_one(correlation_id, topic, base_offset, log_start) == expected


def test_produced_records_are_views_of_the_frame() -> None:
    request = ProduceRequest(
        None, -1, 5, [ProduceTopic("t", None, [ProducePartition(0, memoryview(b"records"))])]
    )
    struct = load_payload_module(PRODUCE, 9, EntityType.request)
    written = struct.ProduceRequest(
        acks=-1,
        timeout=milliseconds(5),
        topic_data=(
            struct.TopicProduceData(
                name="t",
                partition_data=(struct.PartitionProduceData(index=0, records=b"records"),),
            ),
        ),
    )
    frame = bytearray(encode(written))
    parsed = parse_produce(Cursor(memoryview(frame)), 9)
    assert parsed == request
    at = frame.index(b"records")
    frame[at : at + 7] = b"RECORDS"
    records = parsed.topics[0].partitions[0].records
    assert records is not None and bytes(records) == b"RECORDS"


produced = st.lists(
    st.builds(
        ProduceReplyPartition,
        i32s,
        error_codes,
        i64s,
        st.integers(-1, 2**41),
        i64s,
        st.none() | names,
        st.lists(st.tuples(i32s, names), max_size=2),
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(deadline=None, max_examples=25)
@given(st.data(), i32s, i32s)
def test_a_produce_reply_is_byte_for_byte_kios(
    version: int, data: st.DataObject, correlation_id: int, throttle_ms: int
) -> None:
    def of(struct: str, /, **values: Any) -> Any:
        return kio(PRODUCE, version, EntityType.response, struct, values)

    topics = [ProduceReplyTopic(*topic) for topic in data.draw(topics_of(13, version, produced))]
    written = of(
        "ProduceResponse",
        throttle_time=milliseconds(throttle_ms),
        responses=tuple(
            of(
                "TopicProduceResponse",
                name=topic.name,
                topic_id=uuid(topic.id),
                partition_responses=tuple(
                    of(
                        "PartitionProduceResponse",
                        index=partition.partition,
                        error_code=KioErrorCode(partition.error),
                        base_offset=partition.base_offset,
                        log_append_time=None
                        if partition.log_append_ms == -1
                        else datetime(1970, 1, 1, tzinfo=UTC)
                        + milliseconds(partition.log_append_ms),
                        log_start_offset=partition.log_start,
                        record_errors=tuple(
                            of(
                                "BatchIndexAndErrorMessage",
                                batch_index=index,
                                batch_index_error_message=reason,
                            )
                            for index, reason in partition.record_errors
                        )
                        if version >= 8
                        else (),
                        error_message=partition.error_message,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in topics
        ),
    )
    ours = encode_produce_reply(correlation_id, version, topics, throttle_ms)
    assert joined(ours) == joined(encode_reply(correlation_id, written))


fetched = st.lists(
    st.builds(
        FetchReplyPartition,
        i32s,
        error_codes,
        i64s,
        i64s,
        i64s,
        st.lists(st.binary(min_size=1, max_size=200), max_size=3),
        i32s,
        st.none() | st.lists(st.tuples(i64s, i64s), max_size=3),
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(deadline=None, max_examples=25)
@given(st.data(), i32s, i32s, i32s, error_codes)
def test_a_fetch_reply_is_byte_for_byte_kios(
    version: int,
    data: st.DataObject,
    correlation_id: int,
    throttle_ms: int,
    session_id: int,
    error: int,
) -> None:
    def of(struct: str, /, **values: Any) -> Any:
        return kio(FETCH, version, EntityType.response, struct, values)

    topics = [FetchReplyTopic(*topic) for topic in data.draw(topics_of(13, version, fetched))]
    written = of(
        "FetchResponse",
        throttle_time=milliseconds(throttle_ms),
        error_code=KioErrorCode(error),
        session_id=session_id,
        responses=tuple(
            of(
                "FetchableTopicResponse",
                topic=topic.name,
                topic_id=uuid(topic.id),
                partitions=tuple(
                    of(
                        "PartitionData",
                        partition_index=partition.partition,
                        error_code=KioErrorCode(partition.error),
                        high_watermark=partition.high_watermark,
                        last_stable_offset=partition.last_stable_offset,
                        log_start_offset=partition.log_start,
                        aborted_transactions=None
                        if partition.aborted is None
                        else tuple(
                            of("AbortedTransaction", producer_id=pid, first_offset=first)
                            for pid, first in partition.aborted
                        ),
                        preferred_read_replica=partition.preferred_replica,
                        records=joined(partition.records),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in topics
        ),
    )
    ours = encode_fetch_reply(
        correlation_id,
        version,
        topics,
        error=error,
        session_id=session_id,
        throttle_ms=throttle_ms,
    )
    assert joined(ours) == joined(encode_reply(correlation_id, written))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetched_records_are_sent_from_where_they_lie(version: int) -> None:
    records = [memoryview(b"first"), b"second"]
    partition = FetchReplyPartition(0, 0, 2, 2, 0, records)
    reply = encode_fetch_reply(1, version, [FetchReplyTopic("t", bytes(16), [partition])])
    assert all(any(part is record for part in reply) for record in records)


@st.composite
def metadata_replies(draw: st.DrawFn, version: int) -> tuple[MetadataReply, Any]:
    def of(struct: str, /, **values: Any) -> Any:
        return kio(METADATA, version, EntityType.response, struct, values)

    nodes = st.lists(i32s, max_size=3).map(tuple)
    partitions = st.lists(
        st.builds(MetadataPartition, i32s, error_codes, i32s, i32s, nodes), max_size=4
    )
    topic_names = st.none() | names if version >= 12 else names
    topics = st.builds(
        MetadataTopic, error_codes, topic_names, topic_ids, st.booleans(), partitions, i32s
    )
    brokers = st.builds(MetadataBroker, i32s, names, i32s, st.none() | names)
    reply = MetadataReply(
        draw(st.lists(brokers, max_size=2)),
        draw(names),
        draw(i32s),
        draw(st.lists(topics, max_size=3)),
        draw(i32s),
        draw(i32s),
    )
    return reply, of(
        "MetadataResponse",
        cluster_authorized_operations=reply.operations,
        throttle_time=milliseconds(reply.throttle_ms),
        brokers=tuple(of("MetadataResponseBroker", **broker._asdict()) for broker in reply.brokers),
        cluster_id=reply.cluster_id,
        controller_id=reply.controller_id,
        error_code=KioErrorCode.none,
        topics=tuple(
            of(
                "MetadataResponseTopic",
                error_code=KioErrorCode(topic.error),
                name=topic.name,
                topic_id=uuid(topic.id),
                is_internal=topic.is_internal,
                topic_authorized_operations=topic.operations,
                partitions=tuple(
                    of(
                        "MetadataResponsePartition",
                        error_code=KioErrorCode(partition.error),
                        partition_index=partition.partition,
                        leader_id=partition.leader_id,
                        leader_epoch=partition.leader_epoch,
                        replica_nodes=partition.replicas,
                        isr_nodes=partition.replicas,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


@pytest.mark.parametrize("version", METADATA_VERSIONS)
@settings(deadline=None, max_examples=25)
@given(st.data(), i32s)
def test_a_metadata_reply_is_byte_for_byte_kios(
    version: int, data: st.DataObject, correlation_id: int
) -> None:
    reply, written = data.draw(metadata_replies(version))
    ours = encode_metadata_reply(correlation_id, version, reply)
    assert joined(ours) == joined(encode_reply(correlation_id, written))


def test_long_arrays_and_strings_have_lengths_of_several_bytes() -> None:
    partitions = [MetadataPartition(index, 0, 1, 0, (1,)) for index in range(20_000)]
    topic = MetadataTopic(0, "n" * 249, bytes(range(16)), False, partitions)
    reply = encode_metadata_reply(1, 12, MetadataReply([], "c", 1, [topic]))
    read = decode(
        load_payload_module(METADATA, 12, EntityType.response).MetadataResponse, joined(reply)[5:]
    )
    assert [p.partition_index for p in read.topics[0].partitions] == list(range(20_000))


HOT_REQUESTS = [(PRODUCE, parse_produce, produce_requests, version) for version in (3, 9, 13)] + [
    (FETCH, parse_fetch, fetch_requests, version) for version in (4, 7, 9, 12, 15, 18)
]
IDS = [f"{parse.__name__}-{version}" for _, parse, _, version in HOT_REQUESTS]


@pytest.mark.parametrize(("api_key", "parse", "requests", "version"), HOT_REQUESTS, ids=IDS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_mutated_request_is_read_as_the_generic_decoder_reads_it(
    api_key: int, parse: Any, requests: Any, version: int, data: st.DataObject
) -> None:
    _, written = data.draw(requests(version))
    body = bytearray(encode(written))
    at = data.draw(st.integers(0, len(body)))
    removed = data.draw(st.integers(0, 4))
    body[at : at + removed] = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff" * 9])
    )
    entity = load_request_schema(api_key, version)
    try:
        theirs = decode(entity, bytes(body))
    except MalformedMessage:
        # We skip tagged fields that the generic decoder reads, so we may still read the request.
        theirs = None
    try:
        ours = parse(Cursor(memoryview(body)), version)
    except MalformedMessage:
        assert theirs is None
        return
    if theirs is not None:
        assert _essence(ours) == _kio_essence(theirs)


def _essence(request: Any) -> list[Any]:
    return [
        (topic.name, uuid(topic.id), [partition.partition for partition in topic.partitions])
        for topic in request.topics
    ]


def _kio_essence(request: Any) -> list[Any]:
    topics = request.topic_data if hasattr(request, "topic_data") else request.topics
    return [
        (
            getattr(topic, "name", getattr(topic, "topic", None)),
            getattr(topic, "topic_id", None),
            [
                getattr(partition, "index", getattr(partition, "partition", None))
                for partition in getattr(topic, "partition_data", getattr(topic, "partitions", ()))
            ],
        )
        for topic in topics
    ]


@pytest.mark.parametrize(("api_key", "parse", "requests", "version"), HOT_REQUESTS, ids=IDS)
@settings(deadline=None, max_examples=5)
@given(data=st.data())
def test_a_request_cut_short_at_any_byte_is_malformed(
    api_key: int, parse: Any, requests: Any, version: int, data: st.DataObject
) -> None:
    _, written = data.draw(requests(version))
    body = memoryview(encode(written))
    for size in range(len(body)):
        with pytest.raises(MalformedMessage):
            parse(Cursor(body[:size]), version)


HOSTILE_COUNTS = [
    (3, b"\x7f\xff\xff\xff"),
    (3, b"\xff\xff\xff\xff"),
    (3, b"\xff\xff\xff\xfe"),
    (9, b"\xff\xff\xff\xff\x0f"),
    (9, b"\xff\xff\xff\xff\x7f"),
    (9, b"\x00"),
]


@pytest.mark.parametrize(("version", "count"), HOSTILE_COUNTS)
def test_a_count_that_cannot_be_is_refused_before_anything_is_allocated(
    version: int, count: bytes
) -> None:
    no_transaction = b"\x00" if version == 9 else b"\xff\xff"
    acks_and_timeout = bytes(6)
    body = no_transaction + acks_and_timeout + count + bytes(3)
    tracemalloc.start()
    with pytest.raises(MalformedMessage):
        parse_produce(Cursor(memoryview(body)), version)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1024 * 1024


def test_a_fetch_with_more_partitions_than_a_request_may_name_is_refused() -> None:
    head = bytes(4 + 13) + b"\x00\x00\x00\x01" + b"\x00\x01t"
    partitions = (MAX_REQUEST_ELEMENTS + 1).to_bytes(4) + bytes(16 * (MAX_REQUEST_ELEMENTS + 1))
    with pytest.raises(MalformedMessage):
        parse_fetch(Cursor(memoryview(head + partitions)), 4)
