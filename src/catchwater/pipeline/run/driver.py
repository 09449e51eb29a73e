"""One driver of a pipeline: it starts Spark, and imports and checks the rest meanwhile.

`catchwater pipeline run` leads here. SIGTERM and Ctrl-C stop the driver after what Spark is doing
was done or undone: at most one epoch runs again.

Under a supervisor a driver gets ready (Python, Spark's session, Python workers) and reads its
standard input. A line means that the checkpoint is its own now: most drivers get it at once, a warm
spare when the driver before it has died. The end of the input means that the supervisor is dead:
the driver then ends its whole process group at once, JVM included, and the next start recovers. A
driver that fails leaves a `Report` in its checkpoint.
"""

import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.objects.open import refuse_plain_local
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import declared_in
from catchwater.pipeline.spark import launcher, session
from catchwater.pipeline.spark.failure import Traces
from catchwater.recovery.folder import Lock
from catchwater.recovery.ledger import FOLDER, read_json, url_of, write_whole
from catchwater.recovery.remote import works_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchwater.pipeline.run.run import Follow

_log = logging.getLogger("catchwater.pipeline")

_LOOK_S = 0.1
"""How often a driver that stands by checks whether it is to stop."""
_AGAIN_S = 5.0
"""From one try to get ready to the next."""

_ALL = 2**31 - 1
"""A number of batches that Spark never reaches: it forgets none."""

GO = b"go\n"
"""The line by which a supervisor gives a driver its turn."""
_LOCK = "lock"
_ZYGOTE = "catchwater.pipeline.spark.zygote"
MEMORY = {"MALLOC_ARENA_MAX": "1"}
"""For glibc, if the user's environment does not say otherwise: threads that come and go with every
epoch would each keep memory of their own, a quarter of what a worker has."""
_SCRIPT = """#!/bin/sh
exec '{python}' -IS '{launcher}' '{address}' '{python}' "$@"
"""
_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Stop:
    """Whether a signal has asked this process to stop."""

    requested = False

    def __init__(self, woken: int | None = None) -> None:
        self._woken = woken
        """Readable when a signal has come; None: signals are not watched."""

    def pause(self, clock: Clock, seconds: float) -> None:
        """Block for so long, or until a signal asks us to stop or a child ends."""
        clock.pause(seconds, self._woken)
        if self._woken is not None:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """Turn SIGTERM and Ctrl-C into a flag while the block runs. In the main thread only."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    stop = Stop(woken)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.requested = stop.requested or number != signal.SIGCHLD

    before = {number: signal.signal(number, ask) for number in _WAKING}
    woken_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)


class Turn:
    """The end of the supervisor's pipe that the driver holds."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._come = threading.Event()
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    @property
    def come(self) -> bool:
        """Whether the supervisor has said go."""
        return self._come.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether the supervisor says go within so long."""
        return self._come.wait(timeout_s)

    def _listen(self) -> None:
        while os.read(self._descriptor, len(GO)):
            self._come.set()
        end_group()


def end_group() -> None:
    """Kill this process and, if it leads its process group, all that it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def run_pipeline(
    config: PipelineConfig,
    stop: Stop | None = None,
    beside: Callable[[], None] | None = None,
    *,
    quick: bool = False,
    turn: Turn | None = None,
    python: str | None = None,
    clock: Clock = SYSTEM,
) -> None:
    """Run until the input ends (available-now) or a signal comes. Raises `CatchwaterError`.

    Where `stop` is given, that ends it and no signal does. `beside` is called between looks at what
    the query does. `quick` starts sooner and runs slower code, for demos and tests. With a `turn`
    that has not come yet, Spark is started first, and the checkpoint is looked at when it comes.
    `python` is what Spark runs as Python, where a zygote of the caller's is there for it.
    """
    began_s = clock.monotonic_s()
    # Errors that waiting cannot mend come before anything is started.
    session.check_packages()
    session.find_java()
    said = session.settings_of(config.spark, python_path(config))
    log_path = config.checkpoint / FOLDER / "spark.log"
    with (
        session.environment_kept(),
        closing(Lock(config.checkpoint, clock=clock, lease_ms=config.lease_ms)) as held,
        scratch(clock) as own,
        stop_requested() if stop is None else nullcontext(stop) as stop,
        log_path.open("ab") as log,
        ThreadPoolExecutor(1, "start-spark") as beside_us,
        _python(config, python) as python,
    ):
        # The JVM holds the lock and the scratch folder too: a start after a kill waits for its end.
        starting = beside_us.submit(
            session.start,
            config.name or config.functions[0],
            tasks=config.tasks,
            quick=quick,
            log=log,
            keep_open=(held.descriptor, own.descriptor),
            scratch=None if session.is_cluster(config.spark) else own.path,
            python_path=python_path(config),
            python=python,
            conf=settings_of(config) | said,
        )
        try:
            # Imported only now: this, and looking at everything, takes as long as the JVM does.
            from catchwater.pipeline.run.run import run_query, take_checkpoint

            its_turn = turn is None or turn.come
            if its_turn and config.spare:
                its_turn = works_elsewhere(config.checkpoint, clock) is None
            pipeline = take_checkpoint(config, held, began_s, stop, clock) if its_turn else None
            spark = starting.result()
            # A spare gets Python workers and the JVM ready, and takes the checkpoint at its turn.
            session.start_workers(spark, config.tasks)
            if pipeline is None and not stop.requested:
                with _standing_by(spark, config, turn, stop, clock):
                    if turn is None or turn.come:
                        pipeline = take_checkpoint(config, held, clock.monotonic_s(), stop, clock)
            if pipeline is not None:
                with closing(pipeline), session.alive(spark):
                    if session.is_cluster(config.spark):
                        session.check_executors(spark, shared_folder(config), clock)
                    run_query(spark, pipeline, stop, Traces(log_path, own.path), beside, clock)
        finally:
            if not starting.exception():
                session.stop(starting.result())


