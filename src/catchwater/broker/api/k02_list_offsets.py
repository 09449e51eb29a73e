"""ListOffsets (2), v1-11: first, last, by time, or the newest time.

A timestamp of -1 asks for the end, -2 for the log's start, -3 for the record with the largest
timestamp (v7, KIP-734); any other for the first record that is not older, found by batch headers
and by decoding the one batch that holds it. The end is the high watermark, or for a client that
reads committed records only the last stable offset, beyond which no record is found. With several
brokers the catalog is asked for it; a broker that cannot reach the catalog answers
KAFKA_STORAGE_ERROR (retriable).

The log has one tier of storage, so the answers are those of a Kafka topic without tiers: the
earliest local offset (-4, v8, KIP-405) is the log's start, and the last tiered offset (-5, v9,
KIP-1005) and the first one to be tiered (-6, v11, KIP-1023) do not exist, -1. A timestamp that the
version does not have is UNSUPPORTED_VERSION, a partition asked for twice INVALID_REQUEST.

Version notes: v2 adds the isolation level, v4 leader epochs (the only one here is 0), v10 a timeout
for offsets that must be read from storage (KIP-1075): REQUEST_TIMED_OUT.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.gate import Each, Operation, the_topic
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import PartitionKey
from catchwater.log.read.reader import Unreadable
from catchwater.wire.errors import ErrorCode

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LAST_TIERED, FIRST_PENDING = range(-1, -7, -1)
KNOWN_SINCE: Mapping[int, int] = {
    LATEST: 1,
    EARLIEST: 1,
    NEWEST: 7,
    EARLIEST_LOCAL: 8,
    LAST_TIERED: 9,
    FIRST_PENDING: 11,
}
"""The first version that has each of the special timestamps."""

READ_COMMITTED = 1
_TIMEOUT_SINCE, _NO_TIME = 10, timedelta(0)
_NOT_FOUND = (-1, -1)
_NOTHING = {"offset": -1, "timestamp": -1, "leader_epoch": -1}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer every partition for itself."""
    asked = [(topic.name, p.partition_index) for topic in request.topics for p in topic.partitions]
    in_touch = await see_now(broker, asked)
    catalog_error = ErrorCode.NONE if in_touch else ErrorCode.KAFKA_STORAGE_ERROR
    times = Counter(asked)
    until_s = _until_s(call, request)

    async def answer(name: str, wanted: Any) -> dict[str, Any]:
        fields = _NOTHING | {"partition_index": wanted.partition_index}
        error = catalog_error
        if times[name, wanted.partition_index] > 1:
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            return fields | {"error_code": error}
        try:
            async with asyncio.timeout_at(until_s):
                return fields | await _partition(broker, call.version, request, name, wanted)
        except TimeoutError:
            return fields | {"error_code": ErrorCode.REQUEST_TIMED_OUT}

    turns, topics = Turns(broker.clock), []
    async for topic in turns.over(request.topics):
        partitions = turns.over(_once(topic.partitions))
        answers = [await answer(topic.name, wanted) async for wanted in partitions]
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


def _refused(topic: Any, error: ErrorCode) -> Fields:
    partitions = [
        {**_NOTHING, "partition_index": p.partition_index, "error_code": error}
        for p in _once(topic.partitions)
    ]
    return {"name": topic.name, "partitions": partitions}


def _once(partitions: Sequence[Any]) -> list[Any]:
    """The partitions without repetitions: one that is named twice is refused once."""
    return list({wanted.partition_index: wanted for wanted in partitions}.values())


def _until_s(call: Call, request: Any) -> float | None:
    """When the client's timeout ends, by the event loop's clock; None without a timeout."""
    if call.version < _TIMEOUT_SINCE or request.timeout <= _NO_TIME:
        return None
    return float(asyncio.get_running_loop().time() + request.timeout.total_seconds())


async def see_now(broker: Broker, asked: Sequence[tuple[str, int]]) -> bool:
    """Read the ends of these partitions, (topic, index), from the catalog; whether it answered."""
    try:
        await broker.log.look_up(name for name, _ in asked)
        found = ((broker.find_topic(name), index) for name, index in asked)
        await broker.log.refresh([(topic.id, index) for topic, index in found if topic])
    except CatalogRetriable:
        return False
    return True


async def _partition(
    broker: Broker, version: int, request: Any, name: str, wanted: Any
) -> dict[str, Any]:
    topic = broker.find_topic(name)
    if topic is None or not 0 <= wanted.partition_index < topic.partitions:
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if getattr(wanted, "current_leader_epoch", -1) > 0:
        return {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    if wanted.timestamp < 0 and version < KNOWN_SINCE.get(wanted.timestamp, version + 1):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    try:
        offset, timestamp = await _find(
            broker, (topic.id, wanted.partition_index), wanted.timestamp, committed
        )
    except Unreadable as error:
        return {"error_code": error.code}
    return {
        "error_code": ErrorCode.NONE,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": 0 if offset >= 0 else -1,
    }


async def _find(
    broker: Broker, key: PartitionKey, timestamp: int, committed: bool
) -> tuple[int, int]:
    """The offset asked for and its timestamp; -1 for either if none. Raises `Unreadable`."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return broker.log.state(key).log_start, -1
    if timestamp in (LAST_TIERED, FIRST_PENDING):
        return _NOT_FOUND
    end = broker.log.state(key).high_watermark
    if committed:
        end = await broker.log.stability.last_stable_offset(key)
    if timestamp == LATEST:
        return end, -1
    newest = timestamp == NEWEST
    search = broker.log.newest(key) if newest else broker.log.offset_for_timestamp(key, timestamp)
    found = await search
    if found is None or found[0] >= end:
        return _NOT_FOUND
    # The batch that holds the log's start still has the records before it.
    return max(found[0], broker.log.state(key).log_start), found[1]


API = Api(
    2,
    "ListOffsets",
    range(1, 12),
    handle,
    asks=[Each(Operation.DESCRIBE, the_topic, "topics", "topics", _refused)],
)
