"""DescribeGroups (15), v0-6: a group's state and members.

A group without members is Empty while it has committed positions, and does not exist without. One
of the consumer protocol does not exist here either: ConsumerGroupDescribe shows it.

Version notes: v4 (KIP-345) adds instance ids, v6 (KIP-1043) says GROUP_ID_NOT_FOUND for a group
that does not exist, which before was shown as Dead.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.coordination.groups import Group
from catchwater.broker.coordination.members import GroupState, Member
from catchwater.broker.gate import Each, Operation, ResourceType, named
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each group, or give its error."""
    tells_operations = getattr(request, "include_authorized_operations", False)
    groups = []
    async for name in Turns(broker.clock).over(request.groups):
        fields = await _group(broker, call, name)
        if tells_operations and fields["error_code"] is ErrorCode.NONE:
            fields["authorized_operations"] = call.operations(ResourceType.GROUP, name)
        groups.append(fields)
    return {"groups": groups}


async def _group(broker: Broker, call: Call, group_id: str) -> dict[str, Any]:
    error = await broker.groups.check_described(group_id)
    if error is not ErrorCode.NONE:
        return _nothing(group_id, error)
    group = broker.groups.groups.get(group_id)
    if group is None:
        return await _without_members(broker, group_id, call.version)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol or "",
        "members": [_member(group, member) for member in group.members.values()],
    }


async def _without_members(broker: Broker, group_id: str, version: int) -> dict[str, Any]:
    is_classic = group_id not in broker.groups.consumer_groups
    exists = is_classic and bool(await broker.log.committed(group_id))
    says_so = not exists and version >= 6
    return {
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND if says_so else ErrorCode.NONE,
        "error_message": f"There is no classic group {group_id}." if says_so else None,
        "group_id": group_id,
        "group_state": GroupState.EMPTY.value if exists else "Dead",
        "protocol_type": "consumer" if exists else "",
        "protocol_data": "",
    }


def _nothing(group_id: str, error: ErrorCode) -> dict[str, Any]:
    fields = {"group_id": group_id, "group_state": "", "protocol_type": "", "protocol_data": ""}
    return fields | error_fields(error)


def _member(group: Group, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata(group.protocol),
        "member_assignment": member.assignment,
    }


API = Api(
    15,
    "DescribeGroups",
    range(0, 7),
    handle,
    asks=[Each(Operation.DESCRIBE, named(ResourceType.GROUP), "groups", "groups", _nothing)],
)
