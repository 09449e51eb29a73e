"""Driver processes as their supervisor sees them: started, told to go, asked to stop, ended whole.

Each driver leads a session of its own, so that everything it has started (the JVM, Spark's Python
daemon and its workers, each in a process group of its own) is found again by the session's number
and ended with it. Linux tells the session of a process in /proc; elsewhere the process group is
ended, and Python workers follow when their JVM is gone.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.supervisor.restarts import Failure
from catchwater.pipeline.supervisor.spare import GO, read_report

_PROC = Path("/proc")


class DriverProcess:
    """One driver, from its start until all of it is gone."""

    def __init__(self, command: Sequence[str], checkpoint: Path, clock: Clock = SYSTEM) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.pid = self._process.pid

    def go(self) -> None:
        """Give it its turn."""
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):  # it has died: `ended` says how
            self._process.stdin.write(GO)
            self._process.stdin.flush()

    def ended(self) -> Failure | None:
        """How it ended (exit code 0 is no failure), None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        told = read_report(self._checkpoint, self.pid) if code else None
        if told is None:
            return Failure(code)
        return Failure(code, told.kind, told.message, told.hint)

    def stop(self) -> None:
        """Ask it to finish its epoch and end."""
        self._process.terminate()

    def end(self) -> None:
        """End it and all that it has started, and wait until they are gone."""
        while alive := list(_session(self.pid)):
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            self._clock.pause(0.002)
        self._process.wait()
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()


def _session(leader: int) -> Iterator[int]:
    """The live processes of a session, where the system tells; else its leader, if it lives."""
    if not (_PROC / "self" / "stat").exists():
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        return
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    yield int(entry.name)
