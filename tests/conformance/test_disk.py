"""What a failing disk may do to a broker: make it refuse, or stop, and never lie.

A full disk is a tmpfs of a few megabytes (skipped where mounting is not allowed), a failing sync
is injected by strace, a short write comes from a limit on the size of files. The second broker on
a data directory is in `test_start.py`.
"""

import contextlib
import json
import resource
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.killing import trace

TOPIC = "t"
RETRIABLE = KafkaError.KAFKA_STORAGE_ERROR
"""What clients that are not told otherwise, as these are, try again."""
PATIENCE_S = 60.0
CHUNK = 50_000
DISK_BYTES = 8 * 1024 * 1024
BALLAST_BYTES = 3 * 1024 * 1024
QUIET = {"catchwater.pack.interval.ms": "3600000", "catchwater.retention.interval.ms": "3600000"}
"""Nobody else writes: what the disk refuses is the producer's."""


class Writer:
    """Writes numbered records one at a time, and remembers which were acknowledged."""

    def __init__(self, bootstrap: str, size_bytes: int = CHUNK) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "retries": 0, "acks": "all"})
        self.size_bytes = size_bytes
        self.number = 0
        self.acknowledged: dict[int, int] = {}

    def write(self) -> KafkaError | None:
        """Write the next record; the error it was refused with."""
        answers = []
        value = b"%010d" % self.number + bytes(self.size_bytes)
        self.producer.produce(
            TOPIC, value, partition=0, on_delivery=lambda e, m: answers.append((e, m))
        )
        assert self.producer.flush(PATIENCE_S) == 0
        ((error, message),) = answers
        if error is None:
            self.acknowledged[self.number] = message.offset()
        self.number += 1
        return error

    def until_refused(self) -> KafkaError:
        for _ in range(1000):
            error = self.write()
            if error is not None:
                return error
        raise AssertionError("the disk was never full")


