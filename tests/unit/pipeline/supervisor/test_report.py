"""What a failing driver leaves for those after it."""

import os
from pathlib import Path

from catchwater.config import CatchwaterError, ConfigError, Restart
from catchwater.pipeline.run.driver import read_report, report, take_report


def test_a_report_is_of_the_process_that_left_it(tmp_path: Path) -> None:
    assert read_report(tmp_path, os.getpid()) is None
    report(tmp_path, ConfigError("No such topic.", hint="Make it."))
    told = read_report(tmp_path, os.getpid())
    assert told is not None
    assert (told.kind, told.message, told.hint, told.exit_code) == (
        "ConfigError", "No such topic.", "Make it.", 2,
    )  # fmt: skip
    assert read_report(tmp_path, os.getpid() + 1) is None


def test_an_error_may_stand_for_another_kind(tmp_path: Path) -> None:
    error = CatchwaterError("The pipeline failed: offsets/3 is broken.")
    error.kind = "LedgerDamaged"  # type: ignore[attr-defined]
    error.restart = Restart.FALL_BACK
    report(tmp_path, error)
    told = take_report(tmp_path)
    assert told is not None
    assert (told.kind, told.restart) == ("LedgerDamaged", Restart.FALL_BACK)
    assert take_report(tmp_path) is None, "it is read once"
