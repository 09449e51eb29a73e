"""Fetch (1), v4-18: whole batches from the offsets asked for, waiting for `min_bytes` if need be.

A full fetch is served in the order of its partitions (the client rotates them), an incremental one
in the order of its session (`broker/fetch_sessions.py`, KIP-227), which puts those behind that
had records. Batches are gathered until `max_bytes`; the first batch of the request is sent whatever
its size, so that nobody is stuck behind a large one, and only the first, so that a reply has a
bound. They go out as the buffers the log returns.

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
from collections.abc import Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Later, LaterOf
from catchwater.broker.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    Place,
    SessionPartition,
    by_topic,
    next_epoch,
    placed,
)
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.catalog.rows import BrokerRow, PartitionKey, Topic
from catchwater.log.topic_settings import COMPRESSION_TYPE
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import (
    FETCH_VERSIONS,
    FLEXIBLE_SINCE,
    FetchPartition,
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
T = TypeVar("T")


class _Reply(NamedTuple):
    """With an error of the request nothing else."""

    error: ErrorCode
    session_id: int = NO_SESSION
    topics: Sequence[FetchReplyTopic] = ()


def start(broker: Broker, call: Call) -> Later:
    """Read the request, let go of its frame, and gather the reply: at once if it is in memory."""
    body = body_of(call.frame.data, call.header, call.version >= FLEXIBLE_SINCE)
    request = parse_fetch(body, call.version)
    call.frame.release()
    future = begin(_answer(broker, request, call))
    return LaterOf(future, partial(_encode, call.correlation_id, call.version))


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


async def _gather(broker: Broker, request: FetchRequest, reading: "Reading") -> Answers:
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
        self._min_bytes = min(request.min_bytes, self._most_bytes)
        self._size_bytes = 0
        self._has_failed = False

    @property
    def is_enough(self) -> bool:
        """Whether the last pass is to be answered at once: enough bytes, or an error to tell."""
        return self._has_failed or not self._places or self._size_bytes >= self._min_bytes

    def keys(self) -> list[PartitionKey]:
        """The partitions whose topic there is."""
        found = [(self._find(name), index) for name, index in self._places]
        return [(topic.id, index) for topic, index in found if topic is not None]

    async def run(self) -> Answers:
        """Read; those may be left out of which the client knows all already."""
        topics: dict[str | bytes, Topic | ErrorCode] = {}
        answers: Answers = []
        left, self._size_bytes, self._has_failed = self._most_bytes, 0, False
        clock = self._broker.clock
        until_s = clock.monotonic_s() + LONGEST_READ_S
        for count, (place, partition) in enumerate(list(self._places.items()), start=1):
            if count % _AT_A_TIME == 0:
                await clock.sleep(0)  # others get their turn
            name, index = place
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = self._readable(name)
            if partition.high_watermark >= 0 and self._is_known(topic, index, partition):
                continue
            if self._size_bytes and clock.monotonic_s() > until_s:
                left = 0  # the rest lies far away, and the client asks for it again
            answer = await self._partition(topic, partition.wanted, left)
            size_bytes = sum(map(len, answer.records))
            left -= size_bytes
            self._size_bytes += size_bytes
            self._has_failed = self._has_failed or answer.error != ErrorCode.NONE
            answers.append((place, answer))
        return answers

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
        _, offset, _, leader_epoch = partition.wanted
        return (
            partition.high_watermark == state.high_watermark == offset
            and partition.log_start == state.log_start
            and leader_epoch <= 0
        )

    async def _partition(
        self, topic: Topic | ErrorCode, wanted: FetchPartition, left: int
    ) -> FetchReplyPartition:
        index, offset, wanted_bytes, leader_epoch = wanted
        if isinstance(topic, ErrorCode):
            return FetchReplyPartition(index, topic)
        if not 0 <= index < topic.partitions:
            return FetchReplyPartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if leader_epoch > 0:
            return FetchReplyPartition(index, ErrorCode.UNKNOWN_LEADER_EPOCH, aborted=None)
        read = await self._broker.log.read(
            (topic.id, index),
            offset,
            max(0, min(wanted_bytes, left)),
            at_least_one=not self._size_bytes,
            committed=self._committed,
        )
        if read.error is not ErrorCode.NONE:
            # Where the log begins tells a reader that came too late where to go on.
            return FetchReplyPartition(index, read.error, log_start=read.log_start, aborted=None)
        aborted = [(row.producer_id, row.first_offset) for row in read.aborted]
        return FetchReplyPartition(
            index,
            ErrorCode.NONE,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start,
            read.parts,
            aborted=aborted if self._committed else None,
        )


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run `work` up to where it first waits; the rest, if there is one, becomes a task.

    As Python's own eager tasks from 3.12 on: a read from memory waits for nothing, and a task for
    it, with the turn of the event loop until it begins, would cost more than the read. Up to the
    first wait it has no task of its own: it must not ask for one, as `asyncio.timeout` does.
    """
    try:
        awaited = work.send(None)
    except StopIteration as ended:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.set_result(ended.value)
        return future
    except Exception as error:  # noqa: BLE001 - raised where the result is asked for
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future
    task = asyncio.ensure_future(_rest(_Rest(work, awaited)))
    # A task that is cancelled before its first turn never comes to `work`, which has begun.
    task.add_done_callback(lambda _: work.close())
    return task


class _Rest:
    """What is left of a coroutine that has begun to wait."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except (Exception, asyncio.CancelledError) as thrown:  # noqa: BLE001 - the coroutine's
                    awaited = self._work.throw(thrown)
                else:
                    awaited = self._work.send(sent)
        except StopIteration as ended:
            return ended.value


async def _rest(rest: _Rest) -> Any:
    return await rest


API = Api(1, "Fetch", FETCH_VERSIONS, start=start, asks=[READ_TOPIC])
