"""FindCoordinator (10), v0-6: which broker coordinates a group or a transactional id.

A hash of the name decides among the live brokers that are not stopping: `broker/placement.py`.

Version notes: v1 adds the key type, v4 (KIP-699) asks for several keys at once, v6 knows share
groups (type 2, KIP-932), which are not served: INVALID_REQUEST.
"""

from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import DENIED, ByHandler, Operation, ResourceType
from catchwater.wire.errors import ErrorCode

_GROUP, _TRANSACTION = 0, 1
_ASKS = {
    _GROUP: ByHandler(Operation.DESCRIBE, ResourceType.GROUP),
    _TRANSACTION: ByHandler(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Name a broker for each key."""
    if call.version >= 4:
        found = [
            {"key": key, **_coordinator(broker, call, request.key_type, key)}
            async for key in Turns(broker.clock).over(request.coordinator_keys)
        ]
        return {"coordinators": found}
    return _coordinator(broker, call, getattr(request, "key_type", _GROUP), request.key)


def _coordinator(broker: Broker, call: Call, key_type: int, key: str) -> dict[str, Any]:
    if key_type not in _ASKS:
        message = "Groups and transactional ids have coordinators here, nothing else."
        return _nowhere(ErrorCode.INVALID_REQUEST, message)
    ask = _ASKS[key_type]
    if not call.may(ask, key):
        return _nowhere(DENIED[ask.type], f"{call.principal} may not DESCRIBE {key}.")
    row = placement.coordinator(broker.brokers, key)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": row.id,
        **call.place(row)._asdict(),
    }


def _nowhere(error: ErrorCode, message: str) -> dict[str, Any]:
    return {"node_id": -1, "host": "", "port": -1, **error_fields(error, message)}


API = Api(
    10, "FindCoordinator", range(0, 7), handle, notes="no share groups", asks=[*_ASKS.values()]
)
