"""Brokers show whether a running pipeline is correct, recoverable and fresh, and when it is not.

Every process is up all the time: what is wrong is a row, a pin, or that nothing moves. What holds a
pipeline back is planted, too, and `catchwater diagnose` names it.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.e2e.conftest import COMMAND, PATIENCE_S, Pipeline, feed_cards, processes

from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

MORE = """
[sink.rows]
kind = "sqlite"
path = "rows.db"
table = "rows"
"""


class Seen(Pipeline):
    """One that also writes into SQLite, and promises to be no older than five seconds."""

    def write_file(self, trigger: str, **changes: object) -> Path:
        path = super().write_file(trigger, **changes)
        text = path.read_text().replace("local =", 'max_staleness = "5s"\nlocal =')
        path.write_text(text + MORE)
        return path

    def report(self) -> dict[str, Any]:
        """As any broker shows it; empty before the first."""
        found = [each for each in self.cards.control.pipelines() if each["name"] == self.name]
        return found[0]["report"] if found else {}

    def wait_for(self, verdict: str, *states: str) -> str:
        """Until it is one of these; why it is."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            report = self.report()
            if report.get(verdict, {}).get("state") in states:
                return str(report[verdict]["reason"])
            assert time.monotonic() < deadline, (report, self.log[-2000:])
            time.sleep(0.5)


def is_java(pid: int) -> bool:
    """Whether the process is a JVM; False for one that has ended."""
    with suppress(OSError):
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    return False


def test_each_verdict_turns_when_its_own_fault_is_there_and_back(
    make_broker: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cards = feed_cards(make_broker)
    pipeline = Seen(cards, tmp_path, "seen")
    request.addfinalizer(lambda: pipeline.process and pipeline.kill())
    pipeline.start(epoch_events=3000)
    for verdict in ("correct", "recoverable", "fresh"):
        pipeline.wait_for(verdict, "ok")

    # Somebody changes a row.
    with sqlite3.connect(tmp_path / "rows.db") as database:
        [(column,)] = database.execute(
            "SELECT name FROM pragma_table_info('rows') WHERE name = 'rule'"
        )
        database.execute(f"UPDATE rows SET {column} = {column} || '?' WHERE rowid = 1")
    assert "rows differs from what was put out: 1 altered" in pipeline.wait_for("correct", "fail")
    assert pipeline.report()["fresh"]["state"] == "ok"
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute(f"UPDATE rows SET {column} = rtrim({column}, '?') WHERE rowid = 1")
    pipeline.wait_for("correct", "ok")

    # Somebody releases a pin.
    pins = [each["id"] for each in cards.control.pins() if each["id"].startswith("seen/")]
    for pin in pins:
        cards.control.release_pin(pin)
    assert "nothing keeps the log" in pipeline.wait_for("recoverable", "warn", "fail")

    # Nothing moves any more, and a record comes.
    (jvm,) = [pid for pid in processes(pipeline.session) if is_java(pid)]
    os.kill(jvm, signal.SIGSTOP)
    with Client(cards.bootstrap) as client:
        event = next(iter(cards.scenario.events()))
        batch = encode_batch([(b"new", event.value, round(time.time() * 1000), ())])
        client.produce([(("payments", 0), batch)])
    assert "behind, 5 s are promised" in pipeline.wait_for("fresh", "fail")
    os.kill(jvm, signal.SIGCONT)
    pipeline.wait_for("fresh", "ok")
    assert pipeline.wait_for("recoverable", "ok"), "a new checkpoint has a new pin"

    assert pipeline.stop() == 0, pipeline.log
    assert pipeline.report()["state"] == "stopped"
    assert "not reported" not in pipeline.log


SLOW = """
import time
from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function


@dataclass
class Seen:
    card: str
    id: str
    at: int


@dataclass
class Count:
    events: int = 0


@function(name="slow", version=1, key="card", event_time="at", watermark="30s", output_id=("id",))
class Slow(Keyed[Seen, Count, Seen]):
    def on_event(self, e: Seen, s: Count, ctx: Context) -> Out[Seen]:
        time.sleep(600 if e.card == "wedge" else 0.02)
        s.events += 1
        if s.events == 1:
            yield e
"""


def sent(bootstrap: str, cards: list[str], at_ms: int) -> None:
    """Four of five into one partition of four."""
    with Client(bootstrap) as client:
        for first in range(0, len(cards), 500):
            records = [
                (
                    None,
                    msgspec.json.encode({"card": card, "id": f"{card}-{n}", "at": at_ms}),
                    at_ms,
                    (),
                )
                for n, card in enumerate(cards[first : first + 500], first)
            ]
            parts = [records[::5], records[1::5] + records[2::5] + records[3::5] + records[4::5]]
            for partition, part in ((1, parts[0]), (0, parts[1])):
                if part:
                    client.produce([(("payments", partition), encode_batch(part))])


def test_planted_causes_are_named_of_a_pipeline_that_runs(
    make_broker: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker = make_broker({})
    with Client(broker.bootstrap) as client:
        client.create_topics({"payments": 4})
    long_ago_ms = round(time.time() * 1000) - 600_000
    sent(broker.bootstrap, ["hot" if n % 2 else f"c{n}" for n in range(5_000)], long_ago_ms)
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "alone",
                       "enable.auto.commit": False, "auto.offset.reset": "earliest"})  # fmt: skip
    request.addfinalizer(member.close)
    member.subscribe(["payments"])
    while not member.assignment():
        member.poll(0.1)
    member.commit(offsets=[TopicPartition("payments", 0, 1)], asynchronous=False)

    (tmp_path / "slow.py").write_text(SLOW)
    cards: Any = SimpleNamespace(
        bootstrap=broker.bootstrap, scenario=SimpleNamespace(function="slow:Slow")
    )
    pipeline = Seen(cards, tmp_path, "slow")
    request.addfinalizer(lambda: pipeline.process and pipeline.kill())
    pipeline.start("1s", epoch_events=400)

    def causes() -> set[str]:
        told = subprocess.run(
            [COMMAND, "diagnose", "--json"], cwd=tmp_path, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert told.returncode in (0, 3), told.stderr
        return {each["cause"] for each in json.loads(told.stdout)["findings"]}

    def wait_for(wanted: set[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not wanted <= (found := causes()):
            assert time.monotonic() < deadline, (wanted - found, found, pipeline.log[-2000:])

    pipeline.wait_until(lambda: pipeline.committed >= 4)
    planted = {"hot-key", "hot-partition", "short-trigger", "small-group", "waiting-function"}
    wait_for(planted)
    sent(broker.bootstrap, ["wedge"], round(time.time() * 1000))
    wait_for({"stuck-epoch"})
