"""SaslAuthenticate (36), v0-2: one step of a login (KIP-152), or of its repetition (KIP-368).

Version notes: v1 says how long a login holds: until it has to be repeated
(`connections.max.reauth.ms`) or its token ends; 0 if neither. A failed one is
SASL_AUTHENTICATION_FAILED, with the same message for all reasons.
"""

from typing import Any

from catchwater.broker.audit import shown
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Resource, ResourceType
from catchwater.broker.login import Answer
from catchwater.wire.errors import ErrorCode

_MOST_NAMED = 100
"""Characters of a name that nobody has proved, in the audit trail."""
_MESSAGES = {
    ErrorCode.NONE: None,
    ErrorCode.ILLEGAL_SASL_STATE: "SaslHandshake comes first, and one login is enough.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: (
        "Authentication failed: user name, password or token is wrong."
    ),
}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Go one step on."""
    answer = Answer(ErrorCode.ILLEGAL_SASL_STATE)
    if call.session is not None:
        answer = await call.session.authenticate(bytes(request.auth_bytes))
        claimed = call.session.claimed[:_MOST_NAMED]
        if answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED and call.audit is not None:
            tried = shown(Resource(ResourceType.USER, claimed)) if claimed else ""
            call.audit.note("login", call.client, "SaslAuthenticate", tried)
    return {
        **error_fields(answer.error, _MESSAGES[answer.error]),
        "auth_bytes": answer.message,
        "session_lifetime": answer.lifetime_ms,
    }


API = Api(36, "SaslAuthenticate", range(0, 3), handle, asks=[])
