"""Passes over the partitions of a fetch: what each is answered, within the bounds of the request.

Partitions of which the client knows all are passed over by a look at the log's state in memory, so
that a session of thousands of idle ones costs little. Whether a topic exists is told only who may
read it.
"""

from collections.abc import Mapping, Sequence

from catchwater.broker import zones
from catchwater.broker.broker import Broker, Call
from catchwater.broker.fetching.sessions import Kept, Place
from catchwater.broker.gate import Operation, ResourceType, Seen
from catchwater.catalog.rows import BrokerRow, PartitionKey, Topic
from catchwater.log.write.rules import COMPRESSION_TYPE
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import FetchPartition, FetchReplyPartition, FetchRequest

LONGEST_READ_S = 0.5
"""A reply that has something leaves out partitions that would be read after so long."""

READ_COMMITTED = 1
READ_TOPIC = Seen(Operation.READ, ResourceType.TOPIC)
_AT_A_TIME = 1000
_ZSTD_SINCE = 10

Answers = list[tuple[Place, FetchReplyPartition]]


class Reading:
    """The partitions of one fetch, in the order in which they are read."""

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: FetchRequest,
        places: Mapping[Place, Kept],
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
        for count, (place, kept) in enumerate(list(self._places.items()), start=1):
            if count % _AT_A_TIME == 0:
                await clock.sleep(0)  # others get their turn
            name, index = place
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = self._readable(name)
            if kept.high_watermark >= 0 and self._is_known(topic, index, kept):
                continue
            if self._size_bytes and clock.monotonic_s() > until_s:
                left = 0  # the rest lies far away, and the client asks for it again
            answer = await self._partition(topic, kept.wanted, left)
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
                state, there = self._broker.log.state(key), zones.leader(near, key).id
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
        told = topic.name if topic is not None else name
        if isinstance(told, str) and not self._call.may(READ_TOPIC, told):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            by_name = isinstance(name, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        if not self._knows_zstd and topic.config.get(COMPRESSION_TYPE) == "zstd":
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return topic

    def _is_known(self, topic: Topic | ErrorCode, index: int, kept: Kept) -> bool:
        """Whether the client was told of all that is in the partition."""
        if isinstance(topic, ErrorCode) or index >= topic.partitions:
            return False
        state = self._broker.log.state((topic.id, index))
        _, offset, _, leader_epoch = kept.wanted
        return (
            kept.high_watermark == state.high_watermark == offset
            and kept.log_start == state.log_start
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
