"""Each metric of a broker moves when what it is there for happens, and rests when other things do.

One broker, and one fault after the other; after each, its metrics of faults are looked at. Those
that move at rest, as times and bytes do, only have to move.
"""

import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests.certificates import certificate
from tests.ports import free_port

from catchwater.config import CatchwaterError
from catchwater.replay.control import Control
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
OK = {"state": "ok", "reason": "Fine.", "next": "catchwater"}
RESTING = {
    "audited_total", "batches_refused_total", "consumer_lag_records", "consumer_lags_left_out",
    "group_lag_records", "group_max_staleness_seconds", "group_members", "partitions", "pins",
    "pipeline_verdict", "planned_bytes_total", "replay_granted_bytes_total",
    "replay_throttled_seconds_total", "txn_errors_total", "txn_open", "brokers",
    "lagging_bytes_total", "retries_total", "throttled_seconds_total",
    "certificate_end_timestamp_seconds",
}  # fmt: skip
"""What stands still unless its own fault is there."""

Values = dict[tuple[str, Any], float]


class World:
    """A broker, and what happens to it."""

    def __init__(self, broker: Any, certificate: Path) -> None:
        self.broker = broker
        self.certificate = certificate
        self.control = Control(broker.control_url)
        self.kept: list[Any] = []
        """What has to live on for a fault to last."""

    def values(self) -> Values:
        url = f"{self.broker.control_url}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            page = reply.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    def client(self) -> Client:
        return Client(self.broker.bootstrap)

    def create_a_topic(self) -> None:
        with self.client() as client:
            client.create_topics({"t": 2, "x": 1}, {})

    def append(self) -> None:
        now_ms = round(time.time() * 1000)
        batch = encode_batch([(b"k", b"v%d" % n, now_ms, ()) for n in range(9)])
        with self.client() as client:
            client.produce([(("t", 0), batch)])
            client.fetch({("t", 0): 0}, max_wait_ms=0)

    def break_a_batch(self) -> None:
        batch = bytearray(encode_batch([(b"k", b"v", 1, ())]))
        batch[-1] ^= 1
        with self.client() as client, suppress(CatchwaterError):
            client.produce([(("t", 0), bytes(batch))])

    def fall_behind(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "late"})
        consumer.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        consumer.close()

    def join(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "here"})
        consumer.subscribe(["t"])
        deadline = time.monotonic() + PATIENCE_S
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        self.kept.append(consumer)

    def leave_a_transaction_open(self) -> None:
        self.kept.append(self._transaction())

    def fence_a_producer(self) -> None:
        first = self._transaction("fenced")
        second = self._transaction("fenced")
        with suppress(KafkaException):
            first.commit_transaction(PATIENCE_S)
        second.commit_transaction(PATIENCE_S)

    def _transaction(self, name: str = "open") -> Producer:
        settings = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": name}
        producer = Producer(settings, logger=_SILENT)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("x", b"1")
        assert producer.flush(PATIENCE_S) == 0
        return producer

    def send_nonsense(self) -> None:
        with socket.create_connection(("127.0.0.1", self.broker.port), PATIENCE_S) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(OSError):
                raw.recv(1)

    def renew_the_certificate(self) -> None:
        folder = self.certificate.parent / "renewed"
        folder.mkdir()
        renewed, _ = certificate(folder, lasts=timedelta(days=90))
        os.replace(renewed, self.certificate)

    def pin(self) -> None:
        place = {"topic": "t", "partition": 0, "offset": 0}
        self.control.set_pin("p", {"owner": "o", "positions": [place]})

    def report_a_failure(self) -> None:
        bad = {**OK, "state": "fail"}
        report = {"name": "cards", "correct": bad, "recoverable": OK, "fresh": OK}
        self.control.report("cards", report)

    def replay_more_than_the_quota(self) -> None:
        for _ in range(3):
            self.control.grant(10_000_000)

    def plan(self) -> None:
        ranges = [{"partition": 0, "start": 0, "end": 9}]
        self.control.request("POST", "/api/v1/plans", {"topic": "t", "ranges": ranges})

    def stay_connected(self) -> None:
        address = ("127.0.0.1", self.broker.port)
        self.kept.append(socket.create_connection(address, PATIENCE_S))

    def hold_up(self) -> None:
        os.kill(self.broker.process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(self.broker.process.pid, signal.SIGCONT)

    def read_from_storage(self) -> None:
        with self.client() as client:
            client.fetch({("t", 0): 0}, max_wait_ms=0)


class _Silent:
    def log(self, *_: Any, **__: Any) -> None:
        pass


_SILENT: Any = _Silent()

LAG = {"consumer_lag_records", "consumer_lag_seconds", "group_lag_records", "group_lag_seconds"}
FAULTS: list[tuple[Callable[[World], None], set[str]]] = [
    (World.create_a_topic, {"partitions"}),
    (World.append, {"appended_bytes_total", "written_bytes_total", "bytes_in_total",
                    "bytes_out_total", "tail_reads_total", "wal_fsync_seconds_count",
                    "request_seconds_count", "request_queue_seconds_count",
                    "wal_age_seconds"}),
    (World.plan, {"planned_bytes_total"}),
    (World.stay_connected, {"connections"}),
    (World.break_a_batch, {"batches_refused_total"}),
    (World.fall_behind, LAG | {"commit_latency_seconds_count", "group_max_staleness_seconds"}),
    (World.join, {"group_members"}),
    (World.leave_a_transaction_open, {"txn_open"}),
    (World.fence_a_producer, {"txn_errors_total", "commit_latency_seconds_count"}),
    (World.send_nonsense, {"connections_closed_total"}),
    (World.renew_the_certificate, {"certificate_end_timestamp_seconds"}),
    (World.pin, {"pins"}),
    (World.report_a_failure, {"pipeline_verdict", "pipeline_report_age_seconds"}),
    (World.replay_more_than_the_quota,
     {"replay_granted_bytes_total", "replay_throttled_seconds_total"}),
    (World.hold_up, {"loop_lag_seconds_sum"}),
]  # fmt: skip


ELSEWHERE = {
    "audited": "tests/unit/broker/test_audit.py",
    "brokers": "tests/unit/broker/test_metrics.py",
    "consumer_lags_left_out": "tests/unit/broker/test_metrics.py",
    "lagging_bytes": "tests/unit/broker/test_client_quotas.py",
    "object_store_request_seconds": "tests/unit/broker/test_metrics.py",
    "object_store_requests": "tests/unit/broker/test_metrics.py",
    "retries": "tests/unit/broker/test_metrics.py",
    "table_commits": "tests/unit/broker/test_metrics.py",
    "table_conflicts": "tests/unit/broker/test_metrics.py",
    "table_failures": "tests/unit/broker/test_metrics.py",
    "table_malformed": "tests/unit/broker/test_metrics.py",
    "table_records": "tests/unit/broker/test_metrics.py",
    "table_waits": "tests/unit/broker/test_metrics.py",
    "throttled_seconds": "tests/unit/broker/test_client_quotas.py",
    "wal_unflushed_bytes": "tests/unit/broker/test_metrics.py",
}
"""Metrics whose fault needs another broker than the one here, and the test that brings it about."""


@pytest.fixture(scope="module")
def world(
    make_broker: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    pem, _ = certificate(tmp_path_factory.mktemp("world"))
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SSL://127.0.0.1:{free_port()}",
        "ssl.keystore.location": str(pem),
        "catchwater.replay.quota.bytes.per.second": "1000000",
        "catchwater.group.max.staleness": "late=1h",
    }
    made = World(make_broker(settings), pem)
    yield made
    for each in made.kept:
        if isinstance(each, Consumer | socket.socket):
            each.close()


def moved(before: Values, after: Values) -> set[str]:
    """The metrics of which a series is other than before."""
    names = {key[0] for key in {*before, *after} if before.get(key) != after.get(key)}
    return {name.removeprefix("catchwater_") for name in names}


def test_each_metric_moves_under_its_own_fault_and_rests_under_others(world: World) -> None:
    for fault, names in FAULTS:
        before = world.values()
        fault(world)
        deadline = time.monotonic() + PATIENCE_S
        while not names <= (found := moved(before, world.values())):
            assert time.monotonic() < deadline, (fault.__name__, names - found)
            time.sleep(0.1)
        assert found & RESTING <= names, (fault.__name__, found & RESTING - names)
    held_up = {key: value for key, value in world.values().items() if "loop_lag" in key[0]}
    [late] = [v for (name, labels), v in held_up.items() if ("le", "1.0") in labels]
    assert late < held_up["catchwater_loop_lag_seconds_count", ()], "it was 2.5 s late once"


def test_every_metric_of_a_broker_has_its_fault(world: World) -> None:
    url = f"{world.broker.control_url}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    names = {family.name.removeprefix("catchwater_") for family in families}
    own = {each for each in names if not each.startswith("process_") and "_created" not in each}
    tested = set[str]().union(*(each[1] for each in FAULTS))
    here = {name for name in own if any(each.startswith(name) for each in tested)}
    assert own - here == set(ELSEWHERE)
    for name, path in ELSEWHERE.items():
        assert f"catchwater_{name}" in (Path(__file__).parents[2] / path).read_text(), name


def test_reads_of_what_memory_has_lost_are_counted_as_such(world: World) -> None:
    world.broker.restart()
    where = ("catchwater_tail_reads_total", (("from", "storage"),))
    before = world.values()[where]
    world.read_from_storage()
    assert world.values()[where] > before
