"""Two attempts of one task at once, as Spark speculates: both read the same, byte for byte.

Spark starts the second attempt on another host, so here each is a process of its own.
"""

import pickle
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from catchwater.replay.options import parse_options
from catchwater.replay.source import BatchReader
from catchwater.wire.client import Client

CHILD = Path(__file__).with_name("bare_executor.py")
RECORDS = 30_000
ATTEMPTS = 2
PATIENCE_S = 60.0


def description(broker, path: str) -> bytes:
    """One task over all there is, committed records only."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": "t",
        "catchwater.read": path,
    }
    reader = BatchReader(parse_options(options))
    partitions = reader.partitions()
    assert len(partitions) == 1
    return pickle.dumps((reader, partitions))


def read_at_once(folder: Path, task: bytes) -> list[pa.Table]:
    """What the attempts have read, each in its process."""
    barrier = folder / "begun"
    barrier.mkdir(parents=True)
    (folder / "task").write_bytes(task)
    command = [sys.executable, str(CHILD), str(barrier), str(ATTEMPTS)]
    attempts = []
    for number in range(ATTEMPTS):
        with (folder / "task").open("rb") as given, (folder / f"{number}").open("wb") as taken:
            attempts.append(subprocess.Popen(command, stdin=given, stdout=taken, env={}))
    try:
        assert [attempt.wait(120) for attempt in attempts] == [0] * ATTEMPTS
    finally:
        for attempt in attempts:
            attempt.kill()
            attempt.wait()
    return [pickle.loads((folder / f"{n}").read_bytes())[0] for n in range(ATTEMPTS)]


def in_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def move(task: bytes, broker) -> None:
    """Start the broker again with a packer, until what was planned first lies elsewhere."""
    broker.settings["catchwater.pack.interval.ms"] = "50"
    broker.settings["catchwater.pack.min.bytes"] = "1"
    broker.settings["catchwater.pack.backlog.bytes"] = "1"
    broker.settings["catchwater.retention.interval.ms"] = "50"
    broker.restart()
    _, (partition,) = pickle.loads(task)
    planned = Path(urlsplit(partition.task.slices[0].range.url).path)
    deadline = time.monotonic() + PATIENCE_S
    while planned.exists():
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.05)


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_attempts_at_the_same_time_give_the_same_bytes(make_broker, tmp_path, path) -> None:
    broker = make_broker({
        "catchwater.pack.interval.ms": "3600000",
        "catchwater.delete.grace.ms": "1",
        "catchwater.wal.segment.bytes": "65536",
    })  # fmt: skip
    with Client(broker.bootstrap) as client:
        client.create_topics({"t": 1})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "w"})
    producer.init_transactions(PATIENCE_S)
    for round_ in range(3):
        producer.begin_transaction()
        for n in range(RECORDS // 3):
            producer.produce("t", b"%d-%d" % (round_, n), key=b"%d" % n)
        producer.flush(PATIENCE_S)
        (producer.abort_transaction if round_ == 1 else producer.commit_transaction)(PATIENCE_S)
    task = description(broker, path)
    first, second = read_at_once(tmp_path / "chunks", task)
    assert first.num_rows == RECORDS * 2 // 3
    assert in_bytes(first) == in_bytes(second)
    if path == "direct":  # an attempt that comes late finds the same where it lies by then
        move(task, broker)
        late, later = read_at_once(tmp_path / "segments", task)
        assert in_bytes(late) == in_bytes(later) == in_bytes(first)