def run_in(
    spark: "SparkSession",
    config: PipelineConfig,
    stop: Stop,
    beside: Callable[[], None],
    clock: Clock = SYSTEM,
    follow: "Follow | None" = None,
) -> None:
    """Run in a session of the caller's, which stays as it is and goes on.

    `follow` is given the epochs that were committed. Does not wait for a missing topic. Raises
    `SessionUnfit` for a session that cannot run it.
    """
    began_s = clock.monotonic_s()
    session.check_packages()
    refuse_plain_local("its local state, and the files of a session of yours,", os.environ)
    mine = session.borrow(spark, settings_of(config), python_path(config))
    with closing(Lock(config.checkpoint, clock=clock, lease_ms=config.lease_ms)) as held:
        from catchwater.pipeline.run.run import look_before, run_query

        held.acquire()
        session.check_executors(mine, shared_folder(config), clock)
        with closing(look_before(config, began_s, clock)) as pipeline, session.alive(mine):
            traces = Traces(config.checkpoint / FOLDER / "spark.log")
            run_query(mine, pipeline, stop, traces, beside, clock, follow)


@contextmanager
def _standing_by(
    spark: "SparkSession", config: PipelineConfig, turn: Turn | None, stop: Stop, clock: Clock
) -> Iterator[None]:
    """Get ready, and run the block when the supervisor says go, if it is the supervisor's to say.

    The block watches a driver on another machine, which may go at any moment. On a cluster Spark
    gets ready beside, in as many tries as it takes: without room for a spare none succeeds.
    """
    from catchwater.pipeline.spark.warmup import warm_up
    from catchwater.sinks.config import preload

    waiting = turn if turn is not None and not turn.come else None
    over = threading.Event()

    def get_ready(*, again: bool = False) -> None:
        def enough() -> bool:
            return stop.requested or over.is_set() or (waiting is not None and waiting.come)

        while not warm_up(spark, config.tasks, enough, clock):
            if not again or enough() or over.wait(_AGAIN_S):
                return
        _log.info("Spark is ready for a takeover.")

    with ThreadPoolExecutor(1, "warm-up") as beside_us:
        try:
            if session.is_cluster(config.spark):
                beside_us.submit(get_ready, again=True)
            else:
                get_ready()
            # Half a second, and a third of a restart.
            preload(sink.kind for sink in config.every_sink.values())
            _log.info("Standing by.")
            while waiting is not None and not stop.requested and not waiting.wait(_LOOK_S):
                pass
            yield
        finally:
            over.set()


