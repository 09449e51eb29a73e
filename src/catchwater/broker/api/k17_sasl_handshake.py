"""SaslHandshake (17), v1: which mechanism a client logs in by (KIP-43, KIP-152).

v0, after which a login goes on without Kafka's frames, is not served: no client has needed it since
Kafka 1.0. Where nobody logs in the answer is ILLEGAL_SASL_STATE, as at Apache Kafka.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Choose a mechanism, or name those that there are."""
    if call.session is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    error = call.session.handshake(request.mechanism)
    return {"error_code": error, "mechanisms": tuple(call.session.mechanisms)}


API = Api(17, "SaslHandshake", range(1, 2), handle, asks=[])
