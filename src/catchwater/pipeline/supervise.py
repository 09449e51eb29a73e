"""The supervisor: starts a pipeline's driver, and starts it again when it fails.

It does no work of its own, so there is little that could fail it: it watches a child process, and
holds a lock so that there is one of it for a checkpoint. The first failure, and every one after an
epoch was committed, is followed by a start at once; failures in a row wait 1, 2, 4 … 60 seconds,
give or take a fifth. More than `limit` failures within an hour end it. An error's class says
whether another start can help (`Restart`); a usage error or a checkpoint that is refused (exit
codes 2 and 5) is never tried again. Its state is in `<checkpoint>/catchwater/supervisor.json`.

A driver leads a session of its own, so that everything it has started (the JVM, Spark's Python
daemon and its workers, each in a process group of its own) is found again by the session's number
and ended with it: no orphaned JVM keeps the checkpoint's lock. Linux names the session of a process
in /proc; elsewhere the process group is ended, and Python workers follow when their JVM is gone.

A driver that does not get on with an epoch is ended as one that failed, where `epoch_timeout` says
how long an epoch may take (`EpochWatch`). What a function's handler may take is the workers' own
business (`watchdog`).

SIGTERM and Ctrl-C are passed on to the driver; `halt` sends such a signal from another process.
"""

