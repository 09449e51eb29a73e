"""Produce, Fetch and Metadata by hand: views in, scatter lists out.

These three carry nearly all traffic, and a generic codec would cost more than the rest of the
broker. Parsing gives record bytes as views of the frame; encoding passes record bytes through as
the buffers it was given. Fields that our brokers leave at their defaults (leader hints) have no
place in the values here. kio is the oracle in the tests: every declared version is byte for byte
what kio writes.

Promises what `fields` promises: malformed input raises `MalformedMessage`, nothing else. Does
not know which versions are served, which topics exist or what a good batch is. Replies begin with
the response header; `frames.prefixed` adds the size.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from catchwater.wire.fields import (
    I8,
    I16,
    I32,
    NO_TAGGED_FIELDS,
    Cursor,
    encode_size,
    encode_text,
)
from catchwater.wire.frames import Buffer

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
METADATA_VERSIONS = range(0, 14)
# In the place of a set of bits, what somebody may do, that was not asked for (KIP-430).
OPERATIONS_NOT_TOLD = -(2**31)

# The first version in which lengths are compact and structs end with tagged fields (KIP-482).
_PRODUCE_FLEXIBLE = 9
_FETCH_FLEXIBLE = 12
_METADATA_FLEXIBLE = 9
# The first version that names topics by id (KIP-516).
_PRODUCE_TOPIC_ID = 13
_FETCH_TOPIC_ID = 13

_ZERO_ID = bytes(16)


class ProducePartition(NamedTuple):
    """A partition's batch as a view of the frame; null, as Kafka allows, is None."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """A topic by `name`, or from version 13 by its 16-byte `id`; the other one is None."""

    name: str | None
    id: bytes | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    """`acks` is 0, 1 or -1 (all) from a good client; anything else is for the handler to refuse."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProduceReplyPartition(NamedTuple):
    """What became of a partition's batch; -1 where an offset or a time is not known."""

    partition: int
    error: int
    base_offset: int = -1
    log_append_ms: int = -1
    log_start: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    """The records that are to blame, each an index in the batch and why (v8, KIP-467)."""


class ProduceReplyTopic(NamedTuple):
    """A topic by `name`, or from version 13 by its 16-byte `id`, as it was asked for."""

    name: str | None
    id: bytes | None
    partitions: Sequence[ProduceReplyPartition]


