"""ListOffsets (2), v1-6: first, last, or by time.

A timestamp of -1 asks for the end, -2 for the log's start; any other for the first record that is
not older, found by batch headers and the one batch that holds it. The end is the high watermark, or
the last stable offset for a client that reads committed records only. Among several brokers it is
asked of the catalog; one that cannot reach it answers KAFKA_STORAGE_ERROR (retriable).

Version notes: v2 adds the isolation level, v4 leader epochs, of which there is one, 0.

Not implemented: v7 and later (-3, the newest timestamp; -4 to -6, tiers).
"""

from collections.abc import Sequence
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation
from catchwater.catalog.base import CatalogUnavailable
from catchwater.log.read.reader import Unreadable
from catchwater.wire.errors import ErrorCode

LATEST, EARLIEST = -1, -2
READ_COMMITTED = 1
_NOT_FOUND = (-1, -1)
_NOTHING = {"offset": -1, "timestamp": -1, "leader_epoch": -1}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer every partition for itself."""
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    may = {t.name: broker.may(call.principal, Operation.DESCRIBE, t.name) for t in request.topics}
    allowed = [topic for topic in request.topics if may[topic.name]]
    asked = [(topic.name, p.partition_index) for topic in allowed for p in topic.partitions]
    in_touch = await see_now(broker, asked)
    untold = ErrorCode.NONE if in_touch else ErrorCode.KAFKA_STORAGE_ERROR
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    await _partition(broker, topic.name, p, committed)
                    if not (error := untold if may[topic.name] else denied)
                    else _NOTHING | {"partition_index": p.partition_index, "error_code": error}
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def see_now(broker: Broker, asked: Sequence[tuple[str, int]]) -> bool:
    """Ask the catalog where these partitions, (topic, index) each, end; whether it answered."""
    try:
        await broker.log.look_up(name for name, _ in asked)
        found = ((broker.find_topic(name), index) for name, index in asked)
        await broker.log.refresh([(topic.id, index) for topic, index in found if topic])
    except CatalogUnavailable:
        return False
    return True


async def _partition(broker: Broker, name: str, wanted: Any, committed: bool) -> dict[str, Any]:
    topic = broker.find_topic(name)
    fields = _NOTHING | {"partition_index": wanted.partition_index}
    if topic is None or not 0 <= wanted.partition_index < topic.partitions:
        return fields | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if getattr(wanted, "current_leader_epoch", -1) > 0:
        return fields | {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    key = (topic.id, wanted.partition_index)
    state = broker.log.state(key)
    end = state.high_watermark
    if committed:
        end = await broker.log.stability.last_stable_offset(key)
    if wanted.timestamp == LATEST:
        offset, timestamp = end, -1
    elif wanted.timestamp == EARLIEST:
        offset, timestamp = state.log_start, -1
    elif wanted.timestamp < 0:
        return fields | {"error_code": ErrorCode.INVALID_REQUEST}
    else:
        try:
            found = await broker.log.offset_for_timestamp(key, wanted.timestamp)
        except Unreadable as error:
            return fields | {"error_code": error.code}
        offset, timestamp = found if found is not None and found[0] < end else _NOT_FOUND
    return fields | {
        "error_code": ErrorCode.NONE,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": 0 if offset >= 0 else -1,
    }


API = Api(2, "ListOffsets", range(1, 7), handle)
