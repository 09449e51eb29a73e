"""The pages of pipelines as records: what is unknown stays so, and what needs somebody is first."""

import msgspec
import pytest
from tests.unit.web.reports import NOW_MS, OK, report

from catchwater.catalog.rows import ReportRow
from catchwater.drill.result import Result
from catchwater.verdicts import Compared, Freshness, Lag, Restored, Verdict
from catchwater.web import of_pipelines as pages
from catchwater.web.facts import TopicFact, report_of
from catchwater.web.sampler import changes, failing, of_report
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


def test_topics_that_are_written_to_are_shown_busiest_first_and_unknown_is_not_nothing() -> None:
    def busy(*rates: float | None) -> tuple[list[str], str]:
        topics = [TopicFact(f"t{at}", 1, 5, 9, 99, -1, {}, rate) for at, rate in enumerate(rates)]
        view = pages.overview(pages.Overview([], [], [], [], topics), NOW_MS)
        (table,) = (p.table for p in view.panels if p.id == "busy" and p.table)
        return [row[0].text for row in table.rows], table.empty

    assert busy(1.0, 0.0, 9.0)[0] == ["t2", "t0"]
    assert busy(0.0) == ([], "Nothing is written at the moment.")
    assert busy(None) == ([], "That is known in a moment.")
    assert busy() == ([], "There are no topics yet.")


def test_a_verdict_shows_how_much_of_its_promise_is_used_and_how_that_came() -> None:
    hour = [None, 1.0, 2.0]
    kept = {"pipeline/card-risk/lag_s": hour, "pipeline/card-risk/staleness_s": [45.0]}
    trends = pages.trends_of("card-risk", lambda series: kept.get(series, [None]))
    shown = pages.head(report(), NOW_MS, trends).verdicts
    assert [each.share for each in shown] == [
        None,
        pytest.approx(130 / 600),
        pytest.approx(2.5 / 45),
    ]
    assert shown[2].trend is not None
    assert (shown[2].trend.values, shown[2].trend.most) == (hour, 45.0)
    unknown = pages.head(report(fresh=UNKNOWN), NOW_MS, trends).verdicts[2]
    assert unknown.share is None, "what is unknown has no share"


def test_what_keeps_the_log_and_what_is_to_be_read_again_is_said() -> None:
    pin = {"verdict": "warn", "subject": "pin", "message": "nothing keeps the log: no pin"}
    restore = {"seconds": 9.0, "recovery_point_s": 4.0, "replay_records": 1_100_000,
               "replay_bytes": 214 << 20}  # fmt: skip
    view = page_of(checks=[pin], restore=restore, history_margin_s=7200.0)
    kept = line(view, "recover", "the log keeps it")
    assert (kept.text, kept.mark) == ("barely", "warn")
    assert kept.note == "nothing keeps the log: no pin; 2 h of input more than is needed"
    assert (
        line(view, "recover", "to be read again").note == "214.0 MiB, 1\u202f100\u202f000 records"
    )


@pytest.mark.parametrize(
    ("runbook", "href"),
    [("https://wiki/cards", "https://wiki/cards"), ("javascript:alert(1)", ""), ("page 7", "")],
)
def test_a_runbook_is_the_first_thing_that_is_said_of_what_could_stop_it(
    runbook: str, href: str
) -> None:
    (panel,) = (each for each in page_of(runbook=runbook).panels if each.id == "stop")
    assert panel.lines[0] == Line("runbook", runbook, href=href)


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
    assert [event.command for event in changes(before, now, NOW_MS)] == ["", "", "", FAIL.next]
    assert changes(now, before, NOW_MS)[-1].command == "", "what is good needs nothing"
    assert [event.what for event in failing(now, NOW_MS)] == told[-1:]
    assert failing(before, NOW_MS) == []


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
