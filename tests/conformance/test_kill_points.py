"""kill -9 before every kind of system call: what was acknowledged is there, where it was told.

An idempotent producer writes to two partitions with up to five requests in flight, and a group
commits its position. A first run is counted by strace: how often each thread makes each system
call that writes, syncs, names, opens or sends. Then the broker is killed right before the Nth of
them, the Ns spread over all, starting up included; the rest of the points are plain times. After
each restart the producer repeats what was not answered, with the sequence numbers it had.
Packing, WAL rolls and catalog commits run at a pace that makes the points hit them too. Every
tenth restart, and at the end, the whole log is read.

POINTS (40) says how many points; `make kill-points` takes 300.
"""

import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from kio.schema.create_topics.v4 import request as create_v4
from kio.schema.fetch.v11 import request as fetch_v11
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.offset_commit.v2 import request as commit_v2
from kio.schema.offset_fetch.v1 import request as offset_v1
from kio.schema.produce.v8 import request as produce_v8
from kio.static.primitive import i32Timedelta

from catchwater.wire.batch import split
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import decode_reply, encode_request
from catchwater.wire.records import encode_batch

POINTS = int(os.environ.get("POINTS", "40"))
AT_A_TIME = 0.25
"""The share of points that are times, not calls."""
VERIFY_EVERY = 10
COUNTED_S = 1.5
LONGEST_RUN_S = 0.12
LONGEST_TRACED_S = 2.5
IN_FLIGHT = 5
PARTITIONS = 2
RECORDS = 3
TOPIC, GROUP = "t", "g"
WAIT = i32Timedelta.parse(timedelta(seconds=1))
SYSCALLS = (
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "ftruncate"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "openat", "sendto", "sendmsg"),
)


class Point(NamedTuple):
    """Kill before a thread's `number`-th call of `syscall`; no call: at some time."""

    syscall: str = ""
    number: int = 0


def points(counts: Counter[str], wanted: int, noise: random.Random) -> list[Point]:
    """So many points: every kind of call as often as another, over all it was counted."""
    chosen: list[Point] = []
    left = wanted - round(wanted * AT_A_TIME) if counts else 0
    for kinds, (syscall, count) in enumerate(sorted(counts.items(), key=lambda c: c[1])):
        share = min(count, left // (len(counts) - kinds))
        left -= share
        chosen += [Point(syscall, 1 + index * count // share) for index in range(share)]
    chosen += [Point()] * (wanted - len(chosen))
    noise.shuffle(chosen)
    return chosen


Tracer = subprocess.Popen[bytes]


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

    def start(self, tracing: Callable[[int], Tracer] | None = None) -> Tracer | None:
        """Wait until it is ready or, under a tracer, has ended before it was."""
        self.ready_file.unlink(missing_ok=True)
        self._say()
        self.pid = int(self.parent.stdout.readline())
        tracer = tracing(self.pid) if tracing else None
        self._say()
        deadline = time.monotonic() + 20
        while not self.ready_file.exists():
            assert time.monotonic() < deadline, self.log_file.read_text()[-3000:]
            if not Path(f"/proc/{self.pid}").exists():
                assert tracer is not None, self.log_file.read_text()[-3000:]
                return tracer
            time.sleep(0.002)
        return tracer

    def _say(self) -> None:
        self.parent.stdin.write("\n")
        self.parent.stdin.flush()

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


class Committer:
    """A group of one that moves its position up by one at a time."""

    def __init__(self) -> None:
        self.acknowledged = self.sent = 0

    def run(self, port: int) -> None:
        """Commit until the connection breaks."""
        try:
            client = Client(port)
        except OSError:
            return
        try:
            while True:
                self.sent += 1
                assert self.commit(client, self.sent) == "none"
                self.acknowledged = self.sent
        except OSError:
            pass
        finally:
            client.close()

    def commit(self, client: Client, offset: int) -> str:
        partition = commit_v2.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        topic = commit_v2.OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,))
        request = commit_v2.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time=i32Timedelta.parse(timedelta(milliseconds=-1)),
            topics=(topic,),
        )
        return client.call(request).topics[0].partitions[0].error_code.name

    def verify(self, port: int) -> None:
        client = Client(port)
        topic = offset_v1.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=(0,))
        answer = client.call(offset_v1.OffsetFetchRequest(group_id=GROUP, topics=(topic,)))
        client.close()
        offset = max(0, answer.topics[0].partitions[0].committed_offset)
        assert self.acknowledged <= offset <= self.sent


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


