"""Fetch (1), v4-18: whole batches from the offsets asked for, waiting for `min_bytes` if need be.

The request's partitions are served in the order the client gives (it rotates them), until
`max_bytes` are gathered; the first batch of the request is sent whatever its size, so that nobody
is stuck behind a large one, and only the first, so that a reply has a bound. Batches go out as
the buffers the log returns.

Every fetch is a full one: session id 0 is answered, which tells the client that there are no
incremental sessions (KIP-227). A client in a zone (`client.rack`) that has brokers, of which this
is none, is told to fetch from one of them (KIP-392).

A client that reads committed records only gets nothing from the last stable offset on, and for
every partition the aborted transactions among its batches, which it drops (KIP-98).

Version notes: v7 sessions, v9 leader epochs (there is one, 0), v13 topic ids (KIP-516), v15 the
replica's state moves to a tagged field (KIP-903). A replica id is refused: only brokers have one.

Not implemented: incremental sessions.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from catchwater.broker import zones
from catchwater.broker.broker import Api, Broker, Call, Later
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import BrokerRow, PartitionKey, Topic
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.hot import (
    FETCH_VERSIONS,
    FetchPartition,
    FetchReplyPartition,
    FetchReplyTopic,
    FetchRequest,
    FetchTopic,
    encode_fetch_reply,
    parse_fetch,
)

LONGEST_WAIT_MS = 60_000
"""A longer `max_wait_ms` is cut to this; the client simply asks again."""

LONGEST_READ_S = 0.5
"""A reply that has something leaves out partitions that would be read after so long."""

READ_COMMITTED = 1
_FINAL_EPOCH, _FIRST_EPOCH = -1, 0


class _Limit(NamedTuple):
    """What a partition may still be given."""

    left: int
    is_first: bool
    committed: bool


class _Fetched(NamedTuple):
    """One pass over the request. `must_answer`: an error, which is not to wait for data."""

    topics: list[FetchReplyTopic]
    size_bytes: int
    must_answer: bool


def start(broker: Broker, call: Call) -> Later:
    """Read the request, let go of its frame, and gather the reply in a task of its own."""
    request = parse_fetch(call.frame.data, call.version, call.header.body_at)
    call.frame.release()
    future = asyncio.ensure_future(_gather(broker, request, call.principal))
    return Later(future, partial(_encode, call.correlation_id, call.version))


def _encode(
    correlation_id: int, version: int, gathered: tuple[ErrorCode, list[FetchReplyTopic]]
) -> list[Buffer]:
    error, topics = gathered
    return encode_fetch_reply(correlation_id, version, topics, error=error)


async def _gather(
    broker: Broker, request: FetchRequest, principal: str
) -> tuple[ErrorCode, list[FetchReplyTopic]]:
    if request.replica_id >= 0:
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, []
    if request.session_id != 0:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, []
    if request.session_epoch not in (_FINAL_EPOCH, _FIRST_EPOCH):
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH, []
    if near := _nearer(broker, request.rack):
        return ErrorCode.NONE, [
            _redirected(broker, principal, wanted, near) for wanted in request.topics
        ]
    fetched = await _read(broker, principal, request)
    wait_s = min(request.max_wait_ms, LONGEST_WAIT_MS) / 1000
    if fetched.must_answer or fetched.size_bytes >= request.min_bytes or wait_s <= 0:
        return ErrorCode.NONE, fetched.topics
    try:
        async with asyncio.timeout(wait_s):
            while not (fetched.must_answer or fetched.size_bytes >= request.min_bytes):
                # Asked for before reading, so that no append falls between reading and waiting.
                appended = broker.log.wait_for(_keys(broker, request))
                try:
                    fetched = await _read(broker, principal, request)
                    if fetched.size_bytes < request.min_bytes and not fetched.must_answer:
                        await broker.wait_unless_draining(appended)
                finally:
                    appended.cancel()
                if broker.draining.is_set():
                    break
    except TimeoutError:
        pass
    return ErrorCode.NONE, fetched.topics


def _nearer(broker: Broker, rack: str) -> Sequence[BrokerRow]:
    """The brokers of the client's zone, if there are any and this is none of them."""
    near = [row for row in zones.candidates(broker.brokers, rack) if rack and row.zone == rack]
    return () if broker.config.node_id in [row.id for row in near] else near


