"""Keeping a checkpoint's epoch from being forgotten for as long as somebody reads it.

A pipeline sweeps state objects that no retained checkpoint needs. Who copies an epoch while the
pipeline goes on holds it: a file `catchwater/holds/<epoch>-<token>` under the operating system's
lock. The lock goes with its process, so nothing is held for ever; a file without a lock is litter.

A hold does not bring back what is gone: look once more, once it is held.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from catchwater.clock import Clock
from catchwater.recovery.ledger import FOLDER


@contextmanager
def hold(checkpoint: Path, epoch: int, clock: Clock) -> Iterator[None]:
    """Hold an epoch, and with it all later ones."""
    path = _folder(checkpoint) / f"{epoch}-{clock.token()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Locked under a name that nobody looks at: whoever sees the file sees it held.
    fresh = path.with_name(f".{path.name}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fresh.replace(path)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def held(checkpoint: Path) -> list[int]:
    """The epochs that are held now, oldest first; what dead processes left is removed."""
    epochs = []
    for path in sorted(_folder(checkpoint).glob("[0-9]*-*")):
        if _is_locked(path):
            epochs.append(int(path.name.partition("-")[0]))
        else:
            path.unlink(missing_ok=True)
    return sorted(epochs)


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _folder(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "holds"
