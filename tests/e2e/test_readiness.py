"""The report on a real log and a real checkpoint: what is planted in them is found, by asking."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.e2e.in_session import produce
from tests.e2e.tally import order
from tests.e2e.test_ways_back import Life

from catchwater.cli import readiness
from catchwater.clock import SYSTEM
from catchwater.drill.readiness import DAY_MS, FRESH_DAYS
from catchwater.drill.result import Finding, Result, write_result
from catchwater.pipeline.opened import OpenPipeline
from catchwater.replay.control import Control
from catchwater.wire.client import Client

AS_IT_IS = {"brokers", "owner", "metrics", "savepoint", "budget", "drill"}
"""What a small pipeline lacks that was only just started."""


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    return make_broker({"log.retention.ms": "-1"})


class Usage(NamedTuple):
    """Of a disk that is half empty, whatever this machine's is."""

    total: int = 100
    used: int = 50
    free: int = 50


@pytest.fixture
def life(broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage())
    life = Life(broker, tmp_path)
    (life.checkpoint / "metadata").write_text('{"id":"as Spark writes it"}')
    return life


def weaknesses(life: Life, *, code: int | None = None) -> set[str]:
    """The lines of the report that did not pass; a gate that stops has a reason among them."""
    drills = str(life.folder / "drills")
    told = json.loads(
        life.type("readiness", "report", str(life.file), "--drills", drills, "--json")
    )
    if code is not None:
        life.type("readiness", "gate", str(life.file), "--drills", drills, code=code)
    return {line["id"] for line in told["lines"] if line["verdict"] != "pass"}


def test_what_a_fresh_pipeline_lacks_is_named_until_it_is_there(life: Life) -> None:
    assert weaknesses(life, code=3) == AS_IT_IS
    life.save()
    text = life.file.read_text()
    head = '[pipeline]\nowner = "payments"\nrunbook = "docs/cards.md"\nmetrics = "127.0.0.1:9400"\n'
    text = text.replace("[pipeline]\n", head).replace(
        "[recovery]\n", '[recovery]\nmax_restore = "10m"\n'
    )
    life.file.write_text(text)
    assert weaknesses(life, code=3) == {"brokers", "drill"}
    for name in ("kill-driver", "older-checkpoint", "replace-broker", "rollback-version"):
        rehearse(life, name)
    assert weaknesses(life, code=3) == {"brokers"}, "one broker is all there is here"
    rehearse(life, "older-checkpoint", days_ago=FRESH_DAYS + 1)
    assert weaknesses(life, code=3) == {"brokers", "drill"}, "no newer one is left"
    page = life.folder / "readiness.html"
    life.type(
        "readiness", "report", str(life.file), "--drills", str(life.folder), "--out", str(page)
    )
    assert "payments" in page.read_text()


def rehearse(life: Life, name: str, days_ago: int = 0) -> None:
    """Leave the result of a drill, in place of those before it."""
    folder = life.folder / "drills"
    for before in folder.glob(f"*-{name}.json"):
        before.unlink()
    started_ms = SYSTEM.now_ms() - days_ago * DAY_MS
    found = [Finding("rows missing", "pass", 0, 0, "rows")]
    write_result(
        folder,
        Result(name, "catchwater", "pass", found, "h", "b", [], ["f"], None, started_ms, 9.0),
    )


def damage_a_row(life: Life) -> str:
    with sqlite3.connect(life.folder / "rows.db") as table:
        table.execute("DELETE FROM live WHERE rowid = (SELECT max(rowid) FROM live)")
    return "sink"


def damage_the_checkpoint(life: Life) -> str:
    path = life.checkpoint / "catchwater" / "epochs" / f"{life.epochs[0]}.json"
    path.write_bytes(path.read_bytes()[:-3])
    return "checkpoint"


def move_the_pin(life: Life) -> str:
    control = Control(life.broker.control_url)
    (pin,) = [each for each in control.pins() if each["id"].endswith(f"/{life.epochs[-1]}")
              and life.topic in each["id"]]  # fmt: skip
    positions = [{**each, "offset": each["offset"] + 1} for each in pin["positions"]]
    life.produce(5)
    control.set_pin(pin["id"], {"owner": pin["owner"], "positions": positions})
    return "pin"


def release_all_pins(life: Life) -> str:
    """As somebody does by the control API who wants the room."""
    control = Control(life.broker.control_url)
    for pin in control.pins():
        control.release_pin(pin["id"])
    return "pin"


def take_all_at_once(life: Life) -> str:
    lines = life.file.read_text().splitlines()
    life.file.write_text("\n".join(x for x in lines if "maxOffsetsPerTrigger" not in x) + "\n")
    return "bounded"


def newest_contract(life: Life) -> tuple[Path, dict[str, Any]]:
    folder = life.checkpoint / "catchwater" / "contracts"
    path = max(folder.glob("*.json"), key=lambda each: int(each.stem))
    return path, json.loads(path.read_text())


def feed_more_than_it_can_do(life: Life) -> str:
    """As a pipeline writes it that falls behind all the time."""
    path, contract = newest_contract(life)
    contract["restore"] |= {"seconds": None, "low_s": None, "high_s": None, "missing_per_s": 400.0}
    path.write_text(json.dumps(contract))
    return "capacity"


def keep_less_than_a_restore_reads(life: Life) -> str:
    """As on another Kafka, without pins: kept for an hour, and a restore reads a day."""
    path, contract = newest_contract(life)
    contract["retention"] |= {"pin": "", "ms": 86_400_000}
    path.write_text(json.dumps(contract))
    resource = ConfigResource(ResourceType.TOPIC, life.topic)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": life.broker.bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(60)
    return "retention"


def partition_otherwise(life: Life) -> str:
    topic = f"{life.topic}-two"
    with Client(life.broker.bootstrap) as client:
        client.create_topics({topic: 2})
    for partition in (0, 1):
        produce(life.broker.bootstrap, topic, partition, order(0, 1))
    life.file.write_text(life.file.read_text().replace(f'"{life.topic}"', f'"{topic}"'))
    return "partitioner"


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        damage_a_row,
        damage_the_checkpoint,
        feed_more_than_it_can_do,
        keep_less_than_a_restore_reads,
        move_the_pin,
        release_all_pins,
        take_all_at_once,
    ],
)
def test_what_is_planted_is_found(life: Life, plant: Callable[[Life], str]) -> None:
    assert weaknesses(life) == AS_IT_IS
    name = plant(life)
    assert weaknesses(life) == AS_IT_IS | {name}


@pytest.mark.parametrize(
    ("protocol", "host", "is_"),
    [(None, "127.0.0.1", "loopback"), ("PLAINTEXT", "10.0.0.7", "open"), ("SSL", "k", "open"),
     ("SASL_SSL", "k", "secured")],
)  # fmt: skip
def test_who_may_come_in(protocol: str | None, host: str, is_: str) -> None:
    assert readiness._access(protocol, {host}) == is_


def test_a_disk_that_is_nearly_full_is_found(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 97, 3))
    assert weaknesses(life, code=4) == AS_IT_IS | {"disk"}


@pytest.mark.slow
def test_two_partitioners_on_one_topic_are_found(life: Life) -> None:
    assert "partitioner" in {partition_otherwise(life)} & weaknesses(life)


def test_where_the_log_is_away_nothing_of_it_is_good(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ASK_S", 1.0)
    monkeypatch.setitem(OpenPipeline.__init__.__kwdefaults__, "timeout_s", 1.0)
    life.broker.stop()
    try:
        found = weaknesses(life)
    finally:
        life.broker.start()
    assert found > {"wal", "access", "brokers", "pin", "partitioner"}
