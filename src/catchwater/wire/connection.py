"""A client's connections to brokers, each secured and logged in as the settings say.

A `Connection` relies on the broker's promise to answer in order (Kafka's protocol has no other), so
several requests may be in flight. A reply's bytes are handed out as they were received, uncopied.
Honours throttling (KIP-219): a broker that asked for a pause is sent nothing before the pause is
over. Any failure closes the connection and raises `ConnectionLost`; it never reconnects by itself.

`Connections` has one to each broker that was needed so far. A login that ends (KIP-368) is renewed
by connecting anew, in good time. Not thread-safe.
"""

import math
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from struct import Struct
from typing import Any

from kio.static.protocol import RequestPayload

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.wire.codecs import Buffer
from catchwater.wire.messages import decode_reply, encode_request
from catchwater.wire.security import tls
from catchwater.wire.security.oauth import TOKENS, TokenUnavailable
from catchwater.wire.security.sasl import log_in
from catchwater.wire.security.settings import UNSECURED, Security

MAX_REPLY_BYTES = 256 * 2**20
"""No reply is larger; a length beyond it means that the port speaks something else than Kafka."""

_LENGTH = Struct(">i")
_TLS_ALERT = 0x15
# As in Kafka's own clients, which renew a login when 85 to 95 % of its time are over.
_RENEW_AFTER = 0.85

_ASKED_PLAINLY = (
    "It has answered nothing yet: does this port ask for TLS or a login (security.protocol)?"
)
_ASKED_IN_TLS = (
    "It has answered nothing in TLS yet: is this a plain port (security.protocol), or does it ask "
    "for a login?"
)

Address = tuple[str, int]


class ConnectionLost(CatchwaterError):
    """The broker cannot be reached, or its connection broke; what was in flight is unknown."""


class Connection:
    """A socket to `host:port`, connected on construction within `timeout_s` seconds.

    With TLS if there is a context for it; raises `BrokerNotTrusted` and `TlsFailed` as well then.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.address = f"{host}:{port}"
        self._clock = clock
        self._next_correlation_id = 0
        self._awaited: deque[int] = deque()
        self._silent_until_s = 0.0
        self._answered = False
        self._early = b""
        """The first byte of a reply, where `has_reply` has read it."""
        self._unanswered_hint = _ASKED_IN_TLS if context is not None else _ASKED_PLAINLY
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise ConnectionLost(
                f"No connection to a broker at {self.address}: {error}.",
                hint="Is the broker running, and is the address right?",
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            try:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            except OSError as error:
                raise self._lost(error) from error

    def correlation_id(self) -> int:
        """The number that the next request must carry."""
        return self._next_correlation_id

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a request, header included, made with `correlation_id`."""
        wait_s = self._silent_until_s - self._clock.monotonic_s()
        if wait_s > 0:
            self._clock.pause(wait_s)
        try:
            self._socket.sendall(b"".join((_LENGTH.pack(sum(map(len, parts))), *parts)))
        except OSError as error:
            raise self._lost(error) from error
        self._awaited.append(self._next_correlation_id)
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF

    def receive(self) -> memoryview:
        """The next reply, from its correlation id on; it stays valid for as long as it is held."""
        try:
            length = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
            if length >> 24 == _TLS_ALERT:
                raise OSError("it answers in TLS")
            if not _LENGTH.size <= length <= MAX_REPLY_BYTES:
                raise OSError(f"a reply of {length} bytes was announced; is this a Kafka port?")
            reply = self._exactly(length)
            expected = self._awaited.popleft()
            if _LENGTH.unpack_from(reply)[0] != expected:
                raise OSError(f"the reply is not to request {expected}")
        except OSError as error:
            raise self._lost(error) from error
        self._answered = True
        return reply

    @property
    def is_silenced(self) -> bool:
        """Whether `send` would wait, because a reply asked for it."""
        return self._clock.monotonic_s() < self._silent_until_s

    def fileno(self) -> int:
        """The socket's descriptor; readable when a reply begins to come, or something of TLS's."""
        return self._socket.fileno()

    def has_reply(self) -> bool:
        """Whether a reply begins to come, without waiting for it. Raises `ConnectionLost`."""
        if self._early:
            return True
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            self._early = self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            pass  # a session ticket, say
        except OSError as error:
            raise self._lost(error) from error
        else:
            if not self._early:
                raise self._lost(OSError("it was closed by the broker"))
        self._socket.settimeout(timeout_s)
        return bool(self._early)

    def throttle(self, milliseconds: int) -> None:
        """Send nothing for so long, as the last reply asked."""
        if milliseconds > 0:
            self._silent_until_s = self._clock.monotonic_s() + milliseconds / 1000

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size_bytes: int) -> memoryview:
        view = memoryview(bytearray(size_bytes))
        at = len(self._early)
        view[:at], self._early = self._early, b""
        while at < size_bytes:
            received = self._socket.recv_into(view[at:])
            if not received:
                raise OSError("it was closed by the broker")
            at += received
        return view

    def _lost(self, error: OSError) -> CatchwaterError:
        """Close, and the error to raise: `ConnectionLost`, or that TLS cannot work at all."""
        self.close()
        if isinstance(error, ssl.SSLError) and (lasting := tls.explained(error, self.address)):
            return lasting
        return ConnectionLost(
            f"The connection to the broker at {self.address} broke: {error}.",
            hint=None if self._answered else self._unanswered_hint,
        )


