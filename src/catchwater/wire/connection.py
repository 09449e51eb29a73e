"""One client connection to one broker: requests out, replies in, in the same order.

Relies on the broker's promise to answer in order (Kafka's protocol has no other), so several
requests may be in flight. A reply's bytes are handed out as they were received, uncopied. Honours
throttling (KIP-219): a broker that asked for a pause is sent nothing before the pause is over.
Any failure closes the connection and raises `ConnectionLost`; it never reconnects by itself.
Not thread-safe. Knows no message but what it is given.
"""

import socket
from collections import deque
from collections.abc import Sequence
from struct import Struct

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.wire.codecs import Buffer

MAX_REPLY_BYTES = 256 * 2**20
"""No reply is larger; a length beyond it means that the port speaks something else than Kafka."""

_LENGTH = Struct(">i")


class ConnectionLost(CatchwaterError):
    """The broker cannot be reached, or its connection broke; what was in flight is unknown."""


class Connection:
    """A socket to `host:port`, connected on construction within `timeout_s` seconds."""

    def __init__(self, host: str, port: int, *, timeout_s: float, clock: Clock) -> None:
        self.address = f"{host}:{port}"
        self._clock = clock
        self._next_correlation_id = 0
        self._awaited: deque[int] = deque()
        self._silent_until_s = 0.0
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise ConnectionLost(
                f"No connection to a broker at {self.address}: {error}.",
                hint="Is the broker running, and is the address right?",
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
            if not _LENGTH.size <= length <= MAX_REPLY_BYTES:
                raise OSError(f"a reply of {length} bytes was announced; is this a Kafka port?")
            reply = self._exactly(length)
            expected = self._awaited.popleft()
            if _LENGTH.unpack_from(reply)[0] != expected:
                raise OSError(f"the reply is not to request {expected}")
        except OSError as error:
            raise self._lost(error) from error
        return reply

    def throttle(self, milliseconds: int) -> None:
        """Send nothing for so long, as the last reply asked."""
        if milliseconds > 0:
            self._silent_until_s = self._clock.monotonic_s() + milliseconds / 1000

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size_bytes: int) -> memoryview:
        view = memoryview(bytearray(size_bytes))
        at = 0
        while at < size_bytes:
            received = self._socket.recv_into(view[at:])
            if not received:
                raise OSError("it was closed by the broker")
            at += received
        return view

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"The connection to the broker at {self.address} broke: {error}.")
