"""One driver of a pipeline: Spark starts while what needs it is imported and looked at.

`catchwater pipeline run` ends up here. SIGTERM and Ctrl-C stop it after what Spark is doing was
undone or done: at most an epoch runs again. A driver that stands by has its Spark session ready and
looks at the checkpoint when its turn comes.
"""

import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.artefact import declared_in
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.failure import Traces
from catchwater.pipeline.spark.zygote import scratch, zygote
from catchwater.pipeline.supervise import Stop, Turn, stop_requested
from catchwater.recovery.folder import Lock
from catchwater.recovery.ledger import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("catchwater.pipeline")

_LOOK_S = 0.1
"""How often a driver that stands by looks whether it is to stop."""


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
    # What no waiting would mend is said before anything is started.
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
        # The JVM holds lock and scratch folder, too: a start after a kill waits until it is gone.
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
            from catchwater.pipeline.run.run import run_query, take

            pipeline = None if turn and not turn.come else take(config, held, began_s, stop, clock)
            spark = starting.result()
            # A spare gets Python workers and the JVM ready, and looks when its turn has come.
            session.start_workers(spark, config.tasks)
            if pipeline is None and turn:
                _stand_by(spark, config, turn, stop, clock)
                if turn.come:
                    pipeline = take(config, held, clock.monotonic_s(), stop, clock)
            if pipeline is not None:
                with closing(pipeline), session.alive(spark):
                    if session.is_cluster(config.spark):
                        session.check_executors(spark, config.checkpoint, clock)
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
) -> None:
    """The same in a session of the caller's, which stays as it is and goes on.

    A topic that is missing is not waited for. Raises `SessionUnfit` for a session that cannot run
    it.
    """
    began_s = clock.monotonic_s()
    session.check_packages()
    mine = session.borrow(spark, settings_of(config), python_path(config))
    with closing(Lock(config.checkpoint, clock=clock, lease_ms=config.lease_ms)) as held:
        from catchwater.pipeline.run.run import look_before, run_query

        held.acquire()
        session.check_executors(mine, config.checkpoint, clock)
        with closing(look_before(config, began_s, clock)) as pipeline, session.alive(mine):
            traces = Traces(config.checkpoint / FOLDER / "spark.log")
            run_query(mine, pipeline, stop, traces, beside, clock)


def _stand_by(
    spark: "SparkSession", config: PipelineConfig, turn: Turn, stop: Stop, clock: Clock
) -> None:
    """Make ready what can be made ready, and wait for the turn."""
    from catchwater.pipeline.spark.warmup import warm_up
    from catchwater.sinks.open import preload

    warm_up(spark, config.tasks, lambda: turn.come or stop.requested, clock)
    preload(
        sink.kind for sink in config.every_sink.values()
    )  # half a second, and a third of a restart
    _log.info("Standing by.")
    while not stop.requested and not turn.wait(_LOOK_S):
        pass


def _python(config: PipelineConfig, python: str | None) -> "AbstractContextManager[str]":
    """What Spark runs as Python: forks of a zygote, where executors are in this process's JVM."""
    if session.is_cluster(config.spark):
        return nullcontext(config.spark.get("spark.pyspark.python", sys.executable))
    return nullcontext(python) if python else zygote(python_path(config))


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
    return {
        "spark.sql.streaming.minBatchesToRetain": str(config.retain + 1),
        "spark.sql.streaming.pollingDelay": "20",
    }
