"""The pipeline as Python holds it: declared in code or by a file, planned, run, saved.

    pipeline = Pipeline("cards", CardRisk, source=Kafka("localhost:9092", "payments"),
                        sinks=[Topic("alerts"), Table("postgresql://db/cards", "alerts")])
    running = pipeline.start(spark)          # or run(), which ends with its input or a signal

What is declared becomes the document that a pipeline's file would be, and is read as the file is
(`run.config`): a key, its check and its default stand in one place. Nothing is kept open between
two calls: each opens the pipeline anew (`OpenPipeline`). Relies on pyspark only to run.
"""

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError, ConfigError
from catchwater.pipeline.ends import Function, Kafka, Sink, Values
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import PoisonPolicy
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.plan import ASK_S, Problem, plan_of, problems_of
from catchwater.pipeline.run import config as files
from catchwater.pipeline.run.config import AVAILABLE_NOW, RECOVERY_KEYS, PipelineConfig
from catchwater.pipeline.run.driver import Stop, report, stop_requested
from catchwater.pipeline.run.versions import declared_in, find_module, is_importing, name_of
from catchwater.pipeline.status import catching_up_shown, epoch_shown
from catchwater.recovery.checkpoint import last_commit
from catchwater.recovery.contract import Contract, NoContract, load_contract
from catchwater.recovery.folder import key_part
from catchwater.recovery.handover import current
from catchwater.recovery.intact import look
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.progress import read as under_way
from catchwater.recovery.savepoint.format import Savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONTRACT_S, _POLL_S = 10.0, 0.05
"""How long after an epoch's commit its contract may be missing."""


class Settings(TypedDict, total=False):
    """The other keys of `[pipeline]` and `[recovery]`, by their names; durations are texts."""

    state: str
    local: str | Path
    tasks: int
    shards: int
    trigger: str
    idle_timeout: str
    poison: PoisonPolicy
    poison_limit: int
    handler_timeout: str
    restarts: int
    epoch_timeout: str
    spare: bool
    lease: str
    metrics: str
    trace_every: int
    max_staleness: str
    owner: str
    runbook: str
    checkpoints: str
    retain: int | str
    retain_most: int
    max_restore: str
    max_replay: str
    savepoints: str
    savepoint_every: str
    savepoint_keep: int


@dataclass(frozen=True)
class Plan:
    """What would run, and all that a start would fail on."""

    description: Mapping[str, Any]
    """Source, shards, functions, tables and sinks, as `pipeline plan --json` has them."""
    problems: Sequence[Problem]

    @property
    def ok(self) -> bool:
        """Whether a start would not fail, as far as everything answered."""
        return not any(each.verdict == "fail" for each in self.problems)

    def __str__(self) -> str:
        lines = []
        for name, value in self.description.items():
            if isinstance(value, list):
                lines += [f"{name[:-1]}: {_line(row)}" for row in value]
            else:
                lines.append(f"{name}: {value}")
        lines += [str(problem) for problem in self.problems]
        return "\n".join(lines)


def _line(row: Mapping[str, object]) -> str:
    return ", ".join(str(value) if at == 0 else f"{key} {value}"
                     for at, (key, value) in enumerate(row.items()))  # fmt: skip