class FetchPartition(NamedTuple):
    """`leader_epoch` is the newest the client knows, -1 if none (KIP-320)."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int


class FetchTopic(NamedTuple):
    """A topic by `name`, or from version 13 by its 16-byte `id`; the other one is None."""

    name: str | None
    id: bytes | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that an incremental fetch drops from its session (KIP-227)."""

    name: str | None
    id: bytes | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    """`replica_id` is -1 from every consumer; only a Kafka broker gives its own."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack: str


class FetchReplyPartition(NamedTuple):
    """`records` are buffers to be sent one after the other, whole batches only.

    `aborted` are (producer id, first offset) of transactions among them that a client who reads
    committed records is to drop; None for a client who reads all (KIP-98).
    """

    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    records: Sequence[Buffer] = ()
    preferred_replica: int = -1
    """The broker to fetch from instead, from version 11 on (KIP-392); -1: this one."""
    aborted: Sequence[tuple[int, int]] | None = ()


class FetchReplyTopic(NamedTuple):
    """A topic by `name`, or from version 13 by its 16-byte `id`, as it was asked for."""

    name: str | None
    id: bytes | None
    partitions: Sequence[FetchReplyPartition]


class MetadataBroker(NamedTuple):
    """Where a client reaches a broker; `rack` is its zone."""

    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataPartition(NamedTuple):
    """Storage is shared, so each of `replicas` is in sync and none is offline."""

    partition: int
    error: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]


class MetadataTopic(NamedTuple):
    """`name` may be None from version 12, for an id that no topic has."""

    error: int
    name: str | None
    id: bytes
    is_internal: bool
    partitions: Sequence[MetadataPartition]
    operations: int = OPERATIONS_NOT_TOLD


class MetadataReply(NamedTuple):
    """The cluster as one client is to see it; each version takes the fields it has."""

    brokers: Sequence[MetadataBroker]
    cluster_id: str
    controller_id: int
    topics: Sequence[MetadataTopic]
    throttle_ms: int = 0
    operations: int = OPERATIONS_NOT_TOLD


# Produce

_ACKS_AND_TIMEOUT = Struct(">hi")
_PRODUCED_V3, _PRODUCED = Struct(">ihqq"), Struct(">ihqqq")


def parse_produce(frame: memoryview, version: int, at: int) -> ProduceRequest:
    """The Produce request whose body begins at byte `at`. Raises `MalformedMessage`."""
    assert version in PRODUCE_VERSIONS, version
    flexible = version >= _PRODUCE_FLEXIBLE
    cursor = Cursor(frame, at)
    transactional_id = cursor.nullable_text(flexible)
    acks, timeout_ms = cursor.numbers(_ACKS_AND_TIMEOUT)
    topics = []
    for _ in range(cursor.count(flexible)):
        name, topic_id = _take_topic(cursor, flexible, version >= _PRODUCE_TOPIC_ID)
        partitions = []
        for _ in range(cursor.count(flexible)):
            index = cursor.number(I32)
            size_bytes = cursor.size(flexible)
            records = None
            if size_bytes != -1:
                start = cursor.take(size_bytes)
                records = frame[start : cursor.at]
            if flexible:
                cursor.skip_tagged_fields()
            partitions.append(ProducePartition(index, records))
        if flexible:
            cursor.skip_tagged_fields()
        topics.append(ProduceTopic(name, topic_id, partitions))
    if flexible:
        cursor.skip_tagged_fields()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_reply(
    correlation_id: int,
    version: int,
    topics: Sequence[ProduceReplyTopic],
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The reply to a Produce request of this version."""
    assert version in PRODUCE_VERSIONS, version
    flexible = version >= _PRODUCE_FLEXIBLE
    end = NO_TAGGED_FIELDS if flexible else b""
    no_record_errors = encode_size(0, flexible)
    out = [I32.pack(correlation_id), end, encode_size(len(topics), flexible)]
    for topic in topics:
        out.append(_encode_topic(topic.name, topic.id, flexible, version >= _PRODUCE_TOPIC_ID))
        out.append(encode_size(len(topic.partitions), flexible))
        for partition in topic.partitions:
            index, error, base_offset, append_ms, log_start, message, blamed = partition
            if version < 5:
                out.append(_PRODUCED_V3.pack(index, error, base_offset, append_ms))
                continue
            out.append(_PRODUCED.pack(index, error, base_offset, append_ms, log_start))
            if version >= 8:
                out.append(_encode_blamed(blamed, flexible) if blamed else no_record_errors)
                out += (encode_text(message, flexible), end)
        out.append(end)
    out += (I32.pack(throttle_ms), end)
    return [b"".join(out)]


def _encode_blamed(record_errors: Sequence[tuple[int, str]], flexible: bool) -> bytes:
    end = NO_TAGGED_FIELDS if flexible else b""
    entries = [I32.pack(i) + encode_text(reason, flexible) + end for i, reason in record_errors]
    return encode_size(len(entries), flexible) + b"".join(entries)


# Fetch

_FETCH_LIMITS = Struct(">iiib")
_FETCH_SESSION = Struct(">ii")
_FETCH_HEAD = Struct(">ihi")
_FETCHED_V4, _FETCHED = Struct(">ihqq"), Struct(">ihqqq")
_ABORTED = Struct(">qq")
_REPLICA_STATE_TAG = 1
_REPLICA_STATE_SINCE = 15
_CONSUMER = -1
_NO_SESSION = (0, -1)


