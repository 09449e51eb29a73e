"""The pages of pipelines as records: what is unknown stays so, and what needs somebody is first."""

import msgspec
import pytest
from tests.unit.web.reports import NOW_MS, OK, report

from catchwater.catalog.rows import ReportRow
from catchwater.drill.result import Result
from catchwater.verdicts import Compared, Freshness, Lag, Restored, Verdict
from catchwater.web import of_pipelines as pages
from catchwater.web.facts import report_of
from catchwater.web.sampler import changes, of_report
from catchwater.web.view import Line, PageQuery, View

FAIL = Verdict("fail", "The sink differs: 1 altered.", "catchwater sink verify cards.toml")
UNKNOWN = Verdict("unknown", "Nobody has looked.", "catchwater sink verify cards.toml")


def page_of(**changed: object) -> View:
    seen = pages.PipelinePage(report(**changed), [], [], [], None)
    return pages.pipeline(seen, NOW_MS)


def line(view: View, panel: str, label: str) -> Line:
    (found,) = (p for p in view.panels if p.id == panel)
    return next(each for each in found.lines if each.label == label)


def test_what_needs_somebody_comes_first_and_what_is_not_known_before_what_warns() -> None:
    warns = Verdict("warn", "Slow.", "x")
    seen = pages.Overview(
        [
            report("good"), report("slow", fresh=warns), report("silent", correct=UNKNOWN),
            report("broken", correct=FAIL),
        ],
        [], [], [],
    )  # fmt: skip
    view = pages.overview(seen, NOW_MS)
    assert [each.name for each in view.pipelines] == ["broken", "silent", "slow", "good"]
    assert view.about == "4 pipelines: 1 failing, 1 not known, 1 with a warning, 1 good"


def test_a_broker_that_no_pipeline_reported_to_says_how_to_start_one() -> None:
    view = pages.overview(pages.Overview([], [], [], []), NOW_MS)
    assert view.pipelines == []
    assert [each.text for each in view.panels[0].commands][-1] == "catchwater demo --open"


def test_nothing_is_green_that_was_not_looked_at() -> None:
    view = page_of(
        compared=[], restore=None, lag=Lag(unknown="no broker answers"), checks=[], functions=[],
        freshness=Freshness(45.0, True), restorable=[], committed_epoch=None, recent_epochs=[],
        correct=UNKNOWN, recoverable=UNKNOWN, fresh=UNKNOWN, operator={}, sinks=[], rate={},
    )  # fmt: skip
    marks = {each.mark for panel in view.panels for each in panel.lines}
    assert "ok" not in marks
    assert line(view, "correct", "sinks").mark == "unknown"
    assert line(view, "recover", "a restore takes").text == "unknown"
    assert line(view, "fresh", "behind").text == "unknown"


@pytest.mark.parametrize(
    ("restore", "mark"),
    [
        ({"seconds": 130.0, "high_s": 160.0, "max_restore_s": 600.0}, "ok"),
        ({"seconds": 130.0, "high_s": 160.0, "max_restore_s": 140.0}, "warn"),
        ({"seconds": 130.0, "high_s": None, "max_restore_s": 140.0}, "warn"),
        ({"seconds": 150.0, "high_s": 160.0, "max_restore_s": 140.0}, "fail"),
        ({"seconds": None, "high_s": None, "max_restore_s": 140.0}, "fail"),
        ({"seconds": 130.0, "high_s": 160.0, "max_restore_s": None}, ""),
    ],
)
def test_a_restore_is_held_against_its_budget(restore: dict[str, object], mark: str) -> None:
    assert line(page_of(restore=restore), "recover", "a restore takes").mark == mark


def test_a_damaged_row_is_red_with_what_is_wrong_of_it() -> None:
    view = page_of(compared=[Compared("alerts", NOW_MS - 4_000, 900, altered=1)])
    assert line(view, "correct", "sink alerts") == Line(
        "sink alerts", "1 altered", mark="fail", note="compared 3.2 s ago"
    )


