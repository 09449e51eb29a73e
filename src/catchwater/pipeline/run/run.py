"""Run one pipeline: look before the start, build the query, keep its contracts, stop cleanly.

Everything that would lose state or history is refused before Spark is started: another function
on this checkpoint, a log that no longer reaches back, a sink that is ahead. Then the query is the
packed source, one shuffle to the shards, the operator, and `foreachBatch` with the manifests.

`catchwater pipeline run` ends up here. SIGTERM and Ctrl-C stop it after what Spark is doing was
undone or done: at most an epoch runs again.
"""

import hashlib
import importlib
import logging
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run import identity
from catchwater.pipeline.run.artefact import FunctionCode, find_function, publish, state_schema
from catchwater.pipeline.run.config import AVAILABLE_NOW, CONTINUOUS, PipelineConfig
from catchwater.pipeline.spark import session
from catchwater.recovery import checkpoint, pins, restore
from catchwater.recovery.contract import FunctionVersion, Terms
from catchwater.recovery.ledger import FOLDER, EpochEntry, Ledger
from catchwater.recovery.lock import lock
from catchwater.recovery.measure import RestoreWatch
from catchwater.replay.control import CONTROL_URL, Control
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import Subscription
from catchwater.sinks.base import Sink, SinkAhead
from catchwater.sinks.log import LogSink, LogStager
from catchwater.wire.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_log = logging.getLogger("catchwater.pipeline")

_POLL_S = 0.1
_OURS = re.compile(r"^(?:.*\s)?(catchwater(?:\.\w+)+)\.(\w+): (.+)$", re.MULTILINE)
"""Our errors in a Python worker's traceback."""


class PipelineFailed(CatchwaterError):
    """The query ended with an error; the message is its cause."""


class NotOurLog(CatchwaterError):
    """The brokers have no control API, so nothing can be committed to them once."""


@dataclass(frozen=True)
class _Parts:
    """What a start has looked up and made ready."""

    config: PipelineConfig
    name: str
    spec: FunctionSpec
    code: FunctionCode
    control: Control
    sinks: Mapping[str, Sink]
    topics: Sequence[str]
    watch: RestoreWatch | None


def run_pipeline(config: PipelineConfig, *, quick: bool = False, clock: Clock = SYSTEM) -> None:
    """Run until the input ends (available-now) or a signal comes. Raises `CatchwaterError`.

    `quick` starts sooner and runs slower code, for demos and tests.
    """
    began_s = clock.monotonic_s()
    session.check_packages()
    session.find_java()
    with lock(config.checkpoint, clock) as descriptor:
        restore.finish(config.checkpoint)
        parts = _prepare(config, began_s, clock)
        log_path = config.checkpoint / FOLDER / "spark.log"
        with _stop_requested() as stop, log_path.open("ab") as log:
            spark = session.start(
                parts.name,
                tasks=config.tasks,
                quick=quick,
                log=log,
                keep_open=(descriptor,),
                python_path=[str(config.folder)],
                conf={
                    "spark.sql.streaming.minBatchesToRetain": str(config.retain + 1),
                    "spark.sql.streaming.pollingDelay": "20",
                },
            )
            session.start_workers(spark, config.tasks)
            try:
                _run_query(spark, parts, stop, log_path, clock)
            finally:
                session.stop(spark)


def _prepare(config: PipelineConfig, began_s: float, clock: Clock) -> _Parts:
    """Look at everything a start could fail on, in the order that gives the clearest message."""
    spec = find_function(config.function, config.folder)
    name = config.name or spec.name
    options = parse_options(config.source)
    topics = list(options.topics)
    identity.claim(
        config.checkpoint,
        identity.Identity(
            pipeline=name,
            function=spec.name,
            version=spec.version,
            state_schema=state_schema(spec),
            shards=config.shard_count,
            topics=topics,
            sinks=dict(config.sinks),
        ),
    )
    subscription = Subscription(options, clock)
    subscription.partitions()
    control_url = subscription.control_url()
    subscription.close()
    if control_url is None:
        raise NotOurLog(
            f"The brokers at {options.bootstrap} name no {CONTROL_URL}: outputs cannot be "
            "committed there once.",
            hint="Run the pipeline against a Catchwater log.",
        )
    control = Control(control_url, clock=clock)
    _create_topics(options.bootstrap, config)
    sinks = {sink: _log_sink(control, name, sink, topic) for sink, topic in config.sinks.items()}
    watch = _preflight(config, control, sinks, topics, began_s)
    code = publish(spec, config.checkpoint)
    return _Parts(config, name, spec, code, control, sinks, topics, watch)


def _create_topics(bootstrap: str, config: PipelineConfig) -> None:
    with Client(bootstrap) as client:
        there = client.metadata(list(config.sinks.values())).topics()
        for sink, topic in config.sinks.items():
            if topic not in there:
                client.create_topics({topic: config.sink_partitions.get(sink) or -1})


def _log_sink(control: Control, pipeline: str, name: str, topic: str) -> LogSink:
    found = control.request("GET", f"/api/v1/topics/{topic}")
    folder = "/".join(_key_part(part) for part in ("staged", pipeline, name))
    stager = LogStager(
        control.objects_url(), folder, bytes.fromhex(found["id"]), int(found["partitions"])
    )
    return LogSink(control, pipeline=pipeline, name=name, topic=topic, stager=stager)


