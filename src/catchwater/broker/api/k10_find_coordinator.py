"""FindCoordinator (10), v0-5: which broker coordinates a group or a transactional id.

The name alone decides among the live brokers that are not about to stop; see `broker/zones.py`.

Version notes: v1 adds the key type, v4 (KIP-699) asks for several keys at once. Share groups
(type 2, KIP-932) are not served.
"""

from typing import Any

from catchwater.broker import zones
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_GROUP, _TRANSACTION = 0, 1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Name a broker for each key."""
    if call.version >= 4:
        keys = request.coordinator_keys
        return {"coordinators": [_coordinator(broker, request.key_type, key) for key in keys]}
    return _coordinator(broker, getattr(request, "key_type", _GROUP), request.key)


def _coordinator(broker: Broker, key_type: int, key: str) -> dict[str, Any]:
    if key_type not in (_GROUP, _TRANSACTION):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "Groups and transactional ids have coordinators here, nothing else.",
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    row = zones.coordinator(broker.brokers, key)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "key": key,
        "node_id": row.id,
        "host": row.host,
        "port": row.port,
    }


API = Api(10, "FindCoordinator", range(0, 6), handle, notes="no share groups")
