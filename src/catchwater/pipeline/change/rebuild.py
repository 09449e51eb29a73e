"""A materialised view, or an external store, made anew from history and put in its place.

A rebuild is a backfill of everything, in the log and in topics' tables, into tables of its own;
what is for a key-value store is held back. When it has caught up, the pipeline is stopped; the
rebuild reads what came meanwhile; then each table's rows and marks take the place of the live ones
in one transaction, the store gets the newest record of every key, and the pipeline's checkpoint
hands over to the rebuild's. Readers of a table see the old view or the new one; those of a store
see one record after the other change. Cut short anywhere, the same steps done again end in the same
place: every one of them looks whether it was done. From before the first exchange on the pipeline
does not start from its old checkpoint, which knows nothing of what its sinks hold then.

Only what replaces can be rebuilt: in a topic or a folder of files the old outputs would stay.
"""

import logging
from contextlib import closing
from dataclasses import replace

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.backfill import BadBackfill, Bounds, begin, begun, resolve
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import rebind
from catchwater.recovery import checkpoint, handover, pins
from catchwater.recovery.checkpoint import settle
from catchwater.recovery.folder import adopt_home
from catchwater.replay.offsets import to_json
from catchwater.replay.options import BadOption, parse_options
from catchwater.replay.subscription import COMMAND_S, Subscription
from catchwater.sinks.base import TargetDiffers
from catchwater.sinks.config import truth_of
from catchwater.sinks.kinds.http import HttpSink
from catchwater.sinks.table import TableSink

_log = logging.getLogger("catchwater.pipeline")


class CannotRebuild(CatchwaterError):
    """A pipeline with a sink in which the old outputs would stay beside the new ones."""

    exit_code = 2


def tables_of(live: PipelineConfig, label: str) -> dict[str, str]:
    """Where each sink's rows are made before they take their place (`Kind.aside`).

    Raises `CannotRebuild`.
    """
    try:
        found = {name: each.declared.aside(each, label) for name, each in live.sinks.items()}
    except ConfigError as error:
        raise CannotRebuild(str(error), hint=error.hint) from error
    others = [f"{name!r} ({live.sinks[name].kind})" for name, to in found.items() if to is None]
    if others:
        raise CannotRebuild(
            f"The sinks {', '.join(others)} hold what cannot be exchanged; tables can, and a "
            "key-value store that is put to under a URL with {key} or {id}.",
            hint="Backfill into another topic or folder, and let its readers change over: "
            "catchwater pipeline backfill.",
        )
    unmarked = [name for name, each in live.sinks.items() if not each.exactly_once]
    if unmarked:
        raise CannotRebuild(
            f"The sinks {', '.join(map(repr, unmarked))} deliver at least once, so nobody can tell "
            "what they hold.",
            hint='Give them delivery = "exactly-once" first.',
        )
    return {name: to for name, to in found.items() if to is not None}


def all_of_it(rebuild: PipelineConfig, clock: Clock) -> Bounds:
    """Everything, also what only topics' tables have, unless they lack some of it.

    Raises `BadBackfill`.
    """
    try:
        return resolve(rebuild, "table", "latest", clock)
    except (BadBackfill, BadOption) as error:
        bounds = resolve(rebuild, "earliest", "latest", clock)
        _log.warning("The rebuild begins where the log does. %s %s", error, error.hint)
        return bounds


def extend(rebuild: PipelineConfig) -> int:
    """Let the rebuild read on to where the input ends now; how many offsets that adds.

    The live pipeline is stopped, so what it has read lies before.
    """
    bounds = begun(rebuild.checkpoint)
    assert bounds is not None, "it has begun"
    subscription = Subscription(parse_options(rebuild.source_options), timeout_s=COMMAND_S)
    try:
        end = subscription.latest()
    finally:
        subscription.close()
    started = {key: 0 for key in end} | {
        (topic, int(number)): at
        for topic, partitions in bounds.start.items()
        for number, at in partitions.items()
    }
    then = msgspec.structs.replace(bounds, start=to_json(started), end=to_json(end))
    begin(rebuild, then)
    return then.records - bounds.records


def take_place(pipeline: OpenPipeline, rebuild: PipelineConfig) -> dict[str, int]:
    """Put the rebuild in the live pipeline's place; the rows of each sink, -1 if it had them.

    The caller holds the lock of the live checkpoint, and the rebuild has read everything.
    """
    live, folder = pipeline.config, rebuild.checkpoint
    bounds = begun(folder)
    assert bounds is not None, "it has begun"
    handover.take_over(live.checkpoint)  # it may not know yet that it leads
    handover.check(live.checkpoint, handover.Event.REPLACE)
    begin(rebuild, msgspec.structs.replace(bounds, taking=True))
    settle(folder)
    handover.replace(live.checkpoint, folder)
    rows = _exchange(pipeline, rebuild)
    # An endpoint may know the requests of the old epochs, whose numbers come again, by their keys.
    ledger = versions.load(folder)
    generation = max(ledger.generation, pipeline.generation + 1)
    versions.store(folder, msgspec.structs.replace(ledger, generation=generation))
    rebind(folder, pipeline.identity())
    adopt_home(folder, live.state)
    if pipeline.control is not None:
        kept = live.kept.choose(checkpoint.read(folder).committed)
        pins.hold(pipeline.control, pipeline.name, kept.points)
    handover.hand_over(live.checkpoint, settle(live.checkpoint))
    return rows


def _exchange(pipeline: OpenPipeline, rebuild: PipelineConfig) -> dict[str, int]:
    live = pipeline.config
    rows: dict[str, int] = {}
    with closing(pipeline.other(config=replace(rebuild, dead_letter=None))) as made:
        for name, sink in made.sinks.items():
            if isinstance(sink, HttpSink):
                before = truth_of(live.sinks[name], pipeline.context_of(live.sinks[name]))
                rows[name] = sink.take_place(pipeline.name, before)
                continue
            assert isinstance(sink, TableSink), "others were refused"
            try:
                rows[name] = sink.take_place(pipeline.name, live.sinks[name].named)
            except TargetDiffers:
                if not rows:  # and this one was rolled back: the pipeline may go on
                    handover.give_back(live.checkpoint)
                raise
    return rows
