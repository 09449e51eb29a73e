"""Logging in at a broker: SaslHandshake v1, then SaslAuthenticate v2 for each step (KIP-152).

Relies on `ask`, which sends a request over one connection and gives the reply. Promises
`LoginFailed` for whatever keeps the login from being good, and never a password in it.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest
from kio.static.protocol import RequestPayload

from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.oauth import opening
from catchwater.wire.security.scram import Scram, ScramFailed
from catchwater.wire.security.settings import Security

Ask: TypeAlias = Callable[[RequestPayload], Any]


_BY_PASSWORD = "Are user name and password right, and is the user there for this mechanism?"
_BY_TOKEN = (
    "The brokers do not take the token: are its audience, issuer and scope those that they expect, "
    "and do they have the provider's keys?"
)


class LoginFailed(CatchwaterError):
    """The broker does not take the user, the password or the mechanism; or is not who it says."""


def log_in(ask: Ask, security: Security, address: str, nonce: str, token: str = "") -> float:
    """Log in over one connection; how many seconds the login holds (KIP-368), 0 for ever.

    `nonce` has never been used; `token` is what OAUTHBEARER shows.
    """
    who = f"{security.username!r} at {address} by {security.mechanism}"
    handshake = ask(SaslHandshakeRequest(mechanism=security.mechanism))
    if handshake.error_code.value != ErrorCode.NONE:
        raise LoginFailed(
            f"The login of {who} was answered {ErrorCode(handshake.error_code.value).name}.",
            hint=f"The broker offers: {', '.join(handshake.mechanisms) or 'nothing'}; "
            "choose with sasl.mechanism.",
        )

    def step(message: bytes) -> Any:
        reply = ask(SaslAuthenticateRequest(auth_bytes=message))
        code = ErrorCode(reply.error_code.value)
        if code is not ErrorCode.NONE:
            reason = f"{code.name} ({reply.error_message})" if reply.error_message else code.name
            raise LoginFailed(
                f"The login of {who} was answered {reason}.",
                hint=_BY_TOKEN if security.oauth else _BY_PASSWORD,
            )
        return reply

    try:
        last = _converse(step, security, nonce, token)
    except ScramFailed as error:
        raise LoginFailed(f"The login of {who} failed. {error}") from error
    lifetime: timedelta = last.session_lifetime
    return lifetime.total_seconds()


def _converse(step: Callable[[bytes], Any], security: Security, nonce: str, token: str) -> Any:
    """The broker's last answer."""
    if security.oauth is not None:
        answer = step(opening(security.oauth, token))
        # A reason is told as a success that has yet to be answered (RFC 7628 3.2.3).
        if answer.auth_bytes:
            step(b"\x01")
            raise LoginFailed("The broker gave a reason not to take a token, and took it.")
        return answer
    if security.mechanism == "PLAIN":
        return step(f"\0{security.username}\0{security.password}".encode())
    scram = Scram(security.mechanism, security.username, security.password, nonce)
    proof = scram.final(step(scram.first()).auth_bytes)
    last = step(proof)
    scram.verify(last.auth_bytes)
    return last
