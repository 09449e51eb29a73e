"""Run one pipeline: look before the start, run the query, keep its contracts, stop cleanly.

`catchwater pipeline run` ends up here. SIGTERM and Ctrl-C stop it after what Spark is doing was
undone or done: at most an epoch runs again.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.change.settle import settle
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.pipeline.run.preflight import Parts, prepare, tails_of
from catchwater.pipeline.run.query import stages, start_query
from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.failure import cause
from catchwater.pipeline.spark.zygote import zygote
from catchwater.pipeline.supervisor.spare import Turn, take_report
from catchwater.pipeline.supervisor.stopping import Stop, stop_requested
from catchwater.pipeline.upkeep import Upkeep
from catchwater.recovery import checkpoint, handover, restore
from catchwater.recovery.contract import FunctionVersion, Terms
from catchwater.recovery.fallback import DAMAGED, fall_back
from catchwater.recovery.ledger import FOLDER, EpochEntry, Ledger, LedgerDamaged, numbered
from catchwater.recovery.lock import Lock
from catchwater.recovery.software import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("catchwater.pipeline")

_POLL_S = 0.1
_TURN_S = 0.01


def run_pipeline(
    config: PipelineConfig,
    *,
    quick: bool = False,
    turn: Turn | None = None,
    beside: Callable[[], None] | None = None,
    clock: Clock = SYSTEM,
) -> None:
    """Run until the input ends (available-now) or a signal comes. Raises `CatchwaterError`.

    `quick` starts sooner and runs slower code, for demos and tests. With a `turn` that has not come
    yet, Spark is started first, and the checkpoint is looked at when it comes. `beside` is called
    between looks at what the query does.
    """
    began_s = clock.monotonic_s()
    session.check_packages()
    session.find_java()
    log_path = config.checkpoint / FOLDER / "spark.log"
    with (
        closing(Lock(config.checkpoint, clock=clock)) as held,
        stop_requested() as stop,
        log_path.open("ab") as log,
        zygote([str(config.folder)]) as python,
    ):
        parts = None if turn and not turn.come else _take(config, held, began_s, clock)
        spark = session.start(
            config.name or config.functions[0],
            tasks=config.tasks,
            quick=quick,
            log=log,
            keep_open=(held.descriptor,),
            python_path=[str(config.folder)],
            python=python,
            conf=settings_of(config),
        )
        session.start_workers(spark, config.tasks)
        try:
            if parts is None and turn:
                _stand_by(spark, config.tasks, turn, stop, clock)
                if turn.come:
                    parts = _take(config, held, clock.monotonic_s(), clock)
            if parts is not None:
                with closing(parts.outlets):
                    _run_query(spark, parts, stop, log_path, beside, clock)
        finally:
            session.stop(spark)


def _stand_by(spark: "SparkSession", tasks: int, turn: Turn, stop: Stop, clock: Clock) -> None:
    """Make ready what can be made ready, and wait for the turn."""
    from catchwater.pipeline.spark.warmup import warm_up

    warm_up(spark, tasks, lambda: turn.come or stop.requested, clock)
    _log.info("Standing by.")
    while not turn.come and not stop.requested:
        clock.pause(_TURN_S)


def _take(config: PipelineConfig, held: Lock, began_s: float, clock: Clock) -> Parts:
    """Take the checkpoint, and look at everything that a start could fail on."""
    folder = config.checkpoint
    held.acquire()
    restore.finish(folder)
    before = take_report(folder)
    try:
        if before is not None and before.kind in DAMAGED:
            raise LedgerDamaged(before.message)
        return prepare(config, began_s, clock)
    except LedgerDamaged as damage:
        _log.warning("%s", damage)
        fall_back(folder, tails_of(config, clock))
        return prepare(config, began_s, clock)


def _run_query(
    spark: "SparkSession",
    parts: Parts,
    stop: Stop,
    log_path: Path,
    beside: Callable[[], None] | None,
    clock: Clock,
) -> None:
    from catchwater.pipeline.spark.epochs import EpochWriter

    config = parts.config
    shards = config.shard_count * len(parts.specs)
    ledger = Ledger(config.checkpoint)
    limit = poison_limit(parts)
    writer = EpochWriter(ledger, parts.outlets.all, shards, clock, poison_limit=limit)
    upkeep = upkeep_of(parts, clock)
    metrics = PipelineMetrics(parts.name, [spec.name for spec in parts.specs])
    if config.metrics is not None:
        metrics.serve(config.metrics)
    query = start_query(spark, parts, writer)
    _log.info("Running %s, checkpoint %s.", parts.name, config.checkpoint)
    try:
        while query.isActive and not stop.requested and not _has_led(config.checkpoint):
            if beside is not None:
                beside()
            for entry in upkeep.look() if handover.take_over(config.checkpoint) else ():
                metrics.take(entry)
                _tell(entry)
            clock.pause(_POLL_S)
    finally:
        failure = None if query.isActive else query.exception()
        query.stop()
    for entry in upkeep.look(at_once=True) if handover.take_over(config.checkpoint) else ():
        _tell(entry)
    if failure is not None and not stop.requested:
        raise writer.failure or cause(str(failure), log_path)
    if handover.fenced_by(config.checkpoint) is not None:
        handover.hand_over(config.checkpoint, settle(config.checkpoint))
    _log.info("Stopped after epoch %d.", checkpoint.last_commit(config.checkpoint))


def _has_led(folder: Path) -> bool:
    """Whether another driver has asked to take over, and the last planned epoch is done."""
    if handover.fenced_by(folder) is None:
        return False
    return max(numbered(folder / "offsets"), default=-1) == checkpoint.last_commit(folder)


def settings_of(config: PipelineConfig) -> dict[str, str]:
    """What this pipeline sets of Spark's."""
    return {
        "spark.sql.streaming.minBatchesToRetain": str(config.retain + 1),
        "spark.sql.streaming.pollingDelay": "20",
    }


