"""What a pipeline's file amounts to, before anything runs: the answer of `pipeline plan`.

`plan_of` loads the functions and asks nobody; it raises what a start would raise for a file that
cannot be. `problems_of` looks for what a start would fail on where the file is good: packages,
brokers, topics, the checkpoint, the sinks' targets. It names them all and changes nothing.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run import identity, versions
from catchwater.pipeline.run.artefact import find_function
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig
from catchwater.pipeline.run.fit import check_fit
from catchwater.pipeline.run.outlets import (
    outlets_of,
    packages_missing,
    source_of,
    surroundings_of,
)
from catchwater.pipeline.run.preflight import doubts_of, identity_of
from catchwater.pipeline.spark.session import check_packages
from catchwater.replay.control import CONTROL_URL, Control, ControlUnreachable
from catchwater.replay.options import parse_options
from catchwater.sinks.base import Seen, SinkUnavailable
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.guarantee import guarantee
from catchwater.sinks.open import look_at
from catchwater.sinks.surroundings import Surroundings
from catchwater.wire.client import Client, RequestRefused, RequestTimedOut
from catchwater.wire.connection import ConnectionLost
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.settings import UNSECURED

_AWAY = (SinkUnavailable, ControlUnreachable, ConnectionLost, RequestTimedOut)
_ASK_S = 5.0
"""How long brokers are asked; a start is more patient."""


class Problem(NamedTuple):
    """What a start would fail on, or wait for."""

    verdict: Literal["warn", "fail"]
    """`warn`: it did not answer, so nothing is known of it."""
    what: str
    """Such as `topic payments` or `sink alerts`."""
    told: str
    hint: str


def plan_of(config: PipelineConfig) -> dict[str, Any]:
    """Source, shards, functions, tables, sinks, as `--json` prints them. Raises `ConfigError`."""
    specs = [find_function(named, config.folder) for named in config.functions]
    check_fit(config, specs)
    options = parse_options(config.source_options)
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
        "checkpoint": str(config.checkpoint),
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


def problems_of(
    config: PipelineConfig, *, offline: bool = False, clock: Clock = SYSTEM
) -> list[Problem]:
    """All that a start would fail on as things are now; `offline`: only what no other machine says.

    Raises `ConfigError` as `plan_of`.
    """
    specs = [find_function(named, config.folder) for named in config.functions]
    missing = packages_missing(config, specs)
    found = [*_tried("packages", check_packages)]
    found += [_problem(f"sink {name}", error) for name, error in missing.items()]
    if offline:
        return found
    control: Control | None = None
    try:
        control, topics = _asked(config, clock)
        found += topics
        answered = True
    except CatchwaterError as error:
        found.append(_problem("source", error))
        answered = False
    found += _tried("checkpoint", lambda: _check_identity(config, specs, missing, clock))
    for sink, own in outlets_of(config, specs, _around(config, specs, control, clock)):
        if sink.name not in missing and (answered or sink.kind != "log"):
            found += _tried(f"sink {sink.name}", lambda s=sink, o=own: _fits(look_at(s, o)))  # type: ignore[misc]
    return found


def _asked(config: PipelineConfig, clock: Clock) -> tuple[Control | None, list[Problem]]:
    """The control API of the source's log, and the topics that are not there."""
    options = parse_options(config.source_options)
    wanted = {*options.topics, *config.tables.values()}
    with closing(
        Client(options.bootstrap, timeout_s=_ASK_S, clock=clock, security=options.security)
    ) as client:
        there = client.metadata(sorted(wanted)).topics()
        try:
            url = options.control_url or client.broker_config().get(CONTROL_URL)
        except RequestRefused as refused:
            if refused.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            url = None
    absent = [
        Problem(
            "fail",
            f"topic {topic}",
            f"There is no topic {topic} at {options.bootstrap}.",
            f"Is the name right? catchwater topic create {topic} makes it.",
        )
        for topic in sorted(wanted - {*there})
    ]
    return Control(url, timeout_s=_ASK_S, clock=clock) if url else None, absent


def _around(
    config: PipelineConfig, specs: Sequence[FunctionSpec], control: Control | None, clock: Clock
) -> Surroundings:
    name = config.name or specs[0].name
    generation = versions.load(config.checkpoint).generation
    return surroundings_of(config, name, "", control, generation=generation, clock=clock)


def _check_identity(
    config: PipelineConfig,
    specs: Sequence[FunctionSpec],
    unknown: Container[str],
    clock: Clock,
) -> None:
    """A sink whose package is missing cannot say where it writes to, and is left out."""
    bound = identity.read(config.checkpoint)
    sinks = {name: each for name, each in config.sinks.items() if name not in unknown}
    dead_letter = None if DEAD_LETTER in unknown else config.dead_letter
    wanted = identity_of(replace(config, sinks=sinks, dead_letter=dead_letter), specs)
    if bound is not None:
        for name in {*bound.sinks} & {*config.every_sink} - {*wanted.sinks}:
            wanted = identity.with_sink(wanted, name, bound.sinks[name])
    identity.check(config.checkpoint, wanted, doubts_of(config, specs, clock))


def _fits(seen: Seen) -> None:
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
