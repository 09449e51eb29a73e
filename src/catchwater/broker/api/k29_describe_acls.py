"""DescribeAcls (29), v1-3: the rules that are in force, those of a file as well.

Without users and rules every version answers as Kafka without an authorizer, SECURITY_DISABLED.
Version notes: v3 knows resources of type USER (KIP-373).
"""

from typing import Any

from catchwater.broker import acls
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode

DISABLED = error_fields(
    ErrorCode.SECURITY_DISABLED, "No authorizer is configured: set super.users where brokers start."
)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Show the rules that the filter chooses."""
    chosen = acls.wanted(request)
    if broker.guard is None:
        return DISABLED | {"resources": ()}
    rules = filter(chosen.fits, broker.guard.access.rules.all)
    return error_fields(ErrorCode.NONE) | {"resources": acls.by_resource(rules)}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return error_fields(error) | {"resources": ()}


API = Api(
    29,
    "DescribeAcls",
    range(1, 4),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.DESCRIBE, the_cluster)],
)
