"""Savepoints on a schedule: taken when they are due, and so many of them are kept."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import in_session

from catchwater.clock import SYSTEM, ManualClock
from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreUnavailable
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import config
from catchwater.pipeline.run.background import NO_EPOCH_S, Schedule

HOUR_MS = 3_600_000


@pytest.fixture
def opened(make_pipeline: Any, request: pytest.FixtureRequest) -> OpenPipeline:
    """A pipeline that has run to the end of its input."""
    made = make_pipeline(request.node.name)
    file: Path = made.write_file("available-now", epoch_events=1500)
    in_session.Pipeline(None, made.folder, file).run()
    return OpenPipeline(config.load(file, os.environ)).with_log()


def pinned(opened: OpenPipeline) -> set[str]:
    """The savepoints that the log holds a pin for."""
    assert opened.control is not None
    mine = opened.pin_id("")
    pins = (str(pin["id"]) for pin in opened.control.pins())
    return {pin.removeprefix(mine) for pin in pins if pin.startswith(mine)}


def test_savepoints_come_and_go_on_a_schedule(opened: OpenPipeline) -> None:
    clock, shelf = ManualClock(SYSTEM.now_ms()), opened.shelf()

    def turn() -> float:
        """Of a driver that has just been started."""
        return Schedule(opened, HOUR_MS, 2, clock).turn()

    opened.save("by-hand", opened.savepoint("by-hand")[1], shelf)
    schedule = Schedule(opened, HOUR_MS, 2, clock)
    assert schedule.turn() == HOUR_MS / 1000
    (first,) = {*shelf.names()} - {"by-hand"}
    clock.advance(2 * HOUR_MS)
    assert schedule.turn() == NO_EPOCH_S, "there is no new epoch"
    assert pinned(opened) == {"by-hand", first}

    # It is due by what is there, whoever took that.
    clock.advance(-2 * HOUR_MS + 600_000)
    assert turn() == pytest.approx(3000, abs=1)
    clock.advance(HOUR_MS)
    assert turn() == HOUR_MS / 1000
    assert len(shelf.names()) == 3
    clock.advance(HOUR_MS)
    turn()
    names = {*shelf.names()}
    assert len(names) == 3 and "by-hand" in names and first not in names
    assert pinned(opened) == names

    # What a driver that was killed has left goes with the next turn, and nothing else.
    left = f"{first[: -len('20260101T000000Z')]}20260101T000000Z"
    shelf.store.put(f"{left}/state/x", [b"x"])
    shelf.store.put("another/state/x", [b"x"])
    end = opened.savepoint()[1]
    assert opened.control is not None
    content = {"owner": "savepoint", "positions": []}
    for name in (f"{left[:-2]}1Z", "another"):
        opened.control.set_pin(opened.pin_id(name), content)
    turn()
    assert shelf.found() == dict.fromkeys(sorted(names), True) | {"another": False}
    assert pinned(opened) == names | {"another"}
    assert shelf.read(max(names - {"by-hand"})).epoch == end


def test_a_stop_cuts_it_off_and_a_failure_is_tried_again(
    opened: OpenPipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shelf, schedule = opened.shelf(), Schedule(opened, HOUR_MS, 2, SYSTEM)
    schedule.stop()
    with pytest.raises(CatchwaterError, match="The pipeline stops; 1 of"):
        schedule.turn()
    assert shelf.names() == [] and pinned(opened) == set()

    again = Schedule(opened, 10, 2, SYSTEM)
    turns = iter([StoreUnavailable("The store is away."), None])

    def turn() -> float:
        if (failure := next(turns)) is not None:
            raise failure
        again.stop()
        return 0.0

    monkeypatch.setattr(again, "turn", turn)
    again.run()
    assert "No savepoint was taken" in caplog.text and "The store is away." in caplog.text
