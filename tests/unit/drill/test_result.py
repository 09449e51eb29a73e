"""Findings and budgets become verdicts, and nothing is green by default."""

from pathlib import Path

import pytest

from catchwater.drill.result import (
    BadBudget,
    Budget,
    Finding,
    Result,
    Verdict,
    at_most,
    foretold,
    load_results,
    read_budgets,
    verdict_of,
    write_result,
)


def finding(verdict: Verdict) -> Finding:
    return Finding("it", verdict, 1, 1, "")


@pytest.mark.parametrize(
    ("of", "is_"),
    [
        ([], "unknown"),
        (["pass"], "pass"),
        (["pass", "warn"], "warn"),
        (["warn", "unknown"], "unknown"),
        (["unknown", "pass", "fail"], "fail"),
    ],
)
def test_the_worst_finding_is_the_verdict_and_none_is_unknown(of: list[Verdict], is_: str) -> None:
    assert verdict_of([finding(each) for each in of]) == is_


def test_a_measurement_beyond_its_budget_fails() -> None:
    assert at_most("x", 2, 2, "s").verdict == "pass"
    assert at_most("x", 2.01, 2, "s").verdict == "fail"


@pytest.mark.parametrize(
    ("measured", "low", "high", "verdict"),
    [(5, 4, 6, "pass"), (3, 4, 6, "pass"), (7, 4, 6, "warn"), (7, 4, None, "pass"),
     (7, None, None, "warn")],
)  # fmt: skip
def test_a_restore_that_takes_longer_than_was_estimated_warns(
    measured: float, low: float | None, high: float | None, verdict: str
) -> None:
    assert foretold(measured, low, high).verdict == verdict


def test_a_budget_is_everybodys_or_one_drills(tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_text('[budget]\nrestore = "2m"\nmissing = 1\n[budget.b]\nrestore = "90s"\n')
    budgets = read_budgets(path, ["a", "b"])
    assert budgets == {
        "a": Budget(restore_s=120.0, missing=1),
        "b": Budget(restore_s=90.0, missing=1),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[budget]\nrestor = '2m'", "no budget 'restor'"),
        ("[budget.c]\nrestore = '2m'", "no drill 'c'"),
        ("[budget]\nrestore = 'soon'", "restore"),
        ("[budget]\nmissing = -1", "a number from 0 on"),
        ("[other]\n", "belongs into"),
        ("[budget", "cannot be read"),
    ],
)
def test_a_budget_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(text)
    with pytest.raises(BadBudget, match=message):
        read_budgets(path, ["a", "b"])


def test_results_are_kept_in_their_order_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    for started_ms in (20, 3):
        result = Result("d", "p", "pass", [], "h", "b", [], [], None, started_ms, 1.0)
        write_result(tmp_path, result)
    (tmp_path / "4-p-d.json").write_text("{")
    results, damaged = load_results(tmp_path)
    assert [each.started_ms for each in results.values()] == [3, 20]
    assert [path.name for path in damaged] == ["4-p-d.json"]
