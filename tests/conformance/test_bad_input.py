"""What a public port must stand: the broker lives, others are served, each offence is one line.

Where each kind of bad input is tested:
- size prefixes, silence behind them: `OFFENCES`, an announced frame, large requests that never end;
- array lengths in small frames: `OFFENCES`; of every type of field: unit/wire/test_messages,
  test_fields, test_hot;
- tagged fields, many, twice, unknown: `OFFENCES`, corpus_protocol; unit/wire/test_messages;
- varints, requests cut short: a request of any version that is cut, a request cut at every byte;
- unknown APIs and versions: `OFFENCES`, an unknown version of ApiVersions;
- TLS, HTTP, noise: `OFFENCES`, random bytes, random requests;
- slow and silent clients, floods: a flood of connections; unit/broker/test_server (deadlines,
  limits), unit/broker/limits;
- many requests, replies never read: a client that never reads; unit/broker/test_server;
- batches, bombs, names, ids, offsets, groups, topics: test_bad_requests;
- anything else: test_protocol_fuzz.
"""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import struct
import time
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.static.primitive import i32Timedelta
from tests.conformance.protocol_inputs import VERSIONS, drawn
from tests.ports import mute_connections

from catchwater.broker.pressure import FIRST_LINES, LINES_A_SECOND
from catchwater.broker.router import APIS
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import assembled, read_header
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import encode_request

PATIENCE_S = 60.0
CLOSED_WITHIN_S = 20.0
"""However slow the machine; a client that is merely silent is closed after 30 s."""


def connect(broker, source: str = "127.0.0.1") -> socket.socket:
    """A connection from one of loopback's addresses; each is a client of its own to the broker."""
    return socket.create_connection(
        ("127.0.0.1", broker.port), timeout=PATIENCE_S, source_address=(source, 0)
    )


def is_closed(connection: socket.socket, within_s: float = CLOSED_WITHIN_S) -> bool:
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def log_lines(broker) -> list[str]:
    """The lines of its log, but not how many it left out: that is written when there is time."""
    return [line for line in broker.log().splitlines() if "more connections" not in line]