def upkeep_of(parts: Parts, clock: Clock) -> Upkeep:
    """What is to be done behind this run's epochs."""
    return Upkeep(
        parts.config.checkpoint,
        parts.control,
        parts.tails,
        terms_of(parts),
        retain=parts.config.retain,
        logs={
            (stage.index, shard): stage.log(shard)
            for stage in stages(parts)
            for shard in range(stage.shards)
        },
        sinks=parts.outlets.all,
        journals=[
            stage.journal
            for stage, spec in zip(stages(parts), parts.specs, strict=True)
            if spec.calls
        ],
        watch=parts.watch,
        clock=clock,
    )


def terms_of(parts: Parts) -> Terms:
    """What the contracts of this run have in common."""
    asked = [parts.config.max_restore_ms, *(spec.max_restore_ms for spec in parts.specs)]
    max_restore_ms = min((each for each in asked if each), default=None)
    return Terms(
        pipeline=parts.name,
        functions=[
            FunctionVersion(spec.name, spec.version, code.sha256)
            for spec, code in zip(parts.specs, parts.codes, strict=True)
        ],
        needs_history_ms=max(spec.needs_history_ms or 0 for spec in parts.specs),
        max_restore_s=max_restore_ms / 1000 if max_restore_ms else None,
        versions=versions(),
        pinned=parts.control is not None,
    )


def poison_limit(parts: Parts) -> int | None:
    """How many poisoned records the pipeline lives with; None: any number."""
    limits = [parts.config.poison_limit, *(spec.poison.limit for spec in parts.specs)]
    return min((limit for limit in limits if limit is not None), default=None)


def _tell(entry: EpochEntry) -> None:
    _log.info(
        "Epoch %d: %d events in, %d out, %d late, %d duplicates.",
        entry.epoch,
        entry.total("events"),
        entry.total("outputs"),
        entry.total("late"),
        entry.total("duplicates"),
    )
