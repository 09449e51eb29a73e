"""Every bound on what clients may take of a broker, and what is decided at each.

Memory: requests that are whole (`held`), large ones that are on their way (`unfinished`) and
replies that wait for their clients (`unsent`) are counted by connection (`Share`) and in all
(`Pressure`). Connections: as many as the limit of open files leaves room for (`fitted`), of one
address fewer, and so many a second (`ConnectionRates`); at a full port one that has never asked for
anything gives way (`Entrance`). Log lines about closed connections: so many a second
(`RefusalLog`).

Pure: no socket is touched here and time is an argument, in seconds on a clock that does not go
back. `server` and `control.port` do what is decided.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from catchwater.broker_config import BrokerConfig
from catchwater.config import CatchwaterError

FIRST_FRAME_BYTES = 512 * 1024
"""The largest frame of a connection that has not yet sent a good request."""
FIRST_REQUEST_S = 30.0
MAX_IN_FLIGHT = 128
MAX_HELD_BYTES = 16 * 1024 * 1024
"""Request bytes that one connection may have waiting or in flight before it is not read from."""
MAX_TOTAL_HELD_BYTES = 32 * 1024 * 1024
"""Request bytes of all connections beyond which each may have only one request in flight."""
SMALL_FRAME_BYTES = 64 * 1024
"""A frame of this size does not count towards the common bound."""
FRAME_S, LEAST_BYTES_A_SECOND = 30.0, 256 * 1024
"""How long a frame may be on its way: this many seconds, and its size at this rate."""
PRESSED_FRAME_S = 3.0
"""How long a large one may be on its way while others wait for the memory it has."""
MAX_TOTAL_UNSENT_BYTES = 256 * 1024 * 1024
"""Reply bytes of all connections that wait for their clients, beyond which no fetch is started."""
STALLED_S = 5.0
"""A client that took nothing for so long is closed while replies wait beyond the bound."""

_log = logging.getLogger("catchwater.broker")

C = TypeVar("C")


class Refusal(NamedTuple):
    """Why a connection is closed."""

    reason: str
    """As `catchwater_connections_closed_total` counts it."""
    message: str


# --- Memory


@dataclass
class Pressure:
    """What the requests and replies of all connections take."""

    most_request_bytes: int
    """`queued.max.request.bytes`."""
    held_bytes: int = 0
    """Requests waiting or in flight."""
    unfinished_bytes: int = 0
    """What has come of large requests that are not whole."""
    unsent_bytes: int = 0
    """Replies that their clients have not taken."""

    @property
    def room_bytes(self) -> int:
        """How much more requests may have before no further large one is received."""
        return self.most_request_bytes * 2 // 3 - self.held_bytes - self.unfinished_bytes

    @property
    def is_pressed(self) -> bool:
        """Whether there is no such room."""
        return self.room_bytes <= 0

    @property
    def is_full_of_replies(self) -> bool:
        """Whether no further fetch is started."""
        return self.unsent_bytes >= MAX_TOTAL_UNSENT_BYTES


class Share:
    """What one connection takes, counted in the sum of all, and what it may therefore do."""

    __slots__ = (
        *("_all", "announced_bytes", "held_bytes", "is_held_back", "is_new", "large_bytes"),
        *("last_frame_s", "last_sent_s", "unfinished_bytes", "unfinished_since_s", "unsent_bytes"),
    )

    def __init__(self, all_: Pressure, now_s: float) -> None:
        self._all = all_
        self.held_bytes = 0
        self.unsent_bytes = 0
        self.unfinished_bytes = self.announced_bytes = 0
        """What has come of the frame on its way, and what it is to have."""
        self.large_bytes = 0
        """As `unfinished_bytes` if the frame is not small, else 0; counted in the sum."""
        self.unfinished_since_s: float | None = None
        """When the frame on its way began, or when we went on reading it."""
        self.is_held_back = False
        """Whether the frame on its way waits until others have less."""
        self.is_new = True
        """Until the first good request."""
        self.last_frame_s = self.last_sent_s = now_s
        """When a whole request last came, and when the client last took a part of a reply."""

    def hold(self, size_bytes: int) -> None:
        """Requests of so many bytes came or, if it is negative, were answered."""
        self.held_bytes += size_bytes
        self._all.held_bytes += size_bytes

    def count_unsent(self, size_bytes: int) -> None:
        """Replies of so many bytes are to be sent or, if it is negative, were taken."""
        self.unsent_bytes += size_bytes
        self._all.unsent_bytes += size_bytes

    def receive(
        self, unfinished_bytes: int, announced_bytes: int, *, is_another: bool, now_s: float
    ) -> bool:
        """See how far the frame on its way is; whether others may have got room by that.

        `is_another` says that a frame has ended since the last time.
        """
        self.unfinished_bytes, self.announced_bytes = unfinished_bytes, announced_bytes
        if not unfinished_bytes:
            self.unfinished_since_s = None
        elif is_another or self.unfinished_since_s is None:
            self.unfinished_since_s = now_s
        was_large = self.large_bytes > 0
        self._count_large(unfinished_bytes if announced_bytes > SMALL_FRAME_BYTES else 0)
        # A large frame that has only begun waits, near the bound, before it takes its memory.
        if 0 < self.large_bytes <= SMALL_FRAME_BYTES and self._all.is_pressed:
            self.is_held_back = True
            return False
        return was_large

    def give_up(self) -> None:
        """What was on its way in or out counts no more."""
        self._count_large(0)
        self.count_unsent(-self.unsent_bytes)

    def _count_large(self, large_bytes: int) -> None:
        self._all.unfinished_bytes += large_bytes - self.large_bytes
        self.large_bytes = large_bytes

    @property
    def reads_little(self) -> bool:
        """Whether no more than `SMALL_FRAME_BYTES` are to be received at once."""
        return self._all.is_pressed and self.large_bytes <= SMALL_FRAME_BYTES

    def may_start(self, in_flight: int, is_fetch: bool, follows_produce: bool) -> bool:
        """Whether the next request may be started; `follows_produce`: a Produce after another."""
        if self.unsent_bytes:
            return False
        if not in_flight:
            return not is_fetch or not self._all.is_full_of_replies
        return (
            follows_produce
            and in_flight < MAX_IN_FLIGHT
            and self._all.held_bytes < MAX_TOTAL_HELD_BYTES
        )

    def may_read(self, *, waiting: int, in_flight: int) -> bool:
        """Whether more is to be received."""
        return not (
            waiting + in_flight >= MAX_IN_FLIGHT
            or self.held_bytes >= MAX_HELD_BYTES
            or (in_flight > 0 and self._all.held_bytes >= MAX_TOTAL_HELD_BYTES)
            or self.unsent_bytes > 0
            or self.is_held_back
        )

    def late(
        self, now_s: float, idle_s: float, *, is_read: bool, is_answered: bool
    ) -> Refusal | None:
        """Why the connection is closed for its slowness, if it is; our own does not count.

        `is_read`: we receive what it sends; `is_answered`: no request of it waits for us.
        """
        if self.unfinished_since_s is not None and is_read:
            limit_s = FRAME_S + self.announced_bytes / LEAST_BYTES_A_SECOND
            if self.large_bytes and self._all.is_pressed:
                limit_s = min(limit_s, PRESSED_FRAME_S)
            if now_s - self.unfinished_since_s > limit_s:
                return Refusal(
                    "slow",
                    f"{self.unfinished_bytes} bytes of a request of "
                    f"{self.announced_bytes} came in {limit_s:.0f} seconds.",
                )
        limit_s = min(FIRST_REQUEST_S, idle_s) if self.is_new else idle_s
        if is_answered and now_s - max(self.last_frame_s, self.last_sent_s) > limit_s:
            return Refusal("idle", f"no request for {limit_s:.0f} seconds.")
        return None

    def is_stalled(self, now_s: float) -> bool:
        """Whether its client has not read a reply that waits for it for `STALLED_S`."""
        return self.unsent_bytes > 0 and now_s - self.last_sent_s > STALLED_S


STALLED = Refusal("stalled", f"no reply was taken for {STALLED_S:.0f} seconds.")
SHED = Refusal("shed", "unfinished requests exceed queued.max.request.bytes.")


def to_shed(pressure: Pressure, shares: Iterable[tuple[Share, C]]) -> C | None:
    """Which connection is closed because the large requests on their way have too much: the one
    whose request began first, unless it is the only one.
    """
    if pressure.unfinished_bytes <= pressure.most_request_bytes:
        return None
    large = [(share.unfinished_since_s or 0.0, each) for share, each in shares if share.large_bytes]
    return min(large, key=lambda pair: pair[0])[1] if len(large) > 1 else None


# --- Connections


class Verdict(NamedTuple, Generic[C]):
    """What becomes of a new connection."""

    refusal: Refusal | None = None
    displaced: C | None = None
    """One that is closed so that the new one has a place."""


DISPLACED = Refusal("displaced", "another one needed the place; it had not said anything.")


class Entrance(Generic[C]):
    """The connections of the Kafka port, and who may come in."""

    def __init__(self, rates: "ConnectionRates") -> None:
        self.rates = rates
        self.newcomers: Newcomers[C] = Newcomers()
        """Connections without a good request yet."""
        self._host: dict[C, str] = {}
        self._by_host: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._host)

    def admit(self, new: C, host: str, config: BrokerConfig, now_s: float) -> Verdict[C]:
        """Count a new connection, until `forget`."""
        self._host[new] = host
        self._by_host[host] += 1
        displaced = None
        if self._by_host[host] > (most := config.max_connections_per_ip):
            displaced = self.newcomers.silent_longest(now_s, lambda c: self._host[c] == host)
            if displaced is None:
                return Verdict(Refusal("limit", f"max.connections.per.ip is {most}."))
        elif len(self._host) > (most := config.max_connections):
            displaced = self.newcomers.silent_longest(now_s, lambda c: True)
            if displaced is None:
                return Verdict(Refusal("limit", f"max.connections is {most}."))
        exceeded = self.rates.admit(host, now_s)
        if exceeded is not None:
            what = f"connections come faster than {exceeded} allows."
            return Verdict(Refusal(exceeded.reason, what), displaced)
        self.newcomers.add(new, now_s)
        return Verdict(None, displaced)

    def forget(self, gone: C) -> None:
        """The connection is gone."""
        self.newcomers.drop(gone)
        host = self._host.pop(gone, None)
        if host is not None:
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]


SILENT_S = 1.0
"""How long a connection may say nothing before another one may take its place."""


class Newcomers(Generic[C]):
    """The connections of one port that have not asked for anything yet, in the order they came.

    A client that connects to be served says so at once. So where there is no place left, the
    connection that has been silent longest is closed for a new one, unless all of them have only
    just come.
    """

    def __init__(self) -> None:
        self._since_s: dict[C, float] = {}

    def add(self, connection: C, now_s: float) -> None:
        """It was opened."""
        self._since_s[connection] = now_s

    def drop(self, connection: C) -> None:
        """It has asked for something, or is closed."""
        self._since_s.pop(connection, None)

    def silent_longest(self, now_s: float, among: Callable[[C], bool]) -> C | None:
        """The one to be closed for another, if there is one."""
        for connection, since_s in self._since_s.items():
            if now_s - since_s <= SILENT_S:
                return None
            if among(connection):
                return connection
        return None


BURST_S = 10


class Exceeded(NamedTuple):
    """The bound that bites; as text its key and its value."""

    reason: str
    """As `catchwater_connections_closed_total` counts it."""
    key: str
    rate: int

    def __str__(self) -> str:
        return f"{self.key} = {self.rate} (a second)"


class TokenBucket:
    """Gives `rate` tokens a second, and at most `burst` at once; begins full."""

    __slots__ = ("_at_s", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at_s = now_s

    def holds(self, now_s: float) -> float:
        """The tokens that are there now."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._tokens

    def take(self, now_s: float) -> bool:
        """Take one token; False if there is none."""
        if self.holds(now_s) < 1:
            return False
        self._tokens -= 1
        return True

    def is_full(self, now_s: float) -> bool:
        """Whether nothing was taken for so long that it makes no difference any more."""
        return self.holds(now_s) >= self._burst


