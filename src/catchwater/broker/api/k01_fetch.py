"""Fetch (1), v4-18: whole batches from the offsets asked for, waiting for `min_bytes` if need be.

A full fetch is served in the order of its partitions (the client rotates them), an incremental one
in the order of its session (`broker/fetch_sessions.py`, KIP-227), which puts those behind that
had records. Batches are gathered until `max_bytes`; the first batch of the request is sent, of
any size, so that no client is stuck at a large one, and only the first, so that a reply has a
bound. The batches are sent as the buffers that the log returns.

A client in a zone (`client.rack`) that has brokers, of which this is none, is sent to
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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from catchwater.broker import placement
from catchwater.broker.broker import (
    LARGE_REQUEST_BYTES,
    Api,
    Broker,
    Call,
    Later,
    LaterOf,
    as_it_is,
)
from catchwater.broker.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    Place,
    Session,
    SessionPartition,
    by_topic,
    next_epoch,
    placed,
)
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.broker.quotas import FETCH, Meter
from catchwater.catalog.rows import BrokerRow, PartitionKey, Topic
from catchwater.log.log import Read
from catchwater.log.topic_settings import COMPRESSION_TYPE
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import (
    FETCH_VERSIONS,
    FLEXIBLE_SINCE,
    FetchReplyPartition,
    FetchReplyTopic,
    FetchRequest,
    encode_fetch_reply,
    parse_fetch,
)
from catchwater.wire.fields import body_of

LONGEST_WAIT_MS = 60_000
"""A longer `max_wait_ms` is cut to this; the client simply asks again."""

_TOPIC_ID_SINCE = 13
LONGEST_READ_S = 0.5
"""A reply that has something leaves out partitions that would be read after so long."""

READ_COMMITTED = 1
READ_TOPIC = ByHandler(Operation.READ, ResourceType.TOPIC)
_AT_A_TIME = 1000
_ZSTD_SINCE = 10

Answers = list[tuple[Place, FetchReplyPartition]]


class _Reply(msgspec.Struct, frozen=True):
    """With an error of the whole request there is no session and no topic."""

    error: ErrorCode
    session_id: int = NO_SESSION
    topics: Sequence[FetchReplyTopic] = ()
    size_bytes: int = 0
    lagging_bytes: int = 0
    """Of these, those that were read from storage."""


def start(broker: Broker, call: Call) -> Later:
    """Answer at once what is in memory; a task waits for anything else."""
    if len(call.frame.data) > LARGE_REQUEST_BYTES:
        meter = _meter(broker, call)
        work = asyncio.ensure_future(_answer_large(broker, call, meter))
        return LaterOf(as_it_is, future=work, meter=meter)
    request = _parse(call)
    later = Later(partial(_charge_and_encode, call.meter, call))
    fetch = _open(broker, request, call)
    if isinstance(fetch, _Reply):
        later.set_result(fetch)
    else:
        near = _nearer(broker, request.rack)
        answers = fetch.reading.redirected(near) if near else fetch.reading.run_now()
        if answers is not None and (near or fetch.reading.is_enough):
            later.set_result(_close(broker, fetch, answers))
        else:
            meter = _meter(broker, call)
            later = LaterOf(
                partial(_charge_and_encode, meter, call),
                future=asyncio.ensure_future(_wait(broker, fetch, answers)),
                meter=meter,
            )
    call.frame.release()
    return later


async def _answer_large(broker: Broker, call: Call, meter: Meter) -> list[Buffer]:
    """Answer a request of so many partitions that a thread parses it, and makes the reply's bytes:
    to do that here would hold up everybody else.
    """
    try:
        request = await asyncio.to_thread(_parse, call)
    finally:
        call.frame.release()
    fetch = _open(broker, request, call)
    if isinstance(fetch, _Reply):
        reply = fetch
    elif near := _nearer(broker, request.rack):
        reply = _close(broker, fetch, fetch.reading.redirected(near))
    else:
        reply = await _wait(broker, fetch, None)
    return await asyncio.to_thread(_encode, call, reply, _charge(meter, reply))


def _parse(call: Call) -> FetchRequest:
    body = body_of(call.frame.data, call.header.rest_at, call.version >= FLEXIBLE_SINCE)
    return parse_fetch(body, call.version)


def _meter(broker: Broker, call: Call) -> Meter:
    """Of what may read from storage, which is metered even where nobody has a quota."""
    return call.meter or Meter(broker.quotas, call.principal, call.header.client_id or "")


def _charge(meter: Meter, reply: _Reply) -> int:
    """Charge what a reply brings; for how long its client is not read from, ms."""
    meter.take(FETCH, reply.size_bytes)
    if reply.lagging_bytes:
        meter.take_lagging(reply.lagging_bytes)
    return meter.throttle_ms


def _charge_and_encode(meter: Meter | None, call: Call, reply: _Reply) -> list[Buffer]:
    return _encode(call, reply, 0 if meter is None else _charge(meter, reply))


def _encode(call: Call, reply: _Reply, throttle_ms: int) -> list[Buffer]:
    return encode_fetch_reply(
        *(call.correlation_id, call.version, reply.topics),
        error=reply.error,
        session_id=reply.session_id,
        throttle_ms=throttle_ms,
    )


def _open(broker: Broker, request: FetchRequest, call: Call) -> "_Fetch | _Reply":
    """What to read, and for which session; or the reply, if there is nothing to read."""
    sessions = broker.fetch_sessions
    by_id = call.version >= _TOPIC_ID_SINCE
    if request.replica_id >= 0:
        return _Reply(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.session_epoch in (FINAL_EPOCH, FIRST_EPOCH):
        sessions.end(request.session_id)
        places = placed(request.topics)
        return _Fetch(
            request, by_id, places, Reading(broker, call, request, places), call.principal
        )
    session = sessions.resume(request, by_id)
    if isinstance(session, ErrorCode):
        return _Reply(session)
    if not session.partitions:
        return _Reply(ErrorCode.NONE)
    places = session.partitions
    reading = Reading(broker, call, request, places)
    return _Fetch(request, by_id, places, reading, call.principal, session)


def _close(broker: Broker, fetch: "_Fetch", answers: Answers) -> _Reply:
    """The reply to a fetch whose partitions have these answers."""
    session, reading = fetch.session, fetch.reading
    sizes = reading.size_bytes, reading.lagging_bytes
    if session is not None:
        if session.epoch != next_epoch(fetch.request.session_epoch):
            # Meanwhile the session was used on another connection.
            return _Reply(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return _Reply(ErrorCode.NONE, session.id, session.news(answers), *sizes)
    session_id = NO_SESSION
    if fetch.request.session_epoch == FIRST_EPOCH:
        session_id = broker.fetch_sessions.begin(
            fetch.places, answers, fetch.by_id, fetch.principal
        )
    return _Reply(ErrorCode.NONE, session_id, by_topic(answers), *sizes)


async def _wait(broker: Broker, fetch: "_Fetch", answers: Answers | None) -> _Reply:
    """The reply once there is enough or time is over; `answers` are what there was in memory."""
    reading = fetch.reading
    loop = asyncio.get_running_loop()
    until_s = loop.time() + min(fetch.request.max_wait_ms, LONGEST_WAIT_MS) / 1000
    if answers is None:
        answers = await reading.run()
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
    return _close(broker, fetch, answers)


def _nearer(broker: Broker, rack: str) -> Sequence[BrokerRow]:
    """The brokers of the client's zone, if there are any and this is none of them."""
    if not rack:
        return ()
    near = [row for row in placement.candidates(broker.brokers, rack) if row.zone == rack]
    return () if broker.config.node_id in [row.id for row in near] else near


