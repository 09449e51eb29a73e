"""Run one pipeline on a session, from the checkpoint's lock to its last contract.

In the order of a run: take the checkpoint, check everything that a start could fail on, build the
query, run it to its end, and write pins and contracts after its epochs. A start that would lose
state or history is refused before Spark touches anything. The query is the packed source, then for
every function a shuffle to the shards and an operator.
"""

import hashlib
import logging
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catchwater import traces as otel
from catchwater.clock import Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.objects.open import check_seal_at, open_store, refuse_plain_local
from catchwater.pipeline.epochs import EpochWriter, RestoreWatch, Upkeep
from catchwater.pipeline.functions.spec import FunctionSpec, Poison
from catchwater.pipeline.opened import (
    OpenPipeline,
    check_fit,
    check_known_subjects,
    check_sinks,
    source_of,
    table_values_of,
    values_of,
)
from catchwater.pipeline.rows import from_arrow, to_arrow
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.background import beside_the_query
from catchwater.pipeline.run.config import AVAILABLE_NOW, CONTINUOUS, DEAD_LETTER, PipelineConfig
from catchwater.pipeline.run.driver import Stop, shared_folder, take_report
from catchwater.pipeline.run.following import following
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.pipeline.run.traces import EpochTraces
from catchwater.pipeline.run.versions import bind, publish
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.failure import Traces, cause, is_starved
from catchwater.pipeline.status import LogWatch
from catchwater.pipeline.supervise import read_supervision
from catchwater.recovery import (
    checkpoint,
    contract,
    estimate,
    handover,
    pins,
    progress,
    remote,
)
from catchwater.recovery.checkpoint import Checkpoint, settle
from catchwater.recovery.contract import FunctionVersion, Tails, Terms
from catchwater.recovery.estimate import Estimate, near_s
from catchwater.recovery.fenced import LeaseHeld
from catchwater.recovery.folder import Lock, claim_home, home_of, key_part, state_folder
from catchwater.recovery.intact import check_files
from catchwater.recovery.ledger import EpochEntry, Ledger, LedgerDamaged, numbered, shown
from catchwater.recovery.progress import CatchingUp, Range
from catchwater.recovery.rewind import fall_back
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import TIMEOUT_S, Subscription, TopicUnknown
from catchwater.sinks.base import SinkAhead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from catchwater.pipeline.spark.placement import Homes
    from catchwater.pipeline.spark.source import PackedSettings

_log = logging.getLogger("catchwater.pipeline")

_OWNER = "checkpoint"
"""A file in a checkpoint's folder of the cache: the checkpoint's path."""
TOPIC_S = 1.0
"""How often to look for a topic that is not there yet."""
STARTS = 3
"""How often a query is started whose Python process does not come up in time."""
_LOOK_S = 0.1
"""How often to check whether to stop, and what is due after the epochs."""


Follow = Callable[[OpenPipeline, Sequence[EpochEntry]], None]
"""What is called with epochs that Spark has committed, in order."""


class InputMissing(CatchwaterError):
    """A topic that a run is to read to its end is not there."""

    restart = Restart.NEVER


def take_checkpoint(
    config: PipelineConfig, held: Lock, began_s: float, stop: Stop, clock: Clock
) -> OpenPipeline | None:
    """Take the checkpoint, and check everything that a start could fail on; None: asked to stop.

    A run without an end waits for topics that do not exist yet; one with an end raises
    `InputMissing`. A spare waits until no other machine works on the checkpoint; any other driver
    raises `LeaseHeld`.
    """
    turn_s = _acquire(config, held, stop, clock)
    if turn_s is None:
        return None
    began_s = max(began_s, turn_s)
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


def _acquire(config: PipelineConfig, held: Lock, stop: Stop, clock: Clock) -> float | None:
    """Hold the checkpoint. When a wait for it ended, 0 without a wait; None: asked to stop."""
    turn_s = 0.0

    def wait(seconds: float) -> bool:
        nonlocal turn_s
        stop.pause(clock, seconds)
        turn_s = clock.monotonic_s()
        return not stop.requested

    while not stop.requested:
        with _followed(config, clock):
            lapsed = remote.await_turn(config.checkpoint, wait, clock) if config.spare else ""
        if stop.requested:
            break
        try:
            held.acquire(lapsed=lapsed)
        except LeaseHeld:  # another spare was faster
            if not config.spare:
                raise
        else:
            return turn_s
    return None