def resident_mb(broker) -> float:
    with open(f"/proc/{broker.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


MIB = 2**20


def framed(message, correlation_id: int = 1) -> bytes:
    return b"".join(prefixed(encode_request(correlation_id, "test", message)))


API_VERSIONS_REQUEST = framed(
    ApiVersionsRequest(client_software_name="x", client_software_version="1")
)


def metadata(*topics: str, create: bool = False) -> bytes:
    names = tuple(MetadataRequestTopic(name=name) for name in topics)
    return framed(
        MetadataRequest(
            topics=names,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )


def receive_frame(connection: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = connection.recv(size - len(data))
            assert piece, "closed in the middle of a reply"
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


@pytest.fixture(autouse=True)
def the_broker_lives_and_serves(broker):
    lines = broker.log().count("\n")
    before_mb = resident_mb(broker)
    yield
    assert broker.is_running
    assert "Traceback" not in broker.log()
    assert resident_mb(broker) - before_mb < 64
    errors = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000})
    producer.produce("bystander", b"x", on_delivery=lambda e, _: e and errors.append(e))
    assert producer.flush(PATIENCE_S) == 0
    assert not errors
    assert broker.log().count("\n") >= lines


OFFENCES = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030102000100 01fc0303") + bytes(500),
    "negative size": struct.pack(">i", -1),
    "size zero": struct.pack(">i", 0),
    "size too large": struct.pack(">i", 2**31 - 1),
    "unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unknown version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "broker-only api": struct.pack(">ihhih", 10, 27, 0, 1, -1),
    "array of two billion": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    "negative array": struct.pack(">ihhihi", 14, 19, 2, 1, -1, -7),
    "client id too long": struct.pack(">ihhih", 10, 18, 0, 1, 32_000),
    "four billion tagged fields announced": (
        struct.pack(">ihhih", 15, 18, 3, 1, -1) + b"\xff\xff\xff\xff\x0f"
    ),
    "overlong varint": struct.pack(">ihhih", 22, 18, 3, 1, -1) + b"\xff" * 12,
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_an_offence_is_closed_at_once_with_one_line(broker, offence):
    lines = len(log_lines(broker))
    with connect(broker) as connection:
        connection.sendall(OFFENCES[offence])
        assert is_closed(connection)
    added = log_lines(broker)[lines:]
    assert len(added) == 1
    assert "Closed the connection from 127.0.0.1" in added[0]


def test_a_million_tagged_fields_are_closed_at_once_with_one_line(broker):
    """They are all there, each empty and unknown: four times as many as a request may have."""
    fields = b"".join(unsigned_varint(tag) + b"\0" for tag in range(1_000, 1_001_000))
    request = struct.pack(">hhih", 3, 9, 1, -1) + unsigned_varint(1_000_000) + fields
    lines = len(log_lines(broker))
    with connect(broker) as connection:
        connection.sendall(API_VERSIONS_REQUEST)
        receive_frame(connection)
        connection.sendall(struct.pack(">i", len(request)) + request)
        assert is_closed(connection)
    (line,) = log_lines(broker)[lines:]
    assert "1000000 elements were announced" in line


def unsigned_varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def test_random_bytes_are_closed(broker):
    noise = random.Random(7)
    for _ in range(200):
        with connect(broker) as connection:
            connection.sendall(b"\x7f" + noise.randbytes(noise.randrange(3, 2000)))
            assert is_closed(connection)


def test_random_requests_never_hurt(broker):
    """Well-framed, well-headed noise for every API; closed or answered, never a traceback."""
    noise = random.Random(11)
    for key in range(70):
        for version in range(0, 14, 3):
            body = noise.randbytes(noise.randrange(0, 200))
            request = struct.pack(">hhih", key, version, 1, -1) + body
            with connect(broker) as connection:
                try:
                    connection.sendall(struct.pack(">i", len(request)) + request)
                except ConnectionError:
                    continue


def test_a_request_cut_at_every_byte_leaves_no_trace(broker):
    whole = metadata("a", "b")
    lines = log_lines(broker)
    for size in range(len(whole)):
        with connect(broker) as connection:
            connection.sendall(whole[:size])
    with connect(broker) as connection:
        connection.sendall(whole)
        assert receive_frame(connection)
    assert log_lines(broker) == lines


def test_an_announced_frame_that_never_comes_costs_nothing(broker):
    before_mb = resident_mb(broker)
    connections = [connect(broker) for _ in range(50)]
    for connection in connections:
        connection.sendall(
            framed(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
        )
        receive_frame(connection)
        connection.sendall(struct.pack(">i", 100_000_000) + b"x")
    # Who asks after them is answered after their bytes were taken in.
    with connect(broker) as probe:
        probe.sendall(
            framed(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
        )
        receive_frame(probe)
    assert resident_mb(broker) - before_mb < 64
    for connection in connections:
        connection.close()


def test_requests_that_come_byte_by_byte_are_answered(broker):
    with connect(broker) as connection:
        for byte in metadata("x"):
            connection.sendall(bytes([byte]))
        assert receive_frame(connection)


def test_a_client_that_never_reads_is_held_back(broker):
    request = metadata(*(f"topic-{number}" for number in range(50)))
    with connect(broker) as connection:
        connection.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(100_000):
                connection.sendall(request)
                sent += 1
        assert sent < 100_000
        with connect(broker) as other:
            other.sendall(metadata("x"))
            assert receive_frame(other)


def begin_large_request(connection: socket.socket) -> None:
    connection.sendall(API_VERSIONS_REQUEST)
    receive_frame(connection)
    connection.setblocking(False)
    connection.send(struct.pack(">i", 4 * MIB))


def test_large_requests_that_never_end_have_a_bound(broker):
    before_mb = resident_mb(broker)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(broker, "127.0.0.3")) for _ in range(64)]
        for connection in connections:
            begin_large_request(connection)
        left = dict.fromkeys(connections, 3 * MIB)
        until_s = time.monotonic() + 1
        while time.monotonic() < until_s:
            for connection in connections:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    left[connection] -= connection.send(bytes(min(left[connection], 256 * 1024)))
        # They tried to have 192 MiB held for them.
        assert resident_mb(broker) - before_mb < 64
        produced_s = produce_large_record(broker)
    assert produced_s < 40, "they have 46 s of their own, and 3 while others wait"


def produce_large_record(broker) -> float:
    began_s = time.monotonic()
    errors = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000})
    producer.produce("bystander", bytes(900_000), on_delivery=lambda e, _: e and errors.append(e))
    assert producer.flush(PATIENCE_S) == 0
    assert not errors
    return time.monotonic() - began_s


def test_a_flood_of_connections_is_refused_and_others_are_served(broker):
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(mute_connections(broker.port, 1_000))
            with connect(broker) as other:
                other.sendall(metadata("x"))
                assert receive_frame(other)
        page = request(broker, "GET", "/metrics")[1]
        (gauge,) = re.findall(r"^catchwater_connections (.*)$", page, re.MULTILINE)
        assert float(gauge) < 2_100
        # Whether they come too fast or are too many says the machine.
        assert re.search(
            r'connections_closed_total\{reason="(rate_per_ip|limit|displaced)"\}', page
        )


MOST_CUTS = 500


