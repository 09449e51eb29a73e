"""A pipeline's sinks, opened: those of its functions' outputs, and the one for dead letters."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig
from catchwater.replay.control import Control
from catchwater.replay.options import parse_options
from catchwater.sinks.base import Sink
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.open import PackageMissing, check_sink, open_sink, target_of
from catchwater.sinks.surroundings import Surroundings

_ALONE = ("postgres", "sqlite", "parquet", "iceberg")
"""Kinds whose targets have one writer."""


@dataclass(frozen=True)
class Outlets:
    """All that an epoch commits to."""

    sinks: Mapping[str, Sink]
    """By name; dead letters are not among them."""
    dead_letters: Sink | None

    @property
    def all(self) -> dict[str, Sink]:
        """By name, dead letters among them."""
        dead = {self.dead_letters.name: self.dead_letters} if self.dead_letters else {}
        return {**self.sinks, **dead}

    def close(self) -> None:
        """Give all connections back."""
        for sink in self.all.values():
            sink.close()


def source_of(sink: SinkConfig, specs: Sequence[FunctionSpec]) -> FunctionSpec | None:
    """The function whose outputs a sink takes: the one it names, or the last of the chain.

    None: it takes dead letters, or what is late for a function that names it.
    """
    if sink.name in {DEAD_LETTER, *(spec.late_sink for spec in specs)}:
        return None
    return next((spec for spec in specs if spec.name == sink.source), specs[-1])


def outlet_of(
    sink: SinkConfig, specs: Sequence[FunctionSpec], around: Surroundings
) -> Surroundings:
    """What one sink learns of its pipeline: also what the function puts out that it takes."""
    spec = source_of(sink, specs)
    if spec is None:
        return around  # events that were not handled are as they came
    return replace(around, output_type=spec.output_type, output_id=spec.output_id)


def surroundings_of(
    config: PipelineConfig,
    pipeline: str,
    objects: str,
    control: Control | None,
    *,
    generation: int,
    clock: Clock,
) -> Surroundings:
    """What the sinks learn of their pipeline: from its file, and what is given here."""
    source = parse_options(config.source_options)
    return Surroundings(
        pipeline=pipeline,
        objects=objects,
        folder=config.folder,
        bootstrap=source.bootstrap,
        security=source.security,
        control=control,
        generation=generation,
        clock=clock,
    )


def check_outlets(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Refuse sinks that no start could open; opens nothing. Raises as `check_sink`."""
    for missing in packages_missing(config, specs).values():
        raise missing


def packages_missing(
    config: PipelineConfig, specs: Sequence[FunctionSpec]
) -> dict[str, PackageMissing]:
    """Sink → the package it lacks. Raises `ConfigError` for a sink that no package would mend."""
    around = Surroundings(config.name or specs[0].name, "", config.folder)
    sinks = list(outlets_of(config, specs, around))
    missing: dict[str, PackageMissing] = {}
    for each, own in sinks:
        try:
            check_sink(each, own)
        except PackageMissing as error:
            missing[each.name] = error
    there = [each for each, _ in sinks if each.name not in missing]
    _refuse_shared_targets(there, config.folder)
    return missing


def _refuse_shared_targets(sinks: Sequence[SinkConfig], folder: Path) -> None:
    """Two sinks of one pipeline may write to one topic, or one endpoint, and to nothing else.

    What is one target under two names, its opening finds out.
    """
    writers: dict[str, str] = {}
    for each in sinks:
        if each.kind in _ALONE:
            other = writers.setdefault(target_of(each, folder), each.name)
            if other != each.name:
                raise ConfigError(
                    f"The sinks {other!r} and {each.name!r} would both write to {each.place}.",
                    hint="Give each a target of its own.",
                )


def outlets_of(
    config: PipelineConfig, specs: Sequence[FunctionSpec], around: Surroundings
) -> Iterator[tuple[SinkConfig, Surroundings]]:
    """Every sink, that of dead letters too, and what it learns of its pipeline."""
    for each in config.every_sink.values():
        yield each, outlet_of(each, specs, around)


def open_outlets(
    config: PipelineConfig, specs: Sequence[FunctionSpec], around: Surroundings
) -> Outlets:
    """Open them all. Raises `ConfigError`, and what a target can raise."""
    sinks: dict[str, Sink] = {}
    with ExitStack() as opened:
        for name, each in config.sinks.items():
            sinks[name] = open_sink(each, outlet_of(each, specs, around))
            opened.callback(sinks[name].close)
        dead_letters = open_sink(config.dead_letter, around) if config.dead_letter else None
        opened.pop_all()
    return Outlets(sinks, dead_letters)