class ConnectionRates:
    """New connections a second: of all clients, and of each address (as in KIP-612).

    A bucket holds what `BURST_S` seconds at its rate give, so that a fleet may connect at once
    after a restart, and one that connects without end is held to the rate. What Kafka delays is
    refused here: a waiting connection would cost the broker what the limit is there to save. An
    address is forgotten when its bucket is full again, and only admitted ones are known, so that
    the memory has a bound, too.
    """

    def __init__(self, of_all: int, per_ip: int, now_s: float, burst_s: float = BURST_S) -> None:
        self._all = TokenBucket(of_all, of_all * burst_s, now_s)
        self._of_all = of_all
        self._per_ip = per_ip
        self._burst_s = burst_s
        self._by_ip: dict[str, TokenBucket] = {}

    def admit(self, ip: str, now_s: float) -> Exceeded | None:
        """Count a new connection; None: it may stay. One that may not costs others nothing."""
        own = self._by_ip.get(ip) or TokenBucket(self._per_ip, self._per_ip * self._burst_s, now_s)
        if own.holds(now_s) < 1:
            key = "catchwater.max.connection.creation.rate.per.ip"
            return Exceeded("rate_per_ip", key, self._per_ip)
        if not self._all.take(now_s):
            return Exceeded("rate", "max.connection.creation.rate", self._of_all)
        own.take(now_s)
        self._by_ip[ip] = own
        return None

    def forget_silent(self, now_s: float) -> None:
        """Drop the addresses that a fresh bucket would serve as well."""
        for ip in [ip for ip, bucket in self._by_ip.items() if bucket.is_full(now_s)]:
            del self._by_ip[ip]

    def __len__(self) -> int:
        """The addresses that are remembered."""
        return len(self._by_ip)


