"""DescribeAcls (29), v1-3: there are no ACLs; a gate decides (`gate.py`).

Every version answers as Kafka without an authorizer, SECURITY_DISABLED, so that tools and
frameworks see that ACLs are not used; without this API they would take the broker for too old.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import MalformedMessage

_UNKNOWN = 0


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Say that ACLs are not in use."""
    kinds = (request.resource_type_filter, request.pattern_type_filter)
    if _UNKNOWN in (*kinds, request.operation, request.permission_type):
        raise MalformedMessage("A filter of ACLs has UNKNOWN elements.")  # as Kafka takes it
    message = "No authorizer is configured: this broker has no ACLs."
    return error_fields(ErrorCode.SECURITY_DISABLED, message) | {"resources": ()}


API = Api(
    29,
    "DescribeAcls",
    range(1, 4),
    handle,
    notes="there are none: SECURITY_DISABLED",
    asks=[Whole(Operation.DESCRIBE, the_cluster)],
)
