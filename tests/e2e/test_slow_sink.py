"""An endpoint hangs or refuses: the pipeline waits, the broker stays as it is, all comes after.

For two seconds, and in the long form (`make slow`) for ten minutes. While nothing can be written,
input goes on: it may cost the log its bytes in the object store, and nobody memory or room in the
write-ahead log.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.e2e.in_session import Pipeline

from catchwater.clock import SYSTEM
from catchwater.log.write.prepare import LOAD_AFTER_RECORDS
from catchwater.recovery.checkpoint import numbered
from catchwater.sinks.base import SinkUnavailable
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

SHORT_S, LONG_S = 2, 600
AT_ONCE, EPOCH_EVENTS, FILLER = 10, 50, "x" * 10_000
PATIENCE_S = 400
MEMORY_BYTES = 128 << 20
"""By so much a process may grow: what its allocator keeps, and no backlog."""
LEAST_BYTES = 8 << 20
"""So much has to come at least while the sink is away."""

FUNCTION = '''"""Every order, as it came."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    n: int
    at: int

@dataclass
class Nothing:
    seen: int = 0

@dataclass
class Row:
    n: int
    seen: int

@function(name="orders", key="card", event_time="at", late="process", output_id=("n",))
class Orders(Keyed[Order, Nothing, Row]):
    def on_event(self, e: Order, s: Nothing, ctx: Context) -> Out[Row]:
        s.seen += 1
        return [Row(e.n, s.seen)]