def _followed(config: PipelineConfig, clock: Clock) -> AbstractContextManager[None]:
    """While a spare waits for a driver on another machine, this one's copies of shards follow."""
    waits = config.spare and remote.works_elsewhere(config.checkpoint, clock) is not None
    if not waits or session.is_cluster(config.spark):
        return nullcontext()
    return following(config.checkpoint, config.local or _cached(config.checkpoint), clock)


def look_before(config: PipelineConfig, began_s: float, clock: Clock) -> OpenPipeline:
    """End what was cut short, check everything, and go back if something is broken."""
    folder = config.checkpoint
    handover.make_ready(folder, clock)
    # A broken file is only noticed when it is read, so what the last run has reported counts.
    try:
        before = take_report(folder)
        if before is not None and before.restart is Restart.FALL_BACK:
            raise LedgerDamaged(before.message)
        return prepare(config, began_s, clock)
    except LedgerDamaged as damage:
        _log.warning("%s", damage)
        tails = OpenPipeline(config, clock=clock, timeout_s=TIMEOUT_S).tails()
        fall_back(folder, tails)
        return prepare(config, began_s, clock)


def prepare(config: PipelineConfig, began_s: float, clock: Clock) -> OpenPipeline:
    """Check everything a start could fail on, in the order that gives the clearest message.

    In the result the sinks are open, and `specs` and `codes` are what may run on this checkpoint.
    """
    refuse_plain_local("its local state and Spark's files", os.environ, _scratch_of(config))
    handover.check(config.checkpoint, handover.Event.START)
    check_seal_at(home_of(config.checkpoint), clock, may_write=False)
    pipeline = OpenPipeline(config, clock=clock, timeout_s=TIMEOUT_S)
    specs = pipeline.specs
    # Does the file fit the functions, and the pipeline the checkpoint?
    check_fit(config, specs)
    check_sinks(config, specs)
    again = checkpoint.last_commit(config.checkpoint) >= 0
    check_known_subjects(config, specs[0], again=again)
    if config.state is not None:
        open_store(config.state, clock)  # refused, where it is no store's URL, before it is kept
    bind(config.checkpoint, pipeline.identity(), pipeline.doubt)
    # May these versions of the functions go on from its state?
    published = [(spec, publish(spec, config.checkpoint)) for spec in specs]
    next_epoch = checkpoint.last_commit(config.checkpoint) + 1
    functions = versions.admit(config.checkpoint, published, next_epoch, clock.now_ms())
    pipeline.specs, codes = ([*each] for each in zip(*functions, strict=True))
    values = values_of(config, pipeline.specs[0])
    codes[0] = replace(codes[0], values=values)
    pipeline.codes = [
        replace(code, table_values=tuple(table_values_of(config, spec).items()))
        for code, spec in zip(codes, pipeline.specs, strict=True)
    ]
    home = claim_home(config.checkpoint, config.state, pipeline.name, clock)
    check_seal_at(home, clock)
    # Is all of its input there, and do sinks and log hold what the checkpoint goes on from?
    with closing(pipeline.source) as source:
        source.partitions()
    if config.tables:
        with closing(Subscription(parse_options(config.table_options), clock)) as tables:
            tables.partitions()
    pipeline.check_history()
    with ExitStack() as undo:
        undo.callback(pipeline.close)
        pipeline.watch = _check(pipeline, began_s)
        undo.pop_all()
    return pipeline