def trace(pid: int, *options: str) -> Tracer:
    """strace on all threads of the process, present and future; returns once it is there."""
    command = ("strace", "-f", "-qq", "-p", str(pid), *options)
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    deadline = time.monotonic() + 5
    while "TracerPid:\t0\n" in status.read_text():
        assert time.monotonic() < deadline, "strace cannot attach"
        time.sleep(0.002)
    return tracer


def tracing_to(point: Point, home: Path) -> Callable[[int], Tracer]:
    kill = f"inject={point.syscall}:signal=SIGKILL:when={point.number}"
    return lambda pid: trace(
        pid, "-o", str(home / "strace"), "-e", f"trace={point.syscall}", "-e", kill
    )


class Load:
    """What runs against a broker until it is killed, and remembers what it was told."""

    def __init__(self) -> None:
        self.producer = Producer()
        self.committer = Committer()

    def run(self, broker: Broker, longest_s: float) -> bool:
        """Until the broker is gone, or so long; whether it was gone."""
        runs = (self.producer.run, self.committer.run)
        threads = [threading.Thread(target=run, args=(broker.port,)) for run in runs]
        for thread in threads:
            thread.start()
        threads[0].join(longest_s)
        is_gone = not threads[0].is_alive()
        broker.kill()
        for thread in threads:
            thread.join()
        return is_gone

    def verify(self, port: int) -> None:
        verify(port, self.producer)
        self.committer.verify(port)


def count_calls(broker: Broker, load: Load, home: Path) -> Counter[str]:
    """How often the busiest thread made each system call, from its start to its kill."""
    file = home / "calls"
    wanted = ",".join(SYSCALLS)
    tracer = broker.start(lambda pid: trace(pid, "-o", str(file), "-e", f"trace={wanted}"))
    load.run(broker, COUNTED_S)
    assert tracer is not None
    tracer.wait(10)
    by_thread = Counter(re.findall(r"^(\d+) +(\w+)\(", file.read_text(), re.MULTILINE))
    most: Counter[str] = Counter()
    for (_, syscall), count in by_thread.items():
        most[syscall] = max(most[syscall], count)
    return most


@pytest.mark.parametrize("seed", [2026])
def test_what_was_acknowledged_survives_every_kill(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    broker = Broker(tmp_path)
    load = Load()
    hits: Counter[bool] = Counter()
    try:
        broker.start()
        create_topic(broker.port)
        broker.kill()
        has_strace = shutil.which("strace") is not None
        counts = count_calls(broker, load, tmp_path) if has_strace else Counter()
        for number, point in enumerate(points(counts, POINTS, noise)):
            tracer = broker.start(tracing_to(point, tmp_path) if point.syscall else None)
            longest_s = LONGEST_TRACED_S if tracer else noise.uniform(0, LONGEST_RUN_S)
            was_hit = load.run(broker, longest_s)
            if tracer is not None:
                tracer.wait(10)
                # A call that never comes (no file was rolled, say) is a kill at that time instead.
                hits[was_hit] += 1
            if number % VERIFY_EVERY == VERIFY_EVERY - 1:
                broker.start()
                load.verify(broker.port)
                broker.kill()
        broker.start()
        load.verify(broker.port)
        assert len(load.producer.acknowledged) > POINTS
        assert hits[True] >= 2 * hits[False], "strace is to kill, not to watch"
    finally:
        broker.close()
    print(f"{POINTS} points, {dict(counts)}; before their call {hits[True]}, at some time the rest")
    assert b"Traceback" not in broker.log_file.read_bytes()
