"""ListConfigResources (74), v0-1: the resources that can have settings (KIP-1142).

Version notes: v0 was ListClientMetricsResources (KIP-714) and asks only for client metrics, of
which there are none; v1 asks for types of resources, an empty list meaning all.

A topic is listed even if none of its settings is set, as in Kafka.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.broker.settings import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from catchwater.wire.errors import ErrorCode

_KINDS = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List topics and brokers; groups and client metrics have no settings here."""
    wanted = {CLIENT_METRICS} if call.version == 0 else set(request.resource_types) or _KINDS
    if not wanted <= _KINDS:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    names: list[tuple[int, str]] = []
    if TOPIC in wanted:
        names += [(TOPIC, topic.name) for topic in broker.log.topics]
    for kind in (BROKER, BROKER_LOGGER):
        if kind in wanted:
            names += [(kind, str(row.id)) for row in broker.brokers]
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [
            {"resource_type": kind, "resource_name": name} for kind, name in names
        ],
    }


API = Api(
    74,
    "ListConfigResources",
    range(0, 2),
    handle,
    asks=[Whole(Operation.DESCRIBE_CONFIGS, the_cluster)],
)
