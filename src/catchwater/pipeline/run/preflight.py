"""Look before the start: everything that would lose state or history is refused before Spark is.

Another function on this checkpoint, a log that no longer reaches back, a sink that is ahead. What
was looked up on the way is what the query is built from.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run import identity, versions
from catchwater.pipeline.run.artefact import FunctionCode, find_function, publish
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.fit import check_fit
from catchwater.pipeline.run.outlets import (
    Outlets,
    check_outlets,
    open_outlets,
    outlet_of,
    surroundings_of,
)
from catchwater.recovery import checkpoint, handover, pins, restore
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.home import claim_home
from catchwater.recovery.intact import check_files
from catchwater.recovery.ledger import Ledger, numbered
from catchwater.recovery.measure import RestoreWatch
from catchwater.replay.control import Control
from catchwater.replay.options import SourceOptions, parse_options
from catchwater.replay.subscription import Subscription
from catchwater.sinks.base import SinkAhead
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.open import look_at, target_of
from catchwater.sinks.surroundings import Surroundings


@dataclass(frozen=True)
class Parts:
    """What a start has looked up and made ready."""

    config: PipelineConfig
    name: str
    specs: Sequence[FunctionSpec]
    """Of the chain, in order."""
    codes: Sequence[FunctionCode]
    home: str
    """URL of the checkpoint's object store."""
    bootstrap: str
    """Of the source's log."""
    control: Control | None
    """Its control API; None: it is a Kafka that is not ours, without pins."""
    outlets: Outlets
    watch: RestoreWatch | None

    def tails(self, topics: Iterable[str]) -> dict[tuple[str, int], PartitionTail]:
        """What the log holds of these topics now."""
        return _tails(self.control, parse_options(self.config.source_options), topics)


def prepare(config: PipelineConfig, began_s: float, clock: Clock) -> Parts:
    """Look at everything a start could fail on, in the order that gives the clearest message."""
    handover.check(config.checkpoint, handover.Event.START)
    specs = [find_function(named, config.folder) for named in config.functions]
    name = config.name or specs[0].name
    options = parse_options(config.source_options)
    check_fit(config, specs)
    check_outlets(config, specs)
    bind(config.checkpoint, identity_of(config, specs), doubts_of(config, specs, clock))
    published = [(spec, publish(spec, config.checkpoint)) for spec in specs]
    next_epoch = checkpoint.last_commit(config.checkpoint) + 1
    functions = versions.admit(config.checkpoint, published, next_epoch, clock.now_ms())
    specs, codes = ([*each] for each in zip(*functions, strict=True))
    home = claim_home(config.checkpoint, config.state, name, clock)
    control = _control(options, clock)
    _look_for_tables(config, clock)
    generation = versions.load(config.checkpoint).generation
    around = surroundings_of(config, name, home, control, generation=generation, clock=clock)
    outlets = open_outlets(config, specs, around)
    parts = Parts(config, name, specs, codes, home, options.bootstrap, control, outlets, None)
    return replace(parts, watch=_check(parts, [*options.topics], began_s))


def tails_of(config: PipelineConfig, clock: Clock) -> dict[tuple[str, int], PartitionTail]:
    """What the log holds now of all that the pipeline reads."""
    options = parse_options(config.source_options)
    topics = {*options.topics, *config.tables.values()}
    return _tails(_control(options, clock), options, topics)


def _tails(
    control: Control | None, options: SourceOptions, topics: Iterable[str]
) -> dict[tuple[str, int], PartitionTail]:
    if control is not None:
        return pins.read_tails(control, topics)
    return pins.kafka_tails(options.bootstrap, topics, options.security)


def _look_for_tables(config: PipelineConfig, clock: Clock) -> None:
    """Raises `TopicUnknown` if a table's topic is not there."""
    if config.tables:
        with closing(Subscription(parse_options(config.table_options), clock)) as tables:
            tables.partitions()


