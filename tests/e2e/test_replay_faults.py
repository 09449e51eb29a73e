"""A replay through faults brings what it brings without: every record, once."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catchwater.clock import SYSTEM
from catchwater.replay.source import register
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PARTITIONS, COUNT, SIZE = 2, 1_600, 20_000
"""32 MB a partition: what is fetched at once is much less, so that much is still to be read."""
PATIENCE_S = 300
AWAY_S = 3.0
LOGGING = "spark.sql.pyspark.worker.logging.enabled"
AGAIN = (
    r"The task from long-\d offset \d+ on is read again: attempt 2 begins (\S+) s after its plan."
)
LONGER = r"The task from long-\d offset \d+ on took (\S+) s longer: .* requests were repeated .*"


def value(partition: int, n: int) -> bytes:
    return (b"%d:%d:" % (partition, n)).ljust(SIZE, b".")


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker({})
    with Client(broker.bootstrap) as client:
        client.create_topics({"long": PARTITIONS})
        for partition in range(PARTITIONS):
            for first in range(0, COUNT, 40):
                records = [
                    (b"", value(partition, n), SYSTEM.now_ms(), ())
                    for n in range(first, first + 40)
                ]
                client.produce([(("long", partition), encode_batch(records))])
    return broker


def kill_when(begun: Path, broker: Any, killed: Path) -> threading.Thread:
    """Kill the broker once a task has read something, and start it again after a while."""

    def run() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not list(begun.parent.glob(f"{begun.name}*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        broker.kill()
        killed.touch()
        time.sleep(AWAY_S)
        broker.start()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def worker_logs(spark: Any) -> set[str]:
    return {row.msg for row in spark.tvf.python_worker_logs().select("msg").collect()}


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_a_broker_that_dies_and_a_task_that_fails_change_nothing(
    spark: Any, broker: Any, tmp_path: Path, path: str
) -> None:
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def hold_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Behind the first batch the broker dies; the first attempt of one task fails there."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == 0:
                begun.with_name(f"begun-{task.partitionId()}").touch()
                deadline = time.monotonic() + PATIENCE_S
                while not killed.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                if task.partitionId() == 0 and task.attemptNumber() == 0:
                    raise ConnectionError("this attempt was to fail")
            digests = [sha256(each).digest() for each in batch.column("value").to_pylist()]
            columns = [batch.column("partition"), batch.column("offset"), pa.array(digests)]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "offset", "digest"])

    register(spark)
    spark.conf.set(LOGGING, "true")  # what tasks log is a table, then
    before = worker_logs(spark)
    frame = (
        spark.read.format("catchwater")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", "long")
        .option("catchwater.read", path)
        .option("minPartitions", 4)
        .load()
        .mapInArrow(hold_up, "partition int, offset long, digest binary")
    )
    killer = kill_when(begun, broker, killed)
    try:
        rows = frame.collect()
    finally:
        killer.join(PATIENCE_S)
    assert killed.exists(), "the broker died on the way"
    found = sorted((row.partition, row.offset, bytes(row.digest)) for row in rows)
    wanted = [(p, n, sha256(value(p, n)).digest()) for p in range(PARTITIONS) for n in range(COUNT)]
    assert found == wanted
    said = worker_logs(spark) - before
    spark.conf.unset(LOGGING)
    (again,) = [re.fullmatch(AGAIN, line) for line in said if "is read again" in line]
    assert again is not None, said
    assert 0 < float(again[1]) < PATIENCE_S
    longer = [re.fullmatch(LONGER, line) for line in said if "longer" in line]
    if path == "kafka":  # a direct read does not notice that the broker is away
        assert longer, "each task that asked meanwhile has waited"
        assert all(found and 1.0 <= float(found[1]) < PATIENCE_S for found in longer), said
