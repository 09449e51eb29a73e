"""One connection over a scripted socket: order, throttling, and everything that can break it."""

import socket
import ssl
from struct import pack
from typing import Any, cast

import pytest

from catchwater.clock import ManualClock
from catchwater.wire.connection import Connection, ConnectionLost
from catchwater.wire.security.tls import TlsFailed


class ScriptedSocket:
    """Receives what it is told, in pieces of three bytes, and remembers what was sent."""

    def __init__(self) -> None:
        self.incoming = b""
        self.sent = b""
        self.closed = False

    def setsockopt(self, *_: int) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        if self.closed:
            raise OSError("it is closed")
        self.sent += data

    def recv_into(self, view: memoryview) -> int:
        piece = self.incoming[: min(3, len(view))]
        view[: len(piece)] = piece
        self.incoming = self.incoming[len(piece) :]
        return len(piece)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedSocket:
    scripted = ScriptedSocket()
    monkeypatch.setattr(socket, "create_connection", lambda *_: scripted)
    return scripted


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def connection(scripted: ScriptedSocket, clock: ManualClock) -> Connection:
    return Connection("h", 1, timeout_s=1, clock=clock)


def reply(correlation_id: int, body: bytes) -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body


def test_requests_are_prefixed_and_replies_come_in_order(
    connection: Connection, scripted: ScriptedSocket
) -> None:
    connection.send([b"one", b"two"])
    connection.send([b"three"])
    assert scripted.sent == b"\x00\x00\x00\x06onetwo\x00\x00\x00\x05three"
    scripted.incoming = reply(0, b"first") + reply(1, b"")
    assert connection.receive()[4:] == b"first"
    assert connection.receive()[4:] == b""
    assert connection.correlation_id() == 2


@pytest.mark.parametrize(
    ("incoming", "reason"),
    [
        (b"", "closed by the broker"),
        (reply(0, b"body")[:-1], "closed by the broker"),
        (reply(7, b"body"), "not to request 0"),
        (b"HTTP/1.1 400 Bad Request", "is this a Kafka port"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "it answers in TLS"),
        (pack(">i", -1), "is this a Kafka port"),
    ],
)
def test_what_is_no_reply_ends_the_connection(
    connection: Connection, scripted: ScriptedSocket, incoming: bytes, reason: str
) -> None:
    connection.send([b"request"])
    scripted.incoming = incoming
    with pytest.raises(ConnectionLost, match=f"h:1 broke: .*{reason}"):
        connection.receive()
    assert scripted.closed
    with pytest.raises(ConnectionLost):
        connection.send([b"another"])


def test_who_never_got_an_answer_is_asked_how_the_port_is_secured(
    connection: Connection, scripted: ScriptedSocket
) -> None:
    connection.send([b"request"])
    with pytest.raises(ConnectionLost) as caught:
        connection.receive()
    assert "(security.protocol)" in str(caught.value.hint)
    scripted.closed = False
    again = Connection("h", 1, timeout_s=1, clock=ManualClock())
    again.send([b"request"])
    scripted.incoming = reply(0, b"answer")
    again.receive()
    again.send([b"request"])
    with pytest.raises(ConnectionLost) as caught:
        again.receive()
    assert caught.value.hint is None, "it was secured well enough for an answer"


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), TlsFailed),
        (ssl.SSLEOFError(8, "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF"), ConnectionLost),
        (TimeoutError("the handshake timed out"), ConnectionLost),
    ],
)
def test_a_handshake_that_fails_closes_the_connection(
    scripted: ScriptedSocket, failure: OSError, raised: type[Exception]
) -> None:
    if isinstance(failure, ssl.SSLError):
        failure.reason = "WRONG_VERSION_NUMBER"

    class Context:
        def wrap_socket(self, given: ScriptedSocket, *, server_hostname: str) -> None:
            assert given is scripted and server_hostname == "h"
            raise failure

    with pytest.raises(raised, match="h:1"):
        Connection("h", 1, timeout_s=1, clock=ManualClock(), context=cast(Any, Context()))
    assert scripted.closed


def test_a_throttled_client_is_silent_for_as_long_as_asked(
    connection: Connection, clock: ManualClock
) -> None:
    connection.throttle(0)
    connection.send([b"at once"])
    before = clock.now_ms()
    connection.throttle(1500)
    connection.send([b"later"])
    assert clock.now_ms() - before == 1500


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectionLost, match="broker at h:1: refused") as caught:
        Connection("h", 1, timeout_s=1, clock=ManualClock())
    assert caught.value.hint is not None


def test_whether_a_reply_has_come_is_asked_without_waiting() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", lambda *_: Unnagled(ours))
        connection = Connection("h", 1, timeout_s=60, clock=ManualClock())
        connection.send([b"request"])
        assert not connection.has_reply()
        theirs.sendall(reply(0, b"first"))
        assert connection.has_reply() and connection.has_reply()
        assert connection.receive()[4:] == b"first"
        assert not connection.has_reply()
        connection.send([b"request"])
        theirs.sendall(reply(1, b"second"))
        assert connection.receive()[4:] == b"second"
        theirs.close()
        with pytest.raises(ConnectionLost, match="h:1 broke"):
            connection.has_reply()


class Unnagled:
    """A socket of a pair, which takes TCP's options as well."""

    def __init__(self, of: socket.socket) -> None:
        self._of = of

    def setsockopt(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> object:
        return getattr(self._of, name)
