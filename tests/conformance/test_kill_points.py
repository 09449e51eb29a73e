"""kill -9 at a hundred points: what was acknowledged is there, once, at the offset that was told.

An idempotent producer writes to two partitions with up to five requests in flight. The broker is
killed at random times, and by strace right before the Nth write or sync of one of its threads
(when strace is there). After each restart the producer repeats what was not answered, with the
sequence numbers it had. Packing, WAL rolls and catalog commits run at a pace that makes the points
hit them too. At the end the whole log is read.
"""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.create_topics.v4 import request as create_v4
from kio.schema.fetch.v11 import request as fetch_v11
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.produce.v8 import request as produce_v8
from kio.static.primitive import i32Timedelta

from catchwater.wire.batch import split
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import decode_reply, encode_request
from catchwater.wire.records import encode_batch

RANDOM_POINTS = 70
STRACE_POINTS = 30
LONGEST_RUN_S = 0.12
IN_FLIGHT = 5
PARTITIONS = 2
RECORDS = 3
TOPIC = "t"
WAIT = i32Timedelta.parse(timedelta(seconds=1))
SYSCALLS = {
    "fdatasync": 40,
    "pwrite64": 40,
    "pwritev,pwritev2": 40,
    "fsync": 3,
    "rename,renameat,renameat2": 2,
    "unlink": 2,
}
"""Calls before which strace kills, and how many of them one thread may get to make first."""


class Broker:
    """Restarted at once and killed without warning."""

    def __init__(self, home: Path) -> None:
        self.ready_file = home / "ready.json"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {
            "listeners": f"127.0.0.1:{self.port}",
            "catchwater.control.listener": "127.0.0.1:0",
            "catchwater.ready.file": str(self.ready_file),
            "log.dirs": str(home / "data"),
            "catchwater.pack.interval.ms": "40",
            "catchwater.pack.min.bytes": "1",
            "catchwater.wal.segment.bytes": "65536",
            "catchwater.delete.grace.ms": "100",
            "catchwater.retention.interval.ms": "50",
            "log.retention.ms": "-1",
        }
        self.log_file = home / "log"
        with self.log_file.open("wb") as log:
            self.parent = self._spawn(settings, log)
        self.pid = 0

    @staticmethod
    def _spawn(settings, log) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("forking_broker.py"))),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        self.parent.stdin.write("\n")
        self.parent.stdin.flush()
        self.pid = int(self.parent.stdout.readline())
        deadline = time.monotonic() + 20
        while not self.ready_file.exists():
            assert time.monotonic() < deadline, self.log_file.read_text()[-3000:]
            assert Path(f"/proc/{self.pid}/fd").exists(), self.log_file.read_text()[-3000:]
            time.sleep(0.002)
        assert json.loads(self.ready_file.read_text())["pid"] == self.pid

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # strace was faster
        self.parent.stdout.readline()
        self.pid = 0

    def close(self) -> None:
        if self.pid:
            self.kill()
        self.parent.stdin.close()
        self.parent.wait(10)
        self.parent.stdout.close()


