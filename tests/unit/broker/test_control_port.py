"""The control port: its bound, who gives way at it, and the deadlines of who keeps it waiting."""

import asyncio
from dataclasses import replace
from typing import Any

import h11
import msgspec
import pytest
import uvicorn
from starlette.requests import Request
from uvicorn.server import ServerState

from catchwater.broker.broker import Broker
from catchwater.broker.control.port import REQUEST_S, ControlConnection, ControlPort
from catchwater.broker.control.replies import Refusal, read_body

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 4), "sockname": ("10.0.0.9", 5)})
        self.written = b""
        self.is_gone = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_gone

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.is_gone = True

    abort = close


async def hello(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(broker: Broker) -> ControlPort:
    broker.config = replace(broker.config, catchwater_max_control_connections=3)
    return ControlPort(broker)


@pytest.fixture
def connect(port: ControlPort):
    config = uvicorn.Config(hello, http=port.protocol, log_config=None, lifespan="off", ws="none")
    config.load()
    state = ServerState()
    made = []

    def connect() -> tuple[ControlConnection, Transport]:
        make: Any = config.http_protocol_class
        connection = make(config=config, server_state=state, app_state={})
        connection.connection_made(transport := Transport())
        made.append(connection)
        return connection, transport

    yield connect
    for connection in made:
        connection._unset_keepalive_if_required()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def pass_s(broker: Broker, seconds: float) -> None:
    broker.clock.advance(round(seconds * 1000))  # type: ignore[attr-defined]


def swept(port: ControlPort, broker: Broker, seconds: float) -> None:
    pass_s(broker, seconds)
    port._close_late()


async def test_at_the_bound_a_new_one_is_answered_or_takes_the_place_of_a_silent_one(
    connect, broker
) -> None:
    asked, used = connect()
    asked.data_received(REQUEST)
    await turns()
    assert used.written.endswith(b"ok")
    _, silent = connect()
    connect()
    refused, answered = connect()
    assert answered.is_gone and answered.written.startswith(b"HTTP/1.1 503 ")
    assert b"TOO_MANY_CONNECTIONS" in answered.written
    refused.connection_lost(None)
    pass_s(broker, 1.5)
    _, new = connect()
    assert [each.is_gone for each in (used, silent, new)] == [False, True, False]
    page = broker.metrics.page()
    assert b'closed_total{reason="control_limit"} 1.0' in page
    assert b'closed_total{reason="control_displaced"} 1.0' in page


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1234",
        REQUEST + b"GET /",
    ],
    ids=["nothing", "half a head", "half a body", "half of the next"],
)
async def test_a_request_that_does_not_come_whole_is_given_up(
    connect, broker, port, sent: bytes
) -> None:
    connection, transport = connect()
    if sent:
        connection.data_received(sent)
    await turns()
    swept(port, broker, REQUEST_S / 2)
    assert not transport.is_gone
    swept(port, broker, REQUEST_S / 2 + 1)
    assert transport.is_gone
    assert b'closed_total{reason="control_idle"} 1.0' in broker.metrics.page()


async def test_who_waits_for_an_answer_is_left_alone_and_who_does_not_take_it_is_not(
    connect, broker, port
) -> None:
    connection, transport = connect()
    connection.data_received(REQUEST)
    swept(port, broker, 10 * REQUEST_S)
    assert not transport.is_gone
    connection.pause_writing()
    swept(port, broker, REQUEST_S + 1)
    assert transport.is_gone
    connection.connection_lost(None)
    await turns()


async def test_a_client_that_leaves_within_its_body_is_refused_as_others_are() -> None:
    pieces = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> Any:
        return next(pieces, {"type": "http.disconnect"})

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(Refusal, match="left"):
        await read_body(request, dict)


async def test_what_is_no_request_is_answered_in_json_as_every_error_is(connect, broker) -> None:
    connection, transport = connect()
    connection.data_received(b"\x16\x03\x01 a client that speaks TLS\r\n\r\n")
    head, body = transport.written.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
    assert msgspec.json.decode(body).keys() == {"error", "message", "hint"}
    assert f"content-length: {len(body)}".encode() in head
    assert transport.is_gone
    assert b'closed_total{reason="control_bad_request"} 1.0' in broker.metrics.page()


async def test_a_body_that_breaks_within_its_reply_ends_the_connection(connect) -> None:
    connection, transport = connect()
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    connection.conn.send(h11.Response(status_code=200, headers=[]))
    connection.data_received(b"no length of a chunk\r\n")
    assert transport.is_gone and b"400" not in transport.written
    connection.connection_lost(None)
    await turns()
