"""Brokers show whether a running pipeline is correct, recoverable and fresh, and when it is not.

Every process is up all the time: what is wrong is a row, a pin, or that nothing moves.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import PATIENCE_S, Pipeline, feed_cards, processes

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
