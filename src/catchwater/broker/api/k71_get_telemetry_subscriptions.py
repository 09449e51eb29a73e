"""GetTelemetrySubscriptions (71), v0: the metrics that a client shall push (KIP-714): none.

Nothing receives metrics of clients here. As in Apache Kafka without a telemetry receiver,
ApiVersions does not announce this API, so clients do not send it; one that does gets an instance id
and an empty subscription.

Not implemented: subscriptions, and Kafka's quota of one such request in an interval.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

SUBSCRIPTION_ID = 1
"""There is one subscription, the empty one."""
ACCEPTED_CODECS = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: in the order of Kafka's own brokers."""
MAX_BYTES = 1024 * 1024
_INTERVAL_MS = 5 * 60 * 1000


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer with an instance id, new if the client has none, and an empty subscription."""
    return {
        "error_code": ErrorCode.NONE,
        "client_instance_id": (request.client_instance_id or broker.clock.uuid()).bytes,
        "subscription_id": SUBSCRIPTION_ID,
        "accepted_compression_types": ACCEPTED_CODECS,
        "push_interval": _INTERVAL_MS,
        "telemetry_max_bytes": MAX_BYTES,
        "delta_temporality": True,
        "requested_metrics": (),
    }


API = Api(
    71, "GetTelemetrySubscriptions", range(0, 1), handle, notes="no metrics; not announced", asks=[]
)