def _check(pipeline: OpenPipeline, began_s: float) -> RestoreWatch | None:
    """Refuse a start that would skip or hide records; returns the measurement of the restore."""
    config, topics = pipeline.config, pipeline.options.topics
    found = checkpoint.read(config.checkpoint)
    known = found.planned.epoch if found.planned else found.last.epoch if found.last else -1
    known = max(known, *Ledger(config.checkpoint).recorded_epochs(), -1)
    sinks = pipeline.sinks
    leads = not handover.is_shadow(config.checkpoint, known + 1)
    for name, sink in sinks.items() if leads else ():
        last = sink.last_epoch()
        if last is not None and last > known:
            raise SinkAhead(
                f"The sink {name!r} has epochs up to {last} of this pipeline, and the checkpoint "
                f"{shown(config.checkpoint)} only knows of {known}: new outputs would be "
                "taken for old.",
                hint="Start from the checkpoint this sink was written from, or set another name "
                "in [pipeline].",
            )
    if found.last is None:
        # A first start restores nothing, but its first epoch, which needs no input, says how long
        # starting takes: without it the first estimate would be a guess.
        return RestoreWatch(began_s, {}, config.tasks)
    progress.end(config.checkpoint)  # of a restore before, whose process died
    check_files(config.checkpoint, found.last.epoch)
    tails = pipeline.tails({*topics, *found.last.end.needed})
    contract.check_covered(found.last.end, tails)
    if pipeline.control is not None:
        pins.refuse_lost(pipeline.control, found.last.end, tails)
    goal = {key: tail.high_watermark for key, tail in tails.items() if key[0] in topics}
    behind = found.planned is not None or any(
        found.last.end.offsets.get(topic, {}).get(str(partition), 0) < end
        for (topic, partition), end in goal.items()
    )
    if not behind:
        return None
    now_s, now_ms = pipeline.clock.monotonic_s(), pipeline.clock.now_ms()
    began_ms = now_ms - round(1000 * (now_s - began_s))
    progress.begin(config.checkpoint, _catching_up(pipeline, found.last, tails, began_ms))
    detection_s, scheduling_s = estimate.down_s(
        estimate.last_alive_ms(config.checkpoint), _noticed_ms(config.checkpoint), began_ms
    )
    return RestoreWatch(
        began_s,
        goal,
        config.tasks,
        looked_s=now_s,
        near_s=near_s(_readable(Ledger(config.checkpoint))),
        scheduling_s=scheduling_s,
        detection_s=detection_s,
        foretold=_foretold(config.checkpoint) if scheduling_s is not None else None,
    )


def _foretold(folder: Path) -> Estimate | None:
    """What the newest contract says of a failure; of going back on purpose none does."""
    if Ledger(folder).recorded_epochs():
        return None
    with suppress(contract.NoContract, LedgerDamaged):
        return contract.load_contract(folder).restore
    return None


def _catching_up(
    pipeline: OpenPipeline, last: Checkpoint, tails: Tails, began_ms: int
) -> CatchingUp:
    """What this restore has to read, for `progress`."""
    config, topics = pipeline.config, pipeline.options.topics
    local = config.local or _cached(config.checkpoint)
    inputs = [
        Range(topic, number, last.end.offsets.get(topic, {}).get(str(number), tail.log_start),
              tail.high_watermark, tail.bytes / max(1, tail.high_watermark - tail.log_start))
        for (topic, number), tail in sorted(tails.items()) if topic in topics
    ]  # fmt: skip
    shards = {spec.name: str(local / key_part(spec.name)) for spec in pipeline.specs}
    return CatchingUp(began_ms, last.epoch + 1, inputs, shards)


def _readable(ledger: Ledger) -> list[EpochEntry]:
    """The entries without damaged ones: no start fails for a measurement."""
    found = []
    for epoch in ledger.epochs():
        with suppress(LedgerDamaged):
            found.append(ledger.read(epoch))
    return [entry for entry in found if entry is not None]


def _noticed_ms(folder: Path) -> int | None:
    """When the supervisor last saw a driver fail; None: never, or there is no supervisor."""
    with suppress(LedgerDamaged):
        supervisor = read_supervision(folder)
        return supervisor.last_failed_ms if supervisor else None
    return None


