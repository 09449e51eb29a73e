"""Run one pipeline on a session: look before the start, run the query, keep its contracts."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.change.settle import settle
from catchwater.pipeline.pipeline import Pipeline
from catchwater.pipeline.run.config import AVAILABLE_NOW, PipelineConfig
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.pipeline.run.preflight import prepare
from catchwater.pipeline.run.query import stages, start_query, sweep_cache
from catchwater.pipeline.spark.failure import Told, cause, is_starved
from catchwater.pipeline.supervisor.drivers import Stop, take_report
from catchwater.pipeline.upkeep import Upkeep
from catchwater.recovery import checkpoint, handover, restore
from catchwater.recovery.contract import FunctionVersion, Terms
from catchwater.recovery.fallback import fall_back
from catchwater.recovery.ledger import EpochEntry, Ledger, LedgerDamaged, numbered
from catchwater.recovery.lock import Lock
from catchwater.recovery.software import versions
from catchwater.replay.subscription import TIMEOUT_S, TopicUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_log = logging.getLogger("catchwater.pipeline")

TOPIC_S = 1.0
"""How often to look for a topic that is not there yet."""
STARTS = 3
"""So often is a query started whose Python process does not come up in time."""
_LOOK_S = 0.1
"""How often to look whether to stop, and at what is due behind the epochs."""


class InputMissing(CatchwaterError):
    """A topic that a run is to read to its end is not there."""

    restart = Restart.NEVER


def take(
    config: PipelineConfig, held: Lock, began_s: float, stop: Stop, clock: Clock
) -> Pipeline | None:
    """Take the checkpoint, and look at everything that a start could fail on.

    Waits for topics that are not there yet, where the run has no end; None: it was to stop then.
    Raises `InputMissing` where it has one.
    """
    held.acquire()
    waits_for = ""
    while not stop.requested:
        try:
            return look_before(config, began_s, clock)
        except TopicUnknown as unknown:
            if config.trigger == AVAILABLE_NOW:
                raise InputMissing(
                    f"{unknown} This run ends with what is there now.",
                    hint="Is the name right? Create the topic, or run without --available-now, "
                    "which waits for it.",
                ) from unknown
            if waits_for != str(unknown):
                waits_for = str(unknown)
                _log.warning("%s The pipeline waits for it.", unknown)
        until_s = clock.monotonic_s() + TOPIC_S
        while not stop.requested and (left_s := until_s - clock.monotonic_s()) > 0:
            stop.pause(clock, left_s)
    return None


def look_before(config: PipelineConfig, began_s: float, clock: Clock) -> Pipeline:
    """End what was cut short, look at everything, and go back where something is broken."""
    folder = config.checkpoint
    handover.forget_the_dead(folder)
    restore.finish(folder)
    restore.respell(folder)
    if checkpoint.last_commit(folder) >= 0:
        checkpoint.name_query(folder, clock)
    try:
        before = take_report(folder)
        if before is not None and before.restart is Restart.FALL_BACK:
            raise LedgerDamaged(before.message)
        return prepare(config, began_s, clock)
    except LedgerDamaged as damage:
        _log.warning("%s", damage)
        tails = Pipeline.open(config, clock=clock, timeout_s=TIMEOUT_S).tails()
        fall_back(folder, tails)
        return prepare(config, began_s, clock)


def run_query(
    spark: "SparkSession",
    pipeline: Pipeline,
    stop: Stop,
    told: Told,
    beside: Callable[[], None] | None,
    clock: Clock,
) -> None:
    """Until the input ends, someone takes over or a stop is asked for. Raises what failed it."""
    from catchwater.pipeline.spark.epochs import EpochWriter

    config = pipeline.config
    if config.local is None:
        sweep_cache(config.checkpoint)
    shards = config.shard_count * len(pipeline.specs)
    ledger = Ledger(config.checkpoint)
    limit = poison_limit(pipeline)
    writer = EpochWriter(ledger, pipeline.sinks, shards, clock, poison_limit=limit)
    upkeep = upkeep_of(pipeline, clock)
    metrics = PipelineMetrics(pipeline.name, [spec.name for spec in pipeline.specs])
    if config.metrics is not None:
        metrics.serve(config.metrics)
    _log.info("Running %s, checkpoint %s.", pipeline.name, config.checkpoint)
    told = replace(told, since_ms=clock.now_ms())

    def look() -> bool:
        if beside is not None:
            beside()
        for entry in upkeep.look() if handover.take_over(config.checkpoint) else ():
            metrics.take(entry)
            _tell(entry)
        return not stop.requested and not _has_led(config.checkpoint)

    failure = run_to_end(lambda: start_query(spark, pipeline, writer), look)
    for entry in upkeep.look(at_once=True) if handover.take_over(config.checkpoint) else ():
        _tell(entry)
    if failure is not None and not stop.requested:
        raise writer.failure or cause(failure, told)
    if handover.fenced_by(config.checkpoint) is not None:
        handover.hand_over(config.checkpoint, settle(config.checkpoint))
    _log.info("Stopped after epoch %d.", checkpoint.last_commit(config.checkpoint))


def run_to_end(start: Callable[[], "StreamingQuery"], look: Callable[[], bool]) -> str | None:
    """Run a query until it ends or `look`, asked often, says no; what failed it, None if nothing.

    One whose Python process could not start in time has done nothing, and is started again: a
    machine that is busy for ten seconds should not cost a start of Spark.
    """
    for left in reversed(range(STARTS)):
        failure, goes_on = _run_once(start(), look)
        if not (failure and goes_on and left and is_starved(failure)):
            return failure
        _log.warning("Spark's Python process was not there within 10 s; the query starts again.")
    raise AssertionError("the last start returns")


def _run_once(query: "StreamingQuery", look: Callable[[], bool]) -> tuple[str | None, bool]:
    """What failed the query, and whether `look` would have it go on."""
    ended = threading.Event()
    threading.Thread(target=_await, args=(query, ended), name="await-query", daemon=True).start()
    try:
        while (goes_on := look()) and not ended.wait(_LOOK_S):
            pass
    finally:
        failure = None if query.isActive else query.exception()
        query.stop()
    return None if failure is None else str(failure), goes_on


def _await(query: "StreamingQuery", ended: threading.Event) -> None:
    """Say when the query has ended: to ask ten times a second costs more than all else here."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        # What has failed it, or the JVM, is found by who is told.
        with suppress(PySparkException, Py4JError, OSError):
            query.awaitTermination()
    finally:
        ended.set()


