"""Accepting: few at a time, and a pause where the kernel gives no more connections."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import certificate

from catchwater.broker import door
from catchwater.broker.pressure import AT_ONCE
from catchwater.clock import ManualClock


class Bound(socket.socket):
    """A socket that listens on loopback, out of descriptors for as often as it is told to be."""

    failures = 0
    accepts = 0
    code = errno.EMFILE

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        if self.failures:
            self.failures -= 1
            raise OSError(self.code, os.strerror(self.code))
        return super().accept()


class Greeting(asyncio.Protocol):
    """Says hello, so that a client knows it was taken in."""

    made: list[asyncio.BaseTransport]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(transport)
        transport.write(b"hello")  # type: ignore[attr-defined]


@pytest.fixture
def bound():
    with Bound(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        yield sock


def client(bound: socket.socket) -> socket.socket:
    return socket.create_connection(bound.getsockname(), timeout=30)


async def read(sock: socket.socket) -> bytes:
    sock.setblocking(False)
    async with asyncio.timeout(30):
        return await asyncio.get_running_loop().sock_recv(sock, 100)


@pytest.fixture
def opened(bound: Bound):
    Greeting.made = []
    doors: list[door.Door] = []

    def opened() -> door.Door:
        doors.append(door.Door(bound, Greeting))
        return doors[0]

    yield opened
    for transport in Greeting.made:
        transport.close()
    for each in doors:
        each.close()


async def test_many_at_once_are_all_taken_in_and_few_at_a_time(bound, opened) -> None:
    clients = [client(bound) for _ in range(100)]
    entrance = opened()
    most = 0
    while len(Greeting.made) < 100:
        most = max(most, len(entrance._opening))
        await asyncio.sleep(0)
    assert 0 < most <= AT_ONCE
    for each in clients:
        assert await read(each) == b"hello"
        each.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_without_descriptors_it_pauses_and_then_goes_on(
    bound, opened, monkeypatch, caplog, code
) -> None:
    monkeypatch.setattr(door, "PAUSE_S", 0.01)
    bound.failures, bound.code = 3, code
    opened()
    with client(bound) as waiting:
        with caplog.at_level(logging.WARNING):
            assert await read(waiting) == b"hello"
    assert bound.accepts < 10
    assert [os.strerror(code) in record.getMessage() for record in caplog.records] == [True] * 3


async def test_a_closed_door_lets_nobody_in(bound, opened) -> None:
    opened().close()
    with pytest.raises(OSError):
        client(bound)


@pytest.fixture
def encrypted(bound: Bound, tmp_path: Path):
    """A door that asks for TLS, and the context of its clients."""
    pem, ca = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    Greeting.made = []

    def encrypted() -> tuple[door.Door, ssl.SSLContext]:
        made = door.Door(bound, Greeting, lambda: context)
        return made, ssl.create_default_context(cafile=str(ca))

    return encrypted


def test_a_flood_of_one_address_displaces_itself() -> None:
    places = {number: "10.0.0.9" for number in range(5)}
    places = {-2: "10.0.0.1", **places, -1: "10.0.0.2"}
    for _ in range(4):
        gone = door.one_too_many(places)
        assert places.pop(gone) == "10.0.0.9"
        places[gone + 100] = "10.0.0.9"
    assert door.one_too_many({1: "a", 2: "b", 3: "c"}) == 1, "of many addresses the oldest"


async def test_silent_connections_take_no_place_from_those_that_speak_tls(
    bound: Bound, encrypted: Any
) -> None:
    entrance, context = encrypted()
    silent = [client(bound) for _ in range(120)]

    def greeted() -> bytes:
        with context.wrap_socket(client(bound), server_hostname="localhost") as connection:
            return connection.recv(5)

    async with asyncio.timeout(60):
        for _ in range(3):
            assert await asyncio.to_thread(greeted) == b"hello"
    closed = 0
    for each in silent:
        each.setblocking(False)
        try:
            closed += each.recv(1) == b""
        except BlockingIOError:
            pass
        except ConnectionResetError:
            closed += 1
        each.close()
    assert closed >= len(silent) - door.MOST_SILENT
    entrance.close()
    for transport in Greeting.made:
        transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


async def test_a_silent_connection_is_given_up_in_time(
    bound: Bound, encrypted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_S", 0.05)
    entrance, _ = encrypted()
    with client(bound) as silent:
        assert await read(silent) == b""
    entrance.close()


async def test_handshakes_beyond_the_rate_are_refused_and_others_are_served(
    bound: Bound, tmp_path: Path
) -> None:
    """One address has half of the rate; what is refused costs no handshake."""
    pem, ca = certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    context = ssl.create_default_context(cafile=str(ca))
    refused: list[tuple[str, str]] = []
    clock = ManualClock()
    rates = door.HandshakeRates(8, clock, lambda *about: refused.append(about))
    Greeting.made = []
    entrance = door.Door(bound, Greeting, lambda: server, rates)

    def greeted() -> bytes:
        try:
            with context.wrap_socket(client(bound), server_hostname="localhost") as connection:
                return connection.recv(5)
        except OSError:
            return b""

    async with asyncio.timeout(60):
        answers = [await asyncio.to_thread(greeted) for _ in range(6)]
    assert answers == [b"hello"] * 4 + [b""] * 2
    limit = "TLS handshakes come faster than catchwater.max.handshake.rate = 8 (a second) allows."
    assert refused == [("127.0.0.1", limit)] * 2
    assert [rates.admit(f"10.0.0.{number % 2}") for number in range(5)] == [True] * 4 + [False]
    clock.advance(1_000)
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(greeted) == b"hello"
    entrance.close()
    for transport in Greeting.made:
        transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


def test_addresses_that_asked_long_ago_are_forgotten() -> None:
    clock = ManualClock()
    rates = door.HandshakeRates(10_000, clock, lambda *about: None)
    for number in range(5_000):
        clock.advance(10)
        assert rates.admit(f"10.0.{number // 250}.{number % 250}")
    assert len(rates._rates) <= door._MOST_ADDRESSES