def _control(options: SourceOptions, clock: Clock) -> Control | None:
    """The control API of the source's log, None if it is another Kafka.

    Raises `TopicUnknown` if the input is not there.
    """
    with closing(Subscription(options, clock)) as subscription:
        subscription.partitions()
        url = subscription.log_control_url()
    return Control(url, clock=clock) if url else None


def is_target(sink: SinkConfig, folder: Path, bound: str) -> bool:
    """Whether the sink writes to what a checkpoint is bound to.

    Checkpoints of earlier versions know no more than a topic, table, path or URL.
    """
    named = (sink.options.get(key) for key in ("topic", "table", "path", "url"))
    earlier = f"{sink.kind} {next(filter(None, named), '').partition('?')[0]}"
    return bound in (target_of(sink, folder), earlier)


def doubts_of(
    config: PipelineConfig, specs: Sequence[FunctionSpec], clock: Clock
) -> identity.Doubts:
    """Looks whether what a sink's target is now holds all that was written to the one before."""
    committed = checkpoint.last_commit(config.checkpoint)
    around = Surroundings(config.name or specs[0].name, "", config.folder, clock=clock)

    def doubt(name: str, was: str) -> str:
        sink = config.every_sink[name]
        if is_target(sink, config.folder, was):
            return ""
        try:
            seen = look_at(sink, outlet_of(sink, specs, around))
        except CatchwaterError as error:
            return f"of which nobody can tell what it holds: {str(error).rstrip('.')}"
        if not seen.ours:
            return "which has nothing of this pipeline's: what was written before is missing there"
        if sink.exactly_once and (seen.newest is None or seen.newest < committed):
            has = "none of them" if seen.newest is None else f"them up to epoch {seen.newest}"
            return f"which lacks epochs: it has {has} of {committed}"
        return ""

    return doubt


def bind(
    folder: Path, wanted: identity.Identity, doubts: identity.Doubts = identity.no_move
) -> None:
    """Bind the checkpoint to this pipeline; while nothing was begun in it, anew.

    A first start that failed, at a sink that was not there, must not hold on to that sink. Raises
    `OtherPipeline`.
    """
    ledger = Ledger(folder)
    epochs = [*numbered(folder / "offsets"), *ledger.epochs(), *ledger.recorded_epochs()]
    if epochs or handover.shadow_of(folder):
        identity.claim(folder, wanted, doubts)
    else:
        handover.refuse_unfinished(folder)
        identity.write(folder, wanted)


def identity_of(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> identity.Identity:
    """What a checkpoint of this pipeline is bound to."""
    return identity.Identity(
        pipeline=config.name or specs[0].name,
        functions=[spec.name for spec in specs],
        shards=config.shard_count,
        topics=list(parse_options(config.source_options).topics),
        sinks={sink: target_of(each, config.folder) for sink, each in config.every_sink.items()},
    )


def _check(parts: Parts, topics: Sequence[str], began_s: float) -> RestoreWatch | None:
    """Refuse what would skip or hide records; how to measure the restore, if this is one."""
    config = parts.config
    found = checkpoint.read(config.checkpoint)
    known = found.planned.epoch if found.planned else found.last.epoch if found.last else -1
    known = max(known, *Ledger(config.checkpoint).recorded_epochs(), -1)
    leads = not handover.is_shadow(config.checkpoint, known + 1)
    for name, sink in parts.outlets.all.items() if leads else ():
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
    check_files(config.checkpoint, found.last.epoch)
    tails = parts.tails({*topics, *found.last.end.needed})
    restore.check_covered(found.last.end, tails)
    if parts.control is not None:
        pins.refuse_lost(parts.control, found.last.end, tails)
    goal = {key: tail.high_watermark for key, tail in tails.items() if key[0] in topics}
    behind = found.planned is not None or any(
        found.last.end.offsets.get(topic, {}).get(str(partition), 0) < end
        for (topic, partition), end in goal.items()
    )
    return RestoreWatch(began_s, goal, config.tasks) if behind else None
