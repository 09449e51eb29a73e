"""Look before the start: everything that would lose state or history is refused before Spark is.

Another function on this checkpoint, a log that no longer reaches back, a sink that is ahead.
"""

from contextlib import ExitStack, closing

from catchwater.clock import Clock
from catchwater.pipeline.pipeline import Pipeline
from catchwater.pipeline.run import identity, versions
from catchwater.pipeline.run.artefact import publish
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.fit import check_fit, check_sinks
from catchwater.recovery import checkpoint, handover, pins, restore
from catchwater.recovery.home import claim_home
from catchwater.recovery.intact import check_files
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.measure import RestoreWatch
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import TIMEOUT_S, Subscription
from catchwater.sinks.base import SinkAhead


def prepare(config: PipelineConfig, began_s: float, clock: Clock) -> Pipeline:
    """Look at everything a start could fail on, in the order that gives the clearest message.

    The sinks are opened, and the functions those that may run on this checkpoint, with their code.
    """
    handover.check(config.checkpoint, handover.Event.START)
    pipeline = Pipeline.open(config, clock=clock, timeout_s=TIMEOUT_S)
    specs = pipeline.specs
    # Does the file fit the functions, and the pipeline the checkpoint?
    check_fit(config, specs)
    check_sinks(config, specs)
    identity.bind(config.checkpoint, pipeline.identity(), pipeline.doubt)
    # May these versions of the functions go on from its state?
    published = [(spec, publish(spec, config.checkpoint)) for spec in specs]
    next_epoch = checkpoint.last_commit(config.checkpoint) + 1
    functions = versions.admit(config.checkpoint, published, next_epoch, clock.now_ms())
    pipeline.specs, pipeline.codes = ([*each] for each in zip(*functions, strict=True))
    claim_home(config.checkpoint, config.state, pipeline.name, clock)
    # Is all of its input there, and do sinks and log hold what the checkpoint goes on from?
    with closing(pipeline.source) as source:
        source.partitions()
    if config.tables:
        with closing(Subscription(parse_options(config.table_options), clock)) as tables:
            tables.partitions()
    with ExitStack() as undo:
        undo.callback(pipeline.close)
        pipeline.watch = _check(pipeline, began_s)
        undo.pop_all()
    return pipeline


def _check(pipeline: Pipeline, began_s: float) -> RestoreWatch | None:
    """Refuse what would skip or hide records; how to measure the restore, if this is one."""
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
                f"{config.checkpoint} only knows of {known}: new outputs would be taken for old.",
                hint="Start from the checkpoint this sink was written from, or set another name "
                "in [pipeline].",
            )
    if found.last is None:
        # A first start restores nothing, but its first epoch, which needs no input, says how long
        # starting takes: without it the first estimate would be a guess.
        return RestoreWatch(began_s, {}, config.tasks)
    check_files(config.checkpoint, found.last.epoch)
    tails = pipeline.tails({*topics, *found.last.end.needed})
    restore.check_covered(found.last.end, tails)
    if pipeline.control is not None:
        pins.refuse_lost(pipeline.control, found.last.end, tails)
    goal = {key: tail.high_watermark for key, tail in tails.items() if key[0] in topics}
    behind = found.planned is not None or any(
        found.last.end.offsets.get(topic, {}).get(str(partition), 0) < end
        for (topic, partition), end in goal.items()
    )
    return RestoreWatch(began_s, goal, config.tasks) if behind else None
