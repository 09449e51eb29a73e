"""Restore points by time, with a real broker and real sinks: going back behind thinned epochs."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.e2e import in_session
from tests.e2e.conftest import Pipeline

from catchwater.clock import ManualClock
from catchwater.pipeline.run import config as files
from catchwater.recovery import rewind
from catchwater.recovery.contract import load_contract, load_contracts
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.pins import read_tails
from catchwater.sinks import table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EPOCH_EVENTS = 100


class Stepping(ManualClock):
    """Goes on by 10 ms whenever it is looked at: an epoch takes some 20 ms, however busy we are."""

    def now_ms(self) -> int:
        self.pause(0.01)
        return super().now_ms()


@pytest.fixture
def pipeline(make_pipeline: Callable[[str], Pipeline], monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """With restore points a tenth of a second apart, which is some epochs."""
    monkeypatch.setattr(files, "LEAST_EVERY_MS", 1)
    made = make_pipeline("points")
    path = made.write_file("available-now", epoch_events=EPOCH_EVENTS)
    text = path.read_text().replace("retain = 5", 'checkpoints = "100ms"\nretain = "1h"')
    rows = '[sink.rows]\nkind = "sqlite"\npath = "rows.db"\ntable = "rows"\n'
    path.write_text(text.replace("[recovery]", f"{rows}\n[recovery]"))
    return made


def test_a_restore_behind_thinned_epochs_runs_them_again_to_the_same_ends(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sinks keep marks of the newest epochs only, here as in a long life.
    monkeypatch.setattr(table, "_SWEEP_EPOCHS", 1)
    file, clock = pipeline.folder / "pipeline.toml", Stepping()
    here = in_session.Pipeline(None, pipeline.folder, file, clock=clock)
    here.run()
    ends = {entry.epoch: entry.end for entry in here.epochs}
    ledger, control = Ledger(here.checkpoint), pipeline.cards.control
    there = ledger.epochs()
    assert there[0] == 0 and len(there) < len(ends) - 10, there
    pinned = {str(pin["id"]) for pin in control.pins() if pin["owner"] == pipeline.name}
    assert f"{pipeline.name}/history" in pinned  # as the function needs
    assert f"{pipeline.name}/0" in pinned and len(pinned) < len(there)
    assert load_contract(here.checkpoint).retention.pin in pinned

    # To the second point: what the first needs is still there, and the sinks have it all.
    point = there[1]
    assert [each.epoch for each in load_contracts(here.checkpoint)][:2] == [0, point]
    rewind.rewind(here.checkpoint, point, read_tails(control, ["payments"]))
    again = in_session.Pipeline(None, pipeline.folder, file, clock=clock)
    again.run()
    assert {entry.epoch: entry.end for entry in again.epochs} == {
        epoch: end for epoch, end in ends.items() if epoch > point
    }
    assert pipeline.rows == pipeline.cards.expected
    with closing(sqlite3.connect(pipeline.folder / "rows.db")) as rows:
        (count,) = rows.execute("SELECT count(*) FROM rows").fetchone()
    assert count == pipeline.rows.total()


@pytest.mark.spark
def test_spark_goes_on_from_a_restore_point_whose_neighbours_are_gone(
    make_pipeline: Callable[[str], Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_RECOVERY__CHECKPOINTS", "2s")
    monkeypatch.setenv("CATCHWATER_RECOVERY__RETAIN", "1h")
    made = make_pipeline("spark-points")
    made.start("300ms", epoch_events=200)
    made.wait_until(lambda: len(made.ledger.passed_files()) > 1)
    assert made.stop() == 0, made.log
    there, last = made.ledger.epochs(), made.committed
    # Behind a gap, and before another.
    point = next(epoch for epoch in there[1:] if epoch - 1 not in there)
    assert point < made.ledger.passed_files()[-1][0], there
    tails = read_tails(made.cards.control, ["payments"])
    assert rewind.rewind(made.checkpoint, point, tails).epoch == point
    made.lose_local_state()
    assert made.run_to_end(epoch_events=200) == 0, made.log
    assert made.committed >= last
    assert made.rows == made.cards.expected