# --- Log lines

LINES_A_SECOND = 10
FIRST_LINES = 100


def printable(text: str) -> str:
    """The text with everything escaped that does not print: newlines, escapes, surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RefusalLog:
    """One line in the log for each connection that was closed on purpose, but not without end.

    The first hundred are written as they come, then ten a second; of the others only the number,
    so that a client that floods the port does not fill the disk. The metrics count them all. What
    a client can have a say in is written with its control characters escaped.
    """

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(LINES_A_SECOND, FIRST_LINES, now_s)
        self._left_out = 0

    def write(self, host: str, message: str, now_s: float) -> None:
        """One line, or one more that is left out."""
        if self._bucket.take(now_s):
            _log.warning("Closed the connection from %s: %s", host, printable(message))
        else:
            self._left_out += 1

    def summarize(self, now_s: float) -> None:
        """Say how many were left out since the last time, if any and if there is room to."""
        if self._left_out and self._bucket.take(now_s):
            _log.warning(
                "Closed %s more connections; catchwater_connections_closed_total counts them.",
                self._left_out,
            )
            self._left_out = 0


# --- Descriptors
#
# A connection costs a descriptor as a file does, so a broker whose clients could take all of them
# would have none left to write with. `RESERVE` is what its own work needs at the worst; what the
# limit of open files leaves above it is shared out to the ports, which together never get more.

MOST_PEERS = 32
"""Other brokers to which a connection is kept."""
AT_ONCE = 16
"""Connections of one port that are accepted and not yet judged."""

_STANDING = 32
"""The ports, the event loop, the log's files, the catalog, the connections to PostgreSQL."""
_THREADS, _OF_A_THREAD = 32, 3
"""asyncio's threads at their most, each with a catalog connection (two files) and a file."""

