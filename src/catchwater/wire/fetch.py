"""Fetch by hand, both directions: as a broker reads and answers it, and as a client sends it.

As in `produce`: record bytes are views of what was received, and pass as the buffers they are; the
client speaks version 11; kio is the oracle in the tests; malformed input raises `MalformedMessage`.
Fields that our brokers leave at their defaults (leader hints) have no place in the values here.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import msgspec

from catchwater.wire.errors import ErrorCode, known_error
from catchwater.wire.fields import (
    I16,
    I32,
    I64,
    NO_TAGGED_FIELDS,
    ApiVersion,
    Buffer,
    Cursor,
    TopicPartition,
    encode_size,
    encode_text,
    encode_topic,
    pack_i16,
    pack_i32,
    take_topic,
)

FETCH_VERSIONS = range(4, 19)
FETCH = ApiVersion(1, 11)

FLEXIBLE_SINCE = 12  # lengths are compact and structs end with tagged fields (KIP-482)
_TOPIC_ID_SINCE = 13  # topics are named by their ids (KIP-516)
_NO_SESSION = (0, -1)


class FetchPartition(msgspec.Struct, frozen=True):
    """`leader_epoch` is the newest the client knows, -1 if none (KIP-320)."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int


class FetchTopic(msgspec.Struct, frozen=True):
    """A topic by `name`, or from version 13 by its 16-byte `id`; the other one is None."""

    name: str | None
    id: bytes | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that an incremental fetch drops from its session (KIP-227)."""

    name: str | None
    id: bytes | None
    partitions: list[int]


class FetchRequest(msgspec.Struct, frozen=True):
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


class FetchReplyPartition(msgspec.Struct, frozen=True):
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


class FetchReplyTopic(msgspec.Struct, frozen=True):
    """A topic by `name`, or from version 13 by its 16-byte `id`, as it was asked for."""

    name: str | None
    id: bytes | None
    partitions: Sequence[FetchReplyPartition]


# The broker's side.

_FETCH_LIMITS = Struct(">iiib")
_FETCH_SESSION = Struct(">ii")
_FETCH_HEAD = Struct(">ihi")
_FETCHED_V4, _FETCHED = Struct(">ihqq"), Struct(">ihqqq")
_ABORTED = Struct(">qq")
_REPLICA_STATE_TAG = 1
_REPLICA_STATE_SINCE = 15
_CONSUMER = -1


def parse_fetch(cursor: Cursor, version: int) -> FetchRequest:
    """The Fetch request whose body begins here. Raises `MalformedMessage`."""
    assert version in FETCH_VERSIONS, version
    flexible = version >= FLEXIBLE_SINCE
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
    flexible = version >= FLEXIBLE_SINCE
    end = NO_TAGGED_FIELDS if flexible else b""
    parts: list[Buffer] = []
    # What is to be sent before the next records; it becomes one part.
    out = bytearray(pack_i32(correlation_id) + end)
    out += (
        _FETCH_HEAD.pack(throttle_ms, error, session_id) if version >= 7 else pack_i32(throttle_ms)
    )
    out += encode_size(len(topics), flexible)
    for topic in topics:
        out += encode_topic(topic.name, topic.id, flexible, version >= _TOPIC_ID_SINCE)
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
    index, error, aborted = partition.partition, partition.error, partition.aborted
    high, stable = partition.high_watermark, partition.last_stable_offset
    if version >= 5:
        out += _FETCHED.pack(index, error, high, stable, partition.log_start)
    else:
        out += _FETCHED_V4.pack(index, error, high, stable)
    if aborted is None:
        out += encode_size(-1, flexible)
    else:
        end = NO_TAGGED_FIELDS if flexible else b""
        out += encode_size(len(aborted), flexible)
        out += b"".join([_ABORTED.pack(*transaction) + end for transaction in aborted])
    if version >= 11:
        out += pack_i32(partition.preferred_replica)


def _take_fetch_topics(cursor: Cursor, version: int, flexible: bool) -> list[FetchTopic]:
    topics = []
    for _ in range(cursor.count(flexible)):
        name, topic_id = take_topic(cursor, flexible, version >= _TOPIC_ID_SINCE)
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
        name, topic_id = take_topic(cursor, flexible, version >= _TOPIC_ID_SINCE)
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


# The client's side.

# Replica id, longest wait, fewest bytes, most bytes, isolation level, session id and epoch.
_REQUEST_HEAD = Struct(">iiiibii")
# Partition, leader epoch, offset, log start (for replicas only), most bytes.
_REQUEST_PARTITION = Struct(">iiqqi")
_NO_FORGOTTEN_TOPICS = pack_i32(0)
_NO_RACK = pack_i16(0)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much a Fetch may bring, and how long the broker may wait for the first of it."""

    max_bytes: int
    max_partition_bytes: int
    min_bytes: int
    max_wait_ms: int
    read_committed: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition's part of a Fetch reply; `records` may end in a batch that is cut short.

    `aborted` lists (producer id, first offset) of transactions that a reader of committed records
    must leave out; it is empty for others.
    """

    records: memoryview
    high_watermark: int
    log_start: int
    error: ErrorCode
    aborted: tuple[tuple[int, int], ...] = ()


def encode_fetch(wanted: Mapping[TopicPartition, int], limits: FetchLimits) -> list[Buffer]:
    """A Fetch request for each partition from its offset on, outside of any session."""
    by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), offset in wanted.items():
        by_topic[topic].append((partition, offset))
    parts: list[Buffer] = [
        _REQUEST_HEAD.pack(
            -1,
            limits.max_wait_ms,
            limits.min_bytes,
            limits.max_bytes,
            limits.read_committed,
            *_NO_SESSION,
        ),
        pack_i32(len(by_topic)),
    ]
    for topic, partitions in by_topic.items():
        parts += [encode_text(topic, False), pack_i32(len(partitions))]
        for partition, offset in partitions:
            parts.append(
                _REQUEST_PARTITION.pack(partition, -1, offset, -1, limits.max_partition_bytes)
            )
    return [*parts, _NO_FORGOTTEN_TOPICS, _NO_RACK]


def parse_fetch_reply(reply: memoryview) -> tuple[int, dict[TopicPartition, Fetched]]:
    """The throttle time in milliseconds, and what was fetched; record bytes are views of `reply`.

    An error of the whole request is given as the error of no partition: the mapping is empty.
    """
    cursor = Cursor(reply, I32.size)
    throttle_ms: int = cursor.number(I32)
    cursor.number(I16)  # only sessions, which are not used, have errors of the whole request
    cursor.number(I32)
    fetched = {}
    for _ in range(cursor.elements(cursor.number(I32))):
        topic = cursor.string(cursor.number(I16))
        for _ in range(cursor.elements(cursor.number(I32))):
            partition: int = cursor.number(I32)
            fetched[topic, partition] = _parse_partition(cursor)
    return throttle_ms, fetched


def _parse_partition(cursor: Cursor) -> Fetched:
    error = known_error(cursor.number(I16))
    high_watermark: int = cursor.number(I64)
    cursor.number(I64)  # last stable offset
    log_start: int = cursor.number(I64)
    aborted = []
    for _ in range(cursor.elements(max(0, cursor.number(I32)))):
        aborted.append((cursor.number(I64), cursor.number(I64)))
    cursor.number(I32)  # preferred read replica: the leader is always asked
    size_bytes = max(0, cursor.number(I32))
    start = cursor.take(size_bytes)
    records = cursor.view[start : start + size_bytes]
    return Fetched(records, high_watermark, log_start, error, tuple(aborted))
