"""OffsetDelete (47), v0: deletes a group's offsets in topics it does not read (KIP-496)."""

from typing import Any

from catchwater.broker.broker import (
    Api,
    Broker,
    Call,
    Fields,
    Turns,
    errors_by_partition,
    refused_by_partition,
)
from catchwater.broker.coordination.held import MOVED
from catchwater.broker.gate import Each, Operation, Whole, the_group, the_topic
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Delete the offsets that may be deleted, then answer each."""
    async with broker.groups.in_order(request.group_id):
        error = await _refusal(broker, request.group_id)
        if error is not ErrorCode.NONE:
            return {"error_code": error, "topics": []}
        turns = Turns(broker.clock)
        errors = {
            (topic.name, p.partition_index): _check(broker, request.group_id, topic.name, p)
            async for topic in turns.over(request.topics)
            async for p in turns.over(topic.partitions)
        }
        keys = [key for key, found in errors.items() if found is ErrorCode.NONE]
        try:
            epoch = broker.groups.claim_epoch(request.group_id)
            await broker.log.delete_offsets(request.group_id, keys, epoch)
        except MOVED:
            broker.groups.give_up(request.group_id)
            return {"error_code": ErrorCode.NOT_COORDINATOR, "topics": []}
        except CatalogRetriable:
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "topics": []}
    return {"error_code": ErrorCode.NONE, **errors_by_partition(request, errors)}


async def _refusal(broker: Broker, group_id: str) -> ErrorCode:
    """Why the whole request is refused, or NONE."""
    error = await broker.groups.hold(group_id)
    if error is not ErrorCode.NONE:
        return error
    group = broker.groups.groups.get(group_id)
    if group is not None and group.members and not group.is_of_consumers:
        return ErrorCode.NON_EMPTY_GROUP
    if broker.groups.has_members(group_id) or await broker.log.committed(group_id):
        return ErrorCode.NONE
    return ErrorCode.GROUP_ID_NOT_FOUND


def _check(broker: Broker, group_id: str, name: str, partition: Any) -> ErrorCode:
    topic = broker.find_topic(name)
    if topic is None or not 0 <= partition.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.groups.is_subscribed(group_id, name):
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


API = Api(
    47,
    "OffsetDelete",
    range(0, 1),
    handle,
    asks=[
        Whole(Operation.DELETE, the_group),
        Each(Operation.READ, the_topic, "topics", "topics", refused_by_partition),
    ],
)