import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251  (only its type; drawn from a clock's)
from typing import Protocol

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.run.driver import GO, Stop, read_report, stop_requested
from catchwater.pipeline.workers import ended
from catchwater.recovery.checkpoint import last_commit
from catchwater.recovery.folder import DRIVER, SUPERVISOR, holder, lock
from catchwater.recovery.ledger import FOLDER, numbered, read_json, write_whole
from catchwater.verdicts import spelled_s

_log = logging.getLogger("catchwater.supervisor")

_PROC = Path("/proc")


@dataclass(frozen=True)
class Failure:
    """How a driver ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    message: str = ""
    """Of its error, where it could still say."""
    hint: str | None = None
    restart: Restart = Restart.AGAIN

    def __str__(self) -> str:
        if self.message:
            return self.message
        return f"The driver {ended(self.exit_code)}."


class DriverProcess:
    """One driver, from its start until all of it is gone."""

    def __init__(self, command: Sequence[str], checkpoint: Path, clock: Clock = SYSTEM) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.pid = self._process.pid

    def go(self) -> None:
        """Give it its turn."""
        self.say(GO)

    def say(self, line: bytes) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):  # it has died: `ended` says how
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def ended(self) -> Failure | None:
        """How it ended (exit code 0 is no failure), None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        left = read_report(self._checkpoint, self.pid) if code else None
        if left is None:
            return Failure(code)
        return Failure(code, left.message, left.hint, left.restart)

    def stop(self) -> None:
        """Ask it to finish its epoch and end."""
        self._process.terminate()

    def end(self) -> None:
        """End it and all that it has started, and wait until they are gone."""
        while alive := list(_session(self.pid)):
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            self._clock.pause(0.002)
        self._process.wait()
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()


def _session(leader: int) -> Iterator[int]:
    """The live processes of a session, by /proc. Where there is none, kills the leader's group."""
    if not (_PROC / "self" / "stat").exists():
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        return
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    yield int(entry.name)


# The supervisor.

LOCK_WAIT_S = 1.0
STOP_S = 90.0
"""How long a driver may take to end after SIGTERM; then it is killed."""
SPARE_WAIT_S = 60.0
"""How long to wait with another spare after one has died."""
_LOOK_S = 1.0
"""How often to look whether the driver has committed its first epoch. Its end is a signal."""

RESTARTS = 10
"""Within an hour, where the pipeline's file names no other number."""
HOUR_S = 3600.0
LONGEST_WAIT_S = 60.0
JITTER = 0.2
_REFUSED = (2, 5)
"""Exit codes of errors that stay however often one tries."""

PATIENCE_S = STOP_S + 10
_POLL_S = 0.05


class Restarts:
    """The failures of one supervised pipeline."""

    def __init__(self, limit: int, random: Random) -> None:
        self._limit = limit
        self._random = random
        self._failed_s: deque[float] = deque()
        self._in_a_row = 0
        self._tried_once_more = False

    @property
    def recent(self) -> int:
        """Failures of the last hour before the last failure."""
        return len(self._failed_s)

    def failed(self, failure: Failure, *, progressed: bool, now_s: float) -> float | None:
        """Seconds to wait before the next start; None: there is none.

        `progressed` says whether an epoch was committed since the last start.
        """
        self._failed_s.append(now_s)
        while self._failed_s[0] < now_s - HOUR_S:
            self._failed_s.popleft()
        if failure.exit_code in _REFUSED or failure.restart is Restart.NEVER:
            return None
        if self.recent > self._limit:
            return None
        if failure.restart in (Restart.ONCE, Restart.FALL_BACK):
            if self._tried_once_more and not progressed:
                return None
            self._tried_once_more = True
        self._in_a_row = 0 if progressed else self._in_a_row + 1
        if self._in_a_row <= 1:
            return 0.0
        wait_s = min(LONGEST_WAIT_S, 2.0 ** min(self._in_a_row - 2, 10))
        return wait_s * self._random.uniform(1 - JITTER, 1 + JITTER)


class GivenUp(CatchwaterError):
    """The pipeline failed too often, or in a way that another start does not mend."""


HUNG = 124
"""The exit code of a driver that was ended because it did not get on."""


class EpochWatch:
    """Whether a driver's epoch takes longer than it may.

    Asked once in a while, and counts the time between two questions up to `MOST_S`: a machine that
    was asleep is not taken for a driver that hangs. The start of Spark counts where a driver died
    within an epoch, which the next one runs again.
    """

    MOST_S = 5.0

    def __init__(self, timeout_s: float, planned: Callable[[], int], clock: Clock) -> None:
        """`planned`: the newest epoch that was planned and not committed, -1 if there is none."""
        self._timeout_s = timeout_s
        self._planned = planned
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A driver has got its turn."""
        self._epoch, self._waited_s = -1, 0.0
        self._looked_s = self._clock.monotonic_s()

    def look(self) -> Failure | None:
        """Why the driver is to be ended; None: it gets on."""
        now_s, epoch = self._clock.monotonic_s(), self._planned()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if epoch < 0 or epoch != self._epoch:
            self._epoch, self._waited_s = epoch, 0.0
            return None
        self._waited_s += min(passed_s, self.MOST_S)
        if self._waited_s <= self._timeout_s:
            return None
        return Failure(
            HUNG,
            f"Epoch {epoch} was not done within {spelled_s(self._timeout_s)} (epoch_timeout), so "
            "its driver was ended.",
            "It runs again. If it only takes long: raise epoch_timeout in [pipeline], or make "
            "epochs smaller by maxOffsetsPerTrigger.",
        )


class Supervision(msgspec.Struct, frozen=True):
    """What a supervisor does at the moment, as it is kept."""

    pid: int
    state: str
    """`running`, `waiting` (to start again), `stopped`, `ended` or `given up`."""
    since_ms: int
    driver: int | None = None
    spare: int | None = None
    restarts: int = 0
    """Since this supervisor was started."""
    restarts_in_hour: int = 0
    last_cause: str | None = None
    last_failed_ms: int | None = None
    """When it was noticed, before what the driver had started was ended."""


class Driver(Protocol):
    """What `Supervisor` needs of a `DriverProcess`."""

    pid: int

    def go(self) -> None:
        """Give it its turn."""

    def ended(self) -> Failure | None:
        """How it ended, None while it runs."""

    def stop(self) -> None:
        """Ask it to end."""

    def end(self) -> None:
        """End it with all that it has started."""


@dataclass(frozen=True)
class SupervisorSettings:
    """What is to be supervised, and how."""

    command: Sequence[str]
    """Starts a driver that waits for its turn (`spare.Turn`)."""
    checkpoint: Path
    restarts: int
    """Within an hour."""
    spare: bool
    epoch_timeout_ms: int | None = None
    """How long an epoch may take; None: any time."""


def supervise(wanted: SupervisorSettings, clock: Clock = SYSTEM) -> None:
    """Keep the pipeline running until it ends or is stopped.

    Raises `GivenUp` with the last driver's exit code, `CheckpointInUse`.
    """
    folder, timeout_ms = wanted.checkpoint, wanted.epoch_timeout_ms
    with (
        lock(folder, clock, name=SUPERVISOR, wait_s=LOCK_WAIT_S),
        stop_requested() as stop,
    ):
        supervisor = Supervisor(
            start=lambda: DriverProcess(wanted.command, folder, clock),
            restarts=Restarts(wanted.restarts, clock.random),
            committed=lambda: last_commit(folder),
            keep=lambda now: write_whole(_supervision_file(folder), msgspec.json.encode(now)),
            spare=wanted.spare,
            stop=stop,
            clock=clock,
            watch=EpochWatch(timeout_ms / 1000, lambda: _planned(folder), clock)
            if timeout_ms
            else None,
        )
        supervisor.run()


def _planned(folder: Path) -> int:
    newest = max(numbered(folder / "offsets"), default=-1)
    return newest if newest > last_commit(folder) else -1


def read_supervision(folder: Path) -> Supervision | None:
    """What the checkpoint's last supervisor said, None if it never had one."""
    return read_json(_supervision_file(folder), Supervision)


def _supervision_file(folder: Path) -> Path:
    return folder / FOLDER / "supervisor.json"


class Supervisor:
    """The loop of `supervise`, over the drivers that `start` makes."""

    def __init__(
        self,
        *,
        start: Callable[[], Driver],
        restarts: Restarts,
        committed: Callable[[], int],
        keep: Callable[[Supervision], None],
        spare: bool,
        stop: Stop,
        clock: Clock,
        watch: EpochWatch | None = None,
    ) -> None:
        self._watch = watch
        self._start = start
        self._restarts = restarts
        self._committed = committed
        self._keep = keep
        self._wants_spare = spare
        self._stop = stop
        self._clock = clock
        self._driver: Driver | None = None
        self._spare: Driver | None = None
        self._no_spare_before_s = clock.monotonic_s()
        self._noticed_ms = clock.now_ms()
        """When the last driver was seen to have ended."""
        self._now = Supervision(os.getpid(), "running", clock.now_ms())

    def run(self) -> None:
        """Until the pipeline ends or is stopped. Raises `GivenUp`."""
        try:
            while True:
                failure, progressed = self._run_driver()
                if failure.exit_code == 0 or self._stop.requested:
                    self._say("stopped" if self._stop.requested else "ended")
                    break
                wait_s = self._restarts.failed(
                    failure, progressed=progressed, now_s=self._clock.monotonic_s()
                )
                self._note(failure)
                if wait_s is None:
                    self._say("given up")
                    raise self._given_up(failure)
                self._wait(failure, wait_s)
                if self._stop.requested:
                    self._say("stopped")
                    break
        finally:
            self._end_all()
        if failure.exit_code:
            raise _as_error(failure, "The pipeline was stopped after it had failed: ")

    def _run_driver(self) -> tuple[Failure, bool]:
        """One driver from its turn to its end; and whether it committed an epoch."""
        before = self._committed()
        driver = self._driver = self._spare or self._start()
        self._spare = None
        driver.go()
        if self._watch is not None:
            self._watch.begin()
        self._say("running")
        look_s = self._clock.monotonic_s() + _LOOK_S
        while (failure := driver.ended()) is None:
            if self._stop.requested:
                failure = self._stopped(driver)
                break
            if self._clock.monotonic_s() >= look_s:
                look_s += _LOOK_S
                if self._wants_spare:
                    self._look_after_spare(before)
                if self._watch is not None and (failure := self._watch.look()) is not None:
                    break
            self._stop.pause(self._clock, _LOOK_S)
        self._noticed_ms = self._clock.now_ms()
        driver.end()
        self._driver = None
        return failure, self._committed() > before

    def _stopped(self, driver: Driver) -> Failure:
        """The driver's end after it was asked for it."""
        driver.stop()
        deadline_s = self._clock.monotonic_s() + STOP_S
        while (ended := driver.ended()) is None:
            if self._clock.monotonic_s() > deadline_s:
                return Failure(-signal.SIGKILL, message=f"It did not stop within {STOP_S:.0f} s.")
            self._stop.pause(self._clock, _LOOK_S)
        return Failure(0) if ended.exit_code == -signal.SIGTERM else ended

    def _look_after_spare(self, before: int) -> None:
        """Start one as soon as the driver is over its own start, and another if it has died."""
        if self._spare is not None:
            died = self._spare.ended()
            if died is not None:
                _log.warning("The spare driver ended: %s", died)
                self._spare.end()
                self._spare = None
                self._no_spare_before_s = self._clock.monotonic_s() + SPARE_WAIT_S
                self._say("running")
        elif self._clock.monotonic_s() >= self._no_spare_before_s and self._committed() > before:
            self._spare = self._start()
            self._say("running")

    def _wait(self, failure: Failure, wait_s: float) -> None:
        _log.warning(
            "%s Starting it again%s (%d failures within an hour).",
            failure,
            f" in {wait_s:.0f} s" if wait_s else " at once",
            self._restarts.recent,
        )
        if wait_s:
            self._say("waiting")
        until_s = self._clock.monotonic_s() + wait_s
        while not self._stop.requested and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._stop.pause(self._clock, min(_LOOK_S, left_s))

    def _given_up(self, failure: Failure) -> GivenUp:
        recent = self._restarts.recent
        if recent == 1:
            return _as_error(failure)
        return _as_error(
            failure, f"Not started again after {recent} failures within an hour; the last: "
        )

    def _note(self, failure: Failure) -> None:
        now = self._now
        self._now = msgspec.structs.replace(
            now,
            restarts=now.restarts + 1,
            restarts_in_hour=self._restarts.recent,
            last_cause=str(failure),
            last_failed_ms=self._noticed_ms,
        )

    def _say(self, state: str) -> None:
        now = self._now
        since_ms = now.since_ms if state == now.state else self._clock.now_ms()
        driver, spare = (each.pid if each else None for each in (self._driver, self._spare))
        self._now = msgspec.structs.replace(
            now, state=state, since_ms=since_ms, driver=driver, spare=spare
        )
        self._keep(self._now)

    def _end_all(self) -> None:
        for driver in (self._driver, self._spare):
            if driver is not None:
                driver.end()


def _as_error(failure: Failure, what: str = "") -> GivenUp:
    error = GivenUp(f"{what}{failure}", hint=failure.hint)
    error.exit_code = failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code
    return error


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
