"""A broker whose objects are sealed: nothing to be read at rest, everything through it."""

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import until

from catchwater.replay.options import parse_options
from catchwater.replay.source import BatchReader

MARKER = b"marker-51c2"
COUNT = 2_000


def line(key_id: str) -> str:
    return f"{key_id} = {base64.b64encode(os.urandom(32)).decode()}\n"


def write_keys(path: Path, *lines: str) -> None:
    path.touch(0o600)
    path.write_text("".join(lines))


def has_marker(folder: Path) -> bool:
    return any(MARKER in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def produce(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + COUNT):
        producer.produce("t", b"%s %d" % (MARKER, number), key=MARKER)
    assert producer.flush(DEADLINE_S) == 0


def consumed(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(500, 1.0)]
    consumer.close()
    return values


def replayed(bootstrap: str) -> list[bytes]:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}
    reader = BatchReader(parse_options(options | {"catchwater.read": "direct"}))
    return [
        value
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_is_packed_is_nowhere_readable_and_everywhere_read(
    make_broker: Any, tmp_path: Path, is_sealed: bool
) -> None:
    keys = tmp_path / "keys"
    old, new = line("old"), line("new")
    write_keys(keys, old)
    broker = make_broker(start=False)
    broker.settings |= {"catchwater.pack.interval.ms": "100", "catchwater.pack.min.bytes": "1"}
    if is_sealed:
        broker.settings |= {
            "catchwater.encryption.keys": f"file:{keys}", "catchwater.encryption.local": "disk",
        }  # fmt: skip
    broker.start()
    objects = broker.data_dir / "objects"
    segments = objects / "segments"
    produce(broker.bootstrap, 0)
    until(lambda: any(segments.rglob("*.seg")))
    write_keys(keys, old, new)  # rotated while it runs
    before = set(segments.rglob("*.seg"))
    produce(broker.bootstrap, COUNT)
    until(lambda: set(segments.rglob("*.seg")) - before)
    assert has_marker(objects) != is_sealed
    broker.stop()
    broker.start()
    values = [b"%s %d" % (MARKER, number) for number in range(2 * COUNT)]
    assert consumed(broker.bootstrap, 2 * COUNT) == values
    assert replayed(broker.bootstrap) == values
    if is_sealed:
        broker.stop()
        write_keys(keys, line("old"), new)  # of the old name, but another
        broker.spawn()
        until(lambda: not broker.is_running)
        assert "The key 'old' is not the one it was sealed with" in broker.log()
        assert MARKER.decode() not in broker.log()


def test_a_log_that_would_lie_beside_it_unencrypted_stops_the_start(
    make_broker: Any, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", line("k"))
    broker = make_broker(start=False)
    broker.settings |= {"catchwater.encryption.keys": f"file:{tmp_path / 'keys'}"}
    broker.spawn()
    until(lambda: not broker.is_running)
    assert "the write-ahead log (file) would lie beside them unencrypted" in broker.log()
