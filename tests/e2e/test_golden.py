"""What an earlier version wrote is read by this one: a log, a checkpoint, a savepoint (fault F41).

`tests/golden/<day>.tar.xz` was written by the code of that day and is never written again; the
constants here say what was done then. Its broker was killed with records that its catalog had not
followed yet. A change of a format adds an archive (`python -m tests.golden.write`) and keeps the
old ones.
"""

import json
import lzma
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

COMMAND = str(Path(sys.executable).with_name("catchwater"))
ARCHIVES = sorted((Path(__file__).parent.parent / "golden").glob("*.tar.xz"))
PARAMS = [
    pytest.param(
        path, id=path.name.split(".")[0],
        marks=[pytest.mark.slow] if 0 < at == len(ARCHIVES) - 1 else [],
    )
    for at, path in enumerate(ARCHIVES)
]  # fmt: skip
"""The newest, which is most like today's, is left to the long forms."""
CARDS, SAVED_ALERTS, ALERTS = 20, 200, 220
"""Twenty cards; in two epochs each of 200 payments brought 100 alerts; 20 more are still unread."""
LAST_SMALL_AT = 1_760_000_600_000 + 163_000
"""Of card c3, in the second epoch: milliseconds since 1970."""


@dataclass
class Golden:
    """One archive, unpacked; its log is served by this version's broker."""

    folder: Path
    broker: Any

    def run(self, *arguments: str) -> str:
        """A command on the pipeline, in its folder; its standard output."""
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder / "pipeline",
            env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": "."}
            | {"CATCHWATER_SOURCE__KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """(partition, key, value) of every committed record."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "group.id": "reader"}
        reader = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
        partitions = list(reader.list_topics(topic).topics[topic].partitions)
        ends = {
            each: reader.get_watermark_offsets(TopicPartition(topic, each)) for each in partitions
        }
        reader.assign([TopicPartition(topic, each, ends[each][0]) for each in partitions])
        found: list[tuple[int, bytes | None, bytes | None]] = []
        open_partitions = {each for each in partitions if ends[each][0] < ends[each][1]}
        while open_partitions:
            message = reader.poll(60.0)
            assert message is not None, f"nothing more comes of {topic}"
            if message.error():
                open_partitions.discard(message.partition())
            else:
                found.append((message.partition(), message.key(), message.value()))
        reader.close()
        return found

    def alerts(self) -> Counter[str]:
        """Ids in the sink, with how often each is there."""
        with sqlite3.connect(self.folder / "pipeline" / "rows.sqlite") as rows:
            return Counter(each for (each,) in rows.execute("SELECT id FROM alerts"))


@pytest.fixture(scope="module", params=PARAMS)
def golden(
    request: pytest.FixtureRequest,
    make_broker: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Golden:
    folder = tmp_path_factory.mktemp("golden")
    with lzma.open(request.param) as packed, tarfile.open(fileobj=packed) as archive:
        archive.extractall(folder, filter="data")
    # The records keep their day, however late this runs.
    kept = {"log.retention.ms": "-1", "log.dirs": str(folder / "log")}
    return Golden(folder, make_broker(kept))


def test_every_record_of_an_old_log_is_there(golden: Golden) -> None:
    payments = [json.loads(value or b"")["id"] for _, _, value in golden.read("payments")]
    written = [f"{part}-{i}" for part in (0, 1) for i in range(200)]
    assert Counter(payments) == Counter(written + 2 * [f"2-{i}" for i in range(40)])
    newest = {key: value for _, key, value in golden.read("names")}
    assert newest == {f"k{i % 7}".encode(): f"1:{i}".encode() for i in range(193, 200)}
    kept = Counter((part, value) for part, _, value in golden.read("orders"))
    committed = Counter(
        (i % 2, f"{part}-{k}-{i}".encode())
        for part in (0, 1) for k in (0, 1, 3) for i in range(5)
    )  # fmt: skip
    deleted = {(0, f"0-0-{i}".encode()) for i in (0, 2, 4)}
    assert kept == committed - Counter(deleted)


def test_an_old_groups_positions_are_there(golden: Golden) -> None:
    settings = {"bootstrap.servers": golden.broker.bootstrap, "group.id": "golden"}
    reader = Consumer(settings)
    places = [TopicPartition("orders", each) for each in (0, 1)]
    at = {each.partition: each.offset for each in reader.committed(places, timeout=60)}
    ends = [reader.get_watermark_offsets(each)[1] for each in places]
    reader.close()
    assert all(0 < at[each.partition] <= end for each, end in zip(places, ends, strict=True))


def test_an_old_savepoint_is_verified_read_and_restored(golden: Golden) -> None:
    place = ("--at", f"file://{golden.folder / 'savepoints'}")
    golden.run("savepoint", "verify", "pipeline.toml", "s1", *place)
    file = golden.folder / "pipeline" / "restored.toml"
    text = (golden.folder / "pipeline" / "pipeline.toml").read_text()
    file.write_text(text.replace('"checkpoint"', '"restored"'))
    golden.run("savepoint", "restore", "restored.toml", "s1", *place, "--yes")
    state = golden.run("state", "get", "restored.toml", "c3", "--json")
    assert json.loads(state)["state"] == {"small_at": LAST_SMALL_AT}, state


@pytest.mark.spark
def test_an_old_checkpoint_goes_on(golden: Golden) -> None:
    before = json.loads(golden.run("pipeline", "status", "pipeline.toml", "--json"))
    assert before["committed_epoch"] == 1
    assert before["operator"]["keys"] == CARDS
    assert golden.alerts().total() == SAVED_ALERTS
    golden.run("pipeline", "run", "pipeline.toml", "--available-now", "--quick")
    after = golden.alerts()
    assert len(after) == after.total() == ALERTS
    assert len(golden.read("alerts")) == ALERTS
    golden.run("sink", "verify", "pipeline.toml")