def run_query(
    spark: "SparkSession",
    pipeline: OpenPipeline,
    stop: Stop,
    traces: Traces,
    beside: Callable[[], None] | None,
    clock: Clock,
    follow: Follow | None = None,
) -> None:
    """Run until the input ends, another driver takes over or a stop is asked for.

    `follow` is given the epochs that were committed, instead of the log. Raises what failed it.
    """
    config, report = pipeline.config, follow or _log_epochs
    if session.has_executors(spark):
        pipeline.codes = [code.travelling() for code in pipeline.codes]
    remote.publish(config.checkpoint)
    if config.local is None:
        sweep_cache(config.checkpoint)
    # After each epoch: the writer commits it, upkeep pins it and writes its contract.
    shards = config.shard_count * len(pipeline.specs)
    ledger, chain = Ledger(config.checkpoint), stages(pipeline)
    homes = homes_of(spark, pipeline, chain, clock)
    writer = EpochWriter(
        ledger, pipeline.sinks, shards, clock,
        poison_limit=poison_limit(pipeline), collected_ms=session.collected_ms(spark),
        **({"place": homes.place} if homes else {}),
    )  # fmt: skip
    in_query = [] if homes else chain
    upkeep = upkeep_of(pipeline, chain, clock)
    _log.info("Running %s, checkpoint %s.", pipeline.name, shown(config.checkpoint))
    traces = replace(traces, since_ms=clock.now_ms())

    # A shadow's epochs are not its own to pin until it leads.
    def look() -> bool:
        remote.check(config.checkpoint)
        estimate.show_life(config.checkpoint)
        if beside is not None:
            beside()
        done = upkeep.look() if handover.take_over(config.checkpoint) else []
        report(pipeline, done)
        if done:
            _show(done, upkeep.newest, metrics, spans)
            reporter.committed()
        return not stop.requested and not _is_ready_to_hand_over(config.checkpoint)

    # Run it, then do the upkeep of the last epochs, and raise why it failed or hand over.
    with traced(pipeline, clock) as spans:
        with (
            served_metrics(pipeline) as metrics,
            beside_the_query(pipeline, metrics.observe if metrics else None, clock) as reporter,
        ):
            failure = run_to_end(lambda: start_query(spark, pipeline, in_query, writer), look)
            reporter.last_state = "failed" if failure and not stop.requested else "stopped"
        last = upkeep.look(at_once=True) if handover.take_over(config.checkpoint) else []
        if spans is not None:
            spans.take_all(last)
    report(pipeline, last)
    if failure is not None and not stop.requested:
        raise writer.failure or cause(failure, traces)
    if handover.fenced_by(config.checkpoint) is not None:
        handover.hand_over(config.checkpoint, settle(config.checkpoint))
    remote.publish(config.checkpoint)
    estimate.rest(config.checkpoint)
    _log.info("Stopped after epoch %d.", checkpoint.last_commit(config.checkpoint))


@contextmanager
def served_metrics(pipeline: OpenPipeline) -> Iterator[PipelineMetrics | None]:
    """Collect metrics and serve them meanwhile, if the file names an address; else None."""
    address = pipeline.config.metrics
    if address is None:
        yield None
        return
    metrics = PipelineMetrics(pipeline.name, [spec.name for spec in pipeline.specs])
    with metrics.served(address):
        yield metrics


def _show(
    done: Sequence[EpochEntry],
    newest: contract.Contract | None,
    metrics: PipelineMetrics | None,
    spans: EpochTraces | None,
) -> None:
    """Show epochs that were committed where that was asked for."""
    if metrics is not None:
        metrics.take_all(done, newest)
    if spans is not None:
        spans.take_all(done)


@contextmanager
def traced(pipeline: OpenPipeline, clock: Clock) -> Iterator[EpochTraces | None]:
    """Make spans of epochs while the block runs, if that is asked for. Raises `ConfigError`."""
    every = pipeline.config.trace_every
    if every is None:
        yield None
        return
    made = otel.Traces("catchwater-pipeline", {"service.instance.id": pipeline.name})
    watch = LogWatch(pipeline.config, clock)
    spans = EpochTraces(made, pipeline.name, every, watch.find_control)
    try:
        yield spans
    finally:
        spans.close()


def run_to_end(start: Callable[[], "StreamingQuery"], look: Callable[[], bool]) -> str | None:
    """Run a query until it ends or `look`, called often, returns False. Returns what failed it.

    A query whose Python process could not start in time has done nothing, and is started again: a
    machine that is busy for ten seconds should not cost a start of Spark.
    """
    for left in reversed(range(STARTS)):
        failure, goes_on = _run_once(start(), look)
        if not (failure and goes_on and left and is_starved(failure)):
            return failure
        _log.warning("Spark's Python process was not there within 10 s; the query starts again.")
    raise AssertionError("the last start returns")


