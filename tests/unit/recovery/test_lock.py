"""A checkpoint belongs to one process at a time."""

import os
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.recovery.lock import CheckpointInUse, lock


def test_a_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        lock(tmp_path, clock),
        pytest.raises(CheckpointInUse, match=f"in use by process {os.getpid()}"),
        lock(tmp_path, clock),
    ):
        pass
    with lock(tmp_path, clock) as descriptor:
        assert descriptor > 2
