"""The control port's connections: their bound and their deadlines.

A connection has `REQUEST_S` to send its next whole request, and as long to go on reading a reply.
At the bound, a connection that has not sent a request is closed in favour of a new one, as on the
Kafka port; if there is none, the new one is answered 503. Between requests uvicorn closes a
connection after five seconds.
"""

import asyncio
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import CERTIFICATE
from catchwater.broker.pressure import Newcomers, RefusalLog

REQUEST_S = 30.0

_COMING = {h11.IDLE, h11.SEND_BODY}
"""The states in which we wait for the client's request."""


class ControlPort:
    """The connections of the control port."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: set[ControlConnection] = set()
        self.newcomers: Newcomers[ControlConnection] = Newcomers()
        self._refusals = RefusalLog(self.now_s)

    @property
    def now_s(self) -> float:
        """Seconds on the broker's clock."""
        return self._broker.clock.monotonic_s()

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol class for uvicorn, which makes one for every connection."""

        def connection(*args: Any, **kwargs: Any) -> ControlConnection:
            return ControlConnection(self, *args, **kwargs)

        return cast(type[asyncio.Protocol], connection)

    @property
    def authorities(self) -> int:
        """Which version of those who sign callers' certificates counts now."""
        used = self._broker.control_certificate
        return 0 if used is None else used.version

    def admit(self, connection: "ControlConnection") -> bool:
        """Count a new connection; False if it was refused."""
        self._connections.add(connection)
        most = self._broker.config.catchwater_max_control_connections
        if len(self._connections) > most:
            silent = self.newcomers.silent_longest(self.now_s, lambda each: True)
            if silent is None:
                key = "catchwater.max.control.connections"
                self.refuse(connection, "control_limit", f"{key} is {most}.", _FULL)
                return False
            what = "another one needed the place; it had not asked for anything."
            self.refuse(silent, "control_displaced", what)
        self.newcomers.add(connection, self.now_s)
        return True

    def forget(self, connection: "ControlConnection") -> None:
        """Drop a closed connection from the count."""
        self._connections.discard(connection)
        self.newcomers.drop(connection)

    def refuse(
        self, connection: "ControlConnection", reason: str, message: str, reply: bytes = b""
    ) -> None:
        """Send `reply`, if any, and close; logged and counted as in `count`."""
        self.count(connection, reason, message)
        if reply:
            connection.transport.write(reply)
            connection.transport.close()
        else:
            connection.transport.abort()

    def count(self, connection: "ControlConnection", reason: str, message: str) -> None:
        """Log a connection that ends and count it in the metrics."""
        self.newcomers.drop(connection)
        self._broker.metrics.connections_closed.labels(reason).inc()
        host = connection.client[0] if connection.client else "unknown"
        self._refusals.write(host, f"control API: {message}", self.now_s)

    def refused_handshake(self, host: str, message: str) -> None:
        """Log and count a connection that was closed before its TLS handshake."""
        self._broker.metrics.connections_closed.labels("control_handshake_rate").inc()
        self._refusals.write(host, f"control API: {message}", self.now_s)

    async def sweep(self) -> None:
        """Once a second, until cancelled: close connections that are past their deadlines."""
        while True:
            await self._broker.clock.sleep(1.0)
            self._refusals.summarize(self.now_s)
            self._close_late()

    def _close_late(self) -> None:
        for connection in list(self._connections):
            since_s = connection.waited_for_since_s
            if since_s is not None and self.now_s - since_s > REQUEST_S:
                connection.waited_for_since_s = None
                what = f"no whole request came, or no reply was taken, for {REQUEST_S:.0f} seconds."
                self.refuse(connection, "control_idle", what)


class ControlConnection(H11Protocol):
    """uvicorn's connection, counted and with deadlines."""

    def __init__(self, port: ControlPort, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._port = port
        self.waited_for_since_s: float | None = None
        """Since when we wait for the client; None while it waits for us."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Requests find there whose certificate was shown, and by which authorities it was judged.
        shown = transport.get_extra_info("peercert")
        self.app_state = {**self.app_state, CERTIFICATE: (shown, self._port.authorities)}
        if self._port.admit(self):
            self.waited_for_since_s = self._port.now_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.waited_for_since_s = None
        self._port.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in _COMING:
            self._port.newcomers.drop(self)
            self.waited_for_since_s = None

    def send_400_response(self, msg: str) -> None:
        # A reply that was begun cannot be followed by this one.
        has_begun = self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}
        reply = b"" if has_begun else _NO_REQUEST
        self._port.refuse(self, "control_bad_request", "what came is no HTTP request.", reply)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.waited_for_since_s = self._port.now_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look_again()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_again()

    def _look_again(self) -> None:
        is_theirs = self.conn.their_state in _COMING
        self.waited_for_since_s = self._port.now_s if is_theirs else None


def _reply(status: str, code: str, message: str, hint: str) -> bytes:
    """An error in the shape that `replies` gives to others, and the end of the connection."""
    body = msgspec.json.encode({"error": code, "message": message, "hint": hint})
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_FULL = _reply(
    "503 Service Unavailable",
    "TOO_MANY_CONNECTIONS",
    "The control API has as many connections as catchwater.max.control.connections and the limit "
    "of open files allow.",
    "Try again, or raise them.",
)
_NO_REQUEST = _reply(
    "400 Bad Request",
    "BAD_REQUEST",
    "What came is not an HTTP/1.1 request.",
    "It speaks TLS where catchwater.control.listener is https://; docs/control.md lists its paths.",
)