def _python(config: PipelineConfig, python: str | None) -> "AbstractContextManager[str]":
    """The command that Spark runs as Python: forks of a zygote, if executors are in this JVM."""
    if session.is_cluster(config.spark):
        return nullcontext(config.spark.get("spark.pyspark.python", sys.executable))
    return nullcontext(python) if python else zygote(python_path(config))


def shared_folder(config: PipelineConfig) -> Path | None:
    """The folder that executors must see, because state and outputs lie in it; None: in a store."""
    url = config.state or url_of(config.checkpoint)
    if url is None:
        return config.checkpoint
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def python_path(config: PipelineConfig) -> list[str]:
    """Where Spark's Python processes look for modules: beside the file, and the functions."""
    roots = [
        file.parents[module.count(".")] for module, file in map(_module_of, config.specs or ())
    ]
    return [*dict.fromkeys(str(each) for each in (config.folder, *roots))]


def _module_of(spec: FunctionSpec) -> tuple[str, Path]:
    return declared_in(spec.target)


def settings_of(config: PipelineConfig) -> dict[str, str]:
    """What this pipeline sets of Spark's."""
    # Where restore points are chosen by time, we delete Spark's files between them.
    keeps = _ALL if config.kept.every_ms else config.kept.most + 1
    return {
        "spark.sql.streaming.minBatchesToRetain": str(keeps),
        "spark.sql.streaming.pollingDelay": "20",
    }


# What a failed driver leaves for the next start.


class Report(msgspec.Struct, frozen=True):
    """Why a driver failed, for its supervisor and for `pipeline status`."""

    pid: int
    kind: str
    message: str
    hint: str | None
    exit_code: int
    restart: Restart = Restart.AGAIN


def report(checkpoint: Path, error: CatchwaterError) -> None:
    """Leave a report of why this process fails."""
    left = Report(
        os.getpid(),
        getattr(error, "kind", type(error).__name__),
        str(error),
        error.hint,
        error.exit_code,
        error.restart,
    )
    write_whole(_report_file(checkpoint), msgspec.json.encode(left))


def read_report(checkpoint: Path, pid: int) -> Report | None:
    """The report of the process of this id, if it was the last to leave one."""
    left = read_json(_report_file(checkpoint), Report)
    return left if left is not None and left.pid == pid else None


def take_report(checkpoint: Path) -> Report | None:
    """The report of the last process that failed, for the one in its place; read once."""
    try:
        return read_json(_report_file(checkpoint), Report)
    finally:
        _report_file(checkpoint).unlink(missing_ok=True)


def _report_file(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "failure.json"


# --- what a driver has beside it -----------------------------------------------------------------


@dataclass(frozen=True)
class Scratch:
    """A folder on local disk for what a process and its children leave while they run.

    Spark's own files, sockets and notes of workers. It goes with its owner; of an owner that was
    killed the next process that makes one removes it. It has an owner as long as anybody holds its
    lock: the process that made it, and a child that was given the descriptor.
    """

    path: Path
    descriptor: int
    """Of its lock, for children that are to own it, too."""


@contextmanager
def scratch(clock: Clock = SYSTEM) -> Iterator[Scratch]:
    """Make one, and remove those whose owners are dead; it is removed with its content."""
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
    base = session.scratch_folder() / f"catchwater-run-{os.getuid()}"
    with suppress(FileExistsError):
        base.mkdir(mode=0o700)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="catchwater-run-"))
    return base


@contextmanager
def zygote(python_path: Sequence[str]) -> Iterator[str]:
    """Start one (`spark.zygote`), and give the path of what Spark is to run as Python; ends it."""
    with scratch() as own:
        address = str(own.path / "zygote")
        script = own.path / "python"
        script.write_text(
            _SCRIPT.format(python=sys.executable, launcher=launcher.__file__, address=address)
        )
        script.chmod(0o700)
        path = [*python_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {
            **MEMORY,
            **os.environ,
            # As Spark has it for all of its Python processes: a key's hash is the same in each.
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)  # who asks before it is ready waits
            descriptor = listener.fileno()
            process = subprocess.Popen(
                [sys.executable, "-m", _ZYGOTE, str(descriptor)],
                stdin=subprocess.PIPE, pass_fds=[descriptor], env=environment,
                process_group=0,  # a terminal's Ctrl-C is for who started it, also while it imports
            )  # fmt: skip
        with process:
            try:
                yield str(script)
            finally:
                process.kill()