class Client:
    """A connection, with requests and replies apart, so that requests can overlap."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.stream = self.socket.makefile("rb")

    def send(self, message) -> None:
        self.socket.sendall(b"".join(prefixed(encode_request(0, "kill", message))))

    def receive(self, message):
        head = self.stream.read(4)
        size = struct.unpack(">i", head)[0] if len(head) == 4 else 0
        body = self.stream.read(size)
        if not size or len(body) < size:
            raise ConnectionResetError
        return decode_reply(message.__api_key__, message.__version__, memoryview(body))[1]

    def call(self, message):
        self.send(message)
        return self.receive(message)

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Producer:
    """One idempotent producer; a request is a batch for each partition with the same numbers."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.next_sequence = 0
        self.unanswered: deque[int] = deque()
        self.acknowledged: dict[tuple[int, int], int] = {}
        """(partition, base sequence) -> base offset."""

    def request(self, sequence: int):
        values = [b"%d" % (sequence + i) for i in range(RECORDS)]
        batch = encode_batch(
            [(None, value, 1_700_000_000_000, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        partitions = tuple(
            produce_v8.PartitionProduceData(index=index, records=batch)
            for index in range(PARTITIONS)
        )
        topic = produce_v8.TopicProduceData(name=TOPIC, partition_data=partitions)
        return produce_v8.ProduceRequest(acks=-1, timeout=WAIT, topic_data=(topic,))

    def run(self, port: int) -> None:
        """Write until the connection breaks; first what was not answered before."""
        try:
            client = Client(port)
        except OSError:
            return
        try:
            if self.producer_id < 0:
                ask = InitProducerIdRequest(transactional_id=None, transaction_timeout=WAIT)
                self.producer_id = client.call(ask).producer_id
            for sequence in self.unanswered:
                client.send(self.request(sequence))
            while True:
                while len(self.unanswered) < IN_FLIGHT:
                    self.unanswered.append(self.next_sequence)
                    self.next_sequence += RECORDS
                    client.send(self.request(self.unanswered[-1]))
                self.note(client.receive(self.request(0)))
        except OSError:
            pass
        finally:
            client.close()

    def note(self, reply) -> None:
        sequence = self.unanswered[0]
        for partition in reply.responses[0].partition_responses:
            assert partition.error_code.name == "none", (sequence, partition)
            told = self.acknowledged.setdefault((partition.index, sequence), partition.base_offset)
            assert told == partition.base_offset
        self.unanswered.popleft()


def create_topic(port: int) -> None:
    client = Client(port)
    topic = create_v4.CreatableTopic(
        name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=()
    )
    client.call(create_v4.CreateTopicsRequest(topics=(topic,)))
    client.close()


def read_all(port: int, partition: int) -> dict[int, tuple[int, int]]:
    """Base sequence -> (base offset, how often it is there)."""
    client = Client(port)
    found: dict[int, tuple[int, int]] = {}
    offset = 0
    while True:
        wanted = fetch_v11.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000
        )
        request = fetch_v11.FetchRequest(
            replica_id=-1,
            max_wait=i32Timedelta.parse(timedelta(0)),
            min_bytes=0,
            isolation_level=0,
            topics=(fetch_v11.FetchTopic(topic=TOPIC, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        (answer,) = client.call(request).responses[0].partitions
        assert answer.error_code.name == "none"
        if not answer.records:
            assert offset == answer.high_watermark
            client.close()
            return found
        for header, _ in split(memoryview(answer.records)):
            assert header.base_offset == offset, "offsets are consecutive"
            offset += header.last_offset_delta + 1
            times = found.get(header.base_sequence, (0, 0))[1]
            found[header.base_sequence] = (header.base_offset, times + 1)


def verify(port: int, producer: Producer) -> None:
    for partition in range(PARTITIONS):
        found = read_all(port, partition)
        assert {times for _, times in found.values()} <= {1}, "nothing is there twice"
        offsets = {s: base for s, (base, _) in found.items()}
        assert sorted(offsets, key=lambda s: offsets[s]) == sorted(offsets), "in the order written"
        for (index, sequence), base_offset in producer.acknowledged.items():
            if index == partition:
                assert offsets.get(sequence) == base_offset
        assert set(offsets) <= set(range(0, producer.next_sequence, RECORDS))


def attach_strace(pid: int, noise: random.Random, home: Path) -> subprocess.Popen[bytes]:
    """Let one thread of the broker be killed right before its Nth call of one kind."""
    calls, most = noise.choice(sorted(SYSCALLS.items()))
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-p", str(pid), "-o", str(home / "strace")),
            *("-e", f"trace={calls}"),
            *("-e", f"inject={calls}:signal=SIGKILL:when={noise.randint(1, most)}"),
        ],
        stderr=subprocess.DEVNULL,
    )
    status = Path(f"/proc/{pid}/status")
    deadline = time.monotonic() + 5
    while "TracerPid:\t0\n" in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.002)
    return tracer


@pytest.mark.parametrize("seed", [2026])
def test_what_was_acknowledged_survives_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    with_strace = STRACE_POINTS if shutil.which("strace") else 0
    points = ["time"] * (RANDOM_POINTS + STRACE_POINTS - with_strace) + ["strace"] * with_strace
    noise.shuffle(points)
    broker = Broker(tmp_path)
    producer = Producer()
    hits = 0
    try:
        broker.start()
        create_topic(broker.port)
        for number, point in enumerate(points):
            if number:
                broker.start()
            tracer = attach_strace(broker.pid, noise, tmp_path) if point == "strace" else None
            writing = threading.Thread(target=producer.run, args=(broker.port,))
            writing.start()
            # A call that never comes (no file was rolled, say) is a kill at that time instead.
            writing.join(noise.uniform(0, LONGEST_RUN_S) if tracer is None else 1.0)
            hits += tracer is not None and not writing.is_alive()
            broker.kill()
            writing.join()
            if tracer is not None:
                tracer.wait(10)
            if number % 20 == 19:
                broker.start()
                verify(broker.port, producer)
                broker.kill()
        broker.start()
        assert len(producer.acknowledged) > len(points)
        verify(broker.port, producer)
        assert hits >= with_strace / 2, "strace is to kill, not to watch"
    finally:
        broker.close()
    assert b"Traceback" not in broker.log_file.read_bytes()
