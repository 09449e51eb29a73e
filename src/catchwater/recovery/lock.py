"""One process at a time works on a checkpoint: a pipeline that runs, or a restore.

The lock is the operating system's (flock), so it goes with the process that holds it. A pipeline's
JVM inherits it from the driver: after a kill -9 the next start waits until the last task of the
old one is gone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER

WAIT_S = 20.0
"""Longer than a JVM takes to notice that its driver is dead."""


class CheckpointInUse(CatchwaterError):
    """Another process works on this checkpoint."""


@contextmanager
def lock(checkpoint: Path, clock: Clock = SYSTEM, *, wait_s: float = WAIT_S) -> Iterator[int]:
    """Hold the checkpoint; yields the descriptor for the JVM. Raises `CheckpointInUse`."""
    path = checkpoint / FOLDER / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(path, descriptor, clock, wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(path: Path, descriptor: int, clock: Clock, wait_s: float) -> None:
    deadline_s = clock.monotonic_s() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_s() > deadline_s:
                holder = path.read_text().strip() or "unknown"
                raise CheckpointInUse(
                    f"The checkpoint {path.parent.parent} is in use by process {holder}.",
                    hint="Stop that pipeline first (SIGTERM), or use another checkpoint.",
                ) from None
            clock.pause(0.1)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return
