"""The three verdicts: what each rests on, and that what is not known is never ok."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from catchwater import verdicts
from catchwater.verdicts import Checked, Compared, Freshness, Lag, Verdict

NOW_MS = 1_000_000_000
GOOD = Compared("alerts", NOW_MS, 100, first_epoch=0, last_epoch=9)


def correct(*compared: Compared, sinks: Any = ("alerts",), **other: Any) -> Verdict:
    known: dict[str, Any] = {"poisoned": 0, "runs": True, "now_ms": NOW_MS, "file": "cards.toml"}
    return verdicts.correct(sinks, compared, **{**known, **other})


def changed(compared: Compared, **fields: Any) -> Compared:
    return msgspec.structs.replace(compared, **fields)


@pytest.mark.parametrize(
    ("verdict", "state", "says"),
    [
        (correct(GOOD), "ok", "100 of 100 rows that were compared are there once."),
        (correct(changed(GOOD, rows=0)), "ok", "No rows were put out in the epochs that were"),
        (correct(), "unknown", "The sink alerts has not been compared with what was put out."),
        (correct(GOOD, sinks=("alerts", "late")), "unknown", "The sink late has not been"),
        (correct(changed(GOOD, missing=1)), "fail", "put out: 1 missing."),
        (correct(changed(GOOD, altered=2, foreign=1)), "fail", "2 altered, 1 foreign."),
        (correct(changed(GOOD, doubled=1)), "fail", "1 doubled."),
        (correct(changed(GOOD, doubled=1, exactly_once=False)), "warn", "1 doubled."),
        (correct(changed(GOOD, lost=3)), "fail", "has lost 3 epochs."),
        (correct(changed(GOOD, problem="No route.")), "unknown", "compared: No route."),
        (correct(GOOD, poisoned=1), "warn", "1 record was not handled."),
        (correct(changed(GOOD, checked_ms=NOW_MS - 601_000)), "unknown", "compared 10 min"),
        (correct(changed(GOOD, checked_ms=NOW_MS - 601_000, every_s=400.0)), "ok", "100 of"),
        (correct(changed(GOOD, checked_ms=0), runs=False), "ok", "100 of 100"),
        (correct(Compared("alerts", NOW_MS)), "unknown", "Nothing was put out yet"),
    ],
)  # fmt: skip
def test_correct_is_what_the_last_comparison_of_every_sink_found(
    verdict: Verdict, state: str, says: str
) -> None:
    assert (verdict.state, says in verdict.reason) == (state, True), verdict
    assert verdict.next.startswith("catchwater ")
    assert "cards.toml" in verdict.next


def recoverable(*checks: Checked, **other: Any) -> Verdict:
    known: dict[str, Any] = {
        "estimate": "2.1 s", "broken": {}, "newest": 7, "unknown": None, "file": "cards.toml",
    }  # fmt: skip
    return verdicts.recoverable(checks, **{**known, **other})


PINNED, IN_TIME = Checked("pass", "pin", "holds"), Checked("pass", "restore", "2.1 s of 60 s")


@pytest.mark.parametrize(
    ("verdict", "state", "says"),
    [
        (recoverable(PINNED, IN_TIME), "ok", "a restore takes 2.1 s."),
        (recoverable(Checked("warn", "pin", "there is no pin"), IN_TIME), "warn", "pin: there is"),
        (recoverable(PINNED, Checked("fail", "restore", "61 s of 60 s")), "fail", "restore: 61 s"),
        (recoverable(PINNED, broken={3: "a file is missing."}), "warn", "checkpoint 3 is damaged"),
        (recoverable(PINNED, broken={7: "a file is missing."}), "fail", "newest checkpoint, 7"),
        (recoverable(PINNED, unknown="no broker answers"), "unknown", "no broker answers."),
        (
            recoverable(Checked("fail", "restore", "too slow"), unknown="no broker answers"),
            "fail", "too slow",
        ),
        (verdicts.recoverable(
            None, estimate="", broken={}, newest=None, unknown=None, file="cards.toml"
        ), "unknown", "no checkpoint"),
    ],
)  # fmt: skip
def test_recoverable_is_what_the_contract_says_and_the_log_still_holds(
    verdict: Verdict, state: str, says: str
) -> None:
    assert (verdict.state, says in verdict.reason) == (state, True), verdict
    assert "cards.toml" in verdict.next


@dataclass
class Case:
    state: str
    says: str
    lag: Lag
    pipeline: str = "running"
    max_staleness_s: float = 60.0
    is_declared: bool = True
    epoch_s: float | None = 1.0
    trigger_s: float | None = None
    under_way_s: float | None = None


FRESH = [
    Case("ok", "All input is processed.", Lag(0, 0.0)),
    Case("ok", "2.5 s behind, 1 min are promised.", Lag(9, 2.5)),
    Case("ok", "are allowed by default", Lag(9, 2.5), is_declared=False),
    Case("warn", "50 s behind", Lag(9, 50.0)),
    Case("fail", "1 min 1 s behind, 1 min are promised.", Lag(9, 61.0)),
    Case("fail", "the epoch under way has taken 2 min so far", Lag(9, 61.0), under_way_s=120.0),
    Case("unknown", "no broker answers", Lag(unknown="no broker answers")),
    Case("unknown", "age is not known", Lag(9)),
    Case("warn", "nothing runs (stopped)", Lag(0, 0.0), "stopped"),
    Case("fail", "nothing runs (killed)", Lag(9, 90.0), "killed"),
    Case("unknown", "Another machine", Lag(0, 0.0), "elsewhere"),
    Case("warn", "an epoch takes 12 s of 10 s", Lag(9, 2.0), epoch_s=12.0, trigger_s=10.0),
    Case("ok", "behind", Lag(9, 2.0), epoch_s=8.0, trigger_s=10.0),
]


@pytest.mark.parametrize("case", FRESH, ids=lambda case: f"{case.state} {case.says}")
def test_fresh_is_a_promise(case: Case) -> None:
    freshness = Freshness(
        case.max_staleness_s, case.is_declared, case.lag.seconds, 1.0, case.epoch_s,
        case.trigger_s, case.under_way_s,
    )  # fmt: skip
    verdict = verdicts.fresh(case.pipeline, case.lag, freshness, file="cards.toml")
    assert (verdict.state, case.says in verdict.reason) == (case.state, True), verdict
    assert "cards.toml" in verdict.next


def test_an_old_report_is_unknown_but_a_failure_stays_one() -> None:
    report = {
        "name": "cards", "committed_epoch": 7,
        "correct": {"state": "fail", "reason": "1 missing.", "next": "a"},
        "recoverable": {"state": "ok", "reason": "All is there.", "next": "b"},
        "fresh": {"state": "warn", "reason": "Late.", "next": "c"},
    }  # fmt: skip
    assert verdicts.as_seen(report, 19.0) == report
    seen = verdicts.as_seen(report, 42.0)
    assert seen["correct"] == report["correct"]
    assert seen["recoverable"] == {
        "state": "unknown",
        "reason": "The pipeline has not reported for 42 s; it was ok then.",
        "next": "b",
    }
    assert (seen["fresh"]["state"], seen["committed_epoch"]) == ("unknown", 7)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0 s"), (2.54, "2.5 s"), (41.2, "41 s"), (60, "1 min"), (125, "2 min 5 s"),
     (3600, "1 h"), (3720, "1 h 2 min"), (200_000, "2 d"), (59.9, "1 min")],
)  # fmt: skip
def test_a_time_is_spelled_in_two_units_at_most(seconds: float, text: str) -> None:
    assert verdicts.spelled_s(seconds) == text
