"""CreatePartitions (37), v0-3: adds partitions to a topic, durable when answered (KIP-195).

Partitions are never removed. Another broker that has not read the catalog yet answers that a new
partition is unknown, and clients retry. Version notes: v2 is flexible, v3 may answer that a quota
is exceeded, which is not used.

A manual assignment may name any live brokers: each serves every partition.
"""

from collections import Counter
from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import Each, Operation, the_topic
from catchwater.catalog.errors import CatalogRetriable, TopicUnknown
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Extend each topic independently; a request may succeed in part."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    once = {topic.name: topic for topic in request.topics}.values()
    async for wanted in Turns(broker.clock).over(once):
        error, message = ErrorCode.INVALID_REQUEST, "The request names this topic twice."
        if times[wanted.name] == 1:
            error, message = await _grow(broker, wanted, request.validate_only)
        results.append({"name": wanted.name, **error_fields(error, message)})
    return {"results": results}


async def _grow(broker: Broker, wanted: Any, validate_only: bool) -> tuple[ErrorCode, str]:
    try:
        await broker.log.look_up([wanted.name])
        partitions = broker.log.topics.find(wanted.name).partitions
        error, message = _refusal(broker, wanted, partitions)
        if error is ErrorCode.NONE and not validate_only:
            await broker.log.add_partitions(wanted.name, wanted.count)
    except TopicUnknown as unknown:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(unknown)
    except CatalogRetriable as reason:
        return ErrorCode.KAFKA_STORAGE_ERROR, str(reason)
    return error, message


def _refusal(broker: Broker, wanted: Any, partitions: int) -> tuple[ErrorCode, str]:
    if not partitions < wanted.count <= placement.MAX_PARTITIONS:
        return ErrorCode.INVALID_PARTITIONS, (
            f"The topic has {partitions} partitions and may get up to {placement.MAX_PARTITIONS}; "
            f"{wanted.count} is not more, or too many."
        )
    if wanted.assignments is not None:
        added = wanted.count - partitions
        lists = [assignment.broker_ids for assignment in wanted.assignments]
        reason = placement.refused_assignments(broker, lists)
        if len(lists) != added:
            reason = f"{added} partitions would be new, but {len(lists)} are assigned."
        if reason is not None:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason
    return ErrorCode.NONE, ""


def _refused(wanted: Any, error: ErrorCode) -> Fields:
    return {"name": wanted.name, **error_fields(error, "")}


API = Api(
    37,
    "CreatePartitions",
    range(0, 4),
    handle,
    asks=[Each(Operation.ALTER, the_topic, "topics", "results", _refused)],
)
