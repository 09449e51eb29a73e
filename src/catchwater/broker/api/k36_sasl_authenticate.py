"""SaslAuthenticate (36), v0-2: one step of a login (KIP-152).

Version notes: v1 says how long a login holds: as long as the connection, or until the
user is removed. A failed one is SASL_AUTHENTICATION_FAILED, with the same message for whatever the
reason is.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.wire.errors import ErrorCode

_MESSAGES = {
    ErrorCode.NONE: None,
    ErrorCode.ILLEGAL_SASL_STATE: "SaslHandshake comes first, and one login is enough.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Authentication failed: user name or password is wrong.",
}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Go one step on."""
    error, answer = ErrorCode.ILLEGAL_SASL_STATE, b""
    if call.session is not None:
        error, answer = await call.session.authenticate(bytes(request.auth_bytes))
    if error is ErrorCode.SASL_AUTHENTICATION_FAILED and call.audit is not None:
        call.audit.note("login", call.client, "SaslAuthenticate", "")
    return {**error_fields(error, _MESSAGES[error]), "auth_bytes": answer}


API = Api(36, "SaslAuthenticate", range(0, 3), handle, asks=[])
