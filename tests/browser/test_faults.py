"""The three verdicts of a real pipeline, in the browser, while every process is up.

What is wrong is a row, a pin, or that nothing moves; `e2e/test_status` asks the broker the same.
"""

import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import PATIENCE_S, feed_cards, processes
from tests.e2e.test_status import Seen, is_java

from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


class Shown:
    """What the browser shows of the pipeline."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def wait_for(self, verdict: str, mark: str, reason: str = "") -> None:
        tile = self.page.locator(f".verdict.is-{mark}").filter(
            has=self.page.locator(".of", has_text=re.compile(f"^{verdict}$", re.IGNORECASE))
        )
        tile.filter(has_text=reason).wait_for(timeout=PATIENCE_S * 1000)


def test_the_page_turns_with_each_fault_and_back(
    make_broker: Callable[..., Any],
    look: Callable[..., Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    cards = feed_cards(make_broker)
    pipeline = Seen(cards, tmp_path, "seen")
    request.addfinalizer(lambda: pipeline.process and pipeline.kill())
    page = look(cards.control.url)
    pipeline.start(epoch_events=3000)
    name = page.get_by_role("link", name="seen", exact=True).first
    name.wait_for(timeout=PATIENCE_S * 1000)
    name.click()
    shown = Shown(page)
    for verdict in ("correct", "recoverable", "fresh"):
        shown.wait_for(verdict, "ok")

    with sqlite3.connect(tmp_path / "rows.db") as database:
        [(column,)] = database.execute(
            "SELECT name FROM pragma_table_info('rows') WHERE name = 'rule'"
        )
        database.execute(f"UPDATE rows SET {column} = {column} || '?' WHERE rowid = 1")
    shown.wait_for("correct", "fail", "1 altered")
    command = page.inner_text(".verdict.is-fail code")
    assert command.startswith("catchwater sink verify")
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute(f"UPDATE rows SET {column} = rtrim({column}, '?') WHERE rowid = 1")
    shown.wait_for("correct", "ok")

    for pin in [each["id"] for each in cards.control.pins() if each["id"].startswith("seen/")]:
        cards.control.release_pin(pin)
    page.locator(".verdict.is-warn, .verdict.is-fail").filter(
        has_text="nothing keeps the log"
    ).wait_for(timeout=PATIENCE_S * 1000)

    (jvm,) = [pid for pid in processes(pipeline.session) if is_java(pid)]
    os.kill(jvm, signal.SIGSTOP)
    with Client(cards.bootstrap) as client:
        event = next(iter(cards.scenario.events()))
        batch = encode_batch([(b"new", event.value, round(time.time() * 1000), ())])
        client.produce([(("payments", 0), batch)])
    shown.wait_for("fresh", "fail", "behind, 5 s are promised")
    os.kill(jvm, signal.SIGCONT)
    shown.wait_for("fresh", "ok")
    shown.wait_for("recoverable", "ok")

    assert pipeline.stop() == 0, pipeline.log
    page.goto(cards.control.url + "/timeline")
    assert "correct: fail" in page.inner_text("main")