class Reading:
    """Passes over the partitions of one fetch, in the order in which they are read.

    Partitions of which the client knows all are passed over by a look at the log's state in memory,
    so that a session of thousands of idle ones costs little. Only callers that may read a topic
    learn whether it exists.
    """

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: FetchRequest,
        places: Mapping[Place, SessionPartition],
    ) -> None:
        """`places` may change between passes."""
        self._broker = broker
        self._call = call
        self._committed = request.isolation_level == READ_COMMITTED
        self._knows_zstd = call.version >= _ZSTD_SINCE
        self._places = places
        self._most_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        metered = None if call.meter is None else call.meter.most_bytes()
        if metered is not None:
            self._most_bytes = min(self._most_bytes, metered)
        self._min_bytes = min(request.min_bytes, self._most_bytes)
        self._size_bytes = 0
        self._has_failed = False
        self.lagging_bytes = 0
        """What the last pass has read from storage."""

    @property
    def size_bytes(self) -> int:
        """What the last pass has read."""
        return self._size_bytes

    @property
    def is_enough(self) -> bool:
        """Whether the last pass is to be answered at once: enough bytes, or an error."""
        return self._has_failed or not self._places or self._size_bytes >= self._min_bytes

    def keys(self) -> list[PartitionKey]:
        """The partitions of topics that exist."""
        found = [(self._find(name), index) for name, index in self._places]
        return [(topic.id, index) for topic, index in found if topic is not None]

    def run_now(self) -> Answers | None:
        """What `run` would give, if all of it is in memory; else None."""
        self._begin()
        if len(self._places) >= _AT_A_TIME:
            return None
        for place, partition in self._places.items():
            if self._take_now(place, partition) is not None:
                return None
        return self._answers

    async def run(self) -> Answers:
        """Read; those may be left out of which the client knows all already."""
        self._begin()
        clock = self._broker.clock
        until_s = clock.monotonic_s() + LONGEST_READ_S
        for count, (place, partition) in enumerate(list(self._places.items()), start=1):
            if count % _AT_A_TIME == 0:
                await clock.sleep(0)  # others get their turn
            if self._size_bytes and clock.monotonic_s() > until_s:
                self._left_bytes = 0  # the rest lies far away, and the client asks for it again
            key = self._take_now(place, partition)
            if key is not None:
                read = await self._broker.log.read(key, **self._asked(partition))
                self.lagging_bytes += read.size_bytes
                self._take(place, read)
        return self._answers

    def _begin(self) -> None:
        self._topics: dict[str | bytes, Topic | ErrorCode] = {}
        self._answers: Answers = []
        self._left_bytes, self._size_bytes, self._has_failed = self._most_bytes, 0, False
        self.lagging_bytes = 0

    def _take_now(self, place: Place, partition: SessionPartition) -> PartitionKey | None:
        """Answer for a partition from memory; or the key to read, if its batches are not there."""
        name, index = place
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._readable(name)
        if partition.high_watermark >= 0 and self._is_known(topic, index, partition):
            return None
        leader_epoch = partition.wanted.leader_epoch
        if isinstance(topic, ErrorCode):
            self._answer(place, FetchReplyPartition(index, topic))
        elif not 0 <= index < topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._answer(place, FetchReplyPartition(index, error))
        elif leader_epoch > 0:
            error = ErrorCode.UNKNOWN_LEADER_EPOCH
            self._answer(place, FetchReplyPartition(index, error, aborted=None))
        else:
            key = topic.id, index
            read = self._broker.log.read_now(key, **self._asked(partition))
            if read is None:
                return key
            self._take(place, read)
        return None

    def _asked(self, partition: SessionPartition) -> dict[str, Any]:
        """The arguments of `Log.read` after the key."""
        wanted = partition.wanted
        return {
            "offset": wanted.offset,
            "max_bytes": max(0, min(wanted.max_bytes, self._left_bytes)),
            "at_least_one": not self._size_bytes,
            "committed": self._committed,
        }

    def _take(self, place: Place, read: Read) -> None:
        index = place[1]
        if read.error is not ErrorCode.NONE:
            # The log's start is where a reader that came too late can go on.
            error, start = read.error, read.log_start
            self._answer(place, FetchReplyPartition(index, error, log_start=start, aborted=None))
            return
        self._left_bytes -= read.size_bytes
        self._size_bytes += read.size_bytes
        aborted = [(row.producer_id, row.first_offset) for row in read.aborted]
        answer = FetchReplyPartition(
            index,
            ErrorCode.NONE,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start,
            read.parts,
            aborted=aborted if self._committed else None,
        )
        self._answer(place, answer)

    def _answer(self, place: Place, answer: FetchReplyPartition) -> None:
        self._has_failed = self._has_failed or answer.error != ErrorCode.NONE
        self._answers.append((place, answer))

    def redirected(self, near: Sequence[BrokerRow]) -> Answers:
        """For each partition the broker to ask instead."""
        answers: Answers = []
        for place in self._places:
            topic, index = self._readable(place[0]), place[1]
            if isinstance(topic, ErrorCode):
                answer = FetchReplyPartition(index, topic)
            elif not 0 <= index < topic.partitions:
                answer = FetchReplyPartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                key = (topic.id, index)
                state, there = self._broker.log.state(key), placement.leader(near, key).id
                end = state.high_watermark
                answer = FetchReplyPartition(
                    *(index, ErrorCode.NONE, end, end, state.log_start),
                    preferred_replica=there,
                    aborted=None,
                )
            answers.append((place, answer))
        return answers

    def _find(self, name: str | bytes) -> Topic | None:
        if isinstance(name, str):
            return self._broker.find_topic(name)
        return self._broker.find_topic(None, name)

    def _readable(self, name: str | bytes) -> Topic | ErrorCode:
        """The topic, or why it is not read."""
        topic = self._find(name)
        known = topic.name if topic is not None else name
        if isinstance(known, str) and not self._call.may(READ_TOPIC, known):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            by_name = isinstance(name, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        if not self._knows_zstd and topic.config.get(COMPRESSION_TYPE) == "zstd":
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return topic

    def _is_known(self, topic: Topic | ErrorCode, index: int, partition: SessionPartition) -> bool:
        """Whether the client knows of all that is in the partition."""
        if isinstance(topic, ErrorCode) or index >= topic.partitions:
            return False
        state = self._broker.log.state((topic.id, index))
        wanted = partition.wanted
        return (
            partition.high_watermark == state.high_watermark == wanted.offset
            and partition.log_start == state.log_start
            and wanted.leader_epoch <= 0
        )


class _Fetch(msgspec.Struct, frozen=True):
    """A fetch under way."""

    request: FetchRequest
    by_id: bool
    places: dict[Place, SessionPartition]
    reading: Reading
    principal: str
    session: Session | None = None
    """The session that it goes on with, if it does."""


API = Api(1, "Fetch", FETCH_VERSIONS, start=start, asks=[READ_TOPIC])