def ask(connection: Connection, client_id: str, request: RequestPayload) -> Any:
    """One request and its reply, both as kio has them; nothing else may be in flight."""
    connection.send(encode_request(connection.correlation_id(), client_id, request))
    _, reply = decode_reply(request.__api_key__, request.__version__, connection.receive())
    throttle: timedelta = getattr(reply, "throttle_time", timedelta())
    connection.throttle(throttle // timedelta(milliseconds=1))
    return reply


class Connections:
    """The connections of one client; `bootstrap` is "host:port[,host:port]"."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        timeout_s: float,
        clock: Clock,
        security: Security = UNSECURED,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._security = security
        self._context: ssl.SSLContext | None = None
        # With the time on the monotonic clock after which each is not used any more.
        self._open: dict[Address, tuple[Connection, float]] = {}

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._bootstrap)

    def close(self) -> None:
        """Close every connection; the next one that is needed is made anew."""
        for connection, _ in self._open.values():
            connection.close()
        self._open.clear()

    def drop(self, address: Address) -> None:
        """Close the connection to one broker, if there is one."""
        if address in self._open:
            self._open.pop(address)[0].close()

    def to(self, address: Address) -> Connection:
        """The connection to one broker.

        Raises `ConnectionLost`, and for good `BrokerNotTrusted`, `TlsFailed`, `LoginFailed`.
        """
        if address in self._open and self._clock.monotonic_s() >= self._open[address][1]:
            self.drop(address)
        if address not in self._open:
            self._open[address] = self._connect(address)
        return self._open[address][0]

    def any(self, known: Iterable[Address], avoid: Address | None) -> Address:
        """An address that takes a connection: one in use, of the bootstrap list, or a known one.

        The one to avoid comes last: what it said did not help.
        """
        lost: ConnectionLost | None = None
        addresses = dict.fromkeys((*self._open, *self._bootstrap, *known))
        for address in sorted(addresses, key=lambda each: each == avoid):
            try:
                self.to(address)
            except ConnectionLost as error:
                lost = error
            else:
                return address
        assert lost is not None, "a bootstrap list names at least one broker"
        raise lost

    def _connect(self, address: Address) -> tuple[Connection, float]:
        token = self._token()
        if self._security.tls and self._context is None:
            self._context = tls.context(self._security)
        connection = Connection(
            *address, timeout_s=self._timeout_s, clock=self._clock, context=self._context
        )
        if not self._security.sasl:
            return connection, math.inf
        began_s = self._clock.monotonic_s()
        nonce = self._clock.token() + self._clock.token()
        try:
            lifetime_s = log_in(
                lambda request: ask(connection, self._client_id, request),
                self._security,
                connection.address,
                nonce,
                token,
            )
        except CatchwaterError:
            connection.close()
            if self._security.oauth is not None:
                TOKENS.forget(self._security.oauth)
            raise
        return connection, began_s + _RENEW_AFTER * lifetime_s if lifetime_s else math.inf

    def _token(self) -> str:
        """What OAUTHBEARER shows; an endpoint that is away is as good as a broker that is."""
        if self._security.oauth is None:
            return ""
        try:
            return TOKENS.of(self._security.oauth, self._clock, self._timeout_s)
        except TokenUnavailable as error:
            raise ConnectionLost(str(error), hint=error.hint) from error


def parse_bootstrap(servers: str) -> list[Address]:
    """The addresses of "host:port[,host:port]", as in Kafka's `bootstrap.servers`."""
    addresses = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise CatchwaterError(
                f"{server.strip()!r} in bootstrap.servers is not of the form host:port."
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
