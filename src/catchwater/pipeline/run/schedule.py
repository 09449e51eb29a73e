"""Savepoints on a schedule: `[recovery] savepoint_every`, and the newest `savepoint_keep` of them.

A thread of the driver's takes them, beside the epochs, into the file's place for savepoints. They
are named `<pipeline>-at-<UTC time>`; those of that form are its own, and no others are ever
deleted. When the next one is due their names say, so a start does not begin anew. What cannot be
taken is said and tried again, and fails no pipeline.

A stop cuts off one that is under way. What it leaves, or a process that died, is no savepoint, and
goes with the next turn: objects without a `savepoint.json`, a pin without a savepoint.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.recovery import handover, remote
from catchwater.recovery.checkpoint import last_commit
from catchwater.recovery.folder import key_part
from catchwater.recovery.savepoint.store import Shelf

_log = logging.getLogger("catchwater.pipeline")

AGAIN_S = 60.0
"""How soon what failed is tried again, if it is not due before."""
STOP_S = 10.0
"""For so long a stop waits for the object under way; the process may end without."""
LOOK_S = 5.0
"""How soon to look again where there is no epoch to save."""
_TIME = "%Y%m%dT%H%M%SZ"


class _Stopped(CatchwaterError):
    """The pipeline stops, so its savepoint is not finished."""


class Schedule:
    """The scheduled savepoints of one pipeline."""

    def __init__(self, pipeline: OpenPipeline, every_ms: int, keep: int, clock: Clock) -> None:
        self._pipeline = pipeline
        self._every_ms = every_ms
        self._keep = keep
        self._clock = clock
        self._prefix = f"{key_part(pipeline.name).lstrip('_-')}-at-"
        self._stopped = threading.Event()
        self._saved = -1
        """The epoch that was last saved here."""

    def run(self) -> None:
        """Take them until `stop`."""
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            try:
                wait_s = self.turn()
            except _Stopped:
                return
            except CatchwaterError as error:
                wait_s = min(AGAIN_S, self._every_ms / 1000)
                _log.warning(
                    "No savepoint was taken, it is tried again in %.0f s: %s", wait_s, error
                )

    def stop(self) -> None:
        """Take no more of them, and cut off one that is under way."""
        self._stopped.set()

    def turn(self) -> float:
        """Take one if it is due, and delete those beyond `keep`; after how long to look again."""
        folder = self._pipeline.config.checkpoint
        epoch = last_commit(folder)
        if epoch < 0 or epoch == self._saved or handover.is_shadow(folder, epoch):
            return min(LOOK_S, self._every_ms / 1000)
        shelf = self._pipeline.shelf()
        taken = self._tidied(shelf)
        now_ms = self._clock.now_ms()
        # One from the future says that a clock was wrong; it counts as taken now.
        newest_ms = min(now_ms, max((self._taken_ms(name) for name in taken), default=0))
        if (left_ms := newest_ms + self._every_ms - now_ms) > 0:
            return left_ms / 1000
        name = f"{self._prefix}{datetime.fromtimestamp(now_ms / 1000, UTC):{_TIME}}"
        made = self._pipeline.save(name, epoch, shelf, self._progress)
        self._saved = made.epoch
        _log.info("Savepoint %s: epoch %d, %d bytes.", name, made.epoch, made.size_bytes)
        for old in sorted([*taken, name])[: -self._keep]:
            self._delete(shelf, old)
        return self._every_ms / 1000

    def _tidied(self, shelf: Shelf) -> list[str]:
        """Those there are; what is left of others is deleted."""
        found = {name: whole for name, whole in shelf.found().items() if self._is_ours(name)}
        for name, whole in found.items():
            if not whole:
                self._delete(shelf, name)
        taken = [name for name, whole in found.items() if whole]
        control = self._pipeline.with_log().control
        pinned = self._pipeline.pin_id("")
        for pin in control.pins() if control else ():
            name = str(pin["id"]).removeprefix(pinned)
            if name != pin["id"] and self._is_ours(name) and name not in taken:
                self._pipeline.release(str(pin["id"]))
        return taken

    def _delete(self, shelf: Shelf, name: str) -> None:
        # A driver that stood still must not take what its successor is about to copy.
        remote.hold(self._pipeline.config.checkpoint)
        shelf.delete(name)
        self._pipeline.release(self._pipeline.pin_id(name))

    def _is_ours(self, name: str) -> bool:
        return bool(re.fullmatch(re.escape(self._prefix) + r"\d{8}T\d{6}Z", name))

    def _taken_ms(self, name: str) -> int:
        at = datetime.strptime(name.removeprefix(self._prefix), _TIME).replace(tzinfo=UTC)
        return int(at.timestamp() * 1000)

    def _progress(self, done: int, of: int) -> None:
        if self._stopped.is_set():
            raise _Stopped(f"The pipeline stops; {done} of {of} objects were copied.")


@contextmanager
def scheduled(pipeline: OpenPipeline, clock: Clock) -> Iterator[None]:
    """Take savepoints while this lasts, where the file asks for them."""
    config: PipelineConfig = pipeline.config
    if config.savepoint_every_ms is None or config.until is not None:  # a backfill's is no pipeline
        yield
        return
    # Of its own, for the thread asks the log beside the pipeline.
    own = OpenPipeline(config, pipeline.specs, clock=clock, timeout_s=pipeline.timeout_s)
    own.name = pipeline.name
    schedule = Schedule(own, config.savepoint_every_ms, config.savepoint_keep, clock)
    thread = threading.Thread(target=schedule.run, name="savepoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        schedule.stop()
        thread.join(STOP_S)
