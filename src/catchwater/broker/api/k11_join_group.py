"""JoinGroup (11), v0-9: take part in a group's next generation. Rules: `coordination/groups.py`.

Version notes: v1 adds the rebalance timeout (before, the session timeout serves for both), v4
(KIP-394) makes a new member come back with the id it was given, v5 (KIP-345) adds static members,
v7 the protocol type in the reply, v8 (KIP-800) a reason, which is not used, v9 tells a returning
static leader to skip the assignment.
"""

from datetime import timedelta
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.members import (
    Join,
    JoinReply,
    is_legal_group_id,
    is_legal_member_name,
)
from catchwater.broker.gate import Operation, Whole, the_group
from catchwater.wire.errors import ErrorCode

MAX_PROTOCOLS = 64
MAX_METADATA_BYTES = 1024 * 1024
_LONGEST_CLIENT_ID = 64


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Wait for the next generation, or refuse."""
    error = _refusal(request)
    if error is not ErrorCode.NONE:
        return _refuse(call, request, error)
    session_timeout_ms = _ms(request.session_timeout)
    client_id = (call.header.client_id or "")[:_LONGEST_CLIENT_ID]
    join = Join(
        member_id=request.member_id,
        fresh_id=f"{client_id}-{broker.clock.uuid()}",
        instance_id=getattr(request, "group_instance_id", None),
        client_id=client_id,
        client_host=call.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=_ms(getattr(request, "rebalance_timeout", request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
        must_return_with_id=call.version >= 4,
    )
    return _fields(await broker.groups.join(request.group_id, join), call.version)


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _refusal(request: Any) -> ErrorCode:
    if not is_legal_group_id(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = (request.member_id or None, getattr(request, "group_instance_id", None))
    if not all(name is None or is_legal_member_name(name) for name in names):
        return ErrorCode.INVALID_REQUEST
    metadata_bytes = sum(len(p.name) + len(p.metadata) for p in request.protocols)
    if len(request.protocols) > MAX_PROTOCOLS or metadata_bytes > MAX_METADATA_BYTES:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return _fields(JoinReply(error, request.member_id), call.version)


def _fields(joined: JoinReply, version: int) -> Fields:
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        # Nullable from v7 on only.
        "protocol_name": joined.protocol if version >= 7 else joined.protocol or "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


API = Api(
    11, "JoinGroup", range(0, 10), handle, refuse=_refuse, asks=[Whole(Operation.READ, the_group)]
)