def _run_once(query: "StreamingQuery", look: Callable[[], bool]) -> tuple[str | None, bool]:
    """What failed the query (None: nothing), and whether `look` wanted it to go on."""
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
    """Set `ended` when the query ends: asking ten times a second costs more than all else here."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        # The caller finds out what failed it, or the JVM.
        with suppress(PySparkException, Py4JError, OSError):
            query.awaitTermination()
    finally:
        ended.set()


def _is_ready_to_hand_over(folder: Path) -> bool:
    """Whether another driver has asked to take over, and the last planned epoch is done."""
    if handover.fenced_by(folder) is None:
        return False
    return max(numbered(folder / "offsets"), default=-1) == checkpoint.last_commit(folder)


_one_source = threading.Lock()


def packed_rows(spark: "SparkSession", settings: "PackedSettings") -> "DataFrame":
    """A streaming frame over a source that no other query of the session shares.

    Spark's runner changes a source's environment while it starts, and the tasks of another query
    that share it may be written just then: those cannot be read. So from registering the source to
    loading it nobody else registers one.
    """
    from catchwater.pipeline.spark.source import PackedSource

    with _one_source:
        spark.dataSource.register(PackedSource)
        return spark.readStream.format(PackedSource.name()).options(**settings.to_option()).load()


def start_query(
    spark: "SparkSession", pipeline: OpenPipeline, chain: Sequence[Stage], writer: Any
) -> "StreamingQuery":
    """Start the query of these stages on this session, with `writer` as its `foreachBatch`."""
    config = pipeline.config
    rows = packed_rows(spark, source_settings(pipeline))
    for stage in chain:
        rows = rows.repartition(config.tasks, "label").mapInArrow(operator(stage), rows.schema)
    query = rows.writeStream.foreachBatch(writer).queryName(pipeline.name)
    query = query.option("checkpointLocation", str(config.checkpoint))
    if config.trigger == AVAILABLE_NOW:
        query = query.trigger(availableNow=True)
    elif config.trigger != CONTINUOUS:
        query = query.trigger(processingTime=config.trigger)
    return query.start()


def homes_of(
    spark: "SparkSession", pipeline: OpenPipeline, chain: Sequence[Stage], clock: Clock
) -> "Homes | None":
    """What runs the chain on executors that are processes of their own; None: there are none.

    Its stages are then no part of the streaming query: each epoch's tasks have places of their own.
    """
    if not session.has_executors(spark):
        return None
    from catchwater.pipeline.spark.placement import Homes

    config = pipeline.config
    return Homes(
        spark,
        [operator(stage) for stage in chain],
        Ledger(config.checkpoint),
        lambda hosts: session.check_executors(spark, shared_folder(config), clock, hosts),
        tasks=config.tasks,
        shards=config.shard_count,
        clock=clock,
    )


def stages(pipeline: OpenPipeline) -> list[Stage]:
    """The functions of the chain, each with what the tasks need to run it."""
    config = pipeline.config
    local = config.local or _cached(config.checkpoint)
    last = len(pipeline.specs) - 1
    sinks = pipeline.sinks
    dead_letters = sinks.get(DEAD_LETTER)
    made = []
    for index, (spec, code) in enumerate(zip(pipeline.specs, pipeline.codes, strict=True)):
        stagers = {
            name: sink.stager()
            for name, sink in sinks.items()
            if source_of(config.every_sink[name], pipeline.specs) is spec
        }
        late = sinks.get(spec.late_sink or "")
        made.append(
            Stage(
                index=index,
                code=code,
                shards=config.shard_count,
                objects=pipeline.home,
                folder=state_folder(spec.name),
                function=spec.name,
                local=str(local / key_part(spec.name)),
                stagers=stagers,
                retracting=frozenset(name for name, sink in sinks.items() if sink.retracts),
                next=None if index == last else pipeline.codes[index + 1],
                dead_letters=dead_letters.stager() if dead_letters else None,
                late=late.stager() if late else None,
                poison=poison_of(config, spec),
                handler_timeout_ms=config.handler_timeout_ms or spec.handler_timeout_ms,
                calls=config.calls,
            )
        )
    return made


def source_settings(pipeline: OpenPipeline) -> "PackedSettings":
    """The settings of the packed source."""
    from catchwater.pipeline.spark.source import PackedSettings

    config = pipeline.config
    return PackedSettings(
        options=config.source_options,
        checkpoint=str(config.checkpoint),
        functions=list(pipeline.codes),
        shards=config.shard_count,
        tasks=config.tasks,
        record_key_is_function_key=config.record_key_is_function_key,
        idle_timeout_ms=config.idle_timeout_ms,
        inputs={topic: name for name, topic in config.inputs.items()},
        tables=dict(config.tables),
        table_options=config.table_options,
        until=config.until,
        waits=config.trigger == CONTINUOUS,
    )


def poison_of(config: PipelineConfig, spec: FunctionSpec) -> Poison:
    """The policy for records that a function cannot handle. Only the driver checks the limit."""
    return Poison(config.poison or spec.poison.policy, None)


def operator(stage: Stage) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: Spark's batches of one partition in, our rows out.

    Spark has shuffled the rows by label, so a partition holds all rows of its shards; they may come
    in any order and any number of batches. Spark repeats a failed task and may run one twice; the
    ledger decides which attempt counts.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in from_arrow(batch)]
        out = list(run_stage(stage, rows))
        if out:
            yield to_arrow(out)

    return run


def sweep_cache(checkpoint: Path) -> None:
    """Note whose shards lie in this machine's cache, and delete those of checkpoints that are gone.

    If such a checkpoint comes back, as on a disk that is mounted later, its shards are rebuilt. No
    start fails for this: the next one can delete what this one cannot.
    """
    mine = _cached(checkpoint)
    with suppress(OSError):
        mine.mkdir(parents=True, exist_ok=True)
        (mine / _OWNER).write_bytes(os.fsencode(checkpoint.resolve()))
        for owner in mine.parent.glob(f"*/{_OWNER}"):
            named = Path(os.fsdecode(owner.read_bytes()))
            if named.is_absolute() and not named.exists() and owner.parent == _cached(named):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _scratch_of(config: PipelineConfig) -> list[Path]:
    """Where state and Spark's files lie on this machine; nothing if others have them, too."""
    if session.is_cluster(config.spark):
        return []
    sparks = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return [
        config.local or _cached(config.checkpoint),
        session.scratch_folder(),
        *(Path(each) for each in sparks if each),
    ]


