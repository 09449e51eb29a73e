"""DescribeCluster (60), v0-2: the brokers, and this one as their controller (KIP-700).

Brokers are listed as in Metadata, but regardless of the client's zone. Version notes: v1 asks for
brokers or controllers (KIP-919), which are not served; v2 can list fenced brokers too (KIP-1073),
but there are none: a broker whose session has ended is not known.
"""

from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.wire.errors import ErrorCode
from catchwater.wire.metadata import OPERATIONS_NOT_ASKED

_BROKERS, _CONTROLLERS = 1, 2
_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.CLUSTER)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe the brokers as Metadata lists them."""
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if endpoint_type == _CONTROLLERS:
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        return error_fields(error) | {"cluster_id": "", "endpoint_type": _BROKERS}
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        may = call.allows(_DESCRIBE)
        operations = call.operations(ResourceType.CLUSTER) if may else 0
    return error_fields(ErrorCode.NONE) | {
        "endpoint_type": endpoint_type,
        "cluster_id": broker.log.cluster_id,
        "controller_id": placement.controller_id(broker),
        "brokers": [
            {
                "broker_id": row.id,
                **call.place(row)._asdict(),
                "rack": row.zone or None,
                "is_fenced": False,
            }
            for row in placement.candidates(broker.brokers)
        ],
        "cluster_authorized_operations": operations,
    }


API = Api(60, "DescribeCluster", range(0, 3), handle, asks=[_DESCRIBE])
