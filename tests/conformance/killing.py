"""A real broker that is killed without warning, with strace to say before which system call."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.ports import free_port

Tracer = subprocess.Popen[bytes]
PATIENCE_S = 60.0


class Broker:
    """Restarted at once and killed without warning."""

    def __init__(self, home: Path, more: Mapping[str, str]) -> None:
        """`more` settings than where it listens and where its data is."""
        self.ready_file = home / "ready.json"
        self.port = free_port()
        settings = {
            "listeners": f"127.0.0.1:{self.port}",
            "catchwater.control.listener": "127.0.0.1:0",
            "catchwater.ready.file": str(self.ready_file),
            "log.dirs": str(home / "data"),
        } | dict(more)
        self.log_file = home / "log"
        with self.log_file.open("wb") as log:
            self.parent = self._spawn(settings, log)
        self.pid = 0

    @staticmethod
    def _spawn(settings, log) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("forking_broker.py"))),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def start(self, tracing: Callable[[int], Tracer] | None = None) -> Tracer | None:
        """Wait until it is ready or, under a tracer, has ended before it was."""
        self.ready_file.unlink(missing_ok=True)
        self._say()
        self.pid = int(self.parent.stdout.readline())
        tracer = tracing(self.pid) if tracing else None
        self._say()
        deadline = time.monotonic() + PATIENCE_S
        while not self.ready_file.exists():
            assert time.monotonic() < deadline, self.log_file.read_text()[-3000:]
            if not Path(f"/proc/{self.pid}").exists():
                assert tracer is not None, self.log_file.read_text()[-3000:]
                return tracer
            time.sleep(0.002)
        return tracer

    def _say(self) -> None:
        self.parent.stdin.write("\n")
        self.parent.stdin.flush()

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # strace was faster
        self.parent.stdout.readline()
        self.pid = 0

    def close(self) -> None:
        if self.pid:
            self.kill()
        self.parent.stdin.close()
        self.parent.wait(PATIENCE_S)
        self.parent.stdout.close()


def trace(pid: int, *options: str) -> Tracer:
    """strace on all threads of the process, present and future; returns once it has them all."""
    command = ("strace", "-f", "-qq", "-p", str(pid), *options)
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not _has_all(pid):
        assert time.monotonic() < deadline, "strace cannot attach"
        time.sleep(0.002)
    return tracer


def _has_all(pid: int) -> bool:
    """Whether every thread of the process is traced, or it has ended."""
    try:
        tasks = Path(f"/proc/{pid}/task").glob("*/status")
        return not any("TracerPid:\t0\n" in each.read_text() for each in tasks)
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
        return False
