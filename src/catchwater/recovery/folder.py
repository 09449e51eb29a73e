"""Who works on a checkpoint's folder, what is held of it, and where its objects lie.

**Locks.** One process at a time works on a checkpoint: a pipeline that runs, or a restore. The lock
is the operating system's (flock), so it goes with the process that holds it. A pipeline's JVM
inherits the open file from the driver, before or after it is locked: after a kill -9 the next start
waits until the last task of the old one is gone. A supervisor holds a lock of its own beside it for
as long as it watches.

**Holds.** A pipeline sweeps state objects that no retained checkpoint needs. A process that copies
an epoch while the pipeline goes on holds it: a file `catchwater/holds/<epoch>-<token>` under a lock
of its own, so nothing is held for ever; a file without a lock is litter. A hold does not bring back
what is gone: look once more, once it is held.

**Home.** The shards' state logs, and what sinks have staged, lie beside the ledger by default. A
pipeline may name another store (`[pipeline] state`), such as a bucket: then every checkpoint has a
folder of its own there, drawn once and kept in `home.json`, so that two checkpoints of one pipeline
never sweep each other's objects.

**A checkpoint at a URL** has a folder here that is scratch (`remote`): who takes its lock takes the
lease in the store as well, and the objects lie at the URL.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.objects.base import StoreError
from catchwater.objects.open import join
from catchwater.objects.retry import PATIENT, RetryPolicy
from catchwater.recovery import fenced, remote
from catchwater.recovery.ledger import FOLDER, read_json, shown, url_of, write_whole

WAIT_S = 20.0
"""Longer than a JVM takes to notice that its driver is dead."""
_POLL_S = 0.01
"""A spare's restart waits for it."""

_SOON = RetryPolicy(tries=2, total_s=2.0)

DRIVER = "lock"
"""The file that the process holds which works on the checkpoint."""
SUPERVISOR = "supervisor.lock"
"""The file that the process holds which starts such processes."""


class CheckpointInUse(CatchwaterError):
    """Another process works on this checkpoint."""

    restart = Restart.NEVER


class Lock:
    """A checkpoint's lock, opened and not yet held; hand `descriptor` to a JVM to hold it too."""

    def __init__(
        self,
        checkpoint: Path,
        name: str = DRIVER,
        clock: Clock = SYSTEM,
        *,
        lease_ms: int = fenced.LEASE_MS,
    ) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint / FOLDER / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._lease_ms = lease_ms if name == DRIVER else None
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)

    def acquire(self, wait_s: float = WAIT_S, *, lapsed: str = "") -> None:
        """Hold it. Raises `CheckpointInUse` when another process does for so long.

        And `LeaseHeld` where that one is on another machine, which works at the same URL; but see
        `remote.take` for `lapsed`.
        """
        deadline_s = self._clock.monotonic_s() + wait_s
        while not _try_lock(self.descriptor):
            if self._clock.monotonic_s() > deadline_s:
                raise CheckpointInUse(
                    f"The checkpoint {shown(self._checkpoint)} is in use by process "
                    f"{_pid_in(self._path) or 'unknown'}.",
                    hint="Stop that pipeline first (catchwater pipeline stop, or SIGTERM), or use "
                    "another checkpoint.",
                )
            self._clock.pause(_POLL_S)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)
        if self._lease_ms is not None:
            remote.take(self._checkpoint, self._clock, lease_ms=self._lease_ms, lapsed=lapsed)

    def close(self) -> None:
        """Let go of it."""
        if self._lease_ms is not None:
            remote.release(self._checkpoint)
        os.close(self.descriptor)


@contextmanager
def lock(
    checkpoint: Path, clock: Clock = SYSTEM, *, name: str = DRIVER, wait_s: float = WAIT_S
) -> Iterator[None]:
    """Hold the checkpoint for as long as the block lasts. Raises `CheckpointInUse`.

    At a URL, what the block has changed is published behind it, if it does not raise.
    """
    with closing(Lock(checkpoint, name, clock)) as held:
        held.acquire(wait_s)
        yield
        if name == DRIVER:
            remote.publish(checkpoint)