def _has_led(folder: Path) -> bool:
    """Whether another driver has asked to take over, and the last planned epoch is done."""
    if handover.fenced_by(folder) is None:
        return False
    return max(numbered(folder / "offsets"), default=-1) == checkpoint.last_commit(folder)


def upkeep_of(pipeline: Pipeline, clock: Clock) -> Upkeep:
    """What is to be done behind this run's epochs."""
    return Upkeep(
        pipeline.config.checkpoint,
        pipeline.control,
        pipeline.tails,
        terms_of(pipeline),
        retain=pipeline.config.retain,
        logs={
            (stage.index, shard): stage.log(shard)
            for stage in stages(pipeline)
            for shard in range(stage.shards)
        },
        sinks=pipeline.sinks,
        journals=[
            stage.journal
            for stage, spec in zip(stages(pipeline), pipeline.specs, strict=True)
            if spec.calls
        ],
        watch=pipeline.watch,
        clock=clock,
    )


def terms_of(pipeline: Pipeline) -> Terms:
    """What the contracts of this run have in common."""
    asked = [pipeline.config.max_restore_ms, *(spec.max_restore_ms for spec in pipeline.specs)]
    max_restore_ms = min((each for each in asked if each), default=None)
    return Terms(
        pipeline=pipeline.name,
        functions=[
            FunctionVersion(spec.name, spec.version, code.sha256)
            for spec, code in zip(pipeline.specs, pipeline.codes, strict=True)
        ],
        needs_history_ms=max(spec.needs_history_ms or 0 for spec in pipeline.specs),
        max_restore_s=max_restore_ms / 1000 if max_restore_ms else None,
        versions=versions(),
        pinned=pipeline.control is not None,
    )


def poison_limit(pipeline: Pipeline) -> int | None:
    """How many poisoned records the pipeline lives with; None: any number."""
    limits = [pipeline.config.poison_limit, *(spec.poison.limit for spec in pipeline.specs)]
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