_SHAKING = 28
"""TLS connections of one port before they are counted (`door`)."""

RESERVE = _STANDING + _THREADS * _OF_A_THREAD + MOST_PEERS + 2 * _SHAKING
_LEAST_ROOM = 32
_CONTROL_SHARE = 8
"""Of what is left an eighth is the control port's."""


class TooFewDescriptors(CatchwaterError):
    """The limit of open files leaves nothing for clients."""


def fitted(config: BrokerConfig, limit: int) -> BrokerConfig:
    """The configuration with its bounds on connections as low as this limit of open files asks.

    The bound on those of one address shrinks with that on all. Raises `TooFewDescriptors`.
    """
    room = limit - RESERVE - (len(config.kafka_listeners) - 1) * _SHAKING
    if room < _LEAST_ROOM:
        raise TooFewDescriptors(
            f"The limit of open files is {limit}; a broker needs {RESERVE} for itself and at "
            f"least {_LEAST_ROOM} for its clients.",
            hint=f"Raise it to {RESERVE + _LEAST_ROOM} or more, better 8192: `ulimit -n`, or "
            "LimitNOFILE= of a systemd unit.",
        )
    all_wanted = config.max_connections + config.catchwater_max_control_connections
    if all_wanted <= room:
        return config
    control = min(config.catchwater_max_control_connections, room // _CONTROL_SHARE)
    kafka = min(config.max_connections, room - control)
    of_one = config.max_connections_per_ip * kafka // config.max_connections
    return replace(
        config,
        max_connections=kafka,
        max_connections_per_ip=max(1, of_one),
        catchwater_max_control_connections=control,
    )