def refresh(checkpoint: Path, clock: Clock = SYSTEM, policy: RetryPolicy = PATIENT) -> None:
    """Bring the folder of a checkpoint at a URL up to date, unless a process here works on it.

    Raises `StoreError`, `LedgerDamaged`.
    """
    if url_of(checkpoint) is None:
        return
    path = checkpoint / FOLDER / DRIVER
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if _try_lock(descriptor):
            remote.refresh(checkpoint, clock, policy)
    finally:
        os.close(descriptor)


def refresh_soon(checkpoint: Path, clock: Clock = SYSTEM) -> str:
    """The same for those who would rather know less than wait: why it could not be done, if so."""
    try:
        refresh(checkpoint, clock, _SOON)
    except StoreError as error:
        read_ms = remote.read_ms(checkpoint)
        known = (
            f"What is known here was read {max(0, clock.now_ms() - read_ms) // 1000} s ago."
            if read_ms
            else "Nothing is known of it here."
        )
        return f"{shown(checkpoint)} cannot be read now: {error} {known}"
    return ""


def holder(checkpoint: Path, name: str = DRIVER) -> int | None:
    """The process that holds the lock, 0 if it does not say which, None if none does."""
    path = checkpoint / FOLDER / name
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(descriptor) else _pid_in(path)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(path: Path) -> int:
    text = path.read_bytes().strip()
    return int(text) if text.isdigit() else 0


@contextmanager
def hold(checkpoint: Path, epoch: int, clock: Clock) -> Iterator[None]:
    """Hold an epoch, and with it all later ones. Raises `ElsewhereInUse`."""
    remote.refuse_elsewhere(checkpoint, clock)
    path = _holds(checkpoint) / f"{epoch}-{clock.token()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Locked under a name that no process looks at: the file is never seen without its lock.
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
    for path in sorted(_holds(checkpoint).glob("[0-9]*-*")):
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


def _holds(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "holds"


STATE = "state"
"""The folder of the state logs; one folder a function in it."""


class StateElsewhere(CatchwaterError):
    """The pipeline's file names another store than the one the checkpoint's state lies in."""

    exit_code = 5


class _Home(msgspec.Struct, frozen=True):
    """`home.json`."""

    store: str
    """As the pipeline's file names it."""
    url: str
    """The checkpoint's own folder in it."""


def home_of(checkpoint: Path) -> str:
    """The URL of the checkpoint's object store."""
    kept = read_json(_home_file(checkpoint), _Home)
    if kept is not None:
        return kept.url
    return url_of(checkpoint) or (checkpoint / FOLDER).absolute().as_uri()


def claim_home(checkpoint: Path, store: str | None, pipeline: str, clock: Clock) -> str:
    """The URL of the checkpoint's object store, chosen at the first start.

    Raises `StateElsewhere` if the pipeline's file names another one now.
    """
    kept = read_json(_home_file(checkpoint), _Home)
    begun = (checkpoint / FOLDER / "beginning.json").exists()
    if kept is None and store is not None and not begun:
        name = f"{key_part(pipeline)}-{clock.token()[:8]}"
        kept = _Home(store, join(store, name))
        write_whole(_home_file(checkpoint), msgspec.json.encode(kept))
    if (kept.store if kept else None) != store:
        raise StateElsewhere(
            f"The state of the checkpoint {shown(checkpoint)} lies in "
            f"{kept.store if kept else 'the checkpoint itself'}, and the pipeline's file says "
            f"{store or 'nothing'}.",
            hint="Set state in [pipeline] back, or move the state through a savepoint.",
        )
    return home_of(checkpoint)


def adopt_home(checkpoint: Path, store: str | None) -> None:
    """Let the pipeline's file name this store from now on; the objects stay where they are."""
    kept = read_json(_home_file(checkpoint), _Home)
    if kept is not None and store is not None:
        write_whole(_home_file(checkpoint), msgspec.json.encode(_Home(store, kept.url)))


def state_folder(function: str) -> str:
    """Where in the checkpoint's store the state logs of a function lie."""
    return f"{STATE}/{key_part(function)}"


def key_part(name: str) -> str:
    """The name as it may stand in an object's key: what may not is spelled out in hex."""
    return re.sub(
        "[^A-Za-z0-9-]", lambda match: "".join(f"_{b:02x}" for b in match[0].encode()), name
    )


def _home_file(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "home.json"
