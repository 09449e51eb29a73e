"""Stopping a pipeline that runs, from another process, and knowing whether one does."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.supervisor.supervise import STOP_S
from catchwater.recovery.lock import DRIVER, SUPERVISOR, holder

PATIENCE_S = STOP_S + 10
_POLL_S = 0.05


class NotStopped(CatchwaterError):
    """A pipeline that was asked to stop is still there."""

    exit_code = 124


def running(folder: Path) -> int | None:
    """The process to ask: the checkpoint's supervisor, else its driver; None if neither runs."""
    return holder(folder, SUPERVISOR) or holder(folder, DRIVER)


def halt(folder: Path, clock: Clock = SYSTEM, patience_s: float = PATIENCE_S) -> int | None:
    """Ask the process that runs the pipeline to stop, and wait until it has.

    Returns its id, None if there is none. Raises `NotStopped` if it takes too long.
    """
    asked = running(folder)
    if not asked:
        return None
    with suppress(ProcessLookupError):
        os.kill(asked, signal.SIGTERM)
    deadline_s = clock.monotonic_s() + patience_s
    while (left := running(folder)) is not None:
        if clock.monotonic_s() > deadline_s:
            raise NotStopped(
                f"Process {left} still works on {folder}, {patience_s:.0f} s after it was asked "
                "to stop.",
                hint="kill -9 it: the next start goes on from the last complete checkpoint.",
            )
        clock.pause(_POLL_S)
    return asked
