"""Requests of clients to simulated brokers: real frames, through the broker's own router.

A request travels, is answered by the broker's handler, and the answer travels back; either may be
lost, and a request may arrive twice. On one connection requests arrive in the order in which they
were sent. A broker that is paused answers late, one that was cut off never.
"""

import asyncio
import random
from collections.abc import Sequence
from contextvars import Context
from functools import cache
from typing import Any

from kio.index import load_request_schema
from tests.simulation.gates import Weather
from tests.simulation.loop import Node, VirtualLoop

from catchwater.broker.broker import Broker
from catchwater.broker.router import message_builder, start
from catchwater.config import CatchwaterError
from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, prefixed
from catchwater.wire.messages import decode_reply, encode_request

USUAL_S = 0.001


class Lost(Exception):
    """No answer: the request was carried out or it was not."""


class Refused(Exception):
    """Nobody listens there: the request was certainly not carried out."""


class Server:
    """One broker as the network sees it, from its start to its end."""

    def __init__(self, loop: VirtualLoop, node: Node, failures: list[str]) -> None:
        self.loop = loop
        self.node = node
        self.broker: Broker | None = None
        self._failures = failures
        self._arenas = ArenaPool()

    @property
    def is_open(self) -> bool:
        return self.broker is not None and not self.node.is_cut

    def receive(self, data: bytes, answer: "asyncio.Future[bytes]", back_s: float | None) -> None:
        """In the broker's context: begin to answer."""
        if not self.is_open:
            return
        assert self.broker is not None
        later = start(self.broker, self._frame(data), "10.0.0.1")

        def reply() -> None:
            if self.node.is_cut:
                return
            try:
                sent = b"".join(later.encode())
            except (CatchwaterError, asyncio.CancelledError):
                return  # the server closes the connection
            if back_s is not None:
                self.loop.call_later(back_s, _answer, answer, sent, context=Context())

        # In a turn of its own, as the server replies.
        later.when_done = lambda: self.loop.call_soon(reply)
        if later.is_done:
            later.when_done()

    def _frame(self, data: bytes) -> Frame:
        buffer = FrameBuffer(100_000_000, self._arenas)
        whole = b"".join(prefixed([data]))
        buffer.get_buffer(len(whole))[: len(whole)] = whole
        (frame,) = buffer.receive(len(whole))
        return frame


class Network:
    """Between all clients and all brokers."""

    def __init__(self, loop: VirtualLoop, weather: Weather, seed: random.Random) -> None:
        self._loop = loop
        self._weather = weather
        self._random = seed
        self._arrivals: dict[tuple[object, Server], float] = {}
        self._broken: set[tuple[object, Server]] = set()
        self.requests = 0

    async def ask(
        self, client: object, server: Server, request: bytes, timeout_s: float, *, repeats: bool
    ) -> bytes:
        """The reply, correlation id first. Raises `Lost` or `Refused`.

        With `repeats` the request may arrive twice, as one that a client sent again.
        """
        loop, weather, draw = self._loop, self._weather, self._random
        self.requests += 1
        connection = (client, server)
        if not server.is_open:
            await asyncio.sleep(self._distance_s())
            raise Refused
        answer: asyncio.Future[bytes] = loop.create_future()
        back_s: float | None = self._distance_s()
        there, back = (draw.random() >= weather.network_loses / 2 for _ in range(2))
        if connection in self._broken:
            there = back = False
        elif not (there and back):
            # What follows on this connection is lost, too, until the client opens another.
            self._broken.add(connection)
        if not back:
            back_s = None
        context = server.node.context
        if there:
            soonest_s = self._arrivals.get(connection, 0.0) + 1e-6
            at_s = max(soonest_s, loop.time() + self._distance_s())
            self._arrivals[connection] = at_s
            loop.call_at(at_s, server.receive, request, answer, back_s, context=context)
        if repeats and draw.random() < weather.network_repeats:
            again_s = loop.time() + draw.choice([0.2, 1, 8]) * draw.uniform(0.5, 1)
            loop.call_at(again_s, server.receive, request, answer, None, context=context)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._broken.discard(connection)
            raise Lost from None

    def _distance_s(self) -> float:
        drawn = self._random.random()
        return USUAL_S * self._weather.slow * (0.5 + drawn + (50 if drawn > 0.99 else 0))


def encode(api_key: int, version: int, fields: dict[str, Any]) -> bytes:
    """A request of kio's description, from nested dicts."""
    message = _builder(api_key, version)(fields)
    return b"".join(encode_request(1, "simulated", message))


def decode(api_key: int, version: int, reply: bytes) -> Any:
    """The reply as kio's message."""
    return decode_reply(api_key, version, memoryview(reply))[1]


@cache
def _builder(api_key: int, version: int) -> Any:
    return message_builder(load_request_schema(api_key, version))


def joined(parts: Sequence[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def _answer(answer: "asyncio.Future[bytes]", reply: bytes) -> None:
    if not answer.done():
        answer.set_result(reply)
