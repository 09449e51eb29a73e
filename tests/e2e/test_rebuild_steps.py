"""A backfill and a rebuild that are killed at any of their steps, and done again.

kill -9 of the process that does it, behind each step it has; without Spark, which has no part in
them (`test_backfill.py` has the same with Spark). Then the same command ends what was begun: the
view is whole, there is one of it, and nothing is left behind.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.in_session import Pipeline
from tests.e2e.rebuild_steps import PATIENCE_S, SEAMS, TAKING, Place, done, run, running
from tests.e2e.tally import (
    PARTITIONS,
    TOPIC,
    Row,
    Tables,
    model,
    newest,
    produce,
    produced,
    write_file,
)

from catchwater.pipeline.run import config
from catchwater.recovery.handover import HandedOver
from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(1800)

RECORDS, MORE, EPOCH = 60, 10, 60
TABLES = {
    "live", "newest", "newest_catchwater_undo", "catchwater_sinks", "catchwater_epochs",
}  # fmt: skip


class View:
    """The pipeline, stopped, with all its input read, and its two tables."""

    def __init__(self, broker: Any, folder: Path, tables: Tables) -> None:
        self.broker, self.tables = broker, tables
        with Client(broker.bootstrap) as client:
            client.create_topics({TOPIC: PARTITIONS})
        produce(broker.bootstrap, 0, RECORDS)
        self.file = write_file(folder, broker.bootstrap, tables, EPOCH)
        self.live = Pipeline(None, folder, self.file)
        self.live.run()
        self.check(RECORDS)

    def produce(self) -> int:
        """Some orders more; how many each partition has."""
        end = produced(self.broker.bootstrap)
        produce(self.broker.bootstrap, end, end + MORE)
        return end + MORE

    def content(self) -> dict[str, Counter[Row]]:
        return {name: self.tables.rows(name) for name in ("live", "newest")}

    def check(self, end: int) -> None:
        """Both tables are what a plain loop over so many orders gives; nothing else is there."""
        rows = model(0, end)
        assert self.content() == {"live": rows, "newest": newest(rows)}
        assert {n for n in self.tables.names() if not n.startswith("sqlite_")} == TABLES
        claims = self.tables.run("SELECT pipeline, sink, target FROM catchwater_sinks")
        assert set(claims) == {("tally", "rows", "live"), ("tally", "newest", "newest")}
        assert set(self.tables.run("SELECT pipeline FROM catchwater_epochs")) == {("tally",)}
        owners = {pin["owner"] for pin in Control(self.broker.control_url).pins()}
        assert owners == {"tally"}, "the rebuild holds nothing of the log"

    def rebuild(self, label: str, die_at: Place | None = None) -> list[str]:
        """Make the damaged view anew, killed at a place and done again; the steps before."""
        self.tables.damage()
        damaged = self.content()
        first = run("rebuild", self.file, label, die_at=die_at, meanwhile=MORE)
        assert first == (0 if die_at is None else -9)
        steps = done(self.file)
        if die_at is not None:
            self._look_between(steps, damaged)
            assert run("rebuild", self.file, label) == 0
        checkpoint = config.load(self.file, {}).checkpoint
        assert checkpoint.name == label, "the pipeline goes on from the rebuild's checkpoint"
        if not _is_taking(steps):
            self.check(produced(self.broker.bootstrap))
        self.produce()
        self.live.run()
        self.check(produced(self.broker.bootstrap))
        return steps

    def _look_between(self, steps: list[str], damaged: dict[str, Counter[Row]]) -> None:
        """Each table is as it was or anew, and a pipeline that is started does no harm."""
        found = self.content()
        exchanged = steps.count("exchange a table")
        assert sum(found[name] != damaged[name] for name in found) == exchanged
        if _is_taking(steps):
            self.produce()
            with pytest.raises(HandedOver, match="has begun to take the place"):
                self.live.run()
            assert self.content() == found


def _is_taking(steps: list[str]) -> bool:
    begun, ended = TAKING
    return begun in steps and ended not in steps


@pytest.fixture(params=["sqlite", "postgres"])
def view(make_broker: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest) -> View:
    broker = make_broker({"log.retention.ms": "-1"})
    is_sqlite = request.param == "sqlite"
    place = tmp_path / "rows.db" if is_sqlite else request.getfixturevalue("postgres_url")
    return View(broker, tmp_path, Tables(place))


def test_a_rebuild_that_is_killed_while_it_takes_the_place_ends_where_it_was_to(
    view: View,
) -> None:
    for at in (1, 2):
        view.rebuild(f"a{at}", ("exchange a table", at))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_rebuild_that_is_killed_behind_any_of_its_steps_ends_where_it_was_to(
    view: View,
) -> None:
    steps = view.rebuild("whole")
    assert {name for name, _, _ in SEAMS} <= set(steps)
    places = sorted({(step, steps[: at + 1].count(step)) for at, step in enumerate(steps)})
    for number, place in enumerate(places):
        assert view.rebuild(f"a{number}", place)[-1] == place[0]


def test_the_pipeline_writes_on_until_it_is_asked_to_stop(
    make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    view = View(make_broker({"log.retention.ms": "-1"}), tmp_path, Tables(tmp_path / "rows.db"))
    once = view.file.read_text()
    view.file.write_text(once.replace('"available-now"', '"continuous"'))
    with running(view.file):
        end = view.produce()
        deadline = time.monotonic() + PATIENCE_S
        while view.content()["live"] != model(0, end):
            assert time.monotonic() < deadline, "the pipeline does not write"
            time.sleep(0.02)
        assert run("rebuild", view.file, "anew", meanwhile=MORE) == 0
    view.file.write_text(once)
    view.check(end + MORE)
    view.live.run()
    view.check(end + MORE)


def test_tables_that_cannot_take_the_rows_leave_the_pipeline_as_it_was(
    make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    view = View(make_broker({"log.retention.ms": "-1"}), tmp_path, Tables(tmp_path / "rows.db"))
    for table in ("live", "newest"):
        view.tables.run(f"ALTER TABLE {table} RENAME COLUMN seen TO times")
    assert run("rebuild", view.file, "anew") == 1
    assert done(view.file)[-1] == "fence the pipeline"
    for table in ("live", "newest"):
        view.tables.run(f"ALTER TABLE {table} RENAME COLUMN times TO seen")
    view.produce()
    view.live.run()
    assert view.content()["live"] == model(0, RECORDS + MORE)
    assert run("rebuild", view.file, "anew") == 0
    view.live.run()
    view.check(RECORDS + MORE)


def test_a_range_is_written_once_though_it_is_killed_and_the_pipeline_does_not_notice(
    make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    view = View(make_broker({"log.retention.ms": "-1"}), tmp_path, Tables(tmp_path / "rows.db"))
    control = Control(view.broker.control_url)
    before = (view.content(), view.live.committed, {pin["id"] for pin in control.pins()})
    names = {"CATCHWATER_SINK__ROWS__TABLE": "june", "CATCHWATER_SINK__NEWEST__TABLE": "junes"}
    ends = [json.dumps({TOPIC: dict.fromkeys("01", at)}) for at in (5, 50)]
    june = {"environment": names, "since": ends[0], "until": ends[1]}
    assert run("backfill", view.file, "june", die_at=("write epoch 1", 1), **june) == -9
    for _ in range(2):
        assert run("backfill", view.file, "june", **june) == 0
        assert view.tables.rows("june") == model(5, 50)
        assert view.tables.rows("junes") == newest(model(5, 50))
        after = (view.content(), view.live.committed, {pin["id"] for pin in control.pins()})
        assert after == before
