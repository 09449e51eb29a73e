"""Clients that connect and say nothing may take no broker's descriptors from its own work.

The broker's limits are set by prlimit, and the mute connections are held by processes of their
own, so that what is tested does not depend on the limits that the tests were started with.
"""

import json
import resource
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.conftest import COMMAND, BrokerProcess
from tests.ports import mute_connections

PATIENCE_S = 60.0
BUSY = {
    "catchwater.pack.interval.ms": "200",
    "catchwater.retention.interval.ms": "200",
    "catchwater.delete.grace.ms": "100",
    "catchwater.wal.segment.bytes": "20000",
}
"""Files are begun, packed and deleted all the time."""

pytestmark = pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit sets the limit")


class Numbers:
    """Writes numbers to a topic over one connection and reads them over another."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.written = 0
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"readers-of-{topic}", "log_level": 0}
        )

    def go_on(self) -> None:
        """Ten more of them are acknowledged, read and committed."""
        failed = []
        for _ in range(10):
            value = b"%d" % self.written + bytes(2_000)
            self.producer.produce(
                self.topic, value, partition=0, on_delivery=lambda e, _: e and failed.append(e)
            )
            self.written += 1
        assert self.producer.flush(PATIENCE_S) == 0
        assert not failed
        self.consumer.assign([TopicPartition(self.topic, 0, self.written - 10)])
        for number in range(self.written - 10, self.written):
            message = self.consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None
            assert message.offset() == number
        self.consumer.commit(message, asynchronous=False)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_ready(broker: BrokerProcess) -> bool:
    try:
        with urllib.request.urlopen(f"{broker.control_url}/readyz", timeout=PATIENCE_S) as reply:
            return json.load(reply) == {"status": "ready"}
    except urllib.error.HTTPError as refusal:
        with refusal:  # nobody has been silent for long enough yet to give way
            assert json.load(refusal)["error"] == "TOO_MANY_CONNECTIONS"
        return False


def files(broker: BrokerProcess, pattern: str) -> set[str]:
    return {path.name for path in broker.data_dir.rglob(pattern)}


@pytest.mark.parametrize(
    ("nofile", "port", "count"),
    [
        ("1024:", "listeners", 1_100),
        pytest.param("1024:1024", "listeners", 1_100, marks=pytest.mark.slow),
        pytest.param("1024:1024", "catchwater.control.listener", 1_100, marks=pytest.mark.slow),
        ("256:256", "listeners", 300),
        ("256:256", "catchwater.control.listener", 300),
    ],
)
def test_mute_connections_stop_neither_clients_nor_housekeeping(make_broker, nofile, port, count):
    broker = make_broker(BUSY, start=False)
    broker.start("prlimit", f"--nofile={nofile}")
    before = Numbers(broker.bootstrap, "before")
    before.go_on()
    with mute_connections(int(broker.settings[port].rpartition(":")[2]), count):
        before.go_on()
        segments = files(broker, "*.seg")
        began = Numbers(broker.bootstrap, "began-meanwhile")
        for _ in range(2):
            began.go_on()
            before.go_on()
        until(lambda: bool(files(broker, "*.seg") - segments))
        newest = max(files(broker, "*.wal"))
        before.go_on()
        until(lambda: newest not in files(broker, "*.wal") or max(files(broker, "*.wal")) > newest)
        until(lambda: is_ready(broker))
    before.go_on()
    Numbers(broker.bootstrap, "afterwards").go_on()
    broker.restart()
    before.go_on()
    assert "Traceback" not in broker.log()
    assert "Too many open files" not in broker.log()
    broker.kill()


def test_the_soft_limit_is_raised_as_far_as_it_is_needed(make_broker):
    broker = make_broker(start=False)
    broker.start("prlimit", "--nofile=256:")
    soft, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
    assert soft > 4_096 or soft == hard
    assert "max.connections" not in broker.log()
    broker.kill()


def test_a_limit_too_small_for_anybody_is_refused_at_the_start(tmp_path):
    command = ["prlimit", "--nofile=128:128", COMMAND, "broker", "run", f"log.dirs={tmp_path}/d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert "128" in error and "ulimit -n" in hint
    assert not (tmp_path / "d").exists()


def test_bounds_that_the_limit_lowers_are_named(make_broker):
    broker = make_broker(start=False)
    broker.start("prlimit", "--nofile=512:512")
    (line,) = (line for line in broker.log().splitlines() if "max.connections" in line)
    assert "512" in line and "ulimit -n" in line
    broker.kill()
