"""PushTelemetry (72), v0: a client's metrics (KIP-714), which are dropped.

The subscription is empty (GetTelemetrySubscriptions), so a client has nothing to push. A request is
checked as by Apache Kafka, and its metrics are dropped as there without a telemetry receiver.
ApiVersions does not announce this API.
"""

from typing import Any

from catchwater.broker.api.k71_get_telemetry_subscriptions import (
    ACCEPTED_CODECS,
    MAX_BYTES,
    SUBSCRIPTION_ID,
)
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_UNCOMPRESSED = 0


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer with the error, if there is one."""
    return {"error_code": _error(request)}


def _error(request: Any) -> ErrorCode:
    if not request.client_instance_id:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in (_UNCOMPRESSED, *ACCEPTED_CODECS):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.TELEMETRY_TOO_LARGE if len(request.metrics) > MAX_BYTES else ErrorCode.NONE


API = Api(72, "PushTelemetry", range(0, 1), handle, notes="dropped; not announced", asks=[])