class Pipeline:
    """Functions from a source to sinks, and the checkpoint that they go on from.

    `name` is what checkpoint, pins and sinks know it by. `functions` are a chain: each takes what
    the one before puts out. Relative paths are meant from the file that makes the pipeline (in a
    notebook, from the current folder) or from `folder`; `checkpoint` is "checkpoint/NAME" if it is
    left out. `tables` name the topic of each declared table, or are what `[table.NAME]` in a file
    would say; `calls` change the limits of declared calls, `spark` is what `[spark]` would say.
    Raises `ConfigError`.
    """

    declared: PipelineConfig
    """What it is, with the checkpoint that it names; which one it goes on from `config` says."""

    def __init__(
        self,
        name: str,
        *functions: Function,
        source: Kafka,
        sinks: Sequence[Sink],
        checkpoint: str | Path | None = None,
        tables: Mapping[str, str | Mapping[str, str]] | None = None,
        calls: Mapping[str, Mapping[str, str | int]] | None = None,
        dead_letter: Sink | None = None,
        spark: Mapping[str, str | int | bool] | None = None,
        folder: str | Path | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        called = f"Pipeline({name!r})"
        _check(called, name, functions, source, sinks, dead_letter)
        specs = tuple(spec_of(each) for each in functions)
        values = {key: str(v) if isinstance(v, Path) else v for key, v in settings.items()}
        recovery = {key: values.pop(key) for key in RECOVERY_KEYS if key in values}
        document = {
            "pipeline": {
                "name": name,
                "functions": [f"{declared_in(f)[0]}:{name_of(f)}" for f in functions],
                "checkpoint": str(checkpoint or Path("checkpoint") / key_part(name)),
                **values,
            },
            "source": source.section,
            "inputs": source.inputs,
            "sink": _by_name(called, sinks),
            "dead_letter": dead_letter.section if dead_letter else {},
            "table": {
                table: {"topic": said} if isinstance(said, str) else dict(said)
                for table, said in (tables or {}).items()
            },
            "call": dict(calls or {}),
            "recovery": recovery,
            "spark": dict(spark or {}),
        }
        where = Path(folder) if folder is not None else _folder_of_caller()
        config = files.of_document(called, where, document, os.environ)
        self.declared = replace(config, specs=specs)

    @classmethod
    def from_file(cls, path: str | Path, environment: Mapping[str, str] | None = None) -> Self:
        """The pipeline of a TOML file, with this environment over it. Raises `ConfigError`."""
        made = cls.__new__(cls)
        made.declared = files.read(Path(path), os.environ if environment is None else environment)
        return made

    @classmethod
    def from_script(cls, path: Path, name: str) -> "Pipeline":
        """The pipeline that a script makes under this name. Raises `ConfigError`."""
        made = getattr(find_module(path.stem, path.resolve().parent), name, None)
        if not isinstance(made, Pipeline):
            raise ConfigError(
                f"{path} makes no Pipeline named {name!r}.",
                hint="It is a name of the module, outside of any function and of "
                'if __name__ == "__main__".',
            )
        made.declared = replace(made.declared, file=f"{path.absolute()}:{name}")
        return made

    def __repr__(self) -> str:
        named = self.declared.name or self.declared.functions[0]
        return f"{type(self).__name__}({named!r}, checkpoint={str(self.declared.checkpoint)!r})"

    @property
    def config(self) -> PipelineConfig:
        """What it is, with the checkpoint that it goes on from now. Raises `LedgerDamaged`."""
        return replace(self.declared, checkpoint=current(self.declared.checkpoint))

    def plan(self, *, offline: bool = False) -> Plan:
        """What would run, and what a start would fail on; changes nothing.

        `offline` asks neither brokers nor targets. Raises `ConfigError`.
        """
        opened = OpenPipeline(self.config, timeout_s=ASK_S)
        return Plan(plan_of(opened), problems_of(opened, offline=offline))

    def run(
        self, spark: "SparkSession | None" = None, *, available_now: bool = False,
        quick: bool = False,
    ) -> None:  # fmt: skip
        """Run in this process until the input ends (`available_now`), SIGTERM or Ctrl-C.

        Once: it is `catchwater pipeline run` that starts a pipeline again when it fails. For the
        arguments see `start`. Raises `CatchwaterError`.
        """
        work = self._work(spark, available_now=available_now, quick=quick)
        here = threading.current_thread() is threading.main_thread()
        with stop_requested() if here else nullcontext(Stop()) as stop:
            work(stop, lambda: None)

    def start(
        self, spark: "SparkSession | None" = None, *, available_now: bool = False,
        quick: bool = False,
    ) -> "RunningPipeline":  # fmt: skip
        """Start it beside what this process does, and return when its query runs.

        In the session that is given, which stays the caller's, or in one of its own, which ends
        with it and takes what `[spark]` says. `quick` starts its own session sooner and runs slower
        code. Raises `CatchwaterError` for what a start fails on, a topic that is missing included.
        """
        return RunningPipeline(
            self, self._work(spark, available_now=available_now, quick=quick)
        )._begin()

    def _work(
        self, spark: "SparkSession | None", *, available_now: bool, quick: bool
    ) -> "Callable[[Stop, Callable[[], None]], None]":
        """The work of a run, which calls its second argument whenever it looks at the query."""
        if is_importing():
            raise ConfigError(
                f"{self!r} is run by a module that is only imported, by a worker or a command.",
                hint='Let it run under if __name__ == "__main__": the module that declares the '
                "functions is imported wherever they run.",
            )
        from catchwater.pipeline.run.driver import run_in, run_pipeline
        from catchwater.pipeline.spark.session import check_alone

        config = self.config
        if available_now:
            config = replace(config, trigger=AVAILABLE_NOW)
        if spark is not None:
            run = partial(run_in, spark, config)
        else:
            check_alone()
            run = partial(run_pipeline, config, quick=quick)

        def work(stop: Stop, runs: Callable[[], None]) -> None:
            try:
                run(stop, runs)
            except CatchwaterError as error:  # the next start asks what ended this one
                report(config.checkpoint, error)
                raise

        return work

    def savepoint(
        self, name: str | None = None, *, checkpoint: int | None = None, at: str | None = None
    ) -> Savepoint:
        """Copy the state of the last committed epoch, or of another that is kept.

        Also while it runs. `at` is the URL of another place than the pipeline's own. Raises
        `SavepointExists`, `NothingToSave`, `NoSuchCheckpoint`.
        """
        opened = OpenPipeline(self.config).with_log()
        return opened.save(*opened.savepoint(name, checkpoint, at))

    def contract(self, checkpoint: int | None = None) -> Contract:
        """What a restore from the newest checkpoint, or another, needs. Raises `NoContract`.

        An epoch's contract is written behind its commit: that of the last one is waited for.
        """
        folder, until_s = self.config.checkpoint, SYSTEM.monotonic_s() + _CONTRACT_S
        while True:
            try:
                return load_contract(folder, checkpoint)
            except NoContract:
                last = last_commit(folder)
                if last < 0 or checkpoint not in (None, last) or SYSTEM.monotonic_s() > until_s:
                    raise
                SYSTEM.pause(_POLL_S)


def _check(
    called: str,
    name: object,
    functions: Sequence[object],
    source: object,
    sinks: object,
    dead_letter: object,
) -> None:
    """Raise `ConfigError` for arguments of another type: not everybody has a type checker."""
    wrong = ""
    if not isinstance(name, str) or not name:
        wrong = "the name, which comes first, is a text"
    elif not functions or not all(callable(each) for each in functions):
        wrong = "after the name come the functions of the chain, one at least"
    elif not isinstance(source, Kafka):
        wrong = f"source is a Kafka(…), not {type(source).__name__}"
    elif not isinstance(sinks, Sequence) or not all(isinstance(each, Sink) for each in sinks):
        wrong = "sinks is a list of Topic(…), Table(…), Files(…), Iceberg(…) or Http(…)"
    elif not isinstance(dead_letter, Sink | None):
        wrong = f"dead_letter is a sink, not {type(dead_letter).__name__}"
    if wrong:
        raise ConfigError(
            f"{called}: {wrong}.",
            hint='Pipeline("cards", CardRisk, source=Kafka("localhost:9092", "payments"), '
            'sinks=[Topic("alerts")])',
        )


def _by_name(called: str, sinks: Sequence[Sink]) -> dict[str, Values]:
    """The sinks' sections; where several have one target's name, their kinds tell them apart."""
    count = Counter(sink.called for sink in sinks)
    named: dict[str, Values] = {}
    for sink in sinks:
        section, name = sink.section, sink.called
        if sink.name is None and count[name] > 1:
            name = f"{name}-{section['kind']}"
        if named.setdefault(name, section) is not section:
            raise ConfigError(
                f"{called}: two sinks are named {name!r}.",
                hint='Give one a name of its own: name="…".',
            )
    return named


def _folder_of_caller() -> Path:
    """Of the file whose code makes the pipeline; in a notebook, the current one."""
    file = sys._getframe(2).f_globals.get("__file__")
    return Path(file).parent if file else Path()


Status = Literal["starting", "running", "stopped", "ended", "failed"]


class RunningPipeline:
    """A pipeline that was started, much like Spark's `StreamingQuery`.

    It is stopped when the process ends; what was begun then is done again by the next start.
    """

    def __init__(
        self, pipeline: Pipeline, work: Callable[[Stop, Callable[[], None]], None]
    ) -> None:
        self.pipeline = pipeline
        self.checkpoint = pipeline.config.checkpoint
        self._work = work
        self._stop = Stop()
        self._runs = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="catchwater", daemon=True)

    def _begin(self) -> Self:
        self._thread.start()
        atexit.register(self._end)
        with ExitStack() as unless_started:
            unless_started.callback(self.stop)  # Ctrl-C: nobody would hold it
            self._runs.wait()
            unless_started.pop_all()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def _run(self) -> None:
        with ExitStack() as ended:
            ended.callback(atexit.unregister, self._end)
            ended.callback(self._runs.set)
            ended.push(self._kept)
            self._work(self._stop, self._runs.set)

    def _kept(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Keep the error that ended the thread for the caller that waits for it."""
        self._failure = error
        return True

    def _end(self) -> None:
        with suppress(CatchwaterError):
            self.stop()

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    @property
    def status(self) -> Status:
        """In a word. `ended`: with its input; `failed`: `exception` says why."""
        if self.is_active:
            return "running" if self._runs.is_set() else "starting"
        if self._failure is not None:
            return "failed"
        return "stopped" if self._stop.requested else "ended"

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """The last committed epoch: its number, events, outputs and where its time went.

        None before the first. As one of `recent_epochs` in `pipeline status --json`, and with it
        `catching_up`, as there: how far a restore is that is under way, else None.
        """
        last = last_commit(self.checkpoint)
        entry = Ledger(self.checkpoint).read(last) if last >= 0 else None
        if entry is None:
            return None
        restore = None
        if self.is_active and under_way(self.checkpoint) is not None:
            restore = catching_up_shown(look(self.checkpoint), SYSTEM.now_ms())
        return {**epoch_shown(entry, self.checkpoint), "catching_up": restore}

    @property
    def exception(self) -> BaseException | None:
        """What it failed with; None while it has not."""
        return self._failure

    def stop(self) -> None:
        """End it after what is under way was done or undone, and wait. Raises what failed it."""
        self._stop.requested = self._stop.requested or self.is_active
        self.await_termination()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, so many seconds at most; whether it has.

        Raises what failed it.
        """
        self._thread.join(timeout)
        if self.is_active:
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
