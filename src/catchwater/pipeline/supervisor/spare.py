"""A driver under a supervisor: it waits for its turn, dies with its supervisor, says why it failed.

Every supervised driver is started in the same way: it gets ready (Python, Spark's session, Python
workers) and reads its standard input. A line means that the checkpoint is its own now; most get it
at once, a warm spare when the driver before it has died. The end of the input means that the
supervisor is dead: the driver then ends its whole process group, JVM included, at once. Recovery
sees to what was under way.

Relies on the supervisor to start it in a session of its own.
"""

import os
import signal
import threading
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, read_json, write_whole

GO = b"go\n"


class Report(msgspec.Struct, frozen=True):
    """Why a driver failed, for its supervisor and for `pipeline status`."""

    pid: int
    kind: str
    message: str
    hint: str | None
    exit_code: int


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
        while os.read(self._descriptor, len(GO)):
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
