"""Who changes the version of a checkpoint does so alone."""

import os
from pathlib import Path

import pytest

from catchwater.clock import Clock
from catchwater.recovery import handover
from catchwater.recovery.folder import lock
from catchwater.recovery.handover import AnotherChange, alone, forget_dead_shadow, stopped


def test_the_second_is_told_of_the_first_and_the_pipeline_may_run(tmp_path: Path) -> None:
    with alone(tmp_path, Clock(1)), lock(tmp_path, wait_s=0):
        with pytest.raises(AnotherChange, match=f"Process {os.getpid()} is upgrading"):
            with alone(tmp_path, Clock(1)):
                pass
    with alone(tmp_path, Clock(1)):
        pass


def test_what_asked_to_take_over_and_is_gone_is_forgotten(tmp_path: Path) -> None:
    handover.ask(tmp_path, tmp_path / "gone")
    with stopped(tmp_path, Clock(1)):
        assert handover.fenced_by(tmp_path) is None


@pytest.mark.parametrize("closed", [False, True])
def test_who_has_been_replaced_is_left_alone(tmp_path: Path, closed: bool) -> None:
    (handover.replace if closed else handover.ask)(tmp_path, tmp_path / "new")
    if not closed:
        handover.hand_over(tmp_path, 3)
    with pytest.raises(handover.HandedOver), stopped(tmp_path, Clock(1)):
        pass
    assert handover.fenced_by(tmp_path) == tmp_path / "new"


def test_a_start_goes_on_where_the_successor_is_dead_and_hands_over_where_it_lives(
    tmp_path: Path,
) -> None:
    handover.ask(tmp_path, tmp_path / "new")
    with alone(tmp_path, Clock(1)):
        forget_dead_shadow(tmp_path)
        assert handover.fenced_by(tmp_path) == tmp_path / "new"
    forget_dead_shadow(tmp_path)
    assert handover.fenced_by(tmp_path) is None
    handover.replace(tmp_path, tmp_path / "new")
    with pytest.raises(handover.HandedOver):
        forget_dead_shadow(tmp_path)
