"""LeaveGroup (13), v0-5: removes members; the group rebalances without waiting for a timeout.

Version notes: v3 (KIP-345) takes several members, also by instance id alone; v5 (KIP-800) a
reason, which is not used.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.coordination.members import is_legal_group_id
from catchwater.broker.gate import Operation, Whole, the_group
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Remove the members; each has its own answer."""
    group_id = request.group_id
    if not is_legal_group_id(group_id):
        return {"error_code": ErrorCode.INVALID_GROUP_ID, "members": []}
    if call.version < 3:
        return {"error_code": await broker.groups.leave(group_id, request.member_id, None)}
    members = [
        {
            "member_id": m.member_id,
            "group_instance_id": m.group_instance_id,
            "error_code": await broker.groups.leave(group_id, m.member_id, m.group_instance_id),
        }
        async for m in Turns(broker.clock).over(request.members)
    ]
    return {"error_code": ErrorCode.NONE, "members": members}


API = Api(13, "LeaveGroup", range(0, 6), handle, asks=[Whole(Operation.READ, the_group)])
