"""SaslHandshake (17), v0-1: which mechanism a client logs in by (KIP-43, KIP-152).

v0 is listed because librdkafka before 2.1 takes a broker without it for one that has no logins; it
then sends v1. Who does send v0, after which a login goes on without Kafka's frames, is answered
UNSUPPORTED_VERSION: no client has needed that since Kafka 1.0. Where nobody logs in the answer is
ILLEGAL_SASL_STATE, as at Apache Kafka.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Choose a mechanism, or name those that there are."""
    if call.session is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    if call.version == 0:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "mechanisms": ()}
    error = call.session.handshake(request.mechanism)
    return {"error_code": error, "mechanisms": tuple(call.session.mechanisms)}


API = Api(17, "SaslHandshake", range(0, 2), handle, asks=[])
