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
clients share a bound as well: at it no fetch is started, and clients that stopped reading are
closed.
"""

import asyncio
import logging
import os
import socket
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

from catchwater.broker import pressure, router
from catchwater.broker.broker import Broker, Later
from catchwater.broker.door import Door, HandshakeRates
from catchwater.broker.login import NotLoggedIn, Session
from catchwater.broker.metrics import SECONDS
from catchwater.broker.pressure import (
    DISPLACED,
    SHED,
    STALLED,
    ConnectionRates,
    Entrance,
    Pressure,
    Refusal,
    RefusalLog,
    Share,
    to_shed,
)
from catchwater.broker.tls import Certificate
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Listener
from catchwater.objects.base import Buffer
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, FrameError, prefixed

DRAIN_S = 10.0

_PIECE_BYTES = 64 * 1024
_MOST_BUFFERS = 1024  # of one writev call (IOV_MAX)
_JOINED_BYTES = 64 * 1024
"""Replies that together have no more are copied into one buffer: a kernel takes that sooner."""
_PRODUCE, _FETCH = 0, 1

_log = logging.getLogger("catchwater.broker")


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: "Server", listener: Listener) -> None:
        self._server = server
        self.listener = listener
        self._broker = server.broker
        self._frames = FrameBuffer(
            min(pressure.FIRST_FRAME_BYTES, server.broker.config.socket_request_max_bytes),
            server.arenas,
        )
        self.share = Share(server.pressure, server.broker.clock.monotonic_s())
        self._transport: asyncio.Transport
        self._fd = -1
        self._is_encrypted = False
        self._session: Session | None = None
        self._is_open = False
        self._is_reading = True
        self._kernel_is_full = False
        self._waiting: deque[Frame] = deque()
        self._in_flight: deque[Later] = deque()
        """Requests whose replies have not left yet; they leave in the order they came."""
        self._unsent: deque[memoryview] = deque()
        self.host = ""
        self._muted: asyncio.TimerHandle | None = None
        """Until this the client waits for its quota, and is not read from."""

    # --- asyncio's side ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        # pause_writing is called as soon as the kernel does not take everything.
        high = _PIECE_BYTES if self._is_encrypted else 0
        self._transport.set_write_buffer_limits(high=high)
        self._fd = transport.get_extra_info("socket").fileno()
        self.host = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._is_open = True
        self._server.admit(self)
        if self._is_open:
            try:
                shown = transport.get_extra_info("peercert")
                self._session = self._server.session(self.host, self.listener, shown)
            except NotLoggedIn as nobody:
                self.refuse("not_logged_in", str(nobody))

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._frames.get_buffer(sizehint)
        return room[: pressure.SMALL_FRAME_BYTES] if self.share.reads_little else room

    def buffer_updated(self, nbytes: int) -> None:
        self._broker.metrics.bytes_in.total += nbytes
        try:
            frames = self._frames.receive(nbytes)
        except FrameError as error:
            self.refuse("bad_frame", str(error))
            return
        share, now_s = self.share, self._broker.clock.monotonic_s()
        if frames:
            share.last_frame_s = now_s
            share.hold(sum([frame.size_bytes for frame in frames]))
            self._waiting.extend(frames)
        unfinished_bytes, announced_bytes = self._frames.unfinished()
        if share.receive(unfinished_bytes, announced_bytes, is_another=bool(frames), now_s=now_s):
            self._server.make_room()
        if share.is_held_back:
            self._server.held_back[self] = None
        if frames or share.is_held_back:
            self.advance()

    def pause_writing(self) -> None:
        self._kernel_is_full = True

    def resume_writing(self) -> None:
        self._kernel_is_full = False
        self._send()
        self.advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._muted is not None:
            self._muted.cancel()
        self.share.hold(-self.share.held_bytes)
        self.share.give_up()
        self._server.forget(self)
        self._frames.close()
        for frame in self._waiting:
            frame.release()
        for later in self._in_flight:
            later.cancel()
        self._waiting.clear()
        self._in_flight.clear()
        self._unsent.clear()

    # --- requests ------------------------------------------------------------------------

    def advance(self) -> None:
        """Start what may be started, and read on if there is room for more and we do not drain."""
        while (
            self._is_open
            and self._muted is None
            and self._waiting
            and self._may_start(self._waiting[0])
        ):
            self._start(self._waiting.popleft())
        if not self._is_open:
            return
        share = self.share
        may_read = (
            share.may_read(waiting=len(self._waiting), in_flight=len(self._in_flight))
            and self._muted is None
            and not self._broker.draining.is_set()
        )
        if self._is_reading and not may_read:
            self._transport.pause_reading()
        elif may_read and not self._is_reading:
            if share.unfinished_since_s is not None:
                share.unfinished_since_s = self._broker.clock.monotonic_s()
            self._transport.resume_reading()
        self._is_reading = may_read

    def go_on(self) -> int:
        """Start and read what waited for others to have less; the bytes that are to come of it."""
        self.share.is_held_back = False
        self.advance()
        return self.share.announced_bytes

    def late(self, now_s: float, idle_s: float) -> Refusal | None:
        """Why the connection is closed for its slowness, if it is."""
        is_answered = not self._in_flight and self._muted is None
        return self.share.late(now_s, idle_s, is_read=self._is_reading, is_answered=is_answered)

    def _may_start(self, frame: Frame) -> bool:
        in_flight, key = self._in_flight, frame.api_key
        follows_produce = False
        if in_flight and key == _PRODUCE:
            follows_produce = in_flight[-1].api.key == _PRODUCE
        return self.share.may_start(len(in_flight), key == _FETCH, follows_produce)

    def _start(self, frame: Frame) -> None:
        started_s = self._broker.clock.monotonic_s()
        queued_s = started_s - self.share.last_frame_s
        queued = self._broker.metrics.request_queue_seconds
        queued.counts[bisect_left(SECONDS, queued_s)] += 1
        queued.sum_s += queued_s
        try:
            later = router.start(self._broker, frame, self.host, self._session, self.listener.name)
        except Exception as error:  # noqa: BLE001 - of any class: only this connection ends
            self._fail(error)
            frame.release()
            return
        if self.share.is_new:
            self._let_in()
        later.size_bytes, later.started_s = frame.size_bytes, started_s
        if later.meter is not None:
            later.meter.take_time(self._broker.clock.monotonic_s() - started_s)
            if later.meter.throttle_s:  # a producer has more requests on their way
                self._mute(later.meter.throttle_s)
        self._in_flight.append(later)
        if later.is_done:
            self.reply()
        else:
            later.when_done = self._reply_soon

    def _let_in(self) -> None:
        """It is no newcomer any more once its first request was good, or its login."""
        if self._session is None or self._session.is_in:
            self.share.is_new = False
            self._server.entrance.newcomers.drop(self)
            self._frames.max_frame_bytes = self._broker.config.socket_request_max_bytes

    def _reply_soon(self) -> None:
        """Reply at the end of this turn of the event loop: a chunk answers many requests in one."""
        self._server.reply_soon(self)

    def reply(self) -> None:
        """Send the replies that are ready, up to the first that is not."""
        in_flight, times_of = self._in_flight, self._server.request_seconds
        now_s = self._broker.clock.monotonic_s()
        answered_bytes, parts = 0, []
        while in_flight and in_flight[0].is_done and self._is_open:
            later = in_flight.popleft()
            answered_bytes += later.size_bytes
            try:
                if later.api.key == _FETCH and self._session is not None:
                    self._session.check_user()  # it may have waited for a minute
                reply = later.encode()
            except Exception as error:  # noqa: BLE001 - of any class: only this connection ends
                self._fail(error)
            else:
                if reply:
                    parts += prefixed(reply)
                if later.meter is not None and later.meter.throttle_s:
                    self._mute(later.meter.throttle_s)
            times, took_s = times_of[later.api.key], now_s - later.started_s
            times.counts[bisect_left(SECONDS, took_s)] += 1
            times.sum_s += took_s
        self.share.hold(-answered_bytes)
        if self.share.is_new:  # the request after a login may be a large one
            self._let_in()
        if parts:
            self._send_next(parts)

    def _mute(self, seconds: float) -> None:
        """Read nothing from the client for so long: it has used up its quota (KIP-219)."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        if self._muted is not None:
            until_s = max(until_s, self._muted.when())
            self._muted.cancel()
        self._muted = loop.call_at(until_s, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self.share.last_frame_s = self._broker.clock.monotonic_s()
        self.advance()

    @property
    def is_busy(self) -> bool:
        """Whether a reply is still to come or to leave."""
        return bool(self._in_flight or self._unsent)

    @property
    def waits_for(self) -> str:
        """The API of the request that is to be answered next, if there is one."""
        return self._in_flight[0].api.name if self._in_flight else ""

    # --- replies -------------------------------------------------------------------------

    def _send_next(self, parts: list[Buffer]) -> None:
        """Send these behind what waits already."""
        size_bytes = sum(map(len, parts))
        if size_bytes <= _JOINED_BYTES:
            parts = [b"".join(parts)]
        if not self._unsent:
            self.share.last_sent_s = self._broker.clock.monotonic_s()
        self._unsent.extend(map(memoryview, parts))
        self.share.count_unsent(size_bytes)
        self._send()

    def _send(self) -> None:
        """Give the kernel what it takes; the transport waits for room with one small piece."""
        while self._unsent and self._is_open and not self._kernel_is_full:
            if self._is_encrypted:
                piece = self._unsent[0][:_PIECE_BYTES]
                self._broker.metrics.bytes_out.total += len(piece)
                self._transport.write(piece)
                self._drop_sent(len(piece))
                continue
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
            self.share.last_sent_s = self._broker.clock.monotonic_s()
            self.share.count_unsent(-size_bytes)
        while self._unsent and size_bytes >= len(self._unsent[0]):
            size_bytes -= len(self._unsent.popleft())
        if size_bytes:
            self._unsent[0] = self._unsent[0][size_bytes:]

    # --- the end -------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """An error that one request brings ends its connection, and nobody else notices."""
        match error:
            case MalformedMessage():
                self.refuse("bad_request", str(error))
            case NotLoggedIn():
                self.refuse("not_logged_in", str(error))
            case router.NotServed():
                self.refuse("bad_api", str(error))
            case CatchwaterError():
                self.refuse("failed", str(error))
            case _:
                text = "A request from %s failed; please report this."
                _log.error(text, self.host, exc_info=error)
                self.refuse("failed", "the request could not be answered.")

    def refuse(self, reason: str, message: str) -> None:
        """Close at once: one line in the log, one count in the metrics."""
        if self._is_open:
            self._is_open = False
            self.share.give_up()
            self._server.entrance.newcomers.drop(self)
            self._broker.metrics.connections_closed.labels(reason).inc()
            now_s = self._broker.clock.monotonic_s()
            self._server.refusals.write(self.host, message, now_s)
            self._transport.abort()

    def close(self) -> None:
        """Close when what was written has left."""
        self._transport.close()


class Server:
    """The Kafka listeners and their connections."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.arenas = ArenaPool()
        of_api = broker.metrics.request_seconds.of
        self.request_seconds = {api.key: of_api(api.name) for api in broker.apis.values()}
        self.pressure = Pressure(broker.config.queued_max_request_bytes)
        self.held_back: dict[Connection, None] = {}
        """Connections with a large request for which there was no room, first come first."""
        now_s, config = broker.clock.monotonic_s(), broker.config
        self.refusals = RefusalLog(now_s)
        self.entrance: Entrance[Connection] = Entrance(
            ConnectionRates(
                config.max_connection_creation_rate,
                config.catchwater_max_connection_creation_rate_per_ip,
                now_s,
            )
        )
        self._answered: dict[Connection, None] = {}
        """Connections with replies to be sent at the end of this turn of the event loop."""
        self._connections: set[Connection] = set()
        self._doors: list[Door] = []
        self._certificates: dict[str, Certificate] = {}
        self._by_listener: Counter[str] = Counter()
        """Connections of the listeners that have a bound of their own."""

    def listen(
        self, bound: socket.socket, listener: Listener, certificate: Certificate | None = None
    ) -> None:
        """Accept connections on a socket that listens."""
        if certificate is not None:
            self._certificates[listener.name] = certificate
        tls = rates = None
        if certificate is not None:
            tls, rate = (lambda: certificate.context), listener.max_handshake_rate
            rates = HandshakeRates(rate, self.broker.clock, self._refuse_handshake)
        self._doors.append(Door(bound, lambda: Connection(self, listener), tls, rates))

    def _refuse_handshake(self, host: str, message: str) -> None:
        self.broker.metrics.connections_closed.labels("handshake_rate").inc()
        self.refusals.write(host, message, self.broker.clock.monotonic_s())

    def session(
        self, host: str, listener: Listener, shown: Mapping[str, Any] | None
    ) -> Session | None:
        """Of a new connection, which has shown this certificate; None where nobody logs in.

        Raises `NotLoggedIn`.
        """
        if self.broker.guard is None:
            return None
        certificate = self._certificates.get(listener.name)
        return Session(
            self.broker.guard, host, listener, self.broker.clock, shown or None, certificate
        )

    def reply_soon(self, connection: Connection) -> None:
        """Have the connection reply, with all else that is answered in this turn of the loop."""
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._reply)
        self._answered[connection] = None

    def _reply(self) -> None:
        answered, self._answered = self._answered, {}
        for connection in answered:
            connection.reply()
            connection.advance()
        self.make_room()

    def make_room(self) -> None:
        """Give up the oldest large request if those unfinished have too much; use what is free."""
        oldest = to_shed(self.pressure, ((each.share, each) for each in self._connections))
        if oldest is not None:
            oldest.refuse(*SHED)
        room_bytes = self.pressure.room_bytes if self.held_back else 0
        while self.held_back and room_bytes > 0:
            first = next(iter(self.held_back))
            del self.held_back[first]
            room_bytes -= first.go_on()

    def admit(self, connection: Connection) -> None:
        """Take a new connection in, or close it, or another one for it."""
        now_s = self.broker.clock.monotonic_s()
        self._connections.add(connection)
        refusal, displaced = self.entrance.admit(
            connection, connection.host, self.broker.config, now_s
        )
        self.broker.metrics.connections.set(len(self._connections))
        if displaced is not None:
            displaced.refuse(*DISPLACED)
        most = connection.listener.max_connections
        if most is not None:
            self._by_listener[connection.listener.name] += 1
            if refusal is None and self._by_listener[connection.listener.name] > most:
                name = connection.listener.name
                refusal = Refusal("listener_limit", f"max.connections of {name} is {most}.")
        if refusal is not None:
            connection.refuse(*refusal)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection in self._connections and connection.listener.max_connections is not None:
            self._by_listener[connection.listener.name] -= 1
        self._connections.discard(connection)
        self.entrance.forget(connection)
        self.held_back.pop(connection, None)
        self.broker.metrics.connections.set(len(self._connections))

    async def sweep(self) -> None:
        """Once a second, until cancelled: close slow and silent clients, wake those that wait."""
        while True:
            await self.broker.clock.sleep(1.0)
            now_s = self.broker.clock.monotonic_s()
            self.entrance.rates.forget_silent(now_s)
            self.refusals.summarize(now_s)
            self._close_late(now_s)
            self._close_stalled(now_s)
            self.make_room()
            for connection in list(self._connections):
                connection.advance()

    def _close_late(self, now_s: float) -> None:
        idle_s = self.broker.config.connections_max_idle_ms / 1000
        for connection in list(self._connections):
            if (refusal := connection.late(now_s, idle_s)) is not None:
                connection.refuse(*refusal)

    def _close_stalled(self, now_s: float) -> None:
        """While replies wait beyond their bound, close clients that do not read, longest first."""
        stalled = [each for each in self._connections if each.share.is_stalled(now_s)]
        for connection in sorted(stalled, key=lambda each: each.share.last_sent_s):
            if not self.pressure.is_full_of_replies:
                return
            connection.refuse(*STALLED)

    async def drain(self) -> None:
        """Accept and start nothing new, answer what is in flight, then close everything."""
        for door in self._doors:
            door.close()
        for connection in self._connections:
            connection.advance()
        deadline_s = self.broker.clock.monotonic_s() + DRAIN_S
        while any(connection.is_busy for connection in self._connections):
            if self.broker.clock.monotonic_s() > deadline_s:
                waiting = Counter(connection.waits_for for connection in self._connections)
                _log.warning("Closing with requests in flight: %s.", waiting.most_common())
                break
            await self.broker.clock.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
