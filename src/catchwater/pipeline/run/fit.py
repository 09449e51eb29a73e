"""Whether a pipeline's file fits its functions: inputs, tables, calls, sinks, dead letters.

Asked before anything is opened; what does not fit is refused with both sides named (exit code 2).
"""

from collections.abc import Collection, Iterable, Sequence

from catchwater.config import ConfigError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig
from catchwater.pipeline.run.outlets import source_of
from catchwater.sinks.guarantee import guarantee


def check_fit(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Raise `ConfigError` unless every name in the file is one of a function, and none is missing.

    Also for a sink that cannot give the delivery it is to give.

    `specs` are those of the chain, in order.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ConfigError(f"A function stands twice in the chain {', '.join(names)}.")
    _same(f"inputs of {names[0]!r}", "[inputs]", specs[0].inputs, config.inputs)
    for spec in specs[1:]:
        if spec.inputs:
            raise ConfigError(
                f"The function {spec.name!r} has several inputs; in a chain only the first may."
            )
    tables = {name for spec in specs for name in spec.tables}
    _same("declared tables", "[table.NAME]", tables, config.tables)
    calls = {name for spec in specs for name in spec.calls}
    _same("declared calls", "[call.NAME]", calls, config.calls, all_needed=False)
    for sink in config.sinks.values():
        if sink.source is not None and sink.source not in names:
            raise ConfigError(
                f"The sink {sink.name!r} takes the outputs of {sink.source!r}, which is not a "
                f"function of this pipeline; there are {', '.join(names)}."
            )
        source = source_of(sink, specs)
        guarantee(sink, output_id=source.output_id if source else ())
    _check_late(config, specs)
    if config.dead_letter is not None:
        guarantee(config.dead_letter)
    for spec in specs:
        sent = [
            what
            for what, to in (
                ("what it cannot handle", config.poison or spec.poison.policy),
                ("late events", spec.late_sink),
            )
            if to == DEAD_LETTER
        ]
        if sent and config.dead_letter is None:
            raise ConfigError(
                f"The function {spec.name!r} sends {' and '.join(sent)} to a dead letter sink, "
                "and there is none.",
                hint='Add a section [dead_letter] with topic = "…".',
            )


def _check_late(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Late events go to sinks that there are, and that take nothing else."""
    for spec in specs:
        name = spec.late_sink
        if name is None or name == DEAD_LETTER:
            continue
        if name not in config.sinks:
            raise ConfigError(
                f"The function {spec.name!r} declares late={name!r}, and there is no "
                f"[sink.{name}]; there are {', '.join(config.sinks) or 'none'}.",
                hint="late is 'drop', 'process', 'dead-letter' or the name of a sink.",
            )
        if config.sinks[name].source is not None:
            raise ConfigError(
                f"The sink {name!r} takes the late events of {spec.name!r}, so it cannot take the "
                f"outputs of {config.sinks[name].source!r} as well.",
                hint=f"Take from out of [sink.{name}], or name another sink.",
            )
    if config.sinks and not any(source_of(sink, specs) for sink in config.sinks.values()):
        raise ConfigError(
            "All sinks take late events: the outputs would go nowhere.",
            hint='Add a section such as [sink.alerts] with topic = "alerts".',
        )


def _same(
    what: str,
    section: str,
    declared: Collection[str],
    named: Iterable[str],
    *,
    all_needed: bool = True,
) -> None:
    """Raise `ConfigError` unless both sides name the same."""
    missing = sorted({*declared} - {*named}) if all_needed else []
    unknown = sorted({*named} - {*declared})
    if missing or unknown:
        told = (
            f"The {what} are {', '.join(sorted(declared))}" if declared else f"There are no {what}"
        )
        wrong = f"lacks {', '.join(missing)}" if missing else f"names {', '.join(unknown)}"
        raise ConfigError(f"{told}; the pipeline's file, {section}, {wrong}.")
