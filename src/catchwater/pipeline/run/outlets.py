"""A pipeline's sinks, opened: those of its functions' outputs, and the one for dead letters."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from catchwater.config import ConfigError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.sinks.base import Sink
from catchwater.sinks.open import Surroundings, open_sink


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


def check_outlets(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Refuse a sink of a function that is not in the chain, and letters without a box (exit 2)."""
    names = [spec.name for spec in specs]
    for sink in config.sinks.values():
        if sink.source is not None and sink.source not in names:
            raise ConfigError(
                f"The sink {sink.name!r} takes the outputs of {sink.source!r}, which is not a "
                f"function of this pipeline; there are {', '.join(names)}.",
            )
    for spec in specs:
        if (config.poison or spec.poison.policy) == "dead-letter" and config.dead_letter is None:
            raise ConfigError(
                f"The function {spec.name!r} sends what it cannot handle to a dead letter sink, "
                "and there is none.",
                hint='Add a section [dead_letter] with topic = "…".',
            )


def open_outlets(
    config: PipelineConfig, specs: Sequence[FunctionSpec], around: Surroundings
) -> Outlets:
    """Open them all. Raises `ConfigError`, and what a target can raise."""
    by_name = {spec.name: spec for spec in specs}
    sinks: dict[str, Sink] = {}
    with ExitStack() as opened:
        for name, each in config.sinks.items():
            spec = by_name[each.source] if each.source else specs[-1]
            own = replace(around, output_type=spec.output_type, output_id=spec.output_id)
            sinks[name] = open_sink(each, own)
            opened.callback(sinks[name].close)
        dead_letters = open_sink(config.dead_letter, around) if config.dead_letter else None
        opened.pop_all()
    return Outlets(sinks, dead_letters)
