"""What a driver does beside its query, each in a thread of its own: report, compare, save.

- Find out the pipeline's status (`pipeline.status`) every few seconds and soon after each commit,
  move the gauges, and report to the log's control API, so that a query that is stuck is seen to be.
  A log without that API, as another Kafka is, is not reported to.
- Compare the newest rows of every sink with what was put out, for one percent of the time.
- Take savepoints on a schedule (`[recovery] savepoint_every`), the newest `savepoint_keep` of them,
  into the file's place for savepoints. They are named `<pipeline>-at-<UTC time>`; those of that
  form are its own, and no others are ever deleted. When the next one is due their names say, so a
  start does not begin anew. A stop cuts off one that is under way; what that leaves, or a process
  that died, is no savepoint, and goes with the next turn: objects without a `savepoint.json`, a pin
  without a savepoint.

None of them ever fails the pipeline: what could not be done is logged when that begins, and tried
again.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.status import LogWatch, status_of
from catchwater.recovery import checkpoint, handover, remote
from catchwater.recovery.folder import key_part
from catchwater.recovery.intact import Look, look
from catchwater.recovery.ledger import FOLDER
from catchwater.recovery.savepoint.store import Shelf
from catchwater.sinks import reconcile
from catchwater.sinks.base import Sink
from catchwater.sinks.config import SinkConfig, open_sink
from catchwater.verdicts import REPORT_S, Compared, PipelineStatus

_log = logging.getLogger("catchwater.pipeline")

SOONEST_S = 2.0
"""Reports are that far apart at least: short epochs are reported together."""
_AGAIN_S = 0.3
"""After so long a checkpoint that looked damaged is looked at again: epochs come and go."""
_REFUSED_S = 60.0
"""How long the next report waits after a refusal."""
_EPOCHS = 20
"""How many epochs a report lists."""
_STOP_S = 2.0
"""How long the end waits for what a thread is doing."""

COMPARE_SOONEST_S, COMPARE_LATEST_S = 10.0, 3600.0
COMPARE_IDLE_S = 60.0
"""The soonest where there was no epoch since the comparison before."""
COMPARE_SHARE = 0.01
"""Of its time the comparison of sinks works, at most."""
COMPARE_ROWS = 100_000
"""Rows of a sink that are compared, of its newest epochs: about 30 MB."""

SAVE_AGAIN_S = 60.0
"""How soon what failed is tried again, if it is not due before."""
SAVE_STOP_S = 10.0
"""For so long a stop waits for the object under way; the process may end without."""
NO_EPOCH_S = 5.0
"""How soon to look again where there is no epoch to save."""
_TIME = "%Y%m%dT%H%M%SZ"


@contextmanager
def beside_the_query(
    pipeline: OpenPipeline, observe: Callable[[PipelineStatus], None] | None, clock: Clock
) -> Iterator["Reporter"]:
    """Report, compare and save while this lasts; `observe` is given every status."""
    reporter = Reporter(pipeline, clock, observe)
    with _scheduled(pipeline, clock):
        reporter.start()
        try:
            yield reporter
        finally:
            reporter.stop()


@contextmanager
def _scheduled(pipeline: OpenPipeline, clock: Clock) -> Iterator[None]:
    """Take savepoints while this lasts, where the file asks for them."""
    config = pipeline.config
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
        thread.join(SAVE_STOP_S)


class Reporter:
    """Reports a pipeline from `start` to `stop`."""

    def __init__(
        self,
        pipeline: OpenPipeline,
        clock: Clock,
        observe: Callable[[PipelineStatus], None] | None = None,
    ) -> None:
        """`observe` is given every status, as is the broker."""
        self.last_state = "failed"
        """The pipeline's at the end."""
        self._pipeline = pipeline
        self._clock = clock
        self._observe = observe
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._silent_until_s = 0.0
        self._trouble = ""
        self._found: Look | None = None
        self._marks: object = None
        """What changes where `_found` does."""
        threads = {"report": self._report, "compare": self._compare}
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True) for name, run in threads.items()
        ]

    @cached_property
    def _log(self) -> LogWatch:
        """Made by the thread that asks: it is not for several."""
        return LogWatch(self._pipeline.config, self._clock)

    def start(self) -> None:
        """Begin, at once."""
        for thread in self._threads:
            thread.start()

    def committed(self) -> None:
        """Report soon: there is a new epoch."""
        self._wake.set()

    def stop(self) -> None:
        """End, and report for the last time what has become of the pipeline."""
        self._ended.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(_STOP_S)
        if not self._threads[0].is_alive():
            if not self._trouble:
                self._once(self.last_state)
            self._log.close()

    def _report(self) -> None:
        while not self._ended.is_set():
            self._once()
            self._ended.wait(SOONEST_S)
            self._wake.wait(REPORT_S - SOONEST_S)
            self._wake.clear()

    def _once(self, state: str | None = None) -> None:
        """Find out, show and report; never raises what can happen outside of this program."""
        try:
            status = self._status(state)
            if self._observe is not None:
                self._observe(status)
            self._report_to_log(status)
        except (CatchwaterError, OSError) as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                _log.warning("The pipeline's status is not reported: %s", error)
        else:
            self._trouble = ""

    def _status(self, state: str | None) -> PipelineStatus:
        config = self._pipeline.config
        marks = _marks(config.checkpoint)
        if self._found is None or self._marks != marks:
            self._found, self._marks = steady_look(config, self._clock), marks
        return status_of(config, self._found, self._clock, self._log, state)

    def _report_to_log(self, status: PipelineStatus) -> None:
        """Of two drivers of a pipeline, as in a warm upgrade, the one that leads reports."""
        folder = self._pipeline.config.checkpoint
        if handover.is_shadow(folder, checkpoint.last_commit(folder) + 1):
            return
        control = self._log.control
        if control is None or self._clock.monotonic_s() < self._silent_until_s:
            return
        shown = msgspec.structs.replace(status, recent_epochs=status.recent_epochs[-_EPOCHS:])
        try:
            control.report(status.name, msgspec.to_builtins(shown))
        except CatchwaterError:
            self._silent_until_s = self._clock.monotonic_s() + _REFUSED_S
            raise

    # The sinks.

    def _compare(self) -> None:
        wait_s, before = SOONEST_S, -1
        folder = self._pipeline.config.checkpoint
        while not self._ended.wait(wait_s):
            wait_s, last = SOONEST_S, checkpoint.last_commit(folder)
            if last < 0 or handover.is_shadow(folder, last):
                continue
            began_s = self._clock.monotonic_s()
            found = self._compared(last)
            took_s = self._clock.monotonic_s() - began_s
            soonest_s = COMPARE_IDLE_S if last == before else COMPARE_SOONEST_S
            wait_s = min(max(took_s / COMPARE_SHARE, soonest_s), COMPARE_LATEST_S)
            before = last
            with suppress(OSError):  # without its file the verdict is that nobody knows
                found = [msgspec.structs.replace(each, every_s=wait_s) for each in found]
                reconcile.keep_comparisons(folder, found, self._pipeline.config.every_sink)
            self._wake.set()

    def _compared(self, last: int) -> list[Compared]:
        sinks = self._pipeline.config.every_sink
        with ExitStack() as opened:
            return [
                compare(name, partial(self._opened, config, opened), config, last, self._clock)
                for name, config in sinks.items()
                if config.declared.reads_many
            ]

    def _opened(self, config: SinkConfig, opened: ExitStack) -> Sink:
        """A second one beside that of the query, whose connections are its own.

        It claims nothing: two that claim a target would shut each other out.
        """
        context = replace(self._pipeline.context_of(config), claim=None)
        sink = open_sink(config, context)
        return opened.enter_context(closing(sink))


