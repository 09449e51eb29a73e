"""The only Kafka sockets: requests in, replies out in their order, nothing without a bound.

One `Connection` per client. Produce requests of one connection overlap, so that a producer is not
held to one request per disk sync; any other request waits until the replies before it have left,
as in Kafka. Replies are lists of buffers that go to the socket as they are; what the kernel does
not take waits here, and no further request is started until it is gone. So a client that only
writes, or never reads, fills its own bounded share and is then no longer read from.

Bytes that are not Kafka's protocol end their connection at once with one log line and a count in
`catchwater_connections_closed_total`; nobody else notices. Before its first good request a
connection may send only small frames.

A frame that has begun must come to its end in time, and those that have begun share a bound: near
it no further large one is received, beyond it the oldest is given up. Replies that wait for their
clients share a bound as well: at it no fetch is started, and who has long taken nothing is closed.
"""

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from catchwater.broker import router
from catchwater.broker.broker import Api, Broker, Later
from catchwater.broker.door import Door
from catchwater.broker.guard import Guard
from catchwater.broker.limits.newcomers import Newcomers
from catchwater.broker.limits.rate import ConnectionRates
from catchwater.broker.limits.refusals import RefusalLog
from catchwater.objects.base import Buffer
from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, FrameError, prefixed

FIRST_FRAME_BYTES = 512 * 1024
"""The largest frame of a connection that has not yet sent a good request."""
FIRST_REQUEST_S = 30.0
MAX_IN_FLIGHT = 128
MAX_HELD_BYTES = 16 * 1024 * 1024
"""Request bytes that one connection may have waiting or in flight before it is not read from."""
MAX_TOTAL_HELD_BYTES = 32 * 1024 * 1024
"""Request bytes of all connections beyond which each may have only one request in flight."""
DRAIN_S = 10.0
SMALL_FRAME_BYTES = 64 * 1024
"""A frame of this size counts not towards the common bound."""
FRAME_S, LEAST_BYTES_A_SECOND = 30.0, 256 * 1024
"""How long a frame may be on its way: so long, and what its size takes at this rate."""
PRESSED_FRAME_S = 3.0
"""How long a large one may be on its way while others wait for the memory it has."""
MAX_TOTAL_UNSENT_BYTES = 256 * 1024 * 1024
"""Reply bytes of all connections that wait for their clients, beyond which no fetch is started."""
STALLED_S = 5.0
"""A client that took nothing for so long is closed while replies wait beyond the bound."""

_PIECE_BYTES = 64 * 1024
_MOST_BUFFERS = 1024  # of one writev call (IOV_MAX)
_PRODUCE, _FETCH = b"\x00\x00", b"\x00\x01"

_log = logging.getLogger("catchwater.broker")


