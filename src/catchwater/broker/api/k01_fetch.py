"""Fetch (1), v4-18: whole batches from the offsets asked for, waiting for `min_bytes` if need be.

A full fetch is served in the order of its partitions (the client rotates them), an incremental one
in the order of its session (`broker/fetching/sessions.py`, KIP-227), which puts those behind that
had records. Batches are gathered until `max_bytes`; the first batch of the request is sent whatever
its size, so that nobody is stuck behind a large one, and only the first, so that a reply has a
bound. They go out as the buffers the log returns.

A client in a zone (`client.rack`) that has brokers, of which this is none, is told to fetch from
one of them (KIP-392). A client that reads committed records only gets nothing from the last stable
offset on, and for every partition the aborted transactions among its batches, which it drops
(KIP-98).

Version notes: v7 sessions, v9 leader epochs (there is one, 0), v10 zstd: before it, a topic that is
compressed so is UNSUPPORTED_COMPRESSION_TYPE (KIP-110), v13 topic ids (KIP-516), v15 the replica's
state moves to a tagged field (KIP-903). A replica id is refused: only brokers have one.

Never answered, for partitions have no leaders: INCONSISTENT_TOPIC_ID, a diverging epoch (v12), a
current leader and its endpoint (v16, KIP-951).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from catchwater.broker import zones
from catchwater.broker.broker import Api, Broker, Call, Later
from catchwater.broker.eager import begin
from catchwater.broker.fetching.reading import READ_TOPIC, Answers, Reading
from catchwater.broker.fetching.sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    by_topic,
    next_epoch,
    placed,
)
from catchwater.catalog.rows import BrokerRow
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import (
    FETCH_VERSIONS,
    FetchReplyTopic,
    FetchRequest,
    encode_fetch_reply,
    parse_fetch,
)

LONGEST_WAIT_MS = 60_000
"""A longer `max_wait_ms` is cut to this; the client simply asks again."""

_TOPIC_ID_SINCE = 13


class _Reply(NamedTuple):
    """With an error of the request nothing else."""

    error: ErrorCode
    session_id: int = NO_SESSION
    topics: Sequence[FetchReplyTopic] = ()


def start(broker: Broker, call: Call) -> Later:
    """Read the request, let go of its frame, and gather the reply: at once if it is in memory."""
    request = parse_fetch(call.frame.data, call.version, call.header.body_at)
    call.frame.release()
    future = begin(_answer(broker, request, call))
    return Later(future, partial(_encode, call.correlation_id, call.version))


def _encode(correlation_id: int, version: int, reply: _Reply) -> list[Buffer]:
    error, session_id, topics = reply
    return encode_fetch_reply(correlation_id, version, topics, error=error, session_id=session_id)


async def _answer(broker: Broker, request: FetchRequest, call: Call) -> _Reply:
    sessions = broker.fetch_sessions
    by_id = call.version >= _TOPIC_ID_SINCE
    if request.replica_id >= 0:
        return _Reply(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.session_epoch in (FINAL_EPOCH, FIRST_EPOCH):
        sessions.end(request.session_id)
        places = placed(request.topics)
        answers = await _gather(broker, request, Reading(broker, call, request, places))
        session_id = NO_SESSION
        if request.session_epoch == FIRST_EPOCH:
            session_id = sessions.begin(places, answers, by_id)
        return _Reply(ErrorCode.NONE, session_id, by_topic(answers))
    session = sessions.resume(request, by_id)
    if isinstance(session, ErrorCode):
        return _Reply(session)
    if not session.partitions:
        return _Reply(ErrorCode.NONE)
    reading = Reading(broker, call, request, session.partitions)
    answers = await _gather(broker, request, reading)
    if session.epoch != next_epoch(request.session_epoch):
        # Meanwhile somebody went on with the session on another connection.
        return _Reply(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    return _Reply(ErrorCode.NONE, session.id, session.news(answers))


async def _gather(broker: Broker, request: FetchRequest, reading: Reading) -> Answers:
    near = _nearer(broker, request.rack)
    if near:
        return reading.redirected(near)
    answers = await reading.run()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(request.max_wait_ms, LONGEST_WAIT_MS) / 1000
    while not reading.is_enough and (left_s := until_s - loop.time()) > 0:
        # Asked for before reading, so that no append falls between reading and waiting.
        appended = broker.log.wait_for(reading.keys())
        try:
            answers = await reading.run()
            if not reading.is_enough:
                await broker.wait_unless_draining(appended, left_s)
        finally:
            appended.cancel()
        if broker.draining.is_set():
            break
    return answers


def _nearer(broker: Broker, rack: str) -> Sequence[BrokerRow]:
    """The brokers of the client's zone, if there are any and this is none of them."""
    if not rack:
        return ()
    near = [row for row in zones.candidates(broker.brokers, rack) if row.zone == rack]
    return () if broker.config.node_id in [row.id for row in near] else near


API = Api(1, "Fetch", FETCH_VERSIONS, start=start, asks=[READ_TOPIC])
