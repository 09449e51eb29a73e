"""ConsumerGroupDescribe (69), v0-1: groups of the consumer protocol and their members (KIP-848).

A group of the classic protocol is GROUP_ID_NOT_FOUND here; DescribeGroups shows it. A group with a
topic that the caller may not DESCRIBE is refused as a whole.

Version notes: v1 adds the type of a member (KIP-1099); all are of the consumer protocol here.
"""

from typing import Any

from catchwater.broker.api.k68_consumer_group_heartbeat import assignment
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.coordination.consumer.group import ConsumerGroup
from catchwater.broker.coordination.consumer.member import NOTHING, Member, Partitions
from catchwater.broker.gate import ByHandler, Each, Operation, ResourceType, named
from catchwater.wire.errors import ErrorCode
from catchwater.wire.metadata import OPERATIONS_NOT_ASKED

_CONSUMER = 1
_DESCRIBE_TOPIC = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each group, or give its error."""
    tells_operations = request.include_authorized_operations
    groups = [
        await _group(broker, call, name, tells_operations)
        async for name in Turns(broker.clock).over(request.group_ids)
    ]
    return {"groups": groups}


async def _group(
    broker: Broker, call: Call, group_id: str, tells_operations: bool
) -> dict[str, Any]:
    error = await broker.groups.check_described(group_id)
    if error is not ErrorCode.NONE:
        return _nothing(group_id, error)
    group = broker.groups.consumer_groups.get(group_id)
    if group is None:
        message = f"There is no group {group_id} of the consumer protocol."
        return _nothing(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
    if not all(call.may(_DESCRIBE_TOPIC, name) for name in _topics(group)):
        message = "The group has topics that the caller may not DESCRIBE."
        return _nothing(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
    operations = call.operations(ResourceType.GROUP, group_id) if tells_operations else None
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(broker, group, member) for member in group.members.values()],
        "authorized_operations": OPERATIONS_NOT_ASKED if operations is None else operations,
    }


def _topics(group: ConsumerGroup) -> frozenset[str]:
    return frozenset().union(*(member.topics for member in group.members.values()))


def _nothing(group_id: str, error: ErrorCode, message: str | None = None) -> dict[str, Any]:
    fields = {"group_id": group_id, "group_state": "", "group_epoch": 0, "assignment_epoch": 0}
    return fields | {"assignor_name": ""} | error_fields(error, message)


def _member(broker: Broker, group: ConsumerGroup, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.standing.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": tuple(sorted(member.names)),
        "subscribed_topic_regex": member.pattern or "",
        "assignment": _assignment(broker, member.standing.assigned),
        "target_assignment": _assignment(broker, group.target.get(member.id, NOTHING)),
        "member_type": _CONSUMER,
    }


def _assignment(broker: Broker, partitions: Partitions) -> dict[str, Any]:
    topics = assignment(partitions)["topic_partitions"]
    for topic in topics:
        found = broker.log.topics.by_id(topic["topic_id"])
        topic["topic_name"] = found.name if found else ""
    return {"topic_partitions": topics}


API = Api(
    69,
    "ConsumerGroupDescribe",
    range(0, 2),
    handle,
    asks=[
        Each(Operation.DESCRIBE, named(ResourceType.GROUP), "group_ids", "groups", _nothing),
        _DESCRIBE_TOPIC,
    ],
)