def test_a_restore_that_is_under_way_stands_first() -> None:
    told = {
        "since_s": 41.0, "percent": 68.0, "eta_s": 31.0, "phase": "input", "shards": [],
        "partitions": [{"name": "payments-0", "percent": 68.0, "bytes_per_s": 4.1e8, "eta_s": None,
                        "per_s": 4e4}],
    }  # fmt: skip
    view = page_of(catching_up=told)
    assert view.panels[0].id == "catching-up"
    assert view.panels[0].lines[1] == Line("payments-0", "68 %", note="410.0 MB/s", share=0.68)
    assert of_report(report(catching_up=told))["catch_up_per_s"] == 4e4


def test_a_report_of_another_version_still_shows_its_verdicts() -> None:
    view = page_of(recent_epochs=[{"what": "is this"}])
    assert [each.id for each in view.panels] == ["unreadable"]
    assert len(view.pipelines[0].verdicts) == 3
    assert of_report(report(operator={"state_bytes": "large"})) == {}


def test_an_old_report_is_unknown_and_its_failure_stays() -> None:
    sent = report(correct=FAIL)
    row = ReportRow("card-risk", NOW_MS - 60_000, msgspec.json.encode(sent).decode())
    seen = report_of(row, NOW_MS)
    assert (seen.correct.state, seen.recoverable.state, seen.fresh.state) == (
        "fail", "unknown", "unknown",
    )  # fmt: skip
    assert report_of(row._replace(report='{"name": 1}'), NOW_MS).correct.state == "unknown"
    assert report_of(row._replace(report="{"), NOW_MS).fresh.state == "unknown"


def test_no_line_of_a_pipeline_that_is_silent_stays_green() -> None:
    seen = pages.PipelinePage(report(), [], [], [], None)
    fresh = pages.pipeline(seen, NOW_MS)
    assert line(fresh, "correct", "sink alerts").mark == "ok"
    later = pages.pipeline(seen, NOW_MS + 60_000)
    cells = [cell for p in later.panels if p.table for row in p.table.rows for cell in row]
    assert "ok" not in {each.mark for p in later.panels for each in p.lines}
    assert "ok" not in {cell.mark for cell in cells}
    assert later.pipelines[0].state == "was running 1 min 1 s ago"


def test_the_timeline_tells_what_changed_between_two_reports() -> None:
    before = report()
    now = report(
        versions={"card-risk": 3}, state="waiting", correct=FAIL,
        supervisor={"restarts": 1, "last_cause": "killed by signal 9"},
    )  # fmt: skip
    told = [event.what for event in changes(before, now, NOW_MS)]
    assert told == [
        "waiting, was running",
        "card-risk v3 is live, v2 was",
        "started again: killed by signal 9",
        "correct: fail. The sink differs: 1 altered.",
    ]
    assert changes(now, now, NOW_MS) == []


def test_restores_stand_beside_what_was_estimated_of_them() -> None:
    far = Restored(NOW_MS - 60_000, 200.0, 100.0)
    (panel,) = (p for p in page_of(restores=[*report().restores, far]).panels if p.id == "restores")
    assert panel.table is not None
    cells = [[cell.text for cell in row[:4]] for row in panel.table.rows]
    assert cells == [
        ["1 min ago", "3 min 20 s", "1 min 40 s", "+100%"],
        ["1 h ago", "1 min 58 s", "2 min 5 s", "-6%"],
        ["not known", "3 min 10 s", "none", "–"],
    ]
    assert [row[3].mark for row in panel.table.rows] == ["warn", "ok", ""]
    assert of_report(report())["measured_s"] == 118.0


def test_drills_are_listed_newest_first_with_the_restore_beside_its_estimate() -> None:
    def result(name: str, at_ms: int, restore_s: float) -> Result:
        return Result(
            name, "catchwater", "pass", [], "it comes back", "one pipeline", [], ["killed it"],
            None, at_ms, 12.0, restore_s, 10.0,
        )  # fmt: skip

    results = {"1.json": result("kill-task", 1, 9.0), "2.json": result("zone", 2, 14.0)}
    view = pages.drills(pages.Drills(None, results), PageQuery(), NOW_MS)
    table = view.panels[0].table
    assert table is not None
    assert [row[0].text for row in table.rows] == ["zone", "kill-task"]
    assert [row[4].mark for row in table.rows] == ["warn", "ok"]
    assert pages.drill(results["1.json"], NOW_MS).panels[0].lines[0].mark == "ok"
    assert OK.state == "ok"
