"""A quota on direct reads, held by a real broker: one job, two at once, a stream; within 15 %.

Nobody reads faster; and as a busy machine reads more slowly by itself, it is what tasks are told to
wait that must not be more.

Tasks read in threads of this process, as executors would in processes of theirs.
"""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from catchwater.clock import SYSTEM
from catchwater.replay.control import Control
from catchwater.replay.options import parse_options
from catchwater.replay.plan import Task
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.subscription import Subscription
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import EARLIEST, Client

RATE = 2_000_000
TASKS = 4
PARTITIONS, BATCHES, RECORDS, SIZE = 2, 16, 10, 12_500
TOTAL = PARTITIONS * BATCHES * RECORDS * SIZE
"""4 MB: two seconds' worth."""


SETTINGS = {
    "catchwater.replay.quota.bytes.per.second": str(RATE),
    "catchwater.replay.quota.overrides": f"client-id:stream={RATE},client-id:pair={RATE},"
    "client-id:free=-1",
    "catchwater.pack.interval.ms": "3600000",
}


@pytest.fixture(scope="module")
def quotas(make_broker):
    """A broker with the same rate for everybody and for two client ids, and one without."""
    return filled(make_broker(SETTINGS))


def filled(broker):
    with Client(broker.bootstrap) as client:
        client.create_topics({"t": PARTITIONS})
        for partition in range(PARTITIONS):
            for _ in range(BATCHES):
                values = [os.urandom(SIZE) for _ in range(RECORDS)]
                batch = encode_batch([(b"", value, SYSTEM.now_ms(), ()) for value in values])
                client.produce([(("t", partition), batch)])
    return broker


def subscribed(broker, client_id="catchwater"):
    options = {"kafka.bootstrap.servers": broker.bootstrap, "catchwater.read": "direct"}
    named = {"subscribe": "t", "kafka.client.id": client_id}
    return Subscription(parse_options(options | named))


def read(subscription, tasks: list[Task]) -> int:
    """Bytes of storage, read by as many threads as there are tasks."""
    url = subscription.control_url()
    settings = ReadSettings(subscription.options.bootstrap, ("value",), url)
    with ThreadPoolExecutor(len(tasks)) as threads:
        rows = threads.map(lambda task: sum(b.num_rows for b in read_task(task, settings)), tasks)
        assert sum(rows) > 0
    return sum(task.stored_bytes for task in tasks)


def job(broker, client_id="catchwater") -> int:
    """A batch query over everything."""
    subscription = subscribed(broker, client_id)
    start, end = subscription.starting(EARLIEST), subscription.ending()
    try:
        return read(subscription, subscription.tasks(start, end, TASKS))
    finally:
        subscription.close()


@pytest.fixture
def waits_s(monkeypatch) -> list[float]:
    """How long the brokers tell tasks to wait, grant by grant."""
    told, grant = [], Control.grant

    def noted(self, size_bytes: int) -> tuple[int, float]:
        granted_bytes, wait_s = grant(self, size_bytes)
        told.append(wait_s)
        return granted_bytes, wait_s

    monkeypatch.setattr(Control, "grant", noted)
    return told


def assert_paced(size_bytes: int, began_s: float, waits_s: list[float], at_once: int) -> None:
    """No faster than the quota; and the tasks, so many at once, were not told to be slower."""
    rate = size_bytes / (time.monotonic() - began_s)
    assert rate < 1.15 * RATE, f"{rate / RATE:.2f} of the quota"
    assert 0 < sum(waits_s) / at_once < 1.15 * size_bytes / RATE


def test_one_job_of_several_tasks(quotas, caplog, waits_s) -> None:
    began_s = time.monotonic()
    size_bytes = job(quotas)
    assert size_bytes >= TOTAL
    assert_paced(size_bytes, began_s, waits_s, TASKS)
    waited = re.findall(r"were repeated or held back, (\S+) s for its quota", caplog.text)
    assert sum(map(float, waited)) >= 1, "the tasks say so"


def test_two_jobs_of_one_account_at_once(quotas, waits_s) -> None:
    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        sizes = list(threads.map(lambda _: job(quotas, "pair"), range(2)))
    assert_paced(sum(sizes), began_s, waits_s, 2 * TASKS)


def test_a_stream_of_micro_batches(quotas, waits_s) -> None:
    subscription = subscribed(quotas, "stream")
    at, end = subscription.starting(EARLIEST), subscription.latest()
    began_s, size_bytes, at_once = time.monotonic(), 0, 0
    while at != end:
        until = {key: min(offset + 4 * RECORDS, end[key]) for key, offset in at.items()}
        tasks = subscription.tasks(at, until)
        size_bytes, at_once = size_bytes + read(subscription, tasks), max(at_once, len(tasks))
        at = until
        time.sleep(0.1)  # what Spark does between micro-batches
    subscription.close()
    assert_paced(size_bytes, began_s, waits_s, at_once)


def test_who_has_no_quota_is_not_slowed(quotas, caplog, waits_s) -> None:
    assert job(quotas, "free") >= TOTAL
    assert waits_s == [], "no task has to ask before it reads"
    assert "held back" not in caplog.text


def test_jobs_that_ask_different_brokers_share_the_account(
    make_broker, postgres_url, tmp_path, waits_s
) -> None:
    shared = {
        **SETTINGS,
        "catchwater.catalog": postgres_url,
        "catchwater.objects": (tmp_path / "objects").as_uri(),
        "catchwater.wal": "file",
        "catchwater.wal.dir": str(tmp_path / "wal"),
    }
    brokers = [make_broker({**shared, "node.id": str(number)}) for number in (1, 2)]
    filled(brokers[0])
    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        sizes = list(threads.map(job, brokers))
    assert_paced(sum(sizes), began_s, waits_s, 2 * TASKS)
    for broker in brokers:
        broker.stop()
