"""Children are waited for, killed with all they started, and explained when they die."""

from pathlib import Path

import pytest

from catchwater.drill.processes import Child, ChildDied, ChildStuck


def test_a_child_that_ends_by_itself_is_explained_by_its_last_line(tmp_path: Path) -> None:
    with Child("doctor", ["doctor", "--check", "weather"], tmp_path / "log") as child:
        with pytest.raises(ChildDied, match=r"the doctor ended with exit code 2: .*'weather'"):
            child.wait_until(lambda: False, "foretold", 120)


def test_a_child_that_does_what_it_should_is_not_waited_for_longer(tmp_path: Path) -> None:
    with Child("doctor", ["--version"], tmp_path / "log") as child:
        child.wait_until(lambda: "catchwater" in (tmp_path / "log").read_text(), "told", 120)


def test_a_child_that_takes_too_long_is_stuck(tmp_path: Path) -> None:
    with Child("doctor", ["--version"], tmp_path / "log") as child:
        with pytest.raises(ChildStuck, match="has not told within 0 s"):
            child.wait_until(lambda: False, "told", 0)


def test_killing_leaves_nobody_and_may_be_repeated(tmp_path: Path) -> None:
    with Child("doctor", ["doctor"], tmp_path / "log") as child:
        child.kill()
        assert not child.running
        child.kill()
