"""DescribeCluster (60), v0-2: this broker, which is the whole cluster.

Version notes: v1 (KIP-919) adds the endpoint type; only brokers (1) are described here. v2 adds
fenced brokers, of which there are none.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.wire.errors import ErrorCode

_BROKERS = 1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe this broker."""
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return error_fields(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE) | {"cluster_id": ""}
    node = {
        "broker_id": broker.config.node_id,
        "host": broker.kafka_address.host,
        "port": broker.kafka_address.port,
        "is_fenced": False,
    }
    return error_fields(ErrorCode.NONE) | {
        "endpoint_type": endpoint_type,
        "cluster_id": broker.log.cluster_id,
        "controller_id": broker.config.node_id,
        "brokers": [node],
    }


API = Api(60, "DescribeCluster", range(0, 3), handle)
