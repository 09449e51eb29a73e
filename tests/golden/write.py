"""Writes an archive of what today's code writes, for `e2e/test_golden.py`: `<day>.tar.xz` here.

To be run where a format has changed, before a release: `python -m tests.golden.write [DAY]`. Takes
a minute and real Spark. A log with packed and compacted topics, transactions of which some are
aborted, deleted records and a group; a pipeline with two epochs, its checkpoint and a savepoint.
In the end the broker is killed right after a produce, so that its catalog has not followed.
"""

import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import COMMAND, BrokerProcess, until

from catchwater.cli.init import FUNCTION

HERE = Path(__file__).parent
FIRST_MS, PART_MS = 1_760_000_000_000, 600_000
PIPELINE = """[pipeline]
function = "card_risk:CardRisk"
checkpoint = "checkpoint"

[source]
"kafka.bootstrap.servers" = "127.0.0.1:29092"
subscribe = "payments"
startingOffsets = "earliest"

[sink.alerts]
topic = "alerts"

[sink.rows]
kind = "sqlite"
path = "rows.sqlite"
table = "alerts"
"""
LEFT_OUT = ("__pycache__", "spark.log", "catchwater.lock")


def main(day: str) -> None:
    """Write the archive of this day."""
    with tempfile.TemporaryDirectory(prefix="catchwater-golden-") as scratch:
        folder = Path(scratch) / "golden"
        pipeline = folder / "pipeline"
        pipeline.mkdir(parents=True)
        (pipeline / "pipeline.toml").write_text(PIPELINE)
        (pipeline / "card_risk.py").write_text(FUNCTION)
        broker = BrokerProcess(
            Path(scratch),
            {"log.dirs": str(folder / "log"), "log.retention.ms": "-1"}
            | {"catchwater.pack.interval.ms": "500", "catchwater.pack.min.bytes": "1"},
        )
        broker.start()
        try:
            _live(broker, pipeline, folder / "savepoints")
        finally:
            broker.kill()
        with lzma.open(HERE / f"{day}.tar.xz", "wb", preset=9) as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for name in ("log", "pipeline", "savepoints"):
                    archive.add(folder / name, name, filter=_kept)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if Path(member.name).name in LEFT_OUT else member


def _live(broker: BrokerProcess, pipeline: Path, savepoints: Path) -> None:
    """All that happens between the first start of the broker and its death."""
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(name, 2) for name in ("payments", "orders", "alerts")]
    for made in admin.create_topics([*topics, NewTopic("names", 1, config=compacted)]).values():
        made.result()
    for part in (0, 1):
        _pay(broker, part, range(200))
        _name(broker, part)
        _order(broker, part)
        _run(broker, pipeline, "pipeline", "run", "pipeline.toml", "--available-now", "--quick")
    _run(broker, pipeline, "savepoint", "create", "pipeline.toml", "--name", "s1", "--at",
         savepoints.as_uri(), "--yes")  # fmt: skip
    for deleted in admin.delete_records([TopicPartition("orders", 0, 3)]).values():
        deleted.result()
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "golden"})
    group.commit(offsets=[TopicPartition("orders", each, 4) for each in (0, 1)], asynchronous=False)
    group.close()
    objects = pipeline.parent / "log" / "objects" / "segments"
    until(lambda: list(objects.glob("*/*/*.cleaned.seg")), said=lambda: "nothing was compacted")
    _pay(broker, 2, range(40))
    _pay(broker, 2, range(40))


def _pay(broker: BrokerProcess, part: int, numbers: range) -> None:
    """Twenty cards pay, small and large by turns and 20 s apart: each large payment alerts."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in numbers:
        payment = {
            "card": f"c{i % 20}",
            "id": f"{part}-{i}",
            "at": FIRST_MS + part * PART_MS + 1_000 * i,
            "amount": 900.0 if i // 20 % 2 else 0.5,
        }
        producer.produce("payments", json.dumps(payment), payment["card"], partition=i % 2)
    assert not producer.flush(60)


def _name(broker: BrokerProcess, part: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(200):
        producer.produce("names", f"{part}:{i}", f"k{i % 7}")
    assert not producer.flush(60)


def _order(broker: BrokerProcess, part: int) -> None:
    """Four transactions over both partitions, of which the third is aborted."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"t{part}"})
    producer.init_transactions()
    for k in range(4):
        producer.begin_transaction()
        for i in range(5):
            producer.produce("orders", f"{part}-{k}-{i}", partition=i % 2)
        producer.flush(60)
        producer.abort_transaction() if k == 2 else producer.commit_transaction()


def _run(broker: BrokerProcess, folder: Path, *arguments: str) -> None:
    bootstrap = {"CATCHWATER_SOURCE__KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
    subprocess.run(
        [COMMAND, *arguments], cwd=folder, env=os.environ | bootstrap | {"PYTHONPATH": "."},
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"{datetime.now(UTC):%Y-%m-%d}")