def _cached(checkpoint: Path) -> Path:
    return session.cache_folder() / "shards" / _digest(checkpoint)


def _digest(checkpoint_folder: Path) -> str:
    return hashlib.sha256(os.fsencode(checkpoint_folder.resolve())).hexdigest()[:16]


def upkeep_of(pipeline: OpenPipeline, chain: Sequence[Stage], clock: Clock) -> Upkeep:
    """Pins, contracts and sweeps after this run's epochs."""
    return Upkeep(
        pipeline.config.checkpoint,
        pipeline.control,
        pipeline.tails,
        terms_of(pipeline),
        kept=pipeline.config.kept,
        logs=lambda: {
            (stage.index, shard): stage.log(shard)
            for stage in chain
            for shard in range(stage.shards)
        },
        sinks=pipeline.sinks,
        journals=[
            stage.journal for stage, spec in zip(chain, pipeline.specs, strict=True) if spec.calls
        ],
        watch=pipeline.watch,
        clock=clock,
        since=pipeline.since if pipeline.config.until is None else None,  # a backfill holds its own
    )


def terms_of(pipeline: OpenPipeline) -> Terms:
    """What the contracts of this run have in common."""
    asked = [pipeline.config.max_restore_ms, *(spec.max_restore_ms for spec in pipeline.specs)]
    max_restore_ms = min((each for each in asked if each), default=None)
    max_replay_ms = pipeline.config.max_replay_ms
    return Terms(
        pipeline=pipeline.name,
        functions=[
            FunctionVersion(spec.name, spec.version, code.sha256)
            for spec, code in zip(pipeline.specs, pipeline.codes, strict=True)
        ],
        needs_history_ms=max(spec.needs_history_ms or 0 for spec in pipeline.specs),
        max_restore_s=max_restore_ms / 1000 if max_restore_ms else None,
        max_replay_s=max_replay_ms / 1000 if max_replay_ms else None,
        versions=_versions(),
        pinned=pipeline.control is not None,
    )


def _versions() -> dict[str, str]:
    """Of this product, of Python, and of Spark where it is installed."""
    found = {"catchwater": version("catchwater"), "python": platform.python_version()}
    try:
        return {**found, "pyspark": version("pyspark")}
    except PackageNotFoundError:
        return found


def poison_limit(pipeline: OpenPipeline) -> int | None:
    """How many poisoned records the pipeline tolerates; None: any number."""
    limits = [pipeline.config.poison_limit, *(spec.poison.limit for spec in pipeline.specs)]
    return min((limit for limit in limits if limit is not None), default=None)


def _log_epochs(pipeline: OpenPipeline, entries: Sequence[EpochEntry]) -> None:
    for entry in entries:
        _log.info(
            "Epoch %d: %d events in, %d out, %d late, %d duplicates.",
            entry.epoch,
            entry.total("events"),
            entry.total("outputs"),
            entry.total("late"),
            entry.total("duplicates"),
        )