def parse_fetch(frame: memoryview, version: int, at: int) -> FetchRequest:
    """The Fetch request whose body begins at byte `at`. Raises `MalformedMessage`."""
    assert version in FETCH_VERSIONS, version
    flexible = version >= _FETCH_FLEXIBLE
    cursor = Cursor(frame, at)
    replica_id = cursor.number(I32) if version < _REPLICA_STATE_SINCE else _CONSUMER
    max_wait_ms, min_bytes, max_bytes, isolation_level = cursor.numbers(_FETCH_LIMITS)
    session_id, session_epoch = cursor.numbers(_FETCH_SESSION) if version >= 7 else _NO_SESSION
    topics = _take_fetch_topics(cursor, version, flexible)
    forgotten = _take_forgotten_topics(cursor, version, flexible) if version >= 7 else []
    rack = cursor.text(flexible) if version >= 11 else ""
    if version >= _REPLICA_STATE_SINCE:
        replica_id = _take_replica_id(cursor)
    elif flexible:
        cursor.skip_tagged_fields()
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def encode_fetch_reply(
    correlation_id: int,
    version: int,
    topics: Sequence[FetchReplyTopic],
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The reply to a Fetch request of this version; the records' buffers stand in it as given."""
    assert version in FETCH_VERSIONS, version
    flexible = version >= _FETCH_FLEXIBLE
    end = NO_TAGGED_FIELDS if flexible else b""
    parts: list[Buffer] = []
    # What is to be sent before the next records; it becomes one part.
    out = bytearray(I32.pack(correlation_id) + end)
    out += (
        _FETCH_HEAD.pack(throttle_ms, error, session_id) if version >= 7 else I32.pack(throttle_ms)
    )
    out += encode_size(len(topics), flexible)
    for topic in topics:
        out += _encode_topic(topic.name, topic.id, flexible, version >= _FETCH_TOPIC_ID)
        out += encode_size(len(topic.partitions), flexible)
        for partition in topic.partitions:
            _add_fetched(out, version, flexible, partition)
            records = partition.records
            out += encode_size(sum(map(len, records)), flexible)
            if records:
                parts.append(out)
                parts += records
                out = bytearray()
            out += end
        out += end
    out += end
    if out:
        parts.append(out)
    return parts


def _add_fetched(
    out: bytearray, version: int, flexible: bool, partition: FetchReplyPartition
) -> None:
    """What stands before a partition's records."""
    index, error, high, stable, log_start, _, preferred, aborted = partition
    if version >= 5:
        out += _FETCHED.pack(index, error, high, stable, log_start)
    else:
        out += _FETCHED_V4.pack(index, error, high, stable)
    if aborted is None:
        out += encode_size(-1, flexible)
    else:
        end = NO_TAGGED_FIELDS if flexible else b""
        out += encode_size(len(aborted), flexible)
        out += b"".join([_ABORTED.pack(*transaction) + end for transaction in aborted])
    if version >= 11:
        out += I32.pack(preferred)


def _take_fetch_topics(cursor: Cursor, version: int, flexible: bool) -> list[FetchTopic]:
    topics = []
    for _ in range(cursor.count(flexible)):
        name, topic_id = _take_topic(cursor, flexible, version >= _FETCH_TOPIC_ID)
        count = cursor.count(flexible)
        partitions = [_take_fetch_partition(cursor, version, flexible) for _ in range(count)]
        if flexible:
            cursor.skip_tagged_fields()
        topics.append(FetchTopic(name, topic_id, partitions))
    return topics


# Index, leader epoch, offset, last fetched epoch, a follower's log start, most bytes.
_FETCH_PARTITION_V4 = Struct(">iqi")
_FETCH_PARTITION_V5 = Struct(">iq8xi")
_FETCH_PARTITION_V9 = Struct(">iiq8xi")
_FETCH_PARTITION_V12 = Struct(">iiq4x8xi")


def _take_fetch_partition(cursor: Cursor, version: int, flexible: bool) -> FetchPartition:
    leader_epoch = -1
    if flexible:
        index, leader_epoch, offset, max_bytes = cursor.numbers(_FETCH_PARTITION_V12)
        cursor.skip_tagged_fields()
    elif version >= 9:
        index, leader_epoch, offset, max_bytes = cursor.numbers(_FETCH_PARTITION_V9)
    else:
        form = _FETCH_PARTITION_V5 if version >= 5 else _FETCH_PARTITION_V4
        index, offset, max_bytes = cursor.numbers(form)
    return FetchPartition(index, offset, max_bytes, leader_epoch)


def _take_forgotten_topics(cursor: Cursor, version: int, flexible: bool) -> list[ForgottenTopic]:
    topics = []
    for _ in range(cursor.count(flexible)):
        name, topic_id = _take_topic(cursor, flexible, version >= _FETCH_TOPIC_ID)
        count = cursor.count(flexible)
        partitions = [cursor.number(I32) for _ in range(count)]
        if flexible:
            cursor.skip_tagged_fields()
        topics.append(ForgottenTopic(name, topic_id, partitions))
    return topics


def _take_replica_id(cursor: Cursor) -> int:
    """The replica id from the request's tagged fields (KIP-903)."""
    replica_id = _CONSUMER
    for _ in range(cursor.elements(cursor.varint())):
        tag, size_bytes = cursor.varint(), cursor.varint()
        start = cursor.take(size_bytes)
        if tag == _REPLICA_STATE_TAG:
            replica_id = Cursor(cursor.view[start : cursor.at]).number(I32)
    return replica_id


# Metadata

_METADATA_PARTITION = Struct(">hii")
_NO_ERROR = I16.pack(0)


def encode_metadata_reply(correlation_id: int, version: int, reply: MetadataReply) -> list[Buffer]:
    """The reply to a Metadata request of this version."""
    assert version in METADATA_VERSIONS, version
    flexible = version >= _METADATA_FLEXIBLE
    end = NO_TAGGED_FIELDS if flexible else b""
    out = [I32.pack(correlation_id), end]
    if version >= 3:
        out.append(I32.pack(reply.throttle_ms))
    out.append(encode_size(len(reply.brokers), flexible))
    for broker in reply.brokers:
        out += (I32.pack(broker.node_id), encode_text(broker.host, flexible), I32.pack(broker.port))
        if version >= 1:
            out.append(encode_text(broker.rack, flexible))
        out.append(end)
    if version >= 2:
        out.append(encode_text(reply.cluster_id, flexible))
    if version >= 1:
        out.append(I32.pack(reply.controller_id))
    out.append(encode_size(len(reply.topics), flexible))
    for topic in reply.topics:
        _add_metadata_topic(out, version, flexible, topic)
    if 8 <= version <= 10:
        out.append(I32.pack(reply.operations))
    if version >= 13:
        out.append(_NO_ERROR)
    out.append(end)
    return [b"".join(out)]


def _add_metadata_topic(
    out: list[bytes], version: int, flexible: bool, topic: MetadataTopic
) -> None:
    out += (I16.pack(topic.error), encode_text(topic.name, flexible))
    if version >= 10:
        out.append(topic.id)
    if version >= 1:
        out.append(I8.pack(topic.is_internal))
    out.append(encode_size(len(topic.partitions), flexible))
    # Most partitions of a topic have the same replicas, which are most of their bytes.
    ends: dict[tuple[int, ...], bytes] = {}
    for index, error, leader_id, leader_epoch, replicas in topic.partitions:
        if replicas not in ends:
            ends[replicas] = _metadata_partition_end(version, flexible, replicas)
        out.append(_METADATA_PARTITION.pack(error, index, leader_id))
        if version >= 7:
            out.append(I32.pack(leader_epoch))
        out.append(ends[replicas])
    if version >= 8:
        out.append(I32.pack(topic.operations))
    out.append(NO_TAGGED_FIELDS if flexible else b"")


def _metadata_partition_end(version: int, flexible: bool, replicas: tuple[int, ...]) -> bytes:
    nodes = encode_size(len(replicas), flexible) + b"".join(map(I32.pack, replicas))
    offline = encode_size(0, flexible) if version >= 5 else b""
    return nodes + nodes + offline + (NO_TAGGED_FIELDS if flexible else b"")


# Topics are named or, in later versions, identified.


def _take_topic(cursor: Cursor, flexible: bool, by_id: bool) -> tuple[str | None, bytes | None]:
    if by_id:
        return None, cursor.bytes(16)
    return cursor.text(flexible), None


def _encode_topic(name: str | None, topic_id: bytes | None, flexible: bool, by_id: bool) -> bytes:
    if by_id:
        return topic_id or _ZERO_ID
    assert name is not None, "a reply in this version names its topics"
    return encode_text(name, flexible)
