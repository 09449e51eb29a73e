"""Who is at a connection of the Kafka port, and how they came in: SASL from the broker's side.

`Session` is one connection's. Where the listener asks for a login, a client may send ApiVersions,
SaslHandshake (KIP-43) and then SaslAuthenticate (KIP-152) until it is in; anything else ends the
connection. One that failed is answered after a while, and what follows it ends the connection.

A login holds until it has to be repeated (`connections.max.reauth.ms`, KIP-368) or its token ends;
then the next request ends the connection, unless it repeats the login: by the same mechanism, for
the same user. Every request, and every reply with records, checks that the user is still there with
the same password: one that was removed, or has another password now, is refused; so is a client
that came by its certificate, once other authorities sign those. A client that shows a certificate
and need not log in is the user that the listener's rules make of it.

No I/O but `Guard.check_password` and `Tokens.check`, which take some milliseconds of a thread.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from catchwater.broker.access import Guard
from catchwater.broker.gate import ANONYMOUS, Gate
from catchwater.broker.tls import Certificate, NoName, distinguished_name, mapping
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Listener
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import NotProved, ScramServer

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
FAILED_S = 0.1
"""After this a failed login is answered (Kafka's connection.failed.authentication.delay.ms)."""
_BEFORE_LOGIN = {17, 18, 36}
_MOST_BYTES = {OAUTHBEARER: 16_384}
"""Of a message of a login, by mechanism."""
_BYTES = 4_096
_NO_TOKEN = b'{"status":"invalid_token"}'


class NotLoggedIn(CatchwaterError):
    """A request that needs a login comes without one."""


class Answer(NamedTuple):
    """To one message of a login."""

    error: ErrorCode
    message: bytes = b""
    lifetime_ms: int = 0
    """How long the login holds; 0: for ever."""


class Session:
    """The principal of a connection, and the state of its login."""

    def __init__(
        self,
        guard: Guard,
        host: str,
        listener: Listener,
        clock: Clock,
        shown: Mapping[str, Any] | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """`shown` is the client's certificate. Raises `NotLoggedIn` where it names nobody."""
        self._guard = guard
        self._host = host
        self._listener = listener
        self.mechanisms = listener.mechanisms
        self._clock = clock
        self._certificate = certificate if shown else None
        self._authorities = 0 if certificate is None else certificate.version
        self.principal = ANONYMOUS
        if shown and not self.mechanisms:
            try:
                user = mapping(listener.principal_rules)(distinguished_name(shown))
            except NoName as nobody:
                raise NotLoggedIn(str(nobody)) from nobody
            self.principal = f"User:{user}"
        self.gate: Gate = guard.gate(self.principal, host)
        self.is_in = not self.mechanisms
        self._mechanism = ""
        self._is_under_way = False
        """Between a handshake and the end of its login."""
        self._scram: ScramServer | None = None
        self._has_failed = False
        self._is_refused = False
        """A token was no good; the client still has to answer that (RFC 7628 3.2.3)."""
        self._ends_s: float | None = None
        self._user = ""
        """With a password; empty for others."""
        self.claimed = ""
        """Who it says it is, by the last login, whether that was true or not; empty for a token."""
        self._access = self._asked = guard.access
        """By which version the user was last found to be there, and by which it logs in."""

    def check(self, api_key: int) -> None:
        """Raise `NotLoggedIn` for a request that may not be asked now."""
        if self._has_failed:
            raise NotLoggedIn("a request came after a login that had failed.")
        if not self.is_in:
            if api_key not in _BEFORE_LOGIN:
                raise NotLoggedIn("a request came without a login.")
            return
        if self._ends_s is not None and api_key not in _BEFORE_LOGIN:
            if self._clock.monotonic_s() > self._ends_s:
                raise NotLoggedIn(f"the login of {self.principal} has ended.")
        self.check_user()

    def check_user(self) -> None:
        """Raise `NotLoggedIn` once the user is gone, or its certificate is to be shown again."""
        if self._certificate is not None and self._certificate.version != self._authorities:
            raise NotLoggedIn(f"{self.principal} has to show a certificate again.")
        if self._access is not self._guard.access:
            kept = self._access.users.get(self._user)
            if self._user and self._guard.access.users.get(self._user) != kept:
                raise NotLoggedIn(
                    f"{self.principal} is not there any more, or has another password."
                )
            self._access = self._guard.access

    def handshake(self, mechanism: str) -> ErrorCode:
        """Choose a mechanism; again, if the login has to be repeated."""
        is_again = self.is_in and self._ends_s is not None
        if self._is_under_way or (self.is_in and not is_again):
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self.mechanisms or (is_again and mechanism != self._mechanism):
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self._scram, self._is_under_way = mechanism, None, True
        self.claimed = ""
        return ErrorCode.NONE

    async def authenticate(self, message: bytes) -> Answer:
        """Go one step on; the answer to the client."""
        if not self._is_under_way:
            return Answer(ErrorCode.ILLEGAL_SASL_STATE)
        try:
            if len(message) > _MOST_BYTES.get(self._mechanism, _BYTES) or self._is_refused:
                raise NotProved("The message of the login is too long, or one too many.")
            return await self._step(message)
        except NotProved:
            self._has_failed = True
            await self._clock.sleep(FAILED_S)
            return Answer(ErrorCode.SASL_AUTHENTICATION_FAILED)

    async def _step(self, message: bytes) -> Answer:
        if self._mechanism == PLAIN:
            return await self._by_password(message)
        if self._mechanism == OAUTHBEARER:
            return await self._by_token(message)
        if self._scram is None:
            self._asked = self._guard.access
            nonce = self._clock.uuid().hex
            self._scram = ScramServer(self._mechanism, self._asked.users, nonce)
            answer = self._scram.first(message)
            self.claimed = self._scram.user
            return Answer(ErrorCode.NONE, answer)
        answer = self._scram.final(message)
        return self._enter(self._scram.user, answer)

    async def _by_password(self, message: bytes) -> Answer:
        """RFC 4616; to act for another user than one's own is refused."""
        try:
            whom, user, password = message.decode().split("\0")
        except ValueError as error:
            raise NotProved("What came is no user name and password.") from error
        if whom not in ("", user):
            raise NotProved("Nobody logs in for another user.")
        self.claimed = user
        self._asked = self._guard.access
        await self._guard.check_password(user, password, self._host)
        return self._enter(user)

    async def _by_token(self, message: bytes) -> Answer:
        """RFC 7628: what names the user is the token alone."""
        tokens = self._guard.tokens
        assert tokens is not None, "a listener with tokens has who checks them"
        try:
            known = await asyncio.to_thread(tokens.check_message, message)
        except NotProved:
            self._is_refused = True
            return Answer(ErrorCode.NONE, _NO_TOKEN)
        return self._enter(known.user, left_s=known.left_s, has_password=False)

    def _enter(
        self, user: str, answer: bytes = b"", left_s: float | None = None, has_password: bool = True
    ) -> Answer:
        principal = f"User:{user}"
        if self.is_in and principal != self.principal:
            raise NotProved("A login is repeated by the same user.")
        ends = [left_s] if left_s is not None else []
        if self._listener.reauth_ms:
            ends.append(self._listener.reauth_ms / 1000)
        holds_s = min(ends) if ends else None
        self._ends_s = None if holds_s is None else self._clock.monotonic_s() + holds_s
        self._user, self._access = user if has_password else "", self._asked
        if not self.is_in:
            self.principal = principal
            self.gate = self._guard.gate(principal, self._host)
        self.is_in, self._is_under_way = True, False
        return Answer(ErrorCode.NONE, answer, int((holds_s or 0) * 1000))
