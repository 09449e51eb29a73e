"""Waiting for records instead of asking for them: a Fetch lies open at the end of each partition.

Every Kafka answers such a Fetch the moment a record comes, or after the longest wait that it names.
One that is open when a wait is over stays so for the next, so waiting often costs no more requests
than waiting long. Its reply brings one batch, which nobody looks into: who waits asks again.

Relies on connections of its own, since a broker answers in order and others would wait behind an
open Fetch. Promises to be over in time whatever becomes of a broker, but for what it takes to
connect. What cannot be waited for (an error, a broker that is gone or asks for silence) counts as
news after a short pause: who asks next learns of it, and nobody asks without end. Not thread-safe.
"""

import select
from collections.abc import Mapping
from dataclasses import dataclass

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.wire import exchange
from catchwater.wire.connection import Address, Connection, Connections
from catchwater.wire.errors import ErrorCode
from catchwater.wire.exchange import TopicPartition

Ends = Mapping[TopicPartition, int]
"""Per partition the offset from which on a record would be new."""

OPEN_S = 5.0
"""So long a broker holds a Fetch to which nothing has come."""
_EARLY_S = 0.5 * OPEN_S
"""Brokers that are about to stop answer sooner, and would at once be asked again."""
_LOST_S = 3 * OPEN_S
"""A Fetch that is not answered by then never will be."""
_PAUSE_S = 0.05


class _NotNow(Exception):
    """A broker does not let itself be waited for."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A Fetch that was sent and is not answered yet."""

    connection: Connection
    ends: Ends
    since_s: float


class Watch:
    """The open Fetches of one client: at most one at each broker."""

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
        """Read the replies that have come; whether one has something new behind these ends."""
        has_news = False
        for address in self._readable(0):
            held = self._open[address]
            if not held.connection.has_reply():
                continue
            del self._open[address]
            throttle_ms, parts = exchange.parse_fetch_reply(held.connection.receive())
            held.connection.throttle(throttle_ms)
            if held.ends != ends.get(address):
                continue  # it was of an earlier wait, whose records are known by now
            if any(part.records for part in parts.values()):
                has_news = True
            elif (
                any(part.error is not ErrorCode.NONE for part in parts.values())
                or self._clock.monotonic_s() - held.since_s < _EARLY_S
            ):
                raise _NotNow
        return has_news

    def _hold(self, ends: Mapping[Address, Ends], read_committed: bool) -> None:
        """See that a Fetch is open at each leader's ends, and at no other place."""
        now_s = self._clock.monotonic_s()
        for address, held in list(self._open.items()):
            if held.ends != ends.get(address) or now_s - held.since_s > _LOST_S:
                del self._open[address]
                self._connections.drop(address)
        limits = exchange.FetchLimits(1, 1, 1, int(OPEN_S * 1000), read_committed)
        for address in ends.keys() - self._open.keys():
            connection = self._connections.to(address)
            if connection.is_silenced:
                raise _NotNow
            header = exchange.encode_header(
                exchange.FETCH, connection.correlation_id(), self._client_id
            )
            connection.send([header, *exchange.encode_fetch(ends[address], limits)])
            self._open[address] = _Open(connection, ends[address], now_s)

    def _readable(self, timeout_s: float) -> list[Address]:
        """Who has answered, waiting so long for the first."""
        places = {held.connection.fileno(): address for address, held in self._open.items()}
        poll = select.poll()
        for descriptor in places:
            poll.register(descriptor, select.POLLIN)
        return [places[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]

    def _pause(self, until_s: float) -> None:
        left_s = until_s - self._clock.monotonic_s()
        self._clock.pause(max(0.0, min(_PAUSE_S, left_s)))
