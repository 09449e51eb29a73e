"""DescribeCluster (60), v0-2: the live brokers.

Version notes: v1 (KIP-919) adds the endpoint type; only brokers (1) are described here. v2 adds
fenced brokers, of which there are none.
"""

from typing import Any

from catchwater.broker import zones
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.wire.errors import ErrorCode

_BROKERS = 1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe the brokers as Metadata lists them."""
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return error_fields(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE) | {"cluster_id": ""}
    listed = zones.candidates(broker.brokers)
    ids = [row.id for row in listed]
    mine = broker.config.node_id
    return error_fields(ErrorCode.NONE) | {
        "endpoint_type": endpoint_type,
        "cluster_id": broker.log.cluster_id,
        "controller_id": mine if mine in ids else ids[0],
        "brokers": [
            {
                "broker_id": row.id,
                "host": row.host,
                "port": row.port,
                "rack": row.zone or None,
                "is_fenced": False,
            }
            for row in listed
        ],
    }


API = Api(60, "DescribeCluster", range(0, 3), handle)