'''
FILE = """\
[pipeline]
function = "orders_copied:Orders"
checkpoint = "checkpoint"
trigger = "continuous"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
[sink.store]
kind = "http"
url = "{store}/orders/{{id}}"
timeout = "{timeout_s}s"
retry = "1s"
"""


class Feed(threading.Thread):
    """Large orders, some at a time, until it is told to end.

    What comes while the sink is away is written afterwards in as much time at most.
    """

    def __init__(self, bootstrap: str, hold_s: int) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.pause_s = max(0.02, hold_s / 3000)
        self.over = threading.Event()
        self.fed = 0

    def run(self) -> None:
        with Client(self.bootstrap) as client:
            while not self.over.wait(self.pause_s):
                orders = range(self.fed, self.fed + AT_ONCE)
                told = [{"card": f"c{n % 7}", "n": n, "at": n, "filler": FILLER} for n in orders]
                records = [(b"", json.dumps(each).encode(), SYSTEM.now_ms(), ()) for each in told]
                client.produce([(("orders", 0), encode_batch(records))])
                self.fed += AT_ONCE

    def end(self) -> None:
        self.over.set()
        self.join()


class Driver(threading.Thread):
    """The pipeline, started again whenever its sink fails it, as a supervisor does."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.over = threading.Event()
        self.failures = 0

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.pipeline.run(self.over.is_set)
            except SinkUnavailable:
                self.failures += 1

    def end(self) -> None:
        self.over.set()
        self.join()


@pytest.fixture
def store() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_bytes(path: Path) -> int:
    """Of a file; 0 if it was deleted since it was listed, as packed ones of the log are."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Watch:
    """How much the broker and this process, which drives the pipeline, grow."""

    def __init__(self, broker: Any) -> None:
        self._pids = (broker.process.pid, os.getpid())
        self._wal = broker.data_dir / "wal"
        self._before = [memory_bytes(pid) for pid in self._pids]
        self.grown_bytes = [0, 0]
        self.wal_bytes = 0

    def look(self) -> None:
        for n, (pid, before) in enumerate(zip(self._pids, self._before, strict=True)):
            self.grown_bytes[n] = max(self.grown_bytes[n], memory_bytes(pid) - before)
        sizes = map(size_bytes, self._wal.rglob("*"))
        self.wal_bytes = max(self.wal_bytes, sum(sizes))


@contextmanager
def away(store: KeyValueServer, fault: str) -> Iterator[None]:
    """No request is answered, or all are refused."""
    if fault == "hangs":
        with store.lock:
            yield
    else:
        store.faults = [503] * 10**6
        yield
        assert store.faults, "all were used up"
        store.faults = []


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    settings = {
        "log.retention.ms": "-1",
        "catchwater.pack.interval.ms": "200",
        "catchwater.pack.min.bytes": "10000",
        "catchwater.pack.backlog.bytes": "10000",
        "catchwater.retention.interval.ms": "200",
        "catchwater.wal.segment.bytes": "65536",
        "catchwater.delete.grace.ms": "200",
        # As large as it is by default, ten minutes would fill it, which is as it should be.
        "catchwater.cache.bytes": str(8 << 20),
    }
    broker = make_broker(settings)
    with Client(broker.bootstrap) as client:
        client.create_topics({"orders": 1, "before": 1})
        # The compiled loop over records is there from some number of them on, and costs as much
        # memory as all else together, once.
        few = encode_batch([(b"", b"", SYSTEM.now_ms(), ())] * (LOAD_AFTER_RECORDS // 10))
        maps = Path(f"/proc/{broker.process.pid}/maps")
        while "llvmlite" not in maps.read_text():
            client.produce([(("before", 0), few)])
    return broker


@pytest.mark.timeout(SHORT_S + 3 * PATIENCE_S + 600)
@pytest.mark.parametrize("fault", ["hangs", "refuses"])
def test_a_sink_that_is_away_costs_nobody_memory_and_gets_everything_later(
    fault: str, broker: Any, store: KeyValueServer, tmp_path: Path
) -> None:
    stay_away(fault, SHORT_S, broker, store, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 3 * PATIENCE_S + 600)
def test_a_sink_that_hangs_for_ten_minutes_costs_nobody_memory_either(
    broker: Any, store: KeyValueServer, tmp_path: Path
) -> None:
    stay_away("hangs", LONG_S, broker, store, tmp_path)


def stay_away(fault: str, hold_s: int, broker: Any, store: KeyValueServer, tmp_path: Path) -> None:
    (tmp_path / "orders_copied.py").write_text(FUNCTION)
    file = tmp_path / "orders.toml"
    timeout_s = hold_s + 2 * PATIENCE_S if fault == "hangs" else 1
    places = {"bootstrap": broker.bootstrap, "store": store.url}
    file.write_text(FILE.format(epoch_events=EPOCH_EVENTS, timeout_s=timeout_s, **places))
    pipeline = Pipeline(None, tmp_path, file)
    feed, driver = Feed(broker.bootstrap, hold_s), Driver(pipeline)
    feed.start()
    driver.start()
    try:
        wait_until(lambda: len(store.content) > 100)
        with away(store, fault):
            watch, fed, written = Watch(broker), feed.fed, pipeline.committed
            until = time.monotonic() + hold_s
            came_bytes = 0
            # The write-ahead log keeps what is not packed yet: of all that comes ever less.
            while time.monotonic() < until or came_bytes < max(LEAST_BYTES, 3 * watch.wal_bytes):
                assert feed.is_alive() and time.monotonic() < until + PATIENCE_S
                watch.look()
                came_bytes = (feed.fed - fed) * len(FILLER)
                time.sleep(0.1)
            # Nothing is planned, staged or held beyond the epoch that cannot be written.
            assert max(numbered(pipeline.checkpoint / "offsets")) <= pipeline.committed + 1
            assert pipeline.committed <= written + 1
        feed.end()
        wait_until(lambda: len(store.content) == feed.fed)
    finally:
        feed.end()
        driver.end()
    print(f"{came_bytes} bytes came; grown by {watch.grown_bytes}, WAL {watch.wal_bytes} bytes")
    assert watch.wal_bytes, "the write-ahead log lies elsewhere"
    assert max(watch.grown_bytes) < MEMORY_BYTES
    assert (driver.failures > 0) == (fault == "refuses")
    numbers = sorted(json.loads(body)["n"] for body in store.content.values())
    assert numbers == list(range(feed.fed))
