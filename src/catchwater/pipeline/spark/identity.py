"""Which pipeline a checkpoint belongs to, and that only one process works on it.

State is found again by the function's name; it is read again by its version's class. So a
checkpoint is bound to the pipeline, function, version, state schema, shards, topics and sinks it
was begun with, and a start with others is refused before Spark touches anything. The code itself
may change: it has a hash of its own in every contract.

The lock is held by the driver and inherited by its JVM, so that after a kill -9 the next start
waits until the last task of the old one is gone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, read_json, write_whole

LOCK_WAIT_S = 20.0
"""Longer than a JVM takes to notice that its driver is dead."""


class CheckpointInUse(CatchwaterError):
    """Another process runs a pipeline on this checkpoint."""


class OtherPipeline(CatchwaterError):
    """The checkpoint was begun by a pipeline that this one cannot continue."""

    exit_code = 5


class Identity(msgspec.Struct, frozen=True):
    """What has to stay the same for the life of a checkpoint."""

    pipeline: str
    function: str
    version: int
    state_schema: str
    shards: int
    topics: list[str]
    sinks: dict[str, str]


_WORDS = {
    "pipeline": "the pipeline",
    "function": "the function",
    "version": "the function's version",
    "state_schema": "the schema of the function's state",
    "shards": "the number of shards",
    "topics": "the input",
    "sinks": "the sinks",
}


def claim(checkpoint: Path, identity: Identity) -> None:
    """Bind a new checkpoint to this pipeline. Raises `OtherPipeline` if it is bound to another."""
    path = checkpoint / FOLDER / "pipeline.json"
    bound = read_json(path, Identity)
    if bound is None:
        write_whole(path, msgspec.json.format(msgspec.json.encode(identity), indent=1))
        return
    for name, words in _WORDS.items():
        was, wanted = getattr(bound, name), getattr(identity, name)
        if was != wanted:
            raise OtherPipeline(
                f"The checkpoint {checkpoint} cannot be continued: {words} was {was} and is now "
                f"{wanted}. Its state would be lost or misread; nothing was changed.",
                hint="Start the old version again, or begin a new checkpoint in another folder.",
            )


@contextmanager
def lock(checkpoint: Path, clock: Clock) -> Iterator[int]:
    """Hold the checkpoint; yields the descriptor for the JVM. Raises `CheckpointInUse`."""
    path = checkpoint / FOLDER / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(path, descriptor, clock)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(path: Path, descriptor: int, clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_s() > deadline_s:
                holder = path.read_text().strip() or "unknown"
                raise CheckpointInUse(
                    f"The checkpoint {path.parent.parent} is in use by process {holder}.",
                    hint="Stop that pipeline first, or use another checkpoint.",
                ) from None
            clock.pause(0.1)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return