def cuts(frame: bytes, every_byte: bool) -> list[int]:
    return list(range(1, len(frame))) if every_byte else [1, 9, len(frame) // 2, len(frame) - 1]


@pytest.mark.parametrize("every_byte", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_request_of_any_version_that_is_cut_is_closed(broker, every_byte):
    ends = {(api.key, end) for api in APIS.values() for end in (api.versions[0], api.versions[-1])}
    for key, version in VERSIONS if every_byte else sorted(ends):
        # The first that is drawn has nothing in it.
        *_, rich = (one for one in drawn(5, key, version, 2) if one.is_good)
        whole = rich.data[4:]
        for size in cuts(whole[:MOST_CUTS], every_byte):
            with connect(broker, "127.0.0.4") as connection:
                connection.sendall(struct.pack(">i", size) + whole[:size])
                assert is_closed(connection), (key, version, size)


def test_an_unknown_version_of_api_versions_gets_the_ranges(broker):
    with connect(broker) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 99, 77, -1))
        reply = receive_frame(connection)
    correlation_id, error, count = struct.unpack_from(">ihi", reply)
    assert (correlation_id, error) == (77, 35)
    assert count > 15


def test_a_bad_batch_that_waits_for_no_answer_is_closed_with_one_line(make_broker):
    broker = make_broker()  # its own: lines about closed connections are rationed
    whole = encode_batch([(b"k", b"v", 0, ())])
    bad = assembled(read_header(memoryview(whole)), b"\xff" * 50)[1]
    lines = broker.log().count("\n")
    produce = ProduceRequest(
        transactional_id=None,
        acks=0,
        timeout=i32Timedelta.parse(timedelta(seconds=1)),
        topic_data=(
            TopicProduceData(
                name="no-answer", partition_data=(PartitionProduceData(index=0, records=bad),)
            ),
        ),
    )
    with connect(broker) as connection:
        connection.sendall(metadata("no-answer", create=True))
        receive_frame(connection)
        connection.sendall(framed(produce))
        assert is_closed(connection)
    deadline = time.monotonic() + PATIENCE_S
    while not (added := broker.log().splitlines()[lines:]):
        assert time.monotonic() < deadline, "nothing was written down"
        time.sleep(0.01)
    (line,) = added
    assert "acks=0" in line and "INVALID_RECORD" in line and "Record 0" in line


def test_offences_are_counted(broker):
    with connect(broker) as connection:
        connection.sendall(OFFENCES["http"])
        assert is_closed(connection)
    page = request(broker, "GET", "/metrics")[1]
    assert 'catchwater_connections_closed_total{reason="bad_frame"}' in page


def request(broker, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    client = http.client.HTTPConnection(
        broker.control_url.removeprefix("http://"), timeout=PATIENCE_S
    )
    client.request(method, path, body)
    reply = client.getresponse()
    text = reply.read().decode()
    client.close()
    return reply.status, text


def at_control_port(broker, sent: bytes) -> bytes:
    host, _, port = broker.control_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        return connection.recv(100)


def test_what_is_no_http_leaves_a_few_lines_however_often_it_comes(broker):
    before, began_s = broker.log().count("\n"), time.monotonic()
    for _ in range(300):
        assert at_control_port(broker, b"garbage\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    lines = broker.log().splitlines()[before:]
    took_s = time.monotonic() - began_s
    assert len(lines) <= FIRST_LINES + LINES_A_SECOND * (took_s + 1)
    assert all("control API" in line or "more connections" in line for line in lines)
    page = request(broker, "GET", "/metrics")[1]
    assert 'catchwater_connections_closed_total{reason="control_bad_request"} 300.0' in page


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nowhere", None, 404, "NOT_FOUND"),
        ("GET", "/api/v1/topics/../../etc/passwd", None, 404, "NOT_FOUND"),
        ("GET", "/healthz/x", None, 404, "NOT_FOUND"),
        ("DELETE", "/api/v1/plans", None, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/v1/topics/none", None, 404, "UNKNOWN_TOPIC"),
        ("POST", "/api/v1/plans", b"{", 400, "INVALID_BODY"),
        ("POST", "/api/v1/plans", b"[]", 400, "INVALID_BODY"),
        ("POST", "/api/v1/plans", b'{"topic":"none","ranges":[]}', 404, "UNKNOWN_TOPIC"),
        ("POST", "/api/v1/plans", b" " * 5_000_000, 413, "BODY_TOO_LARGE"),
        ("DELETE", "/api/v1/pins/none", None, 404, "UNKNOWN_PIN"),
        ("PUT", "/api/v1/sinks/p/s/epochs/x", b"{}", 404, "NOT_FOUND"),
        ("GET", "/api/v1/sinks/p/s", None, 404, "NO_EPOCH"),
    ],
)
def test_the_control_api_says_no_in_json(broker, method, path, body, status, code):
    answered, text = request(broker, method, path, body)
    error = json.loads(text)
    assert (answered, error["error"]) == (status, code)
    assert error["message"]
    assert set(error) >= {"error", "message", "hint"}
