"""Produce by hand, both directions, as a broker reads and answers it and as a client sends it.

Produce, Fetch and Metadata carry nearly all traffic, and a generic codec would cost more than the
rest of the broker. Parsing gives record bytes as views of the frame; encoding passes record bytes
through as the buffers it was given. kio is the oracle in the tests: every declared version is byte
for byte what kio writes.

The broker's side speaks every version that is served, the client's side version 7: the last that
names topics by name without compact encodings, and that every Kafka from 2.8 to 4.x serves.
Requests come out without their header; replies begin with the correlation id.

Promises what `fields` promises: malformed input raises `MalformedMessage`, nothing else. Does not
know which topics exist, what a good batch is, or whether an error is one to try again after.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
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
    MalformedMessage,
    TopicPartition,
    encode_size,
    encode_text,
    encode_topic,
    pack_i32,
)

PRODUCE_VERSIONS = range(3, 14)
PRODUCE = ApiVersion(0, 7)

FLEXIBLE_SINCE = 9  # lengths are compact and structs end with tagged fields (KIP-482)
_TOPIC_ID_SINCE = 13  # topics are named by their ids (KIP-516)


class ProducePartition(msgspec.Struct, frozen=True):
    """A partition's batch as a view of the frame; null, as Kafka allows, is None."""

    partition: int
    records: memoryview | None


class ProduceTopic(msgspec.Struct, frozen=True):
    """A topic by `name`, or from version 13 by its 16-byte `id`; the other one is None."""

    name: str | None
    id: bytes | None
    partitions: list[ProducePartition]


class ProduceRequest(msgspec.Struct, frozen=True):
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


# The broker's side.

MOST_NAMED = 10_000
"""Topics and partitions in one request: its batches are looked at in one turn of the broker's event
loop, so that a producer's keep their order, and nobody else has one meanwhile."""

_ACKS_AND_TIMEOUT = Struct(">hi")
_PRODUCED_V3, _PRODUCED = Struct(">ihqq"), Struct(">ihqqq")


# Nearly every small request brings one batch, in a flexible version that names its topic. What lies
# before that batch is the same in all such requests of a producer, so it is read once and looked up
# from then on, by its bytes; the answer is packed at once. All else, also what is malformed, is
# left to those below, which take several times as long.

# No tagged fields, no transactional id, acks, timeout, one topic, the size of its name.
_ONE_HEAD = Struct(">BBhiBB")
_NAME_SIZE_AT = _ONE_HEAD.size - 1
# One partition, its index; behind it the size of its batch in up to three bytes.
_ONE_PARTITION = Struct(">Bi")
_ONE_END = bytes(3)
_FOUR_BYTES = 1 << 21
_HEADS, _REPLIES = 4096, 128


def parse_one(frame: memoryview, version: int, rest_at: int) -> ProduceRequest | None:
    """The request, if it brings one batch in the usual form; None for any other."""
    if not FLEXIBLE_SINCE <= version < _TOPIC_ID_SINCE:
        return None
    try:
        at = rest_at + _NAME_SIZE_AT + frame[rest_at + _NAME_SIZE_AT] + _ONE_PARTITION.size
        head = _head_of_one(frame[rest_at:at].tobytes())
        size, at = frame[at], at + 1
        if size >= 0x80:
            size, at = size & 0x7F | frame[at] << 7, at + 1
            if size >= 0x4000:
                size, at = size & 0x3FFF | frame[at] << 14, at + 1
    except IndexError:
        return None
    end = at + size - 1
    if head is None or not 0 < size < _FOUR_BYTES or frame[end:].tobytes() != _ONE_END:
        return None
    acks, timeout_ms, name, index = head
    batch = ProducePartition(index, frame[at:end])
    return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(name, None, [batch])])


@lru_cache(_HEADS)
def _head_of_one(head: bytes) -> tuple[int, int, str, int] | None:
    """Acks, timeout, topic and partition, if these bytes, which end where the size of a batch
    begins, are those before the only one of a request.
    """
    try:
        tags, id_size, acks, timeout_ms, topics, name_size = _ONE_HEAD.unpack_from(head)
        name_end = _NAME_SIZE_AT + name_size
        partitions, index = _ONE_PARTITION.unpack_from(head, name_end)
        name = str(head[_ONE_HEAD.size : name_end], "utf-8")
    except (StructError, UnicodeDecodeError):
        return None
    if (tags, id_size, topics, partitions) != (0, 0, 2, 2) or not 0 < name_size < 0x80:
        return None
    return acks, timeout_ms, name, index


def encode_one(
    correlation_id: int, topic: ProduceTopic, base_offset: int, log_start: int
) -> list[Buffer]:
    """The reply to a request that `parse_one` takes, whose batch was appended."""
    assert topic.name is not None, "these versions name their topics"
    name = topic.name.encode()
    numbers = (topic.partitions[0].partition, 0, base_offset, -1, log_start)
    reply = _reply_to_one(len(name))
    return [reply.pack(correlation_id, 2, len(name) + 1, name, 2, *numbers, 1, 0)]


