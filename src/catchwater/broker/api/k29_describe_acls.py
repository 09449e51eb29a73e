"""DescribeAcls (29), v1-3: there are none, for a gate decides (`gate.py`).

Every version gets the answer of Kafka without an authorizer, SECURITY_DISABLED, by which tools and
frameworks see that ACLs are not used here; without this API the broker would seem too old
to them.
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
