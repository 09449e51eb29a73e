"""One process at a time works on a checkpoint: a pipeline that runs, or a restore.

The lock is the operating system's (flock), so it goes with the process that holds it. A pipeline's
JVM inherits the open file from the driver, before or after it is locked: after a kill -9 the next
start waits until the last task of the old one is gone. A supervisor holds a lock of its own beside
it for as long as it watches.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.recovery.ledger import FOLDER

WAIT_S = 20.0
"""Longer than a JVM takes to notice that its driver is dead."""
_POLL_S = 0.01
"""A spare's restart waits for it."""

DRIVER = "lock"
"""The file that the process holds which works on the checkpoint."""
SUPERVISOR = "supervisor.lock"
"""The file that the process holds which starts such processes."""


class CheckpointInUse(CatchwaterError):
    """Another process works on this checkpoint."""

    restart = Restart.NEVER


class Lock:
    """A checkpoint's lock, opened and not yet held; hand `descriptor` to a JVM to hold it too."""

    def __init__(self, checkpoint: Path, name: str = DRIVER, clock: Clock = SYSTEM) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint / FOLDER / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)

    def acquire(self, wait_s: float = WAIT_S) -> None:
        """Hold it. Raises `CheckpointInUse` when somebody else does for so long."""
        deadline_s = self._clock.monotonic_s() + wait_s
        while not _try(self.descriptor):
            if self._clock.monotonic_s() > deadline_s:
                raise CheckpointInUse(
                    f"The checkpoint {self._checkpoint} is in use by process "
                    f"{_told(self._path) or 'unknown'}.",
                    hint="Stop that pipeline first (catchwater pipeline stop, or SIGTERM), or use "
                    "another checkpoint.",
                )
            self._clock.pause(_POLL_S)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


@contextmanager
def lock(
    checkpoint: Path, clock: Clock = SYSTEM, *, name: str = DRIVER, wait_s: float = WAIT_S
) -> Iterator[None]:
    """Hold the checkpoint for as long as the block lasts. Raises `CheckpointInUse`."""
    with closing(Lock(checkpoint, name, clock)) as held:
        held.acquire(wait_s)
        yield


def holder(checkpoint: Path, name: str = DRIVER) -> int | None:
    """The process that holds the lock, 0 if it does not say which, None if nobody does."""
    path = checkpoint / FOLDER / name
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return None if _try(descriptor) else _told(path)
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _told(path: Path) -> int:
    said = path.read_bytes().strip()
    return int(said) if said.isdigit() else 0
