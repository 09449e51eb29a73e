"""Ten thousand partitions on one broker: how soon it is up, what it costs when nobody writes.

Topics are made by CreateTopics, as tools do. Every partition is written to once, so that states
and catalog are as full as in use; then the broker is killed and started again on the same data.
Packing is put off, for it is work. Figures stand beside their budget; a ratio above 1 misses it.
"""

import datetime
import os
import signal
import tempfile
import time
from pathlib import Path

from kio.schema.produce.v9 import request as produce

from benchmarks.load import NOW_MS, Connection, create_topic, encode, frame
from benchmarks.measure import Row, cpu_seconds, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.wire.arrow import encode_batch

A_TOPIC = 1_000
TOPICS = 10
ROUNDS = 3
SETTLE_S = 3.0
PUT_OFF_MS = "3600000"
IDLE_S = 10.0
BUDGETS = {
    "create 2,000 partitions": ("s", 10.0),
    "start after kill -9, 10,000 partitions": ("s", 5.0),
    "memory, 10,000 partitions": ("MB", 500.0),
    "idle CPU, 10,000 partitions": ("% of a core", 5.0),
}


def create(bootstrap: str, first: int, count: int) -> float:
    """Create topics of a thousand partitions each; the seconds it took."""
    began_s = time.perf_counter()
    for number in range(first, first + count):
        create_topic(bootstrap, f"many-{number}", A_TOPIC, settle_s=0.0)
    return time.perf_counter() - began_s


def write_once(bootstrap: str) -> None:
    """One record to every partition of every topic, acknowledged."""
    batch = encode_batch([(None, b"x" * 100, NOW_MS, ())])
    connection = Connection(bootstrap)
    for number in range(TOPICS):
        partitions = tuple(
            produce.PartitionProduceData(index=index, records=batch) for index in range(A_TOPIC)
        )
        topic = produce.TopicProduceData(name=f"many-{number}", partition_data=partitions)
        request = produce.ProduceRequest(
            transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=20),
            topic_data=(topic,),
        )  # fmt: skip
        connection.call(frame(0, 9, True, encode(request)))
    connection.close()


def memory_mb(pid: int) -> float:
    """What of the process is in memory, in millions of bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def idle_percent(pid: int) -> float:
    """The share of a core that the process uses while nobody asks for anything."""
    time.sleep(SETTLE_S)
    before_s = cpu_seconds(pid)
    time.sleep(IDLE_S)
    return (cpu_seconds(pid) - before_s) / IDLE_S * 100


def rows() -> list[Row]:
    """Every figure, from as many lives of the broker as there are rounds."""
    taken: dict[str, list[float]] = {claim: [] for claim in BUDGETS}
    creating, starting, memory, idle = taken.values()
    with tempfile.TemporaryDirectory(prefix="catchwater-bench-") as folder:
        settings = {"log_dirs": f"{folder}/data", "catchwater_pack_interval_ms": PUT_OFF_MS}
        with catchwater_broker(**settings) as broker:
            for pair in range(0, TOPICS, 2):
                creating.append(create(broker.bootstrap, pair, 2))
            write_once(broker.bootstrap)
            os.kill(broker.pid, signal.SIGKILL)
        for _ in range(ROUNDS):
            began_s = time.perf_counter()
            with catchwater_broker(**settings) as broker:
                starting.append(time.perf_counter() - began_s)
                idle.append(idle_percent(broker.pid))
                memory.append(memory_mb(broker.pid))
                os.kill(broker.pid, signal.SIGKILL)
    return [
        row(claim, unit, taken[claim], "budget", [most] * len(taken[claim]), target=1.0,
            better="lower")
        for claim, (unit, most) in BUDGETS.items()
    ]  # fmt: skip


def main() -> None:
    """Measure and publish."""
    publish("partitions", rows())


if __name__ == "__main__":
    main()