class Slot(NamedTuple):
    """A request whose reply has not left yet; slots leave in the order they came."""

    api: Api
    later: Later
    size_bytes: int
    started_s: float


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._broker = server.broker
        self._frames = FrameBuffer(
            min(FIRST_FRAME_BYTES, server.broker.config.socket_request_max_bytes), server.arenas
        )
        self._transport: asyncio.Transport
        self._fd = -1
        self._is_open = False
        self._is_reading = True
        self._kernel_is_full = False
        self._waiting: deque[Frame] = deque()
        self._in_flight: deque[Slot] = deque()
        self._held_bytes = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_held_back = False
        self.large_bytes = 0
        """What has come of an unfinished frame that is not small; counted in the server's sum."""
        self.unfinished_since_s: float | None = None
        """When the frame began that is on its way, or when we went on reading it."""
        self.last_sent_s = server.broker.clock.monotonic_s()
        self.host = ""
        self._guard = Guard(self)
        self.is_new = True
        """Until the first good request."""
        self.last_frame_s = server.broker.clock.monotonic_s()

    # --- asyncio's side ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        # pause_writing is called as soon as the kernel does not take everything.
        self._transport.set_write_buffer_limits(high=0)
        self._fd = transport.get_extra_info("socket").fileno()
        self.host = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._is_open = True
        refusal = self._server.admit(self)
        if refusal is not None:
            self.refuse(*refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._frames.get_buffer(sizehint)
        is_short = self._server.is_pressed and self.large_bytes <= SMALL_FRAME_BYTES
        return room[:SMALL_FRAME_BYTES] if is_short else room

    def buffer_updated(self, nbytes: int) -> None:
        self._broker.metrics.bytes_in.total += nbytes
        try:
            frames = self._frames.receive(nbytes)
        except FrameError as error:
            self.refuse("bad_frame", str(error))
            return
        if frames:
            self.last_frame_s = self._broker.clock.monotonic_s()
            self._hold(sum(len(frame.data) for frame in frames))
            self._waiting.extend(frames)
        self._watch_unfinished(is_another=bool(frames))
        if frames or self._is_held_back:
            self._advance()

    def pause_writing(self) -> None:
        self._kernel_is_full = True

    def resume_writing(self) -> None:
        self._kernel_is_full = False
        self._send()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        self._hold(-self._held_bytes)
        self._give_up()
        self._server.forget(self)
        self._frames.close()
        for frame in self._waiting:
            frame.release()
        for slot in self._in_flight:
            slot.later.future.cancel()
        self._waiting.clear()
        self._in_flight.clear()
        self._unsent.clear()

    # --- requests ------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start what may be started, and read on if there is room for more."""
        while self._is_open and self._waiting and self._may_start(self._waiting[0]):
            self._start(self._waiting.popleft())
        if not self._is_open:
            return
        is_full = (
            len(self._waiting) + len(self._in_flight) >= MAX_IN_FLIGHT
            or self._held_bytes >= MAX_HELD_BYTES
            or (bool(self._in_flight) and self._server.held_bytes >= MAX_TOTAL_HELD_BYTES)
            or bool(self._unsent)
            or self._is_held_back
            or self._broker.draining.is_set()
        )
        if is_full and self._is_reading:
            self._transport.pause_reading()
        elif not is_full and not self._is_reading:
            if self.unfinished_since_s is not None:
                self.unfinished_since_s = self._broker.clock.monotonic_s()
            self._transport.resume_reading()
        self._is_reading = not is_full

    def _watch_unfinished(self, *, is_another: bool) -> None:
        """See how far the frame is that is on its way, and whether there is room for it."""
        if not self._frames.unfinished_bytes:
            self.unfinished_since_s = None
        elif is_another or self.unfinished_since_s is None:
            self.unfinished_since_s = self._broker.clock.monotonic_s()
        is_large, was_large = self._frames.announced_bytes > SMALL_FRAME_BYTES, self.large_bytes > 0
        self._count_large(self._frames.unfinished_bytes if is_large else 0)
        if 0 < self.large_bytes <= SMALL_FRAME_BYTES and self._server.is_pressed:
            self._is_held_back = True
            self._server.held_back[self] = None
        elif was_large:
            self._server.make_room()

    def _count_large(self, large_bytes: int) -> None:
        self._server.unfinished_bytes += large_bytes - self.large_bytes
        self.large_bytes = large_bytes

    def go_on(self) -> int:
        """Start and read what waited for others to have less; the bytes that are to come of it."""
        self._is_held_back = False
        self._advance()
        return self._frames.announced_bytes

    def overdue(self, now_s: float) -> str | None:
        """Why the frame on its way takes too long, if it does; waiting for us does not count."""
        if self.unfinished_since_s is None or not self._is_reading:
            return None
        limit_s = FRAME_S + self._frames.announced_bytes / LEAST_BYTES_A_SECOND
        if self.large_bytes and self._server.is_pressed:
            limit_s = min(limit_s, PRESSED_FRAME_S)
        if now_s - self.unfinished_since_s <= limit_s:
            return None
        return (
            f"{self._frames.unfinished_bytes} bytes of a request of "
            f"{self._frames.announced_bytes} came in {limit_s:.0f} seconds."
        )

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._server.held_bytes += size_bytes

    def _may_start(self, frame: Frame) -> bool:
        if self._unsent:
            return False
        if not self._in_flight:
            return frame.data[:2] != _FETCH or self._server.unsent_bytes < MAX_TOTAL_UNSENT_BYTES
        return (
            frame.data[:2] == _PRODUCE
            and self._in_flight[-1].api.key == 0
            and len(self._in_flight) < MAX_IN_FLIGHT
            and self._server.held_bytes < MAX_TOTAL_HELD_BYTES
        )

    def _start(self, frame: Frame) -> None:
        size_bytes = len(frame.data)
        started_s = self._broker.clock.monotonic_s()
        self._broker.metrics.request_queue_seconds.observe(started_s - self.last_frame_s)
        started: tuple[Api, Later] | None = None
        with self._guard:
            started = router.start(self._broker, frame, self.host)
        if started is None:
            frame.release()
            return
        api, later = started
        if self.is_new:
            self.is_new = False
            self._server.newcomers.drop(self)
            self._frames.max_frame_bytes = self._broker.config.socket_request_max_bytes
        self._in_flight.append(Slot(api, later, size_bytes, started_s))
        if later.future.done():
            self._reply()
        else:
            later.future.add_done_callback(self._answer)

    def _answer(self, _: asyncio.Future[Any]) -> None:
        self._reply()
        self._advance()
        self._server.make_room()

    def _reply(self) -> None:
        """Send the replies that are ready, up to the first that is not."""
        now_s = self._broker.clock.monotonic_s()
        while self._is_open and self._in_flight and self._in_flight[0].later.future.done():
            slot = self._in_flight.popleft()
            self._hold(-slot.size_bytes)
            parts: Sequence[Buffer] = ()
            with self._guard:
                parts = slot.later.encode(slot.later.future.result())
            if parts:
                self._enqueue(prefixed(parts))
            self._server.request_seconds[slot.api.key].observe(now_s - slot.started_s)
        self._send()

    @property
    def is_busy(self) -> bool:
        """Whether a reply is still to come or to leave."""
        return bool(self._in_flight or self._unsent)

    @property
    def waits_for(self) -> str:
        """The API of the request that is to be answered next, if there is one."""
        return self._in_flight[0].api.name if self._in_flight else ""

    @property
    def last_active_s(self) -> float:
        """When a whole request last came, or a part of a reply was taken."""
        return max(self.last_frame_s, self.last_sent_s)

    @property
    def stalled_since_s(self) -> float | None:
        """When the client last took something of a reply that it has not taken whole."""
        return self.last_sent_s if self._unsent else None

    # --- replies -------------------------------------------------------------------------

    def _enqueue(self, parts: Sequence[Buffer]) -> None:
        if not self._unsent:
            self.last_sent_s = self._broker.clock.monotonic_s()
        self._unsent.extend(memoryview(part) for part in parts)
        self._count_unsent(sum(map(len, parts)))

    def _count_unsent(self, size_bytes: int) -> None:
        self._unsent_bytes += size_bytes
        self._server.unsent_bytes += size_bytes

    def _send(self) -> None:
        """Give the kernel what it takes; the transport waits for room with one small piece."""
        while self._unsent and self._is_open and not self._kernel_is_full:
            try:
                sent = os.writev(self._fd, list(islice(self._unsent, _MOST_BUFFERS)))
            except BlockingIOError:
                sent = 0
            except OSError:
                self._transport.abort()
                return
            self._broker.metrics.bytes_out.total += sent
            self._drop_sent(sent)
            if self._unsent and not sent:
                piece = self._unsent[0][:_PIECE_BYTES]
                self._broker.metrics.bytes_out.total += len(piece)
                self._transport.write(bytes(piece))
                self._drop_sent(len(piece))

    def _drop_sent(self, size_bytes: int) -> None:
        if size_bytes:
            self.last_sent_s = self._broker.clock.monotonic_s()
            self._count_unsent(-size_bytes)
        while self._unsent and size_bytes >= len(self._unsent[0]):
            size_bytes -= len(self._unsent.popleft())
        if size_bytes:
            self._unsent[0] = self._unsent[0][size_bytes:]

    # --- the end -------------------------------------------------------------------------

    def refuse(self, reason: str, message: str) -> None:
        """Close at once: one line in the log, one count in the metrics."""
        if self._is_open:
            self._is_open = False
            self._give_up()
            self._server.newcomers.drop(self)
            self._broker.metrics.connections_closed.labels(reason).inc()
            now_s = self._broker.clock.monotonic_s()
            self._server.refusals.write(self.host, message, now_s)
            self._transport.abort()

    def _give_up(self) -> None:
        """What was on its way in or out counts no more."""
        self._count_large(0)
        self._count_unsent(-self._unsent_bytes)

    def close(self) -> None:
        """Close when what was written has left."""
        self._transport.close()

    def stop_or_go_on(self) -> None:
        """Do as is right now: once the broker drains, take no further requests."""
        self._advance()


class Server:
    """The Kafka listener and its connections."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.arenas = ArenaPool()
        of_api = broker.metrics.request_seconds.of
        self.request_seconds = {api.key: of_api(api.name) for api in broker.apis.values()}
        self.held_bytes = 0
        """Request bytes waiting or in flight, of all connections."""
        self.unfinished_bytes = 0
        """What has come of large requests that are not whole, of all connections."""
        self.held_back: dict[Connection, None] = {}
        """Those with a large request for which there was no room, the first to come first."""
        self.unsent_bytes = 0
        """Reply bytes that their clients have not taken, of all connections."""
        now_s, config = broker.clock.monotonic_s(), broker.config
        self.refusals = RefusalLog(now_s)
        self._rates = ConnectionRates(
            config.max_connection_creation_rate,
            config.catchwater_max_connection_creation_rate_per_ip,
            now_s,
        )
        self._connections: set[Connection] = set()
        self.newcomers: Newcomers[Connection] = Newcomers()
        """Those without a good request yet."""
        self._by_host: Counter[str] = Counter()
        self._door: Door | None = None

    def listen(self, bound: socket.socket) -> None:
        """Accept connections on a socket that listens."""
        self._door = Door(bound, lambda: Connection(self))

    @property
    def room_bytes(self) -> int:
        """How much more requests may have before no further large one is received."""
        most_bytes = self.broker.config.queued_max_request_bytes * 2 // 3
        return most_bytes - self.held_bytes - self.unfinished_bytes

    @property
    def is_pressed(self) -> bool:
        """Whether there is no such room."""
        return self.room_bytes <= 0

    def make_room(self) -> None:
        """Give up the oldest large request if those unfinished have too much; use what is free."""
        if self.unfinished_bytes > self.broker.config.queued_max_request_bytes:
            large = [each for each in self._connections if each.large_bytes]
            if len(large) > 1:
                oldest = min(large, key=lambda each: each.unfinished_since_s or 0.0)
                oldest.refuse("shed", "unfinished requests exceed queued.max.request.bytes.")
        room_bytes = self.room_bytes if self.held_back else 0
        while self.held_back and room_bytes > 0:
            first = next(iter(self.held_back))
            del self.held_back[first]
            room_bytes -= first.go_on()

    def admit(self, connection: Connection) -> tuple[str, str] | None:
        """Count a new connection; why it may not stay, if it may not: in a word, in a sentence."""
        config, now_s = self.broker.config, self.broker.clock.monotonic_s()
        self._connections.add(connection)
        self._by_host[connection.host] += 1
        self.broker.metrics.connections.set(len(self._connections))
        of_one = config.max_connections_per_ip
        if self._by_host[connection.host] > of_one:
            if not self._make_place(now_s, connection.host):
                return "limit", f"max.connections.per.ip is {of_one}."
        elif len(self._connections) > config.max_connections and not self._make_place(now_s):
            return "limit", f"max.connections is {config.max_connections}."
        exceeded = self._rates.admit(connection.host, now_s)
        if exceeded is not None:
            return exceeded.reason, f"connections come faster than {exceeded} allows."
        self.newcomers.add(connection, now_s)
        return None

    def _make_place(self, now_s: float, host: str | None = None) -> bool:
        """Close who has long been silent, at this host or at any; whether there was one."""
        silent = self.newcomers.silent_longest(now_s, lambda each: host in (None, each.host))
        if silent is not None:
            silent.refuse("displaced", "another one needed the place; it had not said anything.")
        return silent is not None

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)
        self.newcomers.drop(connection)
        self.held_back.pop(connection, None)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self.broker.metrics.connections.set(len(self._connections))

    async def sweep(self) -> None:
        """Once a second, until cancelled: close who is too slow or silent, wake who waits."""
        while True:
            await self.broker.clock.sleep(1.0)
            now_s = self.broker.clock.monotonic_s()
            self._rates.forget_silent(now_s)
            self.refusals.summarize(now_s)
            self._close_late(now_s)
            self._close_stalled(now_s)
            self.make_room()
            for connection in list(self._connections):
                connection.stop_or_go_on()

    def _close_late(self, now_s: float) -> None:
        idle_s = self.broker.config.connections_max_idle_ms / 1000
        for connection in list(self._connections):
            limit_s = min(FIRST_REQUEST_S, idle_s) if connection.is_new else idle_s
            if (slow := connection.overdue(now_s)) is not None:
                connection.refuse("slow", slow)
            elif not connection.waits_for and now_s - connection.last_active_s > limit_s:
                connection.refuse("idle", f"no request for {limit_s:.0f} seconds.")

    def _close_stalled(self, now_s: float) -> None:
        """While replies wait beyond their bound, close who has long taken nothing."""
        stalled = [
            (since_s, connection)
            for connection in self._connections
            if (since_s := connection.stalled_since_s) is not None and now_s - since_s > STALLED_S
        ]
        for _, connection in sorted(stalled, key=lambda pair: pair[0]):
            if self.unsent_bytes < MAX_TOTAL_UNSENT_BYTES:
                return
            connection.refuse("stalled", f"no reply was taken for {STALLED_S:.0f} seconds.")

    async def drain(self) -> None:
        """Accept and start nothing new, answer what is in flight, then close everything."""
        assert self._door is not None
        self._door.close()
        for connection in self._connections:
            connection.stop_or_go_on()
        deadline_s = self.broker.clock.monotonic_s() + DRAIN_S
        while any(connection.is_busy for connection in self._connections):
            if self.broker.clock.monotonic_s() > deadline_s:
                waiting = Counter(connection.waits_for for connection in self._connections)
                _log.warning("Closing with requests in flight: %s.", waiting.most_common())
                break
            await self.broker.clock.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
