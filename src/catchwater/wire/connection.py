"""A client's connections to brokers, each secured and logged in as the settings say.

`Connection` is one socket. A broker answers in the order of the requests (Kafka's protocol has no
other way), so several may be in flight. A reply is handed out as it was received, without a copy.
After a reply that asks for a pause (KIP-219) nothing is sent before the pause is over. Any failure
closes the connection and raises `ConnectionLost`; it never reconnects by itself.

`Connections` keeps one connection to each broker that was needed so far, and makes a new one before
a login expires (KIP-368).

`Watch` waits for new records: it keeps a Fetch open at the end of each partition, which every Kafka
answers as soon as a record comes, or after the longest wait that the Fetch names. A Fetch that is
still open when a wait is over stays open for the next one, so many short waits cost no more
requests than a long one. The batch in its reply is dropped: the caller then reads as usual. Nothing
here is thread-safe.
"""

import math
import select
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Any

from kio.static.protocol import RequestPayload

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import FETCH, FetchLimits, encode_fetch, parse_fetch_reply
from catchwater.wire.fields import Buffer, TopicPartition, encode_header
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
        """The socket's descriptor; readable when a reply, or a message of TLS itself, comes."""
        return self._socket.fileno()

    def has_reply(self) -> bool:
        """Whether the first byte of a reply is there; does not wait. Raises `ConnectionLost`."""
        if self._early:
            return True
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            self._early = self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            pass  # it was a message of TLS itself, such as a session ticket
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
        """Close, and return the error to raise: `ConnectionLost`, or that TLS can never work."""
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
        # Each with the time on the monotonic clock at which it is to be replaced.
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

        `avoid` comes last: its last answer did not help.
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
        """The token for OAUTHBEARER. Without its endpoint there is no connection either."""
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


Ends = Mapping[TopicPartition, int]
"""Per partition the offset from which on a record would be new."""

OPEN_S = 5.0
"""How long a broker holds a Fetch while there is nothing to send."""
_EARLY_S = 0.5 * OPEN_S
"""A Fetch that is answered with nothing before this time is not sent again at once: the broker is
about to stop."""
_LOST_S = 3 * OPEN_S
"""A Fetch that is not answered by then never will be."""
_PAUSE_S = 0.05


class _NotNow(Exception):
    """A broker cannot be waited for: it reports an error, asks for a pause, or is stopping."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A Fetch that was sent and is not answered yet."""

    connection: Connection
    ends: Ends
    since_s: float


class Watch:
    """The open Fetches of one client: at most one at each broker.

    It needs connections of its own: a broker answers in order, so other requests would wait behind
    an open Fetch. A wait ends in time even if a broker is lost, but for the time to connect. Where
    waiting is not possible (an error, a broker that is gone or asks for a pause), `wait` returns
    True after a short pause, and the caller's next request meets the reason.
    """

    def __init__(self, connections: Connections, client_id: str, clock: Clock) -> None:
        self._connections = connections
        self._client_id = client_id
        self._clock = clock
        self._open: dict[Address, _Open] = {}

    def wait(
        self, ends: Mapping[Address, Ends], timeout_s: float, *, read_committed: bool = False
    ) -> bool:
        """Whether there may be a record at one of these leaders' ends; False after `timeout_s`."""
        until_s = self._clock.monotonic_s() + timeout_s
        try:
            while not self._take(ends):
                self._hold(ends, read_committed)
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0 or not self._readable(left_s):
                    return False
        except _NotNow:
            self._pause(until_s)
        except CatchwaterError:
            self.close()
            self._pause(until_s)
        return True

    def close(self) -> None:
        """Close the connections; the next wait opens them anew."""
        self._open.clear()
        self._connections.close()

    def _take(self, ends: Mapping[Address, Ends]) -> bool:
        """Read the replies that have come; whether one has records behind these ends."""
        has_news = False
        for address in self._readable(0):
            held = self._open[address]
            if not held.connection.has_reply():
                continue
            del self._open[address]
            throttle_ms, parts = parse_fetch_reply(held.connection.receive())
            held.connection.throttle(throttle_ms)
            if held.ends != ends.get(address):
                continue  # of an earlier wait: its records have been read since
            if any(part.records for part in parts.values()):
                has_news = True
            elif (
                any(part.error is not ErrorCode.NONE for part in parts.values())
                or self._clock.monotonic_s() - held.since_s < _EARLY_S
            ):
                raise _NotNow
        return has_news

    def _hold(self, ends: Mapping[Address, Ends], read_committed: bool) -> None:
        """Keep a Fetch open at each leader's ends, and none anywhere else."""
        now_s = self._clock.monotonic_s()
        for address, held in list(self._open.items()):
            if held.ends != ends.get(address) or now_s - held.since_s > _LOST_S:
                del self._open[address]
                self._connections.drop(address)
        limits = FetchLimits(1, 1, 1, int(OPEN_S * 1000), read_committed)
        for address in ends.keys() - self._open.keys():
            connection = self._connections.to(address)
            if connection.is_silenced:
                raise _NotNow
            header = encode_header(FETCH, connection.correlation_id(), self._client_id)
            connection.send([header, *encode_fetch(ends[address], limits)])
            self._open[address] = _Open(connection, ends[address], now_s)

    def _readable(self, timeout_s: float) -> list[Address]:
        """The brokers that have answered; waits up to `timeout_s` for the first."""
        places = {held.connection.fileno(): address for address, held in self._open.items()}
        poll = select.poll()
        for descriptor in places:
            poll.register(descriptor, select.POLLIN)
        return [places[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]

    def _pause(self, until_s: float) -> None:
        left_s = until_s - self._clock.monotonic_s()
        self._clock.pause(max(0.0, min(_PAUSE_S, left_s)))


# --- how far away a host is -----------------------------------------------------------------------


HERE, LINK, PRIVATE, ANYWHERE = range(4)
"""This machine, link-local, addresses that are not routed, and all others."""


def nearest(host: str | None) -> int:
    """How far away the nearest address of this name is."""
    return min(_distances(host))


def farthest(host: str | None) -> int:
    """How far away the farthest address of this name is."""
    return max(_distances(host))


def _distances(host: str | None) -> list[int]:
    """Of every address; a name that is not known is far away. Asks the resolver."""
    if not host:
        return [HERE]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [ANYWHERE]  # connecting will say so, or a proxy knows it
    return [_how_far(ip_address(str(at[0]).partition("%")[0])) for *_, at in found]


def _how_far(address: IPv4Address | IPv6Address) -> int:
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_loopback or plain.is_unspecified or _is_ours(plain):
        return HERE
    if plain.is_link_local:
        return LINK
    return ANYWHERE if plain.is_global else PRIVATE


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    """Whether this machine has the address: only then can it be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
