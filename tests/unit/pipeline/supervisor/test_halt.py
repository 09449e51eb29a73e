"""Stopping what runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.pipeline.supervise import NotStopped, halt, running

RUNS = """
import signal, sys
from pathlib import Path
from catchwater.recovery.folder import lock
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with lock(Path({folder!r}), name={name!r}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["lock", "supervisor.lock"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False])
def deaf(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def holding(tmp_path: Path, name: str, deaf: bool) -> Iterator[int]:
    program = RUNS.format(folder=str(tmp_path), name=name, deaf=deaf)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.kill()


def test_what_runs_is_asked_and_waited_for(tmp_path: Path, holding: int) -> None:
    assert running(tmp_path) == holding
    assert halt(tmp_path) == holding
    assert running(tmp_path) is None
    assert halt(tmp_path) is None


@pytest.mark.parametrize("deaf", [True], indirect=True)
def test_what_does_not_stop_is_named(tmp_path: Path, holding: int) -> None:
    with pytest.raises(NotStopped, match=f"Process {holding} still works on"):
        halt(tmp_path, ManualClock())
