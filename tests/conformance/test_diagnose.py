"""`catchwater diagnose` asks a live log: its groups, its write-ahead log, what its topics keep."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.conformance.test_group_contract import Answer, filled, typed_alone
from tests.conftest import BrokerProcess

from catchwater.cli.init import FILES

HOUR_MS = 3_600_000


def diagnosed(file: Path) -> Answer:
    return typed_alone("diagnose", str(file), "--json")


def test_a_group_with_too_few_members_is_found_at_a_live_log(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = make_broker({})
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("127.0.0.1:9092", broker.bootstrap))
    file = tmp_path / "pipeline.toml"
    filled(broker.bootstrap, "payments", round(time.time() * 1000) - HOUR_MS, retention_ms="-1")
    # Nobody is behind, and nothing ran yet.
    sound = diagnosed(file)
    assert sound.returncode == 0, sound.stdout
    told = json.loads(sound.stdout)
    assert told["findings"] == [] and told["unknown"] == ["no epoch was committed yet"]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "alone",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(["payments"])
    try:
        while consumer.poll(1) is None:
            pass
        first = [TopicPartition("payments", partition, 1) for partition in (0, 1)]
        consumer.commit(offsets=first, asynchronous=False)
        behind = diagnosed(file)
    finally:
        consumer.close()
    assert behind.returncode == 3, behind.stderr
    (finding,) = json.loads(behind.stdout)["findings"]
    assert (finding["cause"], finding["subject"]) == ("small-group", "group alone")
    measured = r"1 members read 2 partitions, and are 198 records and (\d+) s behind"
    found = re.fullmatch(measured, finding["measured"])
    assert found and 0 <= int(found[1]) - HOUR_MS // 1000 < 600
    assert finding["next"] == (
        "Start up to 1 more members: catchwater group describe alone shows who reads what."
    )
