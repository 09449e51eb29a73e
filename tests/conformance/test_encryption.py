"""A broker whose objects are sealed: nothing to be read at rest, everything through it."""

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import COMMAND, until

from catchwater.broker_config import load_broker_config
from catchwater.config import ConfigError
from catchwater.objects.base import StoreError
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
        values += [message.value() for message in consumer.consume(500, 0.1)]
    consumer.close()
    return values


def replayed(bootstrap: str) -> list[bytes]:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}
    return replayed_by(options | {"catchwater.read": "direct"})


def replayed_by(options: dict[str, str]) -> list[bytes]:
    """All values, in order, as tasks of Spark would hand them over."""
    reader = BatchReader(parse_options(options))
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
        broker.settings["catchwater.encryption.keys"] = f"file:{keys}"
    broker.start()
    objects = broker.data_dir / "objects"
    segments = objects / "segments"
    produce(broker.bootstrap, 0)
    until(lambda: any(segments.rglob("*.seg")))
    write_keys(keys, old, new)  # rotated while it runs
    before = set(segments.rglob("*.seg"))
    produce(broker.bootstrap, COUNT)
    until(lambda: set(segments.rglob("*.seg")) - before)
    broker.stop()  # a broker at work takes files away that were just listed
    assert has_marker(broker.data_dir) != is_sealed
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


def test_a_log_that_would_lie_beside_it_unencrypted_stops_the_start() -> None:
    given = {
        "catchwater.catalog": "postgresql://u@h/d", "catchwater.objects": "s3://b",
        "catchwater.wal": "postgres", "catchwater.encryption.keys": "file:/keys",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"the write-ahead log \(postgres\) would lie beside"):
        load_broker_config(None, {}, given)
    assert load_broker_config(None, {}, given | {"catchwater.encryption.local": "disk"})


def test_without_keys_or_with_a_disk_that_encrypts_the_log_is_as_it_was(
    make_broker: Any, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", line("k"))
    broker = make_broker(start=False)
    broker.settings |= {"catchwater.encryption.keys": f"file:{tmp_path / 'keys'}"}
    broker.start()
    produce(broker.bootstrap, 0)
    broker.stop()
    assert not has_marker(broker.data_dir)
    broker.settings |= {"catchwater.encryption.local": "disk"}  # from now on; what is there is read
    broker.start()
    produce(broker.bootstrap, COUNT)
    values = [b"%s %d" % (MARKER, number) for number in range(2 * COUNT)]
    assert consumed(broker.bootstrap, 2 * COUNT) == values
    broker.stop()
    assert has_marker(broker.data_dir / "wal")


# --- readers without a broker


def offline(data_dir: Path, monkeypatch: pytest.MonkeyPatch, keys: Path | None) -> list[bytes]:
    if keys is None:
        monkeypatch.delenv("CATCHWATER_ENCRYPTION_KEYS", raising=False)
    else:
        monkeypatch.setenv("CATCHWATER_ENCRYPTION_KEYS", f"file:{keys}")
    return replayed_by({"catchwater.catalog": str(data_dir), "subscribe": "t"})


def command(*words: str, keys: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "CATCHWATER_ENCRYPTION_KEYS"}
    if keys is not None:
        environment["CATCHWATER_ENCRYPTION_KEYS"] = f"file:{keys}"
    return subprocess.run(
        [COMMAND, *words], env=environment, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("is_packed", [True, False], ids=["segments", "chunks"])
def test_a_sealed_log_is_read_and_mended_without_a_broker_by_its_keys_alone(
    make_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    write_keys(keys, line("k"))
    write_keys(others, line("k"))
    broker = make_broker(start=False)
    broker.settings |= {
        "catchwater.pack.interval.ms": "100" if is_packed else "3600000",
        "catchwater.pack.min.bytes": "1",
        "catchwater.encryption.keys": f"file:{keys}",
    }
    broker.start()
    data, objects = broker.data_dir, broker.data_dir / "objects"
    produce(broker.bootstrap, 0)
    if is_packed:
        until(lambda: any((objects / "segments").rglob("*.seg")))
    broker.stop()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    # Without keys, and with others of the same name, all say so in one line and change nothing.
    for given, why in (
        (None, "is encrypted, and no key was given"),
        (others, "The key 'k' is not"),
    ):
        with pytest.raises(StoreError, match=why):
            offline(data, monkeypatch, given)
        for words in (("fsck", "--data", str(data)), ("rebuild", "--to", str(data), "--yes")):
            refused = command("log", *words, keys=given)
            assert refused.returncode != 0 and why in refused.stderr.replace("\n", " "), refused
            assert "Traceback" not in refused.stderr
    changed = {path for path, was in before.items() if path.read_bytes() != was}
    assert changed <= {data / "catchwater.lock"}
    # With them all is as with an open log.
    values = [b"%s %d" % (MARKER, number) for number in range(COUNT)]
    assert offline(data, monkeypatch, keys) == values
    checked = command("log", "fsck", "--deep", "--data", str(data), keys=keys)
    assert checked.returncode == 0, checked
    made = command("log", "rebuild", "--to", str(data), "--yes", "--json", keys=keys)
    assert made.returncode == 3, made  # there was no backup
    found = json.loads(made.stdout)
    assert found["frames"] > 0 and not [f for f in found["findings"] if f["kind"] == "damaged"]
    if is_packed:  # else only a backup would know the topic's name
        assert offline(data, monkeypatch, keys) == values


def test_a_broker_without_keys_does_not_start_on_sealed_objects(
    make_broker: Any, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", line("k"))
    broker = make_broker(start=False)
    plain = dict(broker.settings)
    broker.settings |= {
        "catchwater.encryption.keys": f"file:{tmp_path / 'keys'}",
        "catchwater.encryption.local": "disk",
    }
    broker.start()
    broker.stop()
    broker.settings = plain
    broker.spawn()
    until(lambda: not broker.is_running)
    assert "is encrypted, and no key was given" in broker.log()
