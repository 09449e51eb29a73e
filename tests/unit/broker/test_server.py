"""One connection: order of replies, back-pressure, and every way to be thrown out."""

import asyncio
import logging
import os
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.fetch.v4.request import FetchPartition as Partition
from kio.schema.fetch.v4.request import FetchRequest, FetchTopic
from kio.schema.heartbeat.v0.request import HeartbeatRequest
from kio.schema.produce.v9 import request as v9
from kio.static.primitive import i32Timedelta
from tests.listeners import listener

from catchwater.broker import pressure
from catchwater.broker import server as server_module
from catchwater.broker.broker import Broker
from catchwater.broker.quotas import PRODUCE, Entity, Settings
from catchwater.broker.server import Connection, Server
from catchwater.wire.arrow import encode_batch
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import encode_request

LARGE = encode_batch([(b"k", bytes(280_000), 1_700_000_000_000, ())])
"""Bytes, not records: these would be looked into in a thread."""

MIB = 2**20
LISTENER = listener()


class PipeTransport(asyncio.Transport):
    """What a connection writes goes into a pipe of the kernel's; nothing comes out of it."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)
        os.set_blocking(self.read_fd, False)
        self.buffer = bytearray()
        self.is_reading = True
        self.is_aborted = False
        self.protocol: Any = None

    def fileno(self) -> int:
        return self.write_fd

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self, "peername": (self.host, 4)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: Any) -> None:
        self.buffer += data
        self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_aborted = True

    def read_all(self) -> bytes:
        """What a client would read: the pipe, then what the transport has, until all is still."""
        data = b""
        while True:
            try:
                piece = os.read(self.read_fd, 1 << 20)
            except BlockingIOError:
                piece = b""
            if not piece and not self.buffer:
                return data
            data += piece
            if not piece:
                data += self.buffer
                self.buffer.clear()
                self.protocol.resume_writing()


@pytest.fixture
def server(broker: Broker) -> Server:
    return Server(broker)


@pytest.fixture
def connect(server: Server):
    made = []

    def connect(host: str = "10.0.0.1") -> tuple[Connection, PipeTransport]:
        transport = PipeTransport(host)
        connection = Connection(server, LISTENER)
        transport.protocol = connection
        connection.connection_made(transport)
        made.append((connection, transport))
        return connection, transport

    yield connect
    for connection, transport in made:
        connection.connection_lost(None)
        os.close(transport.read_fd)
        os.close(transport.write_fd)


def receive(connection: Connection, data: bytes) -> None:
    while data:
        view = connection.get_buffer(-1)
        size = min(len(view), len(data))
        view[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def framed(correlation_id: int, message: Any) -> bytes:
    return b"".join(prefixed(encode_request(correlation_id, "c", message)))


def api_versions(correlation_id: int) -> bytes:
    from kio.schema.api_versions.v0.request import ApiVersionsRequest

    return framed(correlation_id, ApiVersionsRequest())


def produce(correlation_id: int, records: bytes) -> bytes:
    partition = v9.PartitionProduceData(index=0, records=records)
    topic = v9.TopicProduceData(name="t", partition_data=(partition,))
    request = v9.ProduceRequest(
        acks=-1, timeout=i32Timedelta.parse(timedelta(seconds=1)), topic_data=(topic,)
    )
    return framed(correlation_id, request)


def fetch(correlation_id: int, offset: int = 0, wait_s: int = 0) -> bytes:
    partition = Partition(partition=0, fetch_offset=offset, partition_max_bytes=10_000_000)
    request = FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(seconds=wait_s)),
        min_bytes=1,
        isolation_level=0,
        topics=(FetchTopic(topic="t", partitions=(partition,)),),
    )
    return framed(correlation_id, request)


def correlation_ids(data: bytes) -> list[int]:
    ids = []
    while data:
        size = int.from_bytes(data[:4], "big")
        ids.append(int.from_bytes(data[4:8], "big"))
        data = data[4 + size :]
    return ids


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_replies_leave_in_the_order_of_requests(connect) -> None:
    connection, transport = connect()
    receive(connection, b"".join(api_versions(i) for i in range(150)))
    await turns(2000)
    assert correlation_ids(transport.read_all()) == list(range(150))
    assert transport.is_reading


async def test_a_request_may_come_byte_by_byte(connect) -> None:
    connection, transport = connect()
    for byte in api_versions(5):
        receive(connection, bytes([byte]))
    await turns()
    assert correlation_ids(transport.read_all()) == [5]


async def test_produce_requests_overlap_and_are_answered_in_order(
    connect, broker, batch, monkeypatch
) -> None:
    await broker.log.create_topic("t", 1)
    held: list[tuple[asyncio.Future[Any], Any]] = []
    submit = broker.log.submit

    def hold(batches, frame=None):
        future = asyncio.get_running_loop().create_future()
        held.append((future, submit(batches, frame).result()))
        return future

    monkeypatch.setattr(broker.log, "submit", hold)
    connection, transport = connect()
    receive(connection, b"".join(produce(i, batch(1)) for i in range(3)) + api_versions(9))
    assert len(held) == 3
    for future, result in reversed(held):
        future.set_result(result)
        await turns()
    assert correlation_ids(transport.read_all()) == [0, 1, 2, 9]


async def test_other_requests_wait_for_their_turn(connect, broker, batch) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    receive(connection, fetch(1, wait_s=30) + produce(2, batch(1)))
    await turns()
    assert transport.read_all() == b""
    other, _ = connect()
    receive(other, produce(3, batch(1)))
    await turns()
    assert correlation_ids(transport.read_all()) == [1, 2]


async def test_when_all_hold_too_much_each_has_one_request_in_flight(
    connect, server, broker, batch, monkeypatch
) -> None:
    await broker.log.create_topic("t", 1)
    submitted: list[asyncio.Future[Any]] = []

    def submit(batches, frame=None):
        submitted.append(asyncio.get_running_loop().create_future())
        return submitted[-1]

    monkeypatch.setattr(broker.log, "submit", submit)
    monkeypatch.setattr(pressure, "MAX_TOTAL_HELD_BYTES", 1)
    connections = [connect() for _ in range(2)]
    for connection, transport in connections:
        receive(connection, produce(1, batch(1)) + produce(2, batch(1)))
        assert not transport.is_reading
    assert len(submitted) == 2
    for connection, _ in connections:
        connection.connection_lost(None)
    assert server.pressure.held_bytes == 0


async def test_a_client_that_does_not_read_is_not_read_from(connect, broker, batch) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    for _ in range(3):
        receive(connection, produce(0, LARGE))
        await turns()
    transport.read_all()
    receive(connection, b"".join(fetch(i) for i in range(50)))
    await turns(200)
    assert not transport.is_reading
    assert len(transport.buffer) <= 64 * 1024
    ids = []
    for _ in range(60):
        ids += correlation_ids(transport.read_all())
        await turns()
    assert ids == list(range(50))
    assert transport.is_reading


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x01\x00",
        b"\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x00\xff\xff",
        b"\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x00\xff\xff\x7f\xff\xff\xff",
        (512 * 1024 + 1).to_bytes(4, "big"),
    ],
    ids=repr,
)
async def test_what_is_not_kafka_is_closed_at_once_with_one_line(
    connect, broker: Broker, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    connection, transport = connect()
    bystander, other = connect()
    with caplog.at_level(logging.INFO):
        receive(connection, data)
        receive(connection, b"more") if not transport.is_aborted else None
    assert transport.is_aborted
    (record,) = caplog.records
    assert "\n" not in record.getMessage() and record.exc_info is None
    assert b'catchwater_connections_closed_total{reason="bad_' in broker.metrics.page()
    receive(bystander, api_versions(1))
    await turns()
    assert correlation_ids(other.read_all()) == [1]


async def test_larger_frames_are_taken_after_the_first_good_request(connect) -> None:
    connection, transport = connect()
    receive(connection, api_versions(1))
    receive(connection, (600 * 1024).to_bytes(4, "big"))
    assert not transport.is_aborted


async def test_too_many_connections_are_refused_and_the_count_recovers(
    connect, broker, server
) -> None:
    broker.config = type(broker.config)(max_connections=3, max_connections_per_ip=2)
    connections = [connect() for _ in range(3)]
    assert [transport.is_aborted for _, transport in connections] == [False, False, True]
    connections[2][0].connection_lost(None)
    connections[0][0].connection_lost(None)
    assert not connect()[1].is_aborted


async def test_who_has_said_nothing_gives_way_to_a_new_connection(connect, broker) -> None:
    broker.config = type(broker.config)(max_connections=3, max_connections_per_ip=3)
    speaking, used = connect()
    receive(speaking, api_versions(1))
    await turns()
    first, second = connect(), connect()
    refused, transport = connect()
    assert transport.is_aborted, "all of them have only just come"
    refused.connection_lost(None)
    pass_s(broker, 1.5)
    new, kept = connect()
    assert [t.is_aborted for t in (used, first[1], second[1], kept)] == [False, True, False, False]
    first[0].connection_lost(None)
    receive(new, api_versions(1))
    assert not connect()[1].is_aborted
    assert second[1].is_aborted
    pass_s(broker, 1.5)
    assert not used.is_aborted and not kept.is_aborted
    assert b'closed_total{reason="displaced"} 2.0' in broker.metrics.page()


async def test_at_the_bound_of_one_address_only_its_own_give_way(connect, broker) -> None:
    broker.config = type(broker.config)(max_connections=10, max_connections_per_ip=1)
    transports = [connect(host)[1] for host in ("10.0.0.2", "10.0.0.1")]
    pass_s(broker, 1.5)
    transports.append(connect("10.0.0.1")[1])
    assert [transport.is_aborted for transport in transports] == [False, True, False]


async def test_silent_connections_are_closed(connect, server, broker) -> None:
    _, silent = connect()
    active, used = connect()
    receive(active, api_versions(1))
    sweep = asyncio.ensure_future(server.sweep())
    await turns(80)
    assert silent.is_aborted
    assert not used.is_aborted
    await turns(1500)
    assert used.is_aborted
    sweep.cancel()


def pass_s(broker: Broker, seconds: float) -> None:
    broker.clock.advance(round(seconds * 1000))  # type: ignore[attr-defined]


def fill(connection: Connection, size_bytes: int) -> None:
    """The beginning of a large request: its size, and so many bytes of it."""
    receive(connection, (32 * MIB).to_bytes(4, "big"))
    while size_bytes and not connection.share.is_held_back and connection._is_open:
        piece = connection.get_buffer(-1)[: min(size_bytes, 512 * 1024)]
        connection.buffer_updated(len(piece))
        size_bytes -= len(piece)


@pytest.fixture
def connect_answered(connect):
    """Makes connections that have had their first request answered."""

    async def made() -> tuple[Connection, PipeTransport]:
        connection, transport = connect()
        receive(connection, api_versions(1))
        await turns()
        transport.read_all()
        return connection, transport

    return made


async def test_large_requests_wait_for_room_and_small_ones_do_not(
    connect_answered, server, broker
) -> None:
    server.pressure.most_request_bytes = 3 * MIB
    first, first_transport = await connect_answered()
    fill(first, 2 * MIB)
    second, second_transport = await connect_answered()
    fill(second, MIB)
    assert first_transport.is_reading and not second_transport.is_reading
    assert len(second.get_buffer(-1)) > 0
    assert second.share.large_bytes < 64 * 1024
    third, third_transport = await connect_answered()
    assert len(third.get_buffer(-1)) == pressure.SMALL_FRAME_BYTES
    receive(third, api_versions(5))
    await turns()
    assert correlation_ids(third_transport.read_all()) == [5]
    first.connection_lost(None)
    server.make_room()
    assert second_transport.is_reading
    assert server.pressure.unfinished_bytes == second.share.large_bytes


async def test_room_is_given_to_the_first_who_waits(connect_answered, server, broker) -> None:
    server.pressure.most_request_bytes = 3 * MIB
    first, _ = await connect_answered()
    waiting = [await connect_answered() for _ in range(2)]
    fill(first, 2 * MIB)
    for connection, _ in waiting:
        fill(connection, 1000)
    first.connection_lost(None)
    server.make_room()
    assert [transport.is_reading for _, transport in waiting] == [True, False]


async def test_who_waits_for_an_answer_is_not_idle(connect, server, broker) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    receive(connection, fetch(1, wait_s=30))
    await turns(1)
    pass_s(broker, broker.config.connections_max_idle_ms / 1000 + 1)
    server._close_late(broker.clock.monotonic_s())
    assert not transport.is_aborted


async def test_who_announced_before_it_was_full_waits_as_well(
    connect_answered, server, broker
) -> None:
    server.pressure.most_request_bytes = 3 * MIB
    first, _ = await connect_answered()
    second, second_transport = await connect_answered()
    fill(second, 0)
    fill(first, 2 * MIB)
    assert second_transport.is_reading
    piece = second.get_buffer(-1)
    assert len(piece) == pressure.SMALL_FRAME_BYTES
    second.buffer_updated(1000)
    assert not second_transport.is_reading


async def test_the_oldest_large_request_is_given_up_when_all_have_too_much(
    connect_answered, server, broker
) -> None:
    server.pressure.most_request_bytes = 4 * MIB
    first, first_transport = await connect_answered()
    second, second_transport = await connect_answered()
    fill(first, MIB)
    pass_s(broker, 1.0)
    fill(second, MIB)
    fill(first, MIB)
    assert not first_transport.is_aborted
    fill(second, 2 * MIB)
    assert first_transport.is_aborted and not second_transport.is_aborted
    assert server.pressure.unfinished_bytes == second.share.large_bytes
    assert b'closed_total{reason="shed"} 1.0' in broker.metrics.page()


async def test_a_large_request_alone_may_be_larger_than_what_all_may_have(
    connect_answered, broker, server
) -> None:
    server.pressure.most_request_bytes = MIB
    connection, transport = await connect_answered()
    fill(connection, 8 * MIB)
    assert not transport.is_aborted and transport.is_reading


@pytest.mark.parametrize(("begun", "limit_s"), [(b"\x00\x00", 30), (b"\x00\x20\x00\x00x", 38)])
async def test_a_request_that_comes_drop_by_drop_is_closed_in_time(
    connect_answered, server, broker, begun, limit_s
) -> None:
    connection, transport = await connect_answered()
    receive(connection, begun)
    for _ in range(limit_s):
        pass_s(broker, 1.0)
        server._close_late(broker.clock.monotonic_s())
        receive(connection, b"" if len(begun) < 4 else b"x")
    assert not transport.is_aborted
    pass_s(broker, 1.0)
    server._close_late(broker.clock.monotonic_s())
    assert transport.is_aborted
    assert b'closed_total{reason="slow"} 1.0' in broker.metrics.page()


async def test_a_large_request_has_less_time_while_others_wait(
    connect_answered, server, broker
) -> None:
    server.pressure.most_request_bytes = 3 * MIB
    connection, transport = await connect_answered()
    fill(connection, 2 * MIB)
    for is_aborted in (False, True):
        pass_s(broker, pressure.PRESSED_FRAME_S)
        server._close_late(broker.clock.monotonic_s())
        assert transport.is_aborted is is_aborted
        pass_s(broker, 0.1)


async def test_connections_that_come_too_fast_are_refused_by_the_name_of_the_rate(
    connect, broker, server, caplog
) -> None:
    rates = pressure.ConnectionRates(1_000, 1, broker.clock.monotonic_s())
    server.entrance.rates = rates
    connections = [connect()[1] for _ in range(12)]
    assert [transport.is_aborted for transport in connections] == [False] * 10 + [True] * 2
    pass_s(broker, 1.0)
    assert not connect()[1].is_aborted
    assert b'closed_total{reason="rate_per_ip"} 2.0' in broker.metrics.page()
    of_one = "faster than catchwater.max.connection.creation.rate.per.ip = 1 (a second) allows"
    assert [of_one in record.getMessage() for record in caplog.records] == [True] * 2

    caplog.clear()
    server.entrance.rates = pressure.ConnectionRates(1, 1_000, broker.clock.monotonic_s())
    assert [connect()[1].is_aborted for _ in range(11)][-2:] == [False, True]
    (record,) = caplog.records
    assert "faster than max.connection.creation.rate = 1 (a second) allows" in record.getMessage()
    assert b'closed_total{reason="rate"} 1.0' in broker.metrics.page()


async def stall(connection: Connection, transport: PipeTransport, batch: Any) -> None:
    receive(connection, produce(0, LARGE))
    await turns()
    transport.read_all()
    receive(connection, fetch(1))
    await turns(50)


async def test_a_client_that_stopped_taking_its_reply_is_idle_in_the_end(
    connect, broker, server, batch
) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    await stall(connection, transport, batch)
    assert server.pressure.unsent_bytes > 0
    pass_s(broker, broker.config.connections_max_idle_ms / 1000 - 1)
    server._close_late(broker.clock.monotonic_s())
    assert not transport.is_aborted
    pass_s(broker, 2.0)
    server._close_late(broker.clock.monotonic_s())
    assert transport.is_aborted
    assert server.pressure.unsent_bytes == 0


async def test_beyond_their_bound_replies_hold_back_fetches_and_the_stalled_are_closed(
    connect, broker, server, batch, monkeypatch
) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    await stall(connection, transport, batch)
    monkeypatch.setattr(pressure, "MAX_TOTAL_UNSENT_BYTES", 1024)
    other, taken = connect()
    receive(other, produce(2, batch(1)) + fetch(3))
    await turns()
    assert correlation_ids(taken.read_all()) == [2]
    server._close_stalled(broker.clock.monotonic_s())
    assert not transport.is_aborted
    pass_s(broker, pressure.STALLED_S + 1)
    server._close_stalled(broker.clock.monotonic_s())
    assert transport.is_aborted
    other.advance()
    await turns(50)
    data = b""
    for _ in range(20):
        data += taken.read_all()
        await turns()
    assert correlation_ids(data) == [3]


async def test_a_defect_of_ours_closes_that_connection_only(
    connect, broker, monkeypatch, caplog
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broker.groups, "heartbeat", fail)
    connection, transport = connect()
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    receive(connection, framed(1, request))
    await turns()
    assert transport.is_aborted
    assert "please report" in caplog.text


async def test_draining_answers_what_is_in_flight_and_starts_nothing(
    connect, server, broker, batch
) -> None:
    await broker.log.create_topic("t", 1)
    connection, transport = connect()
    receive(connection, fetch(1, wait_s=30))
    await turns()
    broker.draining.set()

    class Listener:
        def close(self) -> None: ...

    server._door = Listener()
    await server.drain()
    assert correlation_ids(transport.read_all()) == [1]
    assert transport.is_aborted
    assert server_module.DRAIN_S > 0


async def test_who_is_over_the_quota_is_answered_and_then_not_read_from(
    connect, server, broker, batch
) -> None:
    await broker.log.create_topic("t", 1)
    broker.quotas.settings = Settings({Entity(None, "c"): {PRODUCE: 1_000.0}})
    connection, transport = connect()
    receive(connection, produce(1, batch(200)) + api_versions(2))
    await turns()
    assert correlation_ids(transport.read_all()) == [1]
    assert not transport.is_reading
    pass_s(broker, 3600)
    server._close_late(broker.clock.monotonic_s())
    assert not transport.is_aborted, "who is made to wait is not idle"
    other, its_transport = connect("10.0.0.2")
    receive(other, api_versions(3))
    await turns()
    assert correlation_ids(its_transport.read_all()) == [3]
    connection._muted.cancel()
    connection._unmute()
    await turns()
    assert correlation_ids(transport.read_all()) == [2]
    assert transport.is_reading
