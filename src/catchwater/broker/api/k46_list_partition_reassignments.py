"""ListPartitionReassignments (46), v0: none is ever in progress (KIP-455)."""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List no partition, as Kafka does if none is being reassigned."""
    return error_fields(ErrorCode.NONE)


API = Api(
    46,
    "ListPartitionReassignments",
    range(0, 1),
    handle,
    asks=[Whole(Operation.DESCRIBE, the_cluster)],
)
