"""Child processes that a demo or a drill starts, kills without warning, and never leaves behind.

Each child leads a process group of its own, so that killing a pipeline takes its JVM with it. What
a child says goes to a log file, whose last line explains a death nobody asked for.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError

CATCHWATER = (sys.executable, "-c", "from catchwater.cli import main; main()")
"""The command, as this very installation has it."""
POLL_S = 0.02
STOP_S = 180.0
"""How long a child may take to end after SIGTERM."""


class ChildDied(CatchwaterError):
    """A child process ended by itself."""


class ChildStuck(CatchwaterError):
    """A child process did not get as far as it should in time."""

    exit_code = 124


class Child:
    """One command in a process group of its own; ended when the block is left.

    The command is one of `catchwater` unless another program is named; `marks` are added to its
    environment, and to that of all it starts.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        clock: Clock = SYSTEM,
        *,
        program: Sequence[str] = CATCHWATER,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        self._clock = clock
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*program, *arguments],
                env={**os.environ, **(marks or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the whole group at once, as a power cut would. Harmless when it has ended."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask the process to end and wait for it. Raises `ChildStuck`, `ChildDied`."""
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise self._stuck(f"did not stop within {STOP_S:.0f} s") from None
        if code not in (0, -signal.SIGTERM):
            raise self._died()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has done what it was started for. Raises `ChildStuck`, `ChildDied`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._stuck(f"has not ended within {timeout_s:.0f} s") from None
        if code:
            raise self._died()

    def wait_until(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for something this child is to bring about. Raises `ChildStuck`, `ChildDied`."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not done():
            if not self.running and not done():
                raise self._died()
            if self._clock.monotonic_s() > deadline_s:
                raise self._stuck(f"has not {what} within {timeout_s:.0f} s")
            self._clock.pause(POLL_S)

    def said(self) -> list[str]:
        """The lines of its log."""
        return self._log.read_text(errors="replace").strip().splitlines()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # the whole group has ended

    def _died(self) -> ChildDied:
        return ChildDied(
            f"the {self.name} ended with exit code {self._process.returncode}: {self._last_line()}",
            hint=f"read {self._log}",
        )

    def _stuck(self, what: str) -> ChildStuck:
        return ChildStuck(f"the {self.name} {what}: {self._last_line()}", hint=f"read {self._log}")

    def _last_line(self) -> str:
        """The child's error if it named one, else the last thing it said."""
        lines = self.said()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1]