@lru_cache(_REPLIES)
def _reply_to_one(name_bytes: int) -> Struct:
    """One topic, one partition and its numbers, nobody to blame, no message, no throttling."""
    return Struct(f">ixBB{name_bytes}sBihqqqBxxxix")


def parse_produce(cursor: Cursor, version: int) -> ProduceRequest:
    """The Produce request whose body begins here. Raises `MalformedMessage`."""
    assert version in PRODUCE_VERSIONS, version
    flexible = version >= FLEXIBLE_SINCE
    frame = cursor.view
    transactional_id = cursor.nullable_text(flexible)
    acks, timeout_ms = cursor.numbers(_ACKS_AND_TIMEOUT)
    topics, named = [], cursor.count(flexible)
    left = MOST_NAMED - named
    for _ in range(named):
        name, topic_id = None, None
        if version >= _TOPIC_ID_SINCE:
            topic_id = cursor.bytes(16)
        else:
            name = cursor.text(flexible)
        partitions, named = [], cursor.count(flexible)
        left -= named
        if left < 0:
            raise MalformedMessage(
                f"A Produce request names {MOST_NAMED} topics and partitions at most.",
                hint="Send the batches in several requests: a smaller max.request.size does that.",
            )
        for _ in range(named):
            index = cursor.number(I32)
            size_bytes = cursor.varint() - 1 if flexible else cursor.number(I32)
            records = None
            if size_bytes != -1:
                start = cursor.take(size_bytes)
                records = frame[start : start + size_bytes]
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
    flexible = version >= FLEXIBLE_SINCE
    end = NO_TAGGED_FIELDS if flexible else b""
    # Behind a partition's numbers, where nothing is wrong: nobody to blame, no message (v8).
    no_blame = b"\x01\x00\x00" if flexible else b"\x00\x00\x00\x00\xff\xff"
    out = [pack_i32(correlation_id), end, encode_size(len(topics), flexible)]
    for topic in topics:
        out.append(encode_topic(topic.name, topic.id, flexible, version >= _TOPIC_ID_SINCE))
        out.append(encode_size(len(topic.partitions), flexible))
        for partition in topic.partitions:
            index, error, base_offset, append_ms, log_start, message, blamed = partition
            if version < 5:
                out.append(_PRODUCED_V3.pack(index, error, base_offset, append_ms))
                continue
            out.append(_PRODUCED.pack(index, error, base_offset, append_ms, log_start))
            if version < 8:
                continue
            if message is None and not blamed:
                out.append(no_blame)
            else:
                out += (_encode_blamed(blamed, flexible), encode_text(message, flexible), end)
        out.append(end)
    out += (pack_i32(throttle_ms), end)
    return [b"".join(out)]


def _encode_blamed(record_errors: Sequence[tuple[int, str]], flexible: bool) -> bytes:
    end = NO_TAGGED_FIELDS if flexible else b""
    entries = [pack_i32(i) + encode_text(reason, flexible) + end for i, reason in record_errors]
    return encode_size(len(entries), flexible) + b"".join(entries)


# The client's side.

# Transactional id (absent), acks, timeout, number of topics.
_PRODUCE_HEAD = Struct(">hhii")
_NO_TRANSACTION = -1
_ALL_REPLICAS = -1


class Produced(NamedTuple):
    """What became of one batch: the offset of its first record, where there is no error."""

    error: ErrorCode
    base_offset: int


def encode_produce(batches: Mapping[TopicPartition, Buffer], timeout_ms: int) -> list[Buffer]:
    """A Produce request that carries one batch for each partition, for all replicas to have."""
    by_topic: dict[str, list[tuple[int, Buffer]]] = defaultdict(list)
    for (topic, partition), batch in batches.items():
        by_topic[topic].append((partition, batch))
    parts: list[Buffer] = [
        _PRODUCE_HEAD.pack(_NO_TRANSACTION, _ALL_REPLICAS, timeout_ms, len(by_topic))
    ]
    for topic, partitions in by_topic.items():
        parts += [encode_text(topic, False), pack_i32(len(partitions))]
        for partition, batch in partitions:
            parts += [pack_i32(partition), pack_i32(len(batch)), batch]
    return parts


def parse_produce_reply(reply: memoryview) -> tuple[int, dict[TopicPartition, Produced]]:
    """The throttle time in milliseconds, and what became of each partition's batch."""
    cursor = Cursor(reply, I32.size)
    produced = {}
    for _ in range(cursor.elements(cursor.number(I32))):
        topic = cursor.string(cursor.number(I16))
        for _ in range(cursor.elements(cursor.number(I32))):
            partition: int = cursor.number(I32)
            error = known_error(cursor.number(I16))
            produced[topic, partition] = Produced(error, cursor.number(I64))
            cursor.take(2 * I64.size)  # log append time, log start
    throttle_ms: int = cursor.number(I32)
    return throttle_ms, produced