def _marks(folder: Path) -> tuple[object, ...]:
    """What is other than before where an epoch was planned, committed, bound or forgotten."""
    places = ("offsets", "commits", f"{FOLDER}/epochs", f"{FOLDER}/contracts", FOLDER)
    found: list[object] = []
    for place in places:
        try:
            found.append((folder / place).stat().st_mtime_ns)
        except OSError:
            found.append(None)
    return tuple(found)


def steady_look(config: PipelineConfig, clock: Clock) -> Look:
    """What the checkpoint's files say; what comes and goes meanwhile is not taken for damage."""
    found = look(config.checkpoint)
    if not found.broken and not found.problems:
        return found
    clock.pause(_AGAIN_S)
    return look(config.checkpoint)


def compare(
    name: str, opened: Callable[[], Sink], config: SinkConfig, committed: int, clock: Clock
) -> Compared:
    """The newest rows of a sink and what was put out, side by side.

    A row that an epoch replaces meanwhile looks as if it were missing: what differs, differs twice.
    """
    try:
        sink = opened()
        found = reconcile.verify(sink, committed, most_rows=COMPARE_ROWS)
        if found.findings or found.gone:
            again = reconcile.verify(sink, committed, most_rows=COMPARE_ROWS)
            both = {each.id for each in again.findings}
            kept = tuple(each for each in found.findings if each.id in both)
            gone = tuple(each for each in found.gone if each in again.gone)
            found = found._replace(findings=kept, gone=gone)
    except (CatchwaterError, OSError) as error:
        return Compared(name, clock.now_ms(), problem=str(error))
    return reconcile.summed_up(name, found, clock.now_ms(), exactly_once=config.exactly_once)


# Savepoints on a schedule.


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
                wait_s = min(SAVE_AGAIN_S, self._every_ms / 1000)
                _log.warning(
                    "No savepoint was taken, it is tried again in %.0f s: %s", wait_s, error
                )

    def stop(self) -> None:
        """Take no more of them, and cut off one that is under way."""
        self._stopped.set()

    def turn(self) -> float:
        """Take one if it is due, and delete those beyond `keep`; after how long to look again."""
        folder = self._pipeline.config.checkpoint
        epoch = checkpoint.last_commit(folder)
        if epoch < 0 or epoch == self._saved or handover.is_shadow(folder, epoch):
            return min(NO_EPOCH_S, self._every_ms / 1000)
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
