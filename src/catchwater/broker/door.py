"""Accepts a port's connections, a few at a time, so that the bounds are applied between them.

The event loop's own server accepts all connections that the kernel has queued before any can be
refused: a thousand descriptors at once, which the broker may not have. If accept(2) fails, mostly
because the system has no more descriptors, this one pauses instead of trying in a loop.

A TLS handshake costs the event loop far more than a request does, so each port has a rate of its
own at which they begin (`HandshakeRates`); a connection beyond it is closed before it costs one.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from catchwater.broker.pressure import AT_ONCE, ConnectionRates
from catchwater.clock import Clock

PAUSE_S = 0.5
HANDSHAKE_S = 10.0
MOST_HANDSHAKES, MOST_SILENT = 16, 12
"""TLS handshakes under way, and connections that have not begun one: descriptors that `pressure`
has kept back are enough for so many."""

_MOST_ADDRESSES = 1_000
_BURST_S = 1.0

_log = logging.getLogger("catchwater.broker")

T = TypeVar("T")


class HandshakeRates:
    """TLS handshakes of one port a second, a second's worth at once; one address has half of them.

    So a flood from one address leaves room for others, and one from many leaves the event loop to
    the clients who are in.
    """

    def __init__(self, rate: int, clock: Clock, refused: Callable[[str, str], None]) -> None:
        """`refused` is told the address that asked too often, and what it was refused by."""
        self._rate = rate
        self._clock = clock
        self._refused = refused
        now_s = clock.monotonic_s()
        self._rates = ConnectionRates(rate, max(1, rate // 2), now_s, _BURST_S)

    def admit(self, host: str) -> bool:
        """Whether one more may begin now; counts it."""
        now_s = self._clock.monotonic_s()
        if len(self._rates) >= _MOST_ADDRESSES:
            self._rates.forget_silent(now_s)
        if self._rates.admit(host, now_s) is None:
            return True
        limit = f"catchwater.max.handshake.rate = {self._rate} (a second) allows"
        self._refused(host, f"TLS handshakes come faster than {limit}.")
        return False


class Door:
    """Makes a protocol for every connection to a listening socket, until `close`."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: Callable[[], ssl.SSLContext] | None = None,
        rates: HandshakeRates | None = None,
    ) -> None:
        """Begins at once, in the running loop; `tls` gives what new connections are to have."""
        self._tls = tls
        self._rates = rates
        self._late: dict[socket.socket, asyncio.TimerHandle] = {}
        self._silent: dict[socket.socket, str] = {}
        """The addresses of connections that have not sent the first byte of their handshake, the
        oldest first.
        """
        self._shaking: dict[asyncio.Task[Any], str] = {}
        """The addresses of connections whose TLS handshake is under way, the oldest first."""
        self._bound = bound
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        bound.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Stop accepting and close the socket."""
        self._is_closed = True
        self._loop.remove_reader(self._bound)
        if self._pause is not None:
            self._pause.cancel()
        for silent in list(self._silent):
            self._give_up(silent)
        self._bound.close()

    async def wait_closed(self) -> None:
        """As asyncio's servers have it; nothing is left after `close`."""

    def _watch(self) -> None:
        if not self._is_closed and self._pause is None:
            self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        if self._tls is not None:
            self._accept_encrypted()
            return
        while len(self._opening) < AT_ONCE:
            accepted = self._accepted()
            if accepted is None:
                return
            opening = self._loop.create_task(
                self._loop.connect_accepted_socket(self._protocol, accepted)
            )
            self._opening.add(opening)
            opening.add_done_callback(self._opened)
        self._loop.remove_reader(self._bound)

    def _accepted(self) -> socket.socket | None:
        """The next connection; None if there is none now."""
        try:
            accepted, _ = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError as error:
            self._loop.remove_reader(self._bound)
            self._pause = self._loop.call_later(PAUSE_S, self._resume)
            _log.warning("No connection is accepted for a moment: %s.", error.strerror)
            return None
        accepted.setblocking(False)
        return accepted

    def _accept_encrypted(self) -> None:
        """Accept a few, each in the place of one that has said nothing.

        So a flood of silent connections costs descriptors alone, and for a moment; it takes no
        place from those that have begun their handshake, as clients do at once, and one address
        takes its own places first.
        """
        for _ in range(AT_ONCE):
            accepted = self._accepted()
            if accepted is None:
                return
            if len(self._silent) >= MOST_SILENT:
                self._give_up(one_too_many(self._silent))
            self._late[accepted] = self._loop.call_later(HANDSHAKE_S, self._give_up, accepted)
            self._silent[accepted] = _host(accepted)
            self._loop.add_reader(accepted, self._shake, accepted)

    def _give_up(self, silent: socket.socket) -> None:
        self._loop.remove_reader(silent)
        self._late.pop(silent).cancel()
        del self._silent[silent]
        silent.close()

    def _shake(self, accepted: socket.socket) -> None:
        """Begin the handshake of a connection that has sent something."""
        assert self._tls is not None
        self._loop.remove_reader(accepted)
        self._late.pop(accepted).cancel()
        host = self._silent.pop(accepted)
        if self._rates is not None and not self._rates.admit(host):
            accepted.close()
            return
        if len(self._shaking) >= MOST_HANDSHAKES:
            displaced = one_too_many(self._shaking)
            del self._shaking[displaced]
            displaced.cancel()
        opening = self._loop.create_task(
            self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls(), ssl_handshake_timeout=HANDSHAKE_S
            )
        )
        self._shaking[opening] = host
        opening.add_done_callback(self._shaken)

    def _shaken(self, opening: asyncio.Task[Any]) -> None:
        self._shaking.pop(opening, None)
        if not opening.cancelled():
            opening.exception()  # retrieved: no client of ours, or no client of TLS

    def _resume(self) -> None:
        self._pause = None
        self._watch()

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        was_full = len(self._opening) == AT_ONCE
        self._opening.discard(opening)
        if not opening.cancelled():
            opening.exception()  # retrieved, for the client may have gone again already
        if was_full:
            self._watch()


def one_too_many(addresses: Mapping[T, str]) -> T:
    """Which of these, the oldest first, gives way: the oldest of the address that has most."""
    most, _ = Counter(addresses.values()).most_common(1)[0]
    return next(each for each, address in addresses.items() if address == most)


def _host(accepted: socket.socket) -> str:
    """The client's address; empty, where it has gone again."""
    try:
        return str(accepted.getpeername()[0])
    except OSError:
        return ""
