"""ListGroups (16), v0-5: the groups that have members now.

Version notes: v4 (KIP-518) filters by state, v5 (KIP-848) by type; all groups here are classic.

Not implemented: groups that have only committed offsets are not listed.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_TYPE = "classic"


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List what the filters leave."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": _TYPE,
            }
            for group in broker.groups.groups.values()
            if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
        ],
    }


API = Api(16, "ListGroups", range(0, 6), handle)
