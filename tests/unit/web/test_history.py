"""The history: bounded, kept over a restart, and never in the way of a broker."""

import sqlite3
from pathlib import Path

from catchwater.web.history import DAY_MS, HOUR_MS, KEPT_MS, MAX_SERIES, MINUTE_MS, History
from catchwater.web.of_pipelines import Event

START_MS = 1_790_000_000_000 - 1_790_000_000_000 % (10 * MINUTE_MS)


def fill(
    history: History, minutes: int, name: str = "broker/1/cpu", start_ms: int = START_MS
) -> int:
    at_ms = start_ms
    for second in range(0, 60 * minutes, 5):
        at_ms = start_ms + 1000 * second
        history.add(at_ms, {name: float(second % 60)})
        if second % 60 == 0:
            history.flush()
    return at_ms


def test_the_last_hour_is_as_it_was_sampled() -> None:
    history = History(None)
    now_ms = fill(history, 90)
    plot = history.read(["broker/1/cpu"], HOUR_MS, now_ms)
    assert len(plot.times_ms) == 721
    assert plot.times_ms[-1] == now_ms
    assert plot.means["broker/1/cpu"][-1] == 55.0


def test_a_day_is_kept_by_the_minute_with_mean_and_peak_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    now_ms = fill(history, 30)
    history.close()
    again = History(path)
    plot = again.read(["broker/1/cpu"], DAY_MS, now_ms)
    assert plot.times_ms == [START_MS + MINUTE_MS * n for n in range(30)]
    assert (plot.means["broker/1/cpu"][3], plot.peaks["broker/1/cpu"][3]) == (27.5, 55.0)
    again.close()


def test_the_last_hour_goes_back_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    killed_ms = fill(history, 30)
    history.close()
    again = History(path)
    now_ms = fill(again, 10, start_ms=killed_ms + 5_000)
    plot = again.read(["broker/1/cpu"], HOUR_MS, now_ms)
    assert plot.times_ms[0] == START_MS and plot.times_ms[-1] == now_ms
    assert len(plot.times_ms) == 30 + 12 * 10
    assert plot.times_ms == sorted({*plot.times_ms})
    trend = again.trend("broker/1/cpu", now_ms)
    assert len(trend) == 60 and trend[:20] == [None] * 20
    assert None not in trend[21:] and max(trend[21:], key=float) == 55.0  # type: ignore[arg-type]
    again.close()


def test_a_minute_that_a_restart_has_cut_in_two_keeps_its_peak(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for second, value in ((5, 9.0), (35, 1.0)):
        history = History(path)
        history.add(START_MS + 1000 * second, {"a": value})
        history.close()
    again = History(path)
    assert again.read(["a"], DAY_MS, START_MS + MINUTE_MS).peaks == {"a": [9.0]}
    again.close()


def test_a_file_of_an_earlier_version_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE events (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, "
            "subject TEXT NOT NULL, what TEXT NOT NULL, mark TEXT NOT NULL)"
        )
        db.execute("INSERT INTO events VALUES (1, 5, 'broker 1', 'started', 'ok')")
    db.close()
    history = History(path)
    history.note([Event(9, "pipeline cards", "correct: fail.", "fail", "catchwater sink verify c")])
    assert history.problem == ""
    assert [each.command for each in history.events()] == ["catchwater sink verify c", ""]
    history.close()


def test_a_series_without_a_value_leaves_a_gap() -> None:
    history = History(None)
    history.add(START_MS, {"a": 1.0, "b": 2.0})
    history.add(START_MS + 5_000, {"a": 3.0})
    plot = history.read(["a", "b", "nobody"], HOUR_MS, START_MS + 5_000)
    assert plot.means == {"a": [1.0, 3.0], "b": [2.0, None], "nobody": [None, None]}


def test_what_is_too_old_is_deleted_and_its_series_with_it(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    fill(history, 25, "gone")
    later_ms = START_MS + KEPT_MS + DAY_MS
    fill(history, 25, "here", later_ms)
    history.close()
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM series")] == ["here"]
        assert db.execute("SELECT min(at) FROM points").fetchone()[0] >= later_ms
    db.close()


def test_there_are_never_more_series_than_the_bound() -> None:
    history = History(None)
    history.add(START_MS, {f"group/{n}/lag": 1.0 for n in range(MAX_SERIES + 7)})
    assert history.left_out == 7
    assert history.read([f"group/{MAX_SERIES}/lag"], HOUR_MS, START_MS).times_ms == []


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"not a database at all" * 1000)
    history = History(path)
    assert history.problem == ""
    assert (tmp_path / "history.db.damaged").exists()
    history.close()


def test_a_file_that_cannot_be_written_is_named_and_memory_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "none" / "history.db"
    history = History(path)
    assert str(path) in history.problem
    now_ms = fill(history, 3)
    assert history.read(["broker/1/cpu"], DAY_MS, now_ms).times_ms != []


def test_a_file_that_this_user_may_not_use_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.mkdir()  # as little to be opened as one without permission, also for root
    history = History(path)
    assert history.problem
    assert path.is_dir()
    assert not (tmp_path / "history.db.damaged").exists()


def test_what_happened_is_told_newest_first_and_by_subject() -> None:
    history = History(None)
    history.note([Event(1, "broker 1", "started", "ok"), Event(2, "pipeline a", "restore began")])
    history.note([Event(3, "broker 1", "is gone", "warn")])
    assert [e.at_ms for e in history.events()] == [3, 2, 1]
    assert [e.what for e in history.events("pipeline a")] == ["restore began"]