def read_all(bootstrap: str) -> dict[int, int]:
    """Number -> offset of everything on the partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "disk-readers"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=PATIENCE_S)
    found: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < end and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            number = int(message.value()[:10])
            assert number not in found
            found[number] = message.offset()
    consumer.close()
    assert sorted(found.values()) == list(range(end))
    return found


def assert_kept(broker, writer: Writer) -> None:
    found = read_all(broker.bootstrap)
    assert {n: found.get(n) for n in writer.acknowledged} == writer.acknowledged


def readiness(broker) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(broker.control_url + "/readyz", timeout=PATIENCE_S) as reply:
            return reply.status, json.load(reply)["status"]
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)["error"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few megabytes, with a ballast on it that can be thrown off."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        (place / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_refuses_produce_serves_fetch_and_needs_no_restart(make_broker, small_disk):
    broker = make_broker(QUIET | {"log.dirs": str(small_disk / "data")})
    writer = Writer(broker.bootstrap)
    try:
        error = writer.until_refused()
        assert error.code() == RETRIABLE
        assert len(writer.acknowledged) > 10
        assert_kept(broker, writer)
        assert writer.write() is not None
        assert readiness(broker) == (200, "ready")

        (small_disk / "ballast").unlink()
        assert writer.write() is None
        assert_kept(broker, writer)
        broker.kill()
        broker.start()
        assert_kept(broker, writer)
        assert "There is no space for the write-ahead log" in broker.log()
        assert "Traceback" not in broker.log()
    finally:
        broker.kill()


def test_a_full_disk_refuses_changes_of_the_catalog_too(make_broker, small_disk):
    broker = make_broker(QUIET | {"log.dirs": str(small_disk / "data")})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    try:
        Writer(broker.bootstrap).write()
        fill = small_disk / "fill"
        with pytest.raises(OSError, match="No space"), fill.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        refused = None
        for number in range(20):
            refused = refused or _refusal(admin, f"many-{number}", 1000)
        assert refused is not None, "a catalog that grew on a full disk"
        assert refused.code() == RETRIABLE
        assert readiness(broker) == (200, "ready")

        fill.unlink()
        assert _refusal(admin, "after", 1) is None
        broker.kill()
        broker.start()
        assert "after" in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics().topics
        assert "Traceback" not in broker.log()
    finally:
        broker.kill()


QUICK = {
    "catchwater.pack.interval.ms": "3600000",
    "catchwater.retention.interval.ms": "200",
    "catchwater.delete.grace.ms": "100",
}


def fill(disk) -> None:
    """Leave not one block free."""
    with (disk / "fill").open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))


def until_written(writer: Writer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while writer.write() is not None:
        assert time.monotonic() < deadline, "nobody freed the disk"


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "committers"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize(
    ("way", "is_restarted"),
    [
        ("topic", False),
        ("records", True),
        pytest.param("topic", True, marks=pytest.mark.slow),
        pytest.param("records", False, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_freed_through_kafkas_own_requests(
    make_broker, small_disk, way, is_restarted
):
    broker = make_broker(QUICK | {"log.dirs": str(small_disk / "data")})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    writer = Writer(broker.bootstrap)
    try:
        assert _refusal(admin, "small", 1) is None
        assert writer.until_refused().code() == RETRIABLE
        fill(small_disk)
        if is_restarted:
            broker.kill()
            fill(small_disk)
            broker.start()
        for offset in range(50):  # more than fits into a block that was there already
            commit(broker.bootstrap, offset)
        refused = _refusal(admin, "another", 1000)
        assert refused is None or refused.code() == RETRIABLE
        if way == "topic":
            (deleted,) = admin.delete_topics([TOPIC]).values()
            deleted.result(PATIENCE_S)
            writer = Writer(broker.bootstrap)
        else:
            everything = TopicPartition(TOPIC, 0, OFFSET_END)
            (deleted,) = admin.delete_records([everything]).values()
            assert deleted.result(PATIENCE_S).low_watermark == len(writer.acknowledged)
        until_written(writer)
        assert readiness(broker) == (200, "ready")
        broker.restart()
        assert Writer(broker.bootstrap).write() is None
        assert "Traceback" not in broker.log()
        assert "rebuild" not in broker.log()
    finally:
        broker.kill()


def test_a_start_on_a_full_disk_says_so(make_broker, small_disk):
    settings = QUICK | {"log.dirs": str(small_disk / "data"), "catchwater.reserve.bytes": "0"}
    broker = make_broker(settings)
    Writer(broker.bootstrap, 100).write()
    broker.stop()
    fill(small_disk)
    broker.spawn()
    assert broker.process.wait(PATIENCE_S) == 1
    *_, error, hint = broker.log().splitlines()
    assert error.startswith(f"error: The disk of the data directory {small_disk / 'data'} is full")
    assert "Make room" in hint
    assert "rebuild" not in broker.log() and "Traceback" not in broker.log()

    (small_disk / "fill").unlink()
    broker.start()
    assert Writer(broker.bootstrap, 100).write() is None
    broker.kill()


def _refusal(admin: AdminClient, topic: str, partitions: int) -> KafkaError | None:
    (future,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    try:
        future.result(PATIENCE_S)
    except KafkaException as refusal:
        return refusal.args[0]
    return None


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace injects the error")
def test_after_a_failed_sync_nothing_is_acknowledged_any_more(make_broker, tmp_path):
    broker = make_broker(QUIET)
    inject = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=5")
    # The catalog syncs too, when it has time.
    log = [part for path in broker.data_dir.glob("wal/*.wal") for part in ("-P", str(path))]
    tracer = trace(broker.process.pid, "-o", str(tmp_path / "strace"), *inject, *log)
    writer = Writer(broker.bootstrap, 100)
    outcomes = [writer.write() for _ in range(10)]
    assert [error is None for error in outcomes] == [True] * 4 + [False] * 6
    assert {error.code() for error in outcomes[4:]} == {RETRIABLE}
    assert "could not be synced (Input/output error); it takes no more appends." in broker.log()
    assert readiness(broker) == (503, "STORAGE_FAILED")
    assert_kept(broker, writer)
    broker.kill()
    tracer.wait(PATIENCE_S)
    broker.start()
    assert writer.write() is None
    assert_kept(broker, writer)
    assert "Traceback" not in broker.log()
    broker.kill()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit sets the limit")
def test_a_short_write_is_refused_whole_and_cut_off(make_broker):
    broker = make_broker(QUIET, start=False)
    broker.start("prlimit", "--fsize=500000:unlimited")
    writer = Writer(broker.bootstrap, 30_000)
    error = writer.until_refused()
    assert error.code() == RETRIABLE
    assert_kept(broker, writer)
    (wal,) = (broker.data_dir / "wal").iterdir()
    assert wal.stat().st_size < 500_000, "the part that was written is cut off again"

    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert writer.write() is None
    broker.kill()
    broker.start()
    assert_kept(broker, writer)
    assert "torn" not in broker.log()
    broker.kill()
