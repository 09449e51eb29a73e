"""A folder on local disk for what a process and its children leave while they run.

Spark's own files, sockets and notes of workers. It goes with its owner; of an owner that was killed
it is removed by whoever next makes one. It has an owner as long as anybody holds its lock: the
process that made it, and a child that was given the descriptor.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from catchwater.clock import SYSTEM, Clock

_LOCK = "lock"
_MOST_BYTES = 25
"""Of the temporary folder's path: sockets lie in the scratch folder, and theirs may have 103."""


@dataclass(frozen=True)
class Scratch:
    """One such folder."""

    path: Path
    descriptor: int
    """Of its lock, for children that are to own it, too."""


@contextmanager
def scratch(clock: Clock = SYSTEM) -> Iterator[Scratch]:
    """Make one, and remove those whose owners are dead. Gone in the end, whatever is in it."""
    base = _base()
    clear(base)
    # The lock is taken before the folder has the name by which others find it.
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=base))
    descriptor = os.open(fresh / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        path = fresh.rename(base / f"{os.getpid()}-{clock.token()[:6]}")
        try:
            yield Scratch(path, descriptor)
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def clear(base: Path) -> None:
    """Remove the folders there that nobody owns any more."""
    for folder in base.iterdir():
        if folder.name.startswith("."):
            continue  # being made
        with suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    """Of this user; where another has taken its name, one for this process alone."""
    within = tempfile.gettempdir()
    if len(os.fsencode(within)) > _MOST_BYTES and os.access("/tmp", os.W_OK):
        within = "/tmp"
    base = Path(within) / f"catchwater-run-{os.getuid()}"
    with suppress(FileExistsError):
        base.mkdir(mode=0o700)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="catchwater-run-"))
    return base
