"""A driver process, from both ends of the pipe between it and its supervisor.

The supervisor starts each driver as the leader of a session of its own, so that everything it has
started (the JVM, Spark's Python daemon and its workers, each in a process group of its own) is
found again by the session's number and ended with it. Linux tells the session of a process in
/proc; elsewhere the process group is ended, and Python workers follow when their JVM is gone.

The driver gets ready (Python, Spark's session, Python workers) and reads its standard input. A line
means that the checkpoint is its own now; most get it at once, a warm spare when the driver before
it has died. The end of the input means that the supervisor is dead: the driver then ends its whole
process group, JVM included, at once. Recovery sees to what was under way. A driver that fails
leaves a `Report` in its checkpoint.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.workers import ended
from catchwater.recovery.ledger import FOLDER, read_json, write_whole

_GO = b"go\n"
_PROC = Path("/proc")
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass(frozen=True)
class Failure:
    """How a driver ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    message: str = ""
    """Of its error, where it could still say."""
    hint: str | None = None
    restart: Restart = Restart.AGAIN

    def __str__(self) -> str:
        if self.message:
            return self.message
        return f"The driver {ended(self.exit_code)}."


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
            self._process.stdin.write(_GO)
            self._process.stdin.flush()

    def ended(self) -> Failure | None:
        """How it ended (exit code 0 is no failure), None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        told = read_report(self._checkpoint, self.pid) if code else None
        if told is None:
            return Failure(code)
        return Failure(code, told.message, told.hint, told.restart)

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


class Report(msgspec.Struct, frozen=True):
    """Why a driver failed, for its supervisor and for `pipeline status`."""

    pid: int
    kind: str
    message: str
    hint: str | None
    exit_code: int
    restart: Restart = Restart.AGAIN


class Turn:
    """The end of the supervisor's pipe that the driver holds."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._come = threading.Event()
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    @property
    def come(self) -> bool:
        """Whether the supervisor has said go."""
        return self._come.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether the supervisor says go within so long."""
        return self._come.wait(timeout_s)

    def _listen(self) -> None:
        while os.read(self._descriptor, len(_GO)):
            self._come.set()
        end_group()


def end_group() -> None:
    """End this process and, where it leads its process group, all that it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def report(checkpoint: Path, error: CatchwaterError) -> None:
    """Leave word of why this process fails."""
    told = Report(
        os.getpid(),
        getattr(error, "kind", type(error).__name__),
        str(error),
        error.hint,
        error.exit_code,
        error.restart,
    )
    write_whole(_path(checkpoint), msgspec.json.encode(told))


def read_report(checkpoint: Path, pid: int) -> Report | None:
    """What the process of this id left, if it was the last to leave word."""
    told = read_json(_path(checkpoint), Report)
    return told if told is not None and told.pid == pid else None


def take_report(checkpoint: Path) -> Report | None:
    """What the last process to fail left, for the one that goes on in its place; read once."""
    try:
        return read_json(_path(checkpoint), Report)
    finally:
        _path(checkpoint).unlink(missing_ok=True)


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "failure.json"


class Stop:
    """Whether a signal has asked us to stop."""

    requested = False

    def __init__(self, woken: int | None = None) -> None:
        self._woken = woken
        """Readable when a signal has come; None: none will."""

    def pause(self, clock: Clock, seconds: float) -> None:
        """Block for so long; less where a signal asks us to stop, or a child ends."""
        clock.pause(seconds, self._woken)
        if self._woken is not None:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """Turn SIGTERM and Ctrl-C into a flag, for as long as this lasts. In the main thread only."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    stop = Stop(woken)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.requested = stop.requested or number != signal.SIGCHLD

    before = {number: signal.signal(number, ask) for number in _WAKING}
    woken_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
