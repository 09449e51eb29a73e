"""A thin load generator: pre-encoded Kafka requests over one socket, several in flight.

It costs little beside the broker it loads, speaks to any Kafka-compatible broker with the same
bytes, and counts an answer only when it carries no error.
"""

import datetime
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

from kio.schema.create_topics.v5 import request as create_topics
from kio.schema.create_topics.v5.response import CreateTopicsResponse
from kio.schema.delete_topics.v5 import request as delete_topics
from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
from kio.schema.fetch.v11 import request as fetch
from kio.schema.produce.v9 import request as produce
from kio.serial import entity_reader, entity_writer

from catchwater.wire.arrow import encode_batch

CLIENT = "bench"
NOW_MS = int(time.time() * 1000)
"""Records are new, so that no retention takes them away while they are measured."""


@dataclass
class Result:
    """What one run moved, and how long it took."""

    requests: int
    bytes: int
    seconds: float


def frame(api_key: int, version: int, flexible: bool, body: bytes, correlation: int = 0) -> bytes:
    """A whole request: size, header, body."""
    client = CLIENT.encode()
    header = struct.pack(">hhih", api_key, version, correlation, len(client)) + client
    if flexible:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def encode(entity: object) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)  # type: ignore[arg-type]
    return buffer.getvalue()


def produce_request(topic: str, partition: int, value_bytes: int, records: int) -> bytes:
    """A Produce v9 request, acks=all, with one batch of equal records."""
    value = b"x" * value_bytes
    batch = encode_batch([(None, value, NOW_MS, ()) for _ in range(records)])
    return frame_of_batch(topic, partition, batch)


def frame_of_batch(topic: str, partition: int, batch: bytes) -> bytes:
    """A Produce v9 request, acks=all, with this batch."""
    data = produce.ProduceRequest(
        transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=10),
        topic_data=(
            produce.TopicProduceData(
                name=topic,
                partition_data=(produce.PartitionProduceData(index=partition, records=batch),),
            ),
        ),
    )  # fmt: skip
    return frame(0, 9, True, encode(data))


class Connection:
    """One socket; requests go out in order and answers come back in order."""

    def __init__(
        self, bootstrap: str, timeout_s: float = 20.0, tls: ssl.SSLContext | None = None
    ) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.stream = self.socket.makefile("rb", buffering=1 << 20)
        self.call(frame(18, 0, False, b""))  # ApiVersions, as every client begins

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def answer(self) -> bytes:
        (size,) = struct.unpack(">i", self.stream.read(4))
        return self.stream.read(size)

    def call(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        return self.answer()


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    settle_s: float = 1.0,
    configs: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Create a topic and wait until it takes writes: of a cluster of several, a while longer."""
    settings = tuple(
        create_topics.CreatableTopicConfig(name=key, value=value)
        for key, value in (configs or {}).items()
    )
    connection = Connection(bootstrap, tls=tls)
    body = create_topics.CreateTopicsRequest(
        topics=(
            create_topics.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1,
                assignments=(), configs=settings,
            ),
        ),
        timeout=datetime.timedelta(seconds=20), validate_only=False,
    )  # fmt: skip
    answer = connection.call(frame(19, 5, True, encode(body)))
    connection.close()
    created = entity_reader(CreateTopicsResponse)(answer, 5)[0].topics[0]  # 5: id and no tags
    if created.error_code:
        raise RuntimeError(f"{bootstrap} did not create {name}: {created.error_message}")
    time.sleep(settle_s)


def delete_topic(bootstrap: str, name: str, tls: ssl.SSLContext | None = None) -> None:
    """Delete a topic: packing what it leaves behind would be counted as the next one's cost."""
    connection = Connection(bootstrap, tls=tls)
    body = delete_topics.DeleteTopicsRequest(
        topic_names=(name,), timeout=datetime.timedelta(seconds=20)
    )
    answer = connection.call(frame(20, 5, True, encode(body)))
    connection.close()
    deleted = entity_reader(DeleteTopicsResponse)(answer, 5)[0].responses[0]
    if deleted.error_code:
        raise RuntimeError(f"{bootstrap} did not delete {name}: {deleted.error_message}")


def produce_error(answer: bytes) -> int:
    """The error of the only partition in a Produce v9 answer."""
    at = 4 + 1 + 1  # correlation id, tagged fields, length of the array of topics
    name_bytes = answer[at] - 1
    at += 1 + name_bytes + 1 + 4  # name, length of the array of partitions, index
    return int(struct.unpack_from(">h", answer, at)[0])


def pump(
    bootstrap: str, request: bytes, seconds: float, in_flight: int,
    tls: ssl.SSLContext | None = None,
) -> Result:  # fmt: skip
    """Send the request over and over for so long, never more than `in_flight` unanswered."""
    connection = Connection(bootstrap, tls=tls)
    sent = answered = 0
    start = time.perf_counter()
    burst = max(1, in_flight // 2)
    while (elapsed := time.perf_counter() - start) < seconds or answered < sent:
        if elapsed < seconds:
            while sent - answered + burst <= in_flight:
                connection.socket.sendall(request * burst)
                sent += burst
        answer = connection.answer()
        answered += 1
        if answered % 64 == 1 and (error := produce_error(answer)):
            raise RuntimeError(f"{bootstrap} answered error {error}")
    took = time.perf_counter() - start
    connection.close()
    return Result(answered, answered * len(request), took)


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """A Fetch v11 request of one partition."""
    data = fetch.FetchRequest(
        replica_id=-1, max_wait=datetime.timedelta(milliseconds=500), min_bytes=1,
        max_bytes=max_bytes, isolation_level=0, session_id=0, session_epoch=-1,
        topics=(
            fetch.FetchTopic(
                topic=topic,
                partitions=(
                    fetch.FetchPartition(
                        partition=partition, current_leader_epoch=-1, fetch_offset=offset,
                        log_start_offset=-1, partition_max_bytes=max_bytes,
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return frame(1, 11, False, encode(data))


def drain(
    bootstrap: str, request: bytes, seconds: float, in_flight: int,
    tls: ssl.SSLContext | None = None,
) -> Result:  # fmt: skip
    """Ask for the same range over and over: the tail as many readers see it, from memory."""
    connection = Connection(bootstrap, tls=tls)
    sent = answered = size = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or answered < sent:
        while elapsed < seconds and sent - answered < in_flight:
            connection.socket.sendall(request)
            sent += 1
        size += len(connection.answer())
        answered += 1
    took = time.perf_counter() - start
    connection.close()
    return Result(answered, size, took)
