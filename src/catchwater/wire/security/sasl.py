"""Logging in at a broker: SaslHandshake v1, then SaslAuthenticate v2 for each step (KIP-152).

`Scram` is SCRAM from the client's side (RFC 5802, 7677), as Kafka's brokers speak it (KIP-84),
without I/O. The password never leaves: a proof of knowing it does, and the server must prove in
turn that it knows a key made of it, so that nobody can pose as the broker. As in Kafka's Java
client, names and passwords are taken as they are in UTF-8, without SASLprep, and there is no
channel binding.

Relies on `ask`, which sends a request over one connection and gives the reply. Promises
`LoginFailed` for every reason that a login fails, and never a password in it.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeAlias

from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest
from kio.static.protocol import RequestPayload

from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.oauth import opening
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
        # A refusal looks like a success with a message, which must be answered (RFC 7628 3.2.3).
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


LEAST_ITERATIONS = 4096
"""With fewer, the proof could be used to guess the password; Kafka's client refuses them too."""
MOST_ITERATIONS = 2**20
"""More would only keep the client busy: Kafka's brokers allow 16384."""

_NO_BINDING = "n,,"


class ScramFailed(CatchwaterError):
    """The server refused the proof, or could not give its own."""


class Scram:
    """One conversation: `first`, the answer to `final`, and the answer to that to `verify`."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        """`mechanism` is SCRAM-SHA-256 or SCRAM-SHA-512."""
        self._hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return (_NO_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof that the password is known. Raises `ScramFailed`."""
        said = _attributes(server_first)
        nonce, salt, iterations = said["r"], _base64(said["s"]), said["i"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramFailed("The broker answered to another login than ours: the nonce differs.")
        count = int(iterations) if iterations.isascii() and iterations.isdigit() else 0
        if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise ScramFailed(
                f"The broker asks for {iterations[:20]} iterations of the hash; from "
                f"{LEAST_ITERATIONS} to {MOST_ITERATIONS} are accepted."
            )
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        final_bare = f"c={binding},r={nonce}"
        talk = ",".join((self._first_bare, server_first.decode(), final_bare)).encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, count)
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), talk)
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), talk)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{final_bare},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise `ScramFailed` unless the server has proved that it knows the user as well."""
        said = _attributes(server_final)
        if "e" in said:
            raise ScramFailed(f"The broker refused the proof: {said['e'][:100]}.")
        if not hmac.compare_digest(_base64(said["v"]), self._server_signature):
            raise ScramFailed(
                "The broker could not prove that it knows the user: somebody may pose as it."
            )

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


class _Attributes(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise ScramFailed(f"The broker's SCRAM message has no attribute {name}.")


def _attributes(message: bytes) -> _Attributes:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramFailed("The broker's SCRAM message is no text.") from error
    return _Attributes(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name == "m" or len(name) != 1 or not equals:
            raise ScramFailed("The broker's SCRAM message is not of the form a=b,c=d.")
        yield name, value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramFailed("The broker's SCRAM message is no base64 where it should be.") from error
