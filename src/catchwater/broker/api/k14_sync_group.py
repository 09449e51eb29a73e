"""SyncGroup (14), v0-5: a member gets its assignment; the leader's request has all of them.

Version notes: v3 (KIP-345) adds static members, v5 (KIP-559) the protocol type and name, which
must be the group's.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation, Whole, the_group
from catchwater.wire.errors import ErrorCode

_NAMES_PROTOCOL_SINCE = 5


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Wait for the leader's assignment."""
    protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if call.version >= _NAMES_PROTOCOL_SINCE and None in protocol:
        return _refuse(call, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    instance_id = getattr(request, "group_instance_id", None)
    synced = await broker.groups.sync(
        request.group_id,
        (request.member_id, instance_id, request.generation_id),
        protocol,
        {a.member_id: bytes(a.assignment) for a in request.assignments},
    )
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"error_code": error, "assignment": b""}


API = Api(
    14, "SyncGroup", range(0, 6), handle, refuse=_refuse, asks=[Whole(Operation.READ, the_group)]
)