def _redirected(
    broker: Broker, principal: str, wanted: FetchTopic, near: Sequence[BrokerRow]
) -> FetchReplyTopic:
    """For each partition the broker to ask instead."""
    topic = _readable(broker, principal, wanted)
    partitions = []
    for index, *_ in wanted.partitions:
        if isinstance(topic, ErrorCode):
            answer = FetchReplyPartition(index, topic)
        elif not 0 <= index < topic.partitions:
            answer = FetchReplyPartition(index, _unknown(wanted))
        else:
            key = (topic.id, index)
            state, there = broker.log.state(key), zones.leader(near, key).id
            end = state.high_watermark
            answer = FetchReplyPartition(
                index, ErrorCode.NONE, end, end, state.log_start, preferred_replica=there
            )
        partitions.append(answer)
    return FetchReplyTopic(wanted.name, wanted.id, partitions)


def _readable(broker: Broker, principal: str, wanted: FetchTopic) -> Topic | ErrorCode:
    """The topic, or why it is not read; whether it exists is told only who may read it."""
    topic = broker.find_topic(wanted.name, wanted.id or b"")
    name = topic.name if topic else wanted.name
    if name is not None and not broker.may(principal, Operation.READ, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic or _unknown(wanted)


def _unknown(wanted: FetchTopic) -> ErrorCode:
    by_id = wanted.id is not None
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _keys(broker: Broker, request: FetchRequest) -> list[PartitionKey]:
    keys = []
    for wanted in request.topics:
        topic = broker.find_topic(wanted.name, wanted.id or b"")
        if topic is not None:
            keys += [(topic.id, index) for index, *_ in wanted.partitions]
    return keys


async def _read(broker: Broker, principal: str, request: FetchRequest) -> _Fetched:
    left = min(request.max_bytes, broker.config.fetch_max_bytes)
    total = 0
    must_answer = not request.topics
    topics = []
    committed = request.isolation_level == READ_COMMITTED
    until_s = broker.clock.monotonic_s() + LONGEST_READ_S
    for wanted in request.topics:
        partitions = []
        for partition in wanted.partitions:
            if total and broker.clock.monotonic_s() > until_s:
                left = 0  # the rest lies far away, and the client asks for it again
            limit = _Limit(left, total == 0, committed)
            topic = _readable(broker, principal, wanted)
            answer = await _read_partition(broker, topic, partition, limit)
            size_bytes = sum(map(len, answer.records))
            left -= size_bytes
            total += size_bytes
            must_answer = must_answer or answer.error != ErrorCode.NONE
            partitions.append(answer)
        topics.append(FetchReplyTopic(wanted.name, wanted.id, partitions))
    return _Fetched(topics, total, must_answer)


async def _read_partition(
    broker: Broker, topic: Topic | ErrorCode, partition: FetchPartition, limit: _Limit
) -> FetchReplyPartition:
    index, offset, wanted_bytes, leader_epoch = partition
    if isinstance(topic, ErrorCode):
        return FetchReplyPartition(index, topic)
    if not 0 <= index < topic.partitions:
        return FetchReplyPartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if leader_epoch > 0:
        return FetchReplyPartition(index, ErrorCode.UNKNOWN_LEADER_EPOCH)
    key = (topic.id, index)
    max_bytes = max(0, min(wanted_bytes, limit.left))
    read = await broker.log.read(
        key, offset, max_bytes, at_least_one=limit.is_first, committed=limit.committed
    )
    aborted = [(row.producer_id, row.first_offset) for row in read.aborted]
    return FetchReplyPartition(
        index,
        read.error,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start,
        read.parts,
        aborted=aborted if limit.committed else None,
    )


API = Api(1, "Fetch", FETCH_VERSIONS, start=start, notes="no incremental sessions")
