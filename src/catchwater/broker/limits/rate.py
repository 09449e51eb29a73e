"""How fast connections may come: token buckets, for each address and for all (as in KIP-612).

A bucket holds what `BURST_S` seconds at its rate give, so that a fleet may connect at once after a
restart and one that connects without end is held to the rate. What Kafka delays is refused here: a
waiting connection would cost the broker what the limit is there to save.

Pure: time is an argument, in seconds on a clock that does not go back. An address is forgotten when
its bucket is full again, and only admitted ones are known, so that the memory has a bound, too.
"""

from typing import NamedTuple

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
    """New connections a second: of all clients, and of each address."""

    def __init__(self, of_all: int, per_ip: int, now_s: float) -> None:
        self._all = TokenBucket(of_all, of_all * BURST_S, now_s)
        self._of_all = of_all
        self._per_ip = per_ip
        self._by_ip: dict[str, TokenBucket] = {}

    def admit(self, ip: str, now_s: float) -> Exceeded | None:
        """Count a new connection; None: it may stay. One that may not costs others nothing."""
        own = self._by_ip.get(ip) or TokenBucket(self._per_ip, self._per_ip * BURST_S, now_s)
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
