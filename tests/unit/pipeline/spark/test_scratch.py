"""Folders on local disk that go with their owners, whatever ends those."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from catchwater.pipeline.run.driver import scratch

HOLDS = """
import subprocess, sys, tempfile
tempfile.tempdir = sys.argv[1]
from catchwater.pipeline.run.driver import scratch
from catchwater.pipeline.spark import session
session._MOST_BYTES = 1000
with scratch() as own:
    (own.path / "left").write_text("by Spark")
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[own.descriptor])
    print(own.path, child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("catchwater.pipeline.spark.session._MOST_BYTES", 1000)


def test_it_goes_with_all_that_is_in_it() -> None:
    with scratch() as own:
        (own.path / "blocks").mkdir()
        assert own.path.stat().st_mode & 0o077 == 0, "nobody else looks in"
        with scratch() as other:
            assert own.path.exists() and other.path != own.path, "a live one's stays"
    assert not own.path.exists() and not other.path.exists()


def test_what_a_killed_owner_left_goes_with_the_next_start_and_not_before_its_last_child(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        told = owner.stdout.readline().split()
        path, child = Path(told[0]), int(told[1])
        os.kill(child, signal.SIGSTOP)  # it would end with its standard input
        owner.kill()
    with scratch():
        assert (path / "left").exists(), "a JVM may outlive its driver"
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline
        with scratch():
            time.sleep(0.01)


def test_a_base_that_another_user_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 12345)
    (tmp_path / "catchwater-run-12345").mkdir()
    with scratch() as own:
        assert own.path.parent.name != "catchwater-run-12345"


def test_sockets_have_room_under_it_however_long_the_temporary_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with scratch() as own, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own.path / f".{uuid.UUID(int=1)}.sock"))