def _key_part(name: str) -> str:
    """The name where it may stand in an object's key, else a digest of it."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _preflight(
    config: PipelineConfig,
    control: Control,
    sinks: Mapping[str, Sink],
    topics: Sequence[str],
    began_s: float,
) -> RestoreWatch | None:
    """Refuse what would skip or hide records; how to measure the restore, if this is one."""
    found = checkpoint.read(config.checkpoint)
    tails = pins.read_tails(control, topics)
    known = found.planned.epoch if found.planned else found.last.epoch if found.last else -1
    known = max(known, *Ledger(config.checkpoint).recorded_epochs(), -1)
    for name, sink in sinks.items():
        last = sink.last_epoch()
        if last is not None and last > known:
            raise SinkAhead(
                f"The sink {name!r} has epochs up to {last} of this pipeline, and the checkpoint "
                f"{config.checkpoint} only knows of {known}: new outputs would be taken for old.",
                hint="Start from the checkpoint this sink was written from, or set another name "
                "in [pipeline].",
            )
    if found.last is None:
        # A first start restores nothing, but its first epoch, which needs no input, says how long
        # starting takes: without it the first estimate would be a guess.
        return RestoreWatch(began_s, {}, config.tasks)
    restore.check_covered(found.last.end, tails)
    pins.refuse_lost(control, found.last.end, tails)
    goal = {key: tail.high_watermark for key, tail in tails.items()}
    behind = found.planned is not None or any(
        found.last.end.offsets.get(topic, {}).get(str(partition), 0) < end
        for (topic, partition), end in goal.items()
    )
    return RestoreWatch(began_s, goal, config.tasks) if behind else None


def _run_query(
    spark: "SparkSession", parts: _Parts, stop: "_Stop", log_path: Path, clock: Clock
) -> None:
    from catchwater.pipeline.spark.epochs import EpochWriter, Upkeep, versions

    config, spec = parts.config, parts.spec
    ledger = Ledger(config.checkpoint)
    writer = EpochWriter(ledger, parts.sinks, config.shard_count, clock)
    max_restore_ms = config.max_restore_ms or spec.max_restore_ms
    terms = Terms(
        pipeline=parts.name,
        function=FunctionVersion(spec.name, spec.version, parts.code.sha256),
        needs_history_ms=spec.needs_history_ms or 0,
        max_restore_s=max_restore_ms / 1000 if max_restore_ms else None,
        versions=versions(),
    )
    upkeep = Upkeep(
        config.checkpoint,
        parts.control,
        terms,
        retain=config.retain,
        watch=parts.watch,
        clock=clock,
    )
    query = _start_query(spark, parts, writer)
    _log.info("Running %s, checkpoint %s.", parts.name, config.checkpoint)
    try:
        while query.isActive and not stop.requested:
            for entry in upkeep.look():
                _tell(entry)
            clock.pause(_POLL_S)
    finally:
        failure = None if query.isActive else query.exception()
        query.stop()
    for entry in upkeep.look():
        _tell(entry)
    if failure is not None and not stop.requested:
        raise writer.failure or _cause(str(failure), log_path)
    _log.info("Stopped after epoch %d.", checkpoint.last_commit(config.checkpoint))


def _start_query(spark: "SparkSession", parts: _Parts, writer: Any) -> "StreamingQuery":
    from catchwater.pipeline.spark.operator import OUTPUT_SCHEMA, ShardOperator
    from catchwater.pipeline.spark.source import PackedSettings, PackedSource

    config = parts.config
    settings = PackedSettings(
        options=dict(config.source),
        checkpoint=str(config.checkpoint),
        code=parts.code,
        shards=config.shard_count,
        tasks=config.tasks,
        record_key_is_function_key=config.record_key_is_function_key,
    )
    local = config.local or session.cache_folder() / "shards" / _digest(config.checkpoint)
    operator = ShardOperator(
        code=parts.code,
        pipeline=parts.name,
        local=str(local),
        stagers={name: sink.stager() for name, sink in parts.sinks.items()},
    )
    spark.dataSource.register(PackedSource)
    source = spark.readStream.format(PackedSource.name()).options(**settings.to_option()).load()
    shards = source.groupBy("shard")
    manifests = shards.transformWithState(operator, OUTPUT_SCHEMA, "Append", "none")
    query = manifests.writeStream.foreachBatch(writer).queryName(parts.name)
    query = query.option("checkpointLocation", str(config.checkpoint))
    if config.trigger == AVAILABLE_NOW:
        query = query.trigger(availableNow=True)
    elif config.trigger != CONTINUOUS:
        query = query.trigger(processingTime=config.trigger)
    return query.start()


def _digest(checkpoint_folder: Path) -> str:
    return hashlib.sha256(str(checkpoint_folder.resolve()).encode()).hexdigest()[:16]


def _tell(entry: EpochEntry) -> None:
    _log.info(
        "Epoch %d: %d events in, %d out, %d late, %d duplicates.",
        entry.epoch,
        entry.total("events"),
        entry.total("outputs"),
        entry.total("late"),
        entry.total("duplicates"),
    )


def _cause(text: str, log_path: Path) -> CatchwaterError:
    """One sentence out of what Spark says of a failed query; our own errors by their own words."""
    hint = f"The whole story is in {log_path}."
    ours = _OURS.findall(text)
    if ours:
        module, name, message = ours[-1]
        kind = getattr(importlib.import_module(module), name, None)
        failed = PipelineFailed(f"The pipeline failed: {message}", hint=hint)
        failed.exit_code = getattr(kind, "exit_code", 1)
        return failed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return PipelineFailed(
        f"The pipeline failed: {(errors or lines or ['no cause was given'])[-1]}", hint=hint
    )


class _Stop:
    """Whether a signal has asked us to stop."""

    requested = False


@contextmanager
def _stop_requested() -> Iterator[_Stop]:
    """Turn SIGTERM and Ctrl-C into a flag, for as long as this lasts."""
    stop = _Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
