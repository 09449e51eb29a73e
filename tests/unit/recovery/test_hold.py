"""An epoch is held for as long as its holder lives, and no longer."""

import subprocess
import sys
from pathlib import Path

from catchwater.clock import Clock
from catchwater.recovery.folder import held, hold

HOLDER = """
import sys, pathlib
from catchwater.clock import SYSTEM
from catchwater.recovery.folder import hold
with hold(pathlib.Path(sys.argv[1]), 7, SYSTEM):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_epochs_are_held_until_they_are_let_go(tmp_path: Path) -> None:
    assert held(tmp_path) == []
    with hold(tmp_path, 3, Clock(1)), hold(tmp_path, 2, Clock(2)):
        assert held(tmp_path) == [2, 3]
    assert held(tmp_path) == []


def test_a_killed_holder_holds_nothing_and_its_litter_goes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert held(tmp_path) == [7]
        process.kill()
    assert held(tmp_path) == []
    assert list((tmp_path / "catchwater" / "holds").iterdir()) == []
