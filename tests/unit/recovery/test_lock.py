"""A checkpoint belongs to one process at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.recovery.folder import SUPERVISOR, CheckpointInUse, Lock, holder, lock


def test_a_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        lock(tmp_path, clock),
        pytest.raises(CheckpointInUse, match=f"in use by process {os.getpid()}"),
        lock(tmp_path, clock),
    ):
        pass
    with lock(tmp_path, clock):
        assert holder(tmp_path) == os.getpid()


def test_the_supervisors_lock_is_another_one(tmp_path: Path) -> None:
    with lock(tmp_path, name=SUPERVISOR), lock(tmp_path, wait_s=0):
        assert holder(tmp_path, SUPERVISOR) == holder(tmp_path) == os.getpid()


def test_a_lock_that_nobody_holds_has_no_holder(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with lock(tmp_path):
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_a_child_that_inherited_the_file_before_it_was_locked_holds_it_too(tmp_path: Path) -> None:
    held = Lock(tmp_path)
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=[held.descriptor]) as child:
        held.acquire(wait_s=0)
        held.close()
        assert holder(tmp_path) == os.getpid()
        assert child.stdin is not None
        child.stdin.write(b"\n")
    assert holder(tmp_path) is None
