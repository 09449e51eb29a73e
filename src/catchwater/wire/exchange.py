"""Produce and Fetch from the client's side, by hand: record bytes pass without being copied.

The versions (Fetch 11, Produce 7) are the last before compact encodings and topic ids that name
topics by name and are served by every Kafka from 2.8 to 4.x. Sans-I/O: requests come out as lists
of buffers without their header, replies go in as received, correlation id first.

Relies on kio as the oracle in its tests. Promises `MalformedMessage` for a reply that does not hold
what it announces. Does not judge errors: they are values in the answer.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from catchwater.wire.codecs import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import Cursor

TopicPartition = tuple[str, int]


class Api(NamedTuple):
    """An API key and the version of it that is spoken here."""

    key: int
    version: int


PRODUCE = Api(0, 7)
FETCH = Api(1, 11)

_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")
_HEADER = Struct(">hhih")
# Replica id, longest wait, fewest bytes, most bytes, isolation level, session id and epoch.
_FETCH_HEAD = Struct(">iiiibii")
# Partition, leader epoch, offset, log start (for replicas only), most bytes.
_FETCH_PARTITION = Struct(">iiqqi")
# Transactional id (absent), acks, timeout, number of topics.
_PRODUCE_HEAD = Struct(">hhii")
_NO_TRANSACTION = -1
_ALL_REPLICAS = -1
_NO_SESSION = (0, -1)
_NO_FORGOTTEN_TOPICS = _I32.pack(0)
_NO_RACK = _I16.pack(0)


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


class Produced(NamedTuple):
    """What became of one batch: the offset of its first record, where there is no error."""

    error: ErrorCode
    base_offset: int


def encode_header(api: Api, correlation_id: int, client_id: str) -> bytes:
    """The header, of version 1, that precedes both requests."""
    name = client_id.encode()
    return _HEADER.pack(api.key, api.version, correlation_id, len(name)) + name


def encode_fetch(wanted: Mapping[TopicPartition, int], limits: FetchLimits) -> list[Buffer]:
    """A Fetch request for each partition from its offset on, outside of any session."""
    by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), offset in wanted.items():
        by_topic[topic].append((partition, offset))
    parts: list[Buffer] = [
        _FETCH_HEAD.pack(
            -1,
            limits.max_wait_ms,
            limits.min_bytes,
            limits.max_bytes,
            limits.read_committed,
            *_NO_SESSION,
        ),
        _I32.pack(len(by_topic)),
    ]
    for topic, partitions in by_topic.items():
        parts += [_string(topic), _I32.pack(len(partitions))]
        for partition, offset in partitions:
            parts.append(
                _FETCH_PARTITION.pack(partition, -1, offset, -1, limits.max_partition_bytes)
            )
    return [*parts, _NO_FORGOTTEN_TOPICS, _NO_RACK]


def parse_fetch_reply(reply: memoryview) -> tuple[int, dict[TopicPartition, Fetched]]:
    """The throttle time in milliseconds, and what was fetched; record bytes are views of `reply`.

    An error of the whole request is given as the error of no partition: the mapping is empty.
    """
    cursor = Cursor(reply, _I32.size)
    throttle_ms: int = cursor.number(_I32)
    cursor.number(_I16)  # only sessions, which are not used, have errors of the whole request
    cursor.number(_I32)
    fetched = {}
    for _ in range(cursor.elements(cursor.number(_I32))):
        topic = cursor.string(cursor.number(_I16))
        for _ in range(cursor.elements(cursor.number(_I32))):
            partition: int = cursor.number(_I32)
            fetched[topic, partition] = _parse_partition(cursor)
    return throttle_ms, fetched


def _parse_partition(cursor: Cursor) -> Fetched:
    error = _error_code(cursor.number(_I16))
    high_watermark: int = cursor.number(_I64)
    cursor.number(_I64)  # last stable offset
    log_start: int = cursor.number(_I64)
    aborted = []
    for _ in range(cursor.elements(max(0, cursor.number(_I32)))):
        aborted.append((cursor.number(_I64), cursor.number(_I64)))
    cursor.number(_I32)  # preferred read replica: the leader is always asked
    size_bytes = max(0, cursor.number(_I32))
    start = cursor.take(size_bytes)
    records = cursor.view[start : start + size_bytes]
    return Fetched(records, high_watermark, log_start, error, tuple(aborted))


def encode_produce(batches: Mapping[TopicPartition, Buffer], timeout_ms: int) -> list[Buffer]:
    """A Produce request that carries one batch for each partition, for all replicas to have."""
    by_topic: dict[str, list[tuple[int, Buffer]]] = defaultdict(list)
    for (topic, partition), batch in batches.items():
        by_topic[topic].append((partition, batch))
    parts: list[Buffer] = [
        _PRODUCE_HEAD.pack(_NO_TRANSACTION, _ALL_REPLICAS, timeout_ms, len(by_topic))
    ]
    for topic, partitions in by_topic.items():
        parts += [_string(topic), _I32.pack(len(partitions))]
        for partition, batch in partitions:
            parts += [_I32.pack(partition), _I32.pack(len(batch)), batch]
    return parts


def parse_produce_reply(reply: memoryview) -> tuple[int, dict[TopicPartition, Produced]]:
    """The throttle time in milliseconds, and what became of each partition's batch."""
    cursor = Cursor(reply, _I32.size)
    produced = {}
    for _ in range(cursor.elements(cursor.number(_I32))):
        topic = cursor.string(cursor.number(_I16))
        for _ in range(cursor.elements(cursor.number(_I32))):
            partition: int = cursor.number(_I32)
            error = _error_code(cursor.number(_I16))
            produced[topic, partition] = Produced(error, cursor.number(_I64))
            cursor.take(2 * _I64.size)  # log append time, log start
    throttle_ms: int = cursor.number(_I32)
    return throttle_ms, produced


def _error_code(number: int) -> ErrorCode:
    """What is newer than our list is unknown, as it is to Kafka's own clients."""
    known = number in ErrorCode._value2member_map_
    return ErrorCode(number) if known else ErrorCode.UNKNOWN_SERVER_ERROR


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded
