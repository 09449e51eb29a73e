"""DescribeGroups (15), v0-6: a group's state and members.

Version notes: v4 (KIP-345) adds instance ids, v6 (KIP-1043) says GROUP_ID_NOT_FOUND for a group
without members, which before was shown as Dead.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.groups import Group, Member
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    return {"groups": [_group(broker, name, call.version) for name in request.groups]}


def _group(broker: Broker, group_id: str, version: int) -> dict[str, Any]:
    group = broker.groups.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        message = f"Group {group_id} has no members." if version >= 6 else None
        return {
            "error_code": error,
            "error_message": message,
            "group_id": group_id,
            "group_state": "Dead",
            "protocol_type": "",
            "protocol_data": "",
        }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol or "",
        "members": [_member(group, member) for member in group.members.values()],
    }


def _member(group: Group, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata(group.protocol),
        "member_assignment": member.assignment,
    }


API = Api(15, "DescribeGroups", range(0, 7), handle)
