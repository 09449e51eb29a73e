"""What a pipeline's file amounts to, before anything runs: the answer of `pipeline plan`.

`plan_of` loads the functions and asks nobody; it raises what a start would raise for a file that
cannot be. `problems_of` looks for what a start would fail on where the file is good: packages,
brokers, topics, the checkpoint, the sinks' targets. It names them all and changes nothing.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.opened import (
    OpenPipeline,
    check_fit,
    check_subjects,
    packages_missing,
    source_of,
)
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig
from catchwater.pipeline.run.versions import Identity, check_identity
from catchwater.pipeline.spark.session import check_packages
from catchwater.recovery.contract import load_contracts
from catchwater.recovery.ledger import LedgerDamaged, shown
from catchwater.replay.control import ControlUnreachable
from catchwater.sinks.base import SinkUnavailable
from catchwater.sinks.config import SinkConfig, ask_others, guarantee, look_at
from catchwater.values.registry import SchemaUnavailable
from catchwater.verdicts import spelled_s
from catchwater.wire.client import RequestTimedOut
from catchwater.wire.connection import ConnectionLost
from catchwater.wire.security.settings import UNSECURED

_AWAY = (SinkUnavailable, ControlUnreachable, ConnectionLost, RequestTimedOut, SchemaUnavailable)

ASK_S = 5.0
"""How long a plan asks brokers; a start is more patient."""


class Problem(NamedTuple):
    """What a start would fail on, or wait for."""

    verdict: Literal["warn", "fail"]
    """`warn`: it did not answer, so nothing is known of it."""
    what: str
    """Such as `topic payments` or `sink alerts`."""
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.what}: {self.message} {self.hint}".rstrip()


def plan_of(pipeline: OpenPipeline) -> dict[str, Any]:
    """Source, shards, functions, tables, sinks, as `--json` prints them. Raises `ConfigError`."""
    config, specs, options = pipeline.config, pipeline.specs, pipeline.options
    check_fit(config, specs)
    packages_missing(config, specs)
    last = specs[-1]
    secured = "" if options.security == UNSECURED else f", {options.security}"
    sinks = [_sink(sink, source_of(sink, specs), specs) for sink in config.sinks.values()]
    if config.dead_letter is not None:
        sinks.append(_sink(config.dead_letter, None, specs))
    return {
        "name": config.name or specs[0].name,
        "source": f"{', '.join(options.topics)} at {options.bootstrap}{secured}",
        "shards": config.shard_count,
        "tasks": config.tasks,
        "trigger": config.trigger,
        "checkpoint": shown(config.checkpoint),
        "restorable": _restorable(config, specs),
        **_restorable_now(config),
        "functions": [
            {
                "function": spec.name,
                "version": spec.version,
                "key": ", ".join(spec.key),
                "outputs_to": "sinks" if spec is last else specs[at + 1].name,
            }
            for at, spec in enumerate(specs)
        ],
        "tables": [
            {
                "table": name,
                "topic": config.tables.get(name, ""),
                "function": spec.name,
                "rows": "to the shard of their key" if table.keyed else "to every shard",
            }
            for spec in specs
            for name, table in spec.tables.items()
        ],
        "sinks": sinks,
    }


def _restorable(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> str:
    """What the file has kept of the past, in words."""
    points, kept_ms = config.kept, config.kept.window_ms
    kept = f"the newest {points.most} checkpoints" if points.most > 1 else "the newest checkpoint"
    if kept_ms is not None:
        reach_s = spelled_s(kept_ms / 1000)
        kept = (
            f"a restore point every {spelled_s(points.every_ms / 1000)} for {reach_s}, and every "
            f"epoch since the newest: {reach_s} back, from where on they keep the log from deletion"
        )
        if points.span_ms is not None and kept_ms < points.span_ms:
            kept += f" (retain asks for {spelled_s(points.span_ms / 1000)}: see retain_most)"
    if (needs_ms := max(spec.needs_history_ms or 0 for spec in specs)) > (kept_ms or 0):
        kept += f"; functions need {spelled_s(needs_ms / 1000)} (needs_history), which is kept, too"
    if config.savepoint_every_ms is None:
        return f"{kept}; savepoints: only those that are asked for"
    every_s, most = config.savepoint_every_ms / 1000, config.savepoint_keep
    return (
        f"{kept}; savepoints: one every {spelled_s(every_s)}, the newest {most} of them: "
        f"{spelled_s(every_s * most)} back, from where on they keep the log from deletion"
    )


def _restorable_now(config: PipelineConfig) -> dict[str, str]:
    """What there is of it, by the contracts; nothing before the first."""
    try:
        contracts = load_contracts(config.checkpoint)
    except LedgerDamaged as damage:
        return {"restorable_now": f"unknown: {damage}"}
    if not contracts:
        return {}
    oldest, newest = contracts[0], contracts[-1]
    ends = {(each.topic, each.partition): each.high_watermark for each in newest.inputs}
    records = sum(
        max(0, ends.get((each.topic, each.partition), 0) - each.offset) for each in oldest.inputs
    )
    back = spelled_s((newest.clock_ms - oldest.clock_ms) / 1000)
    return {
        "restorable_now": f"{len(contracts)} checkpoints, {oldest.epoch} to {newest.epoch}, over "
        f"{back}; a restore of the oldest reads {records} records of the log again"
    }


def problems_of(pipeline: OpenPipeline, *, offline: bool = False) -> list[Problem]:
    """All that a start would fail on as things are now; `offline`: only what no other machine says.

    Raises `ConfigError` as `plan_of`.
    """
    missing = packages_missing(pipeline.config, pipeline.specs)
    found = [*_tried("packages", check_packages)]
    found += [_problem(f"sink {name}", error) for name, error in missing.items()]
    if offline:
        return found
    answered = True
    try:
        found += _ask(pipeline)
        found += _tried("needs_history", pipeline.check_history)
    except CatchwaterError as error:
        found.append(_problem("source", error))
        answered = False
        pipeline.control = None
    found += _tried("events", lambda: check_subjects(pipeline.config, pipeline.specs[0]))
    found += _tried("checkpoint", lambda: _check_identity(pipeline, missing))
    for name, sink in pipeline.config.every_sink.items():
        if name not in missing and (answered or not sink.declared.of_the_source):
            found += _tried(f"sink {name}", lambda s=sink: _fits(pipeline, s))  # type: ignore[misc]
    return found


def _ask(pipeline: OpenPipeline) -> list[Problem]:
    """Ask the brokers who they are, and for the topics; those that are not there."""
    options, config = pipeline.options, pipeline.config
    wanted = {*options.topics, *config.tables.values()}
    with closing(pipeline.source):
        there = pipeline.source.topics(sorted(wanted))
        pipeline.with_log()
    return [
        Problem(
            "fail",
            f"topic {topic}",
            f"There is no topic {topic} at {options.bootstrap}.",
            f"Is the name right? catchwater topic create {topic} makes it.",
        )
        for topic in sorted(wanted - {*there})
    ]


def _check_identity(pipeline: OpenPipeline, unknown: Container[str]) -> None:
    """A sink whose package is missing cannot say where it writes to, and is left out."""
    folder = pipeline.config.checkpoint
    bound, wanted = Identity.read(folder), pipeline.identity(without=unknown)
    if bound is not None:
        for name in {*bound.sinks} & {*pipeline.config.every_sink} - {*wanted.sinks}:
            wanted = wanted.with_sink(name, bound.sinks[name])
    check_identity(folder, wanted, pipeline.doubt)


def _fits(pipeline: OpenPipeline, sink: SinkConfig) -> None:
    context = pipeline.context_of(sink)
    ask_others(sink, context)
    seen = look_at(sink, context)
    if seen.differs is not None:
        raise seen.differs


def _tried(what: str, look: Callable[[], object]) -> Iterator[Problem]:
    try:
        look()
    except CatchwaterError as error:
        yield _problem(what, error)


def _problem(what: str, error: CatchwaterError) -> Problem:
    verdict: Literal["warn", "fail"] = "warn" if isinstance(error, _AWAY) else "fail"
    return Problem(verdict, what, str(error), error.hint or "")


def _sink(
    sink: SinkConfig, source: FunctionSpec | None, specs: Sequence[FunctionSpec]
) -> dict[str, str]:
    given = guarantee(sink, output_id=source.output_id if source else ())
    aside = ["what functions cannot handle"] if sink.name == DEAD_LETTER else []
    aside += [f"late events of {spec.name}" for spec in specs if spec.late_sink == sink.name]
    return {
        "sink": sink.name,
        "kind": sink.kind,
        "to": sink.place,
        "from": source.name if source else ", ".join(aside),
        "guarantee": given.level,
        "why": given.why,
    }
