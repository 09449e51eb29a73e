"""The only Kafka sockets: requests in, replies out in their order, nothing without a bound.

One `Connection` per client. Produce requests of one connection overlap, so that a producer is not
held to one request per disk sync; any other request waits until the replies before it have left,
as in Kafka. Replies are lists of buffers that go to the socket as they are; what the kernel does
not take waits here, and no further request is started until it is gone. So a client that only
writes, or never reads, fills its own bounded share and is then no longer read from.

Bytes that are not Kafka's protocol end their connection at once with one log line and a count in
`catchwater_connections_closed_total`; nobody else notices. Before its first good request a
connection may send only small frames.
"""

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, cast

from catchwater.broker import router
from catchwater.broker.broker import Api, Broker, Later
from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, FrameError, prefixed

FIRST_FRAME_BYTES = 512 * 1024
"""The largest frame of a connection that has not yet sent a good request."""
FIRST_REQUEST_S = 30.0
BACKLOG = 1024
"""Connections that the kernel accepts before we do."""
MAX_IN_FLIGHT = 128
MAX_HELD_BYTES = 16 * 1024 * 1024
"""Request bytes that one connection may have waiting or in flight before it is not read from."""
MAX_TOTAL_HELD_BYTES = 32 * 1024 * 1024
"""Request bytes of all connections beyond which each may have only one request in flight."""
DRAIN_S = 10.0

_PIECE_BYTES = 64 * 1024
_MOST_BUFFERS = 1024  # of one writev call (IOV_MAX)
_PRODUCE = b"\x00\x00"

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
        self.host = ""
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
            self.refuse("limit", refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._broker.metrics.bytes_in.inc(nbytes)
        try:
            frames = self._frames.receive(nbytes)
        except FrameError as error:
            self.refuse("bad_frame", str(error))
            return
        if frames:
            self.last_frame_s = self._broker.clock.monotonic_s()
            self._hold(sum(len(frame.data) for frame in frames))
            self._waiting.extend(frames)
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
            or self._broker.draining.is_set()
        )
        if is_full and self._is_reading:
            self._transport.pause_reading()
        elif not is_full and not self._is_reading:
            self._transport.resume_reading()
        self._is_reading = not is_full

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._server.held_bytes += size_bytes

    def _may_start(self, frame: Frame) -> bool:
        if self._unsent:
            return False
        if not self._in_flight:
            return True
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
        with self._guarded():
            started = router.start(self._broker, frame, self.host)
        if started is None:
            frame.release()
            return
        api, later = started
        self.is_new = False
        self._frames.max_frame_bytes = self._broker.config.socket_request_max_bytes
        self._in_flight.append(Slot(api, later, size_bytes, started_s))
        later.future.add_done_callback(self._answer)

    def _answer(self, _: asyncio.Future[Any]) -> None:
        """Send the replies that are ready, up to the first that is not."""
        now_s = self._broker.clock.monotonic_s()
        while self._is_open and self._in_flight and self._in_flight[0].later.future.done():
            slot = self._in_flight.popleft()
            self._hold(-slot.size_bytes)
            parts: Sequence[Buffer] = ()
            with self._guarded():
                parts = slot.later.encode(slot.later.future.result())
            if parts:
                self._unsent.extend(memoryview(part) for part in prefixed(parts))
            self._server.request_seconds[slot.api.key].observe(now_s - slot.started_s)
        self._send()
        self._advance()

    @property
    def is_busy(self) -> bool:
        """Whether a reply is still to come or to leave."""
        return bool(self._in_flight or self._unsent)

    @property
    def waits_for(self) -> str:
        """The API of the request that is to be answered next, if there is one."""
        return self._in_flight[0].api.name if self._in_flight else ""

    # --- replies -------------------------------------------------------------------------

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
            self._broker.metrics.bytes_out.inc(sent)
            self._drop_sent(sent)
            if self._unsent and not sent:
                piece = self._unsent[0][:_PIECE_BYTES]
                self._broker.metrics.bytes_out.inc(len(piece))
                self._transport.write(bytes(piece))
                self._drop_sent(len(piece))

    def _drop_sent(self, size_bytes: int) -> None:
        while self._unsent and size_bytes >= len(self._unsent[0]):
            size_bytes -= len(self._unsent.popleft())
        if size_bytes:
            self._unsent[0] = self._unsent[0][size_bytes:]

    # --- the end -------------------------------------------------------------------------

    def refuse(self, reason: str, message: str) -> None:
        """Close at once: one line in the log, one count in the metrics."""
        if self._is_open:
            self._is_open = False
            self._broker.metrics.connections_closed.labels(reason).inc()
            _log.warning("Closed the connection from %s: %s", self.host, message)
            self._transport.abort()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong with one request ends this connection, and nothing else."""
        try:
            yield
        except (MalformedMessage, router.NotServed) as error:
            self.refuse("bad_request", str(error))
        except CatchwaterError as error:
            self.refuse("failed", str(error))
        except Exception:  # noqa: BLE001 - the connection loop is the one place for it
            _log.exception("A request from %s failed; please report this.", self.host)
            self.refuse("failed", "the request could not be answered.")

    def close(self) -> None:
        """Close when what was written has left."""
        self._transport.close()

    def stop_reading(self) -> None:
        """Take no further requests; those in flight are answered."""
        self._advance()


class Server:
    """The Kafka listener and its connections."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.arenas = ArenaPool()
        by_name = broker.metrics.request_seconds.labels
        self.request_seconds = {api.key: by_name(api.name) for api in broker.apis.values()}
        self.held_bytes = 0
        """Request bytes waiting or in flight, of all connections."""
        self._connections: set[Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._listener: asyncio.Server | None = None

    async def listen(self, bound: socket.socket) -> None:
        """Accept connections on a socket that listens."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self), sock=bound, backlog=BACKLOG
        )

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection; why it may not stay, if it may not."""
        config = self.broker.config
        self._connections.add(connection)
        self._by_host[connection.host] += 1
        self.broker.metrics.connections.set(len(self._connections))
        if len(self._connections) > config.max_connections:
            return f"max.connections is {config.max_connections}."
        if self._by_host[connection.host] > config.max_connections_per_ip:
            return f"max.connections.per.ip is {config.max_connections_per_ip}."
        return None

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self.broker.metrics.connections.set(len(self._connections))

    async def sweep(self) -> None:
        """Close connections that have been silent for too long, until cancelled."""
        idle_s = self.broker.config.connections_max_idle_ms / 1000
        while True:
            await self.broker.clock.sleep(1.0)
            now_s = self.broker.clock.monotonic_s()
            for connection in list(self._connections):
                limit_s = min(FIRST_REQUEST_S, idle_s) if connection.is_new else idle_s
                if not connection.is_busy and now_s - connection.last_frame_s > limit_s:
                    connection.refuse("idle", f"no request for {limit_s:.0f} seconds.")

    async def drain(self) -> None:
        """Accept and start nothing new, answer what is in flight, then close everything."""
        assert self._listener is not None
        self._listener.close()
        for connection in self._connections:
            connection.stop_reading()
        deadline_s = self.broker.clock.monotonic_s() + DRAIN_S
        while any(connection.is_busy for connection in self._connections):
            if self.broker.clock.monotonic_s() > deadline_s:
                waiting = Counter(connection.waits_for for connection in self._connections)
                _log.warning("Closing with requests in flight: %s.", waiting.most_common())
                break
            await self.broker.clock.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
