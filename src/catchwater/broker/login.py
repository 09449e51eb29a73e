"""Who is at a connection of the Kafka port, and how they came in: SASL from the broker's side.

`Session` is one connection's. Where the listener asks for a login, a client may send ApiVersions,
SaslHandshake (KIP-43) and then SaslAuthenticate (KIP-152) until it is in; anything else ends the
connection. A login cannot be taken back or changed. One that failed is answered after a while, and
what follows it ends the connection. Every request checks that the user is still there with the
same password: one that was removed, or has another password now, is refused.

No I/O but `Guard.check_password`, which takes some milliseconds in a thread.
"""

import asyncio

from catchwater.broker.access import Guard
from catchwater.broker.gate import ANONYMOUS, Gate
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import NotProved, ScramServer

PLAIN = "PLAIN"
FAILED_S = 0.1
"""After this a failed login is answered (Kafka's connection.failed.authentication.delay.ms)."""
_BEFORE_LOGIN = {17, 18, 36}
_MOST_BYTES = 4_096
"""Of a message of a login."""


class NotLoggedIn(CatchwaterError):
    """A request that needs a login comes without one."""


class Session:
    """Whose connection it is, and what lets them pass."""

    def __init__(self, guard: Guard, host: str, mechanisms: list[str], clock: Clock) -> None:
        """`mechanisms` are those by which clients may log in; none: nobody has to."""
        self._guard = guard
        self._host = host
        self.mechanisms = mechanisms
        self._clock = clock
        self.principal = ANONYMOUS
        self.gate: Gate = guard.gate(ANONYMOUS, host)
        self.is_in = not mechanisms
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._has_failed = False
        self._user = ""
        self._access = guard.access
        """By which version the user was last found to be there."""

    def check(self, api_key: int) -> None:
        """Raise `NotLoggedIn` for a request that may not be asked now."""
        if not self.is_in:
            if self._has_failed or api_key not in _BEFORE_LOGIN:
                raise NotLoggedIn("a request came without a login.")
        elif self._access is not self._guard.access:
            kept = self._access.users.get(self._user)
            if self._user and self._guard.access.users.get(self._user) != kept:
                raise NotLoggedIn(
                    f"{self.principal} is not there any more, or has another password."
                )
            self._access = self._guard.access

    def handshake(self, mechanism: str) -> ErrorCode:
        """Choose a mechanism."""
        if self.is_in or self._mechanism:
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self.mechanisms:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = mechanism
        return ErrorCode.NONE

    async def authenticate(self, message: bytes) -> tuple[ErrorCode, bytes]:
        """Go one step on; the answer to the client."""
        if self.is_in or not self._mechanism:
            return ErrorCode.ILLEGAL_SASL_STATE, b""
        try:
            if len(message) > _MOST_BYTES:
                raise NotProved("The message of the login is too long.")
            return ErrorCode.NONE, await self._step(message)
        except NotProved:
            self._has_failed = True
            await self._clock.sleep(FAILED_S)
            return ErrorCode.SASL_AUTHENTICATION_FAILED, b""

    async def _step(self, message: bytes) -> bytes:
        if self._mechanism == PLAIN:
            await self._by_password(message)
            return b""
        if self._scram is None:
            self._access = self._guard.access
            known, nonce = self._access.users, self._clock.uuid().hex
            self._scram = ScramServer(self._mechanism, known, nonce)
            return self._scram.first(message)
        answer = self._scram.final(message)
        self._enter(self._scram.user)
        return answer

    async def _by_password(self, message: bytes) -> None:
        """RFC 4616; to act for another user than one's own is refused."""
        try:
            whom, user, password = message.decode().split("\0")
        except ValueError as error:
            raise NotProved("What came is no user name and password.") from error
        if whom not in ("", user):
            raise NotProved("Nobody logs in for another user.")
        self._access = self._guard.access
        await asyncio.to_thread(self._guard.check_password, user, password)
        self._enter(user)

    def _enter(self, user: str) -> None:
        self._user, self.principal = user, f"User:{user}"
        self.gate = self._guard.gate(self.principal, self._host)
        self.is_in = True
