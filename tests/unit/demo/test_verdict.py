"""What the sink lacks or has too often is counted, and decides."""

from dataclasses import replace

import pytest

from catchwater.cli.demo import _findings
from catchwater.demo.verdict import Verdict

GOOD = Verdict(
    events=10, alerts=2, rows=2, missing=0, duplicate=0, duplicates_dropped=1,
    duplicates_expected=1, late_dropped=3, late_expected=3, kills=2, restore_s=5.0,
    estimate_s=None, seconds=60.0,
)  # fmt: skip


def test_a_sink_that_holds_every_row_once_is_correct() -> None:
    assert GOOD.correct


@pytest.mark.parametrize("field", ["missing", "duplicate", "duplicates_dropped", "late_dropped"])
def test_any_other_count_is_not_correct(field: str) -> None:
    assert not replace(GOOD, **{field: 7}).correct


def test_the_summary_holds_exactly_what_the_command_promises() -> None:
    assert list(GOOD.summary()) == [
        "events", "alerts", "duplicates_dropped", "missing", "duplicate",
        "kills", "restore_s", "estimate_s", "seconds",
    ]  # fmt: skip


def test_what_the_contract_foretold_is_told_or_why_it_foretold_nothing() -> None:
    foretold = dict(_findings(replace(GOOD, estimate_s=6.0)))["restore"]
    assert foretold == "5.0 s measured, 6.0 s estimated by the contract"
    never = dict(_findings(GOOD))["restore"]
    assert never == "5.0 s measured, none estimated: input came faster than it was read"
