"""ListGroups (16), v0-5: the groups that have members now, and those that have positions.

Of several brokers each lists the groups it coordinates.

Version notes: v4 (KIP-518) filters by state, v5 (KIP-848) by type; all groups here are classic.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.members import GroupState
from catchwater.wire.errors import ErrorCode

_TYPE = "classic"


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List what the filters leave."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    stored = await broker.log.groups()
    mine = [group_id for group_id in stored if broker.groups.is_mine(group_id)]
    groups = {group_id: ("consumer", GroupState.EMPTY) for group_id in mine}
    for group in broker.groups.groups.values():
        groups[group.id] = (group.protocol_type or "", group.state)
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group_id,
                "protocol_type": protocol_type,
                "group_state": state.value,
                "group_type": _TYPE,
            }
            for group_id, (protocol_type, state) in sorted(groups.items())
            if (not states or state.value.lower() in states) and (not types or _TYPE in types)
        ],
    }


API = Api(16, "ListGroups", range(0, 6), handle)
