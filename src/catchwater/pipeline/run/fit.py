"""Whether a pipeline's file fits its functions: inputs, tables, calls, sinks, dead letters.

Also which function each sink takes the outputs of. Asked before anything is opened; what does not
fit is refused with both sides named (exit code 2).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from catchwater.config import ConfigError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig
from catchwater.sinks.config import SinkConfig, guarantee
from catchwater.sinks.open import PackageMissing, SinkContext, check_sink, target_of


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


def source_of(sink: SinkConfig, specs: Sequence[FunctionSpec]) -> FunctionSpec | None:
    """The function whose outputs a sink takes: the one it names, or the last of the chain.

    None: it takes dead letters, or what is late for a function that names it.
    """
    if sink.name in {DEAD_LETTER, *(spec.late_sink for spec in specs)}:
        return None
    return next((spec for spec in specs if spec.name == sink.source), specs[-1])


def outlet_of(sink: SinkConfig, specs: Sequence[FunctionSpec], context: SinkContext) -> SinkContext:
    """What one sink learns of its pipeline: also what the function puts out that it takes."""
    spec = source_of(sink, specs)
    if spec is None:
        return context  # events that were not handled are as they came
    return replace(context, output_type=spec.output_type, output_id=spec.output_id)


def check_sinks(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Refuse sinks that no start could open; opens nothing. Raises as `check_sink`."""
    for missing in packages_missing(config, specs).values():
        raise missing


def packages_missing(
    config: PipelineConfig, specs: Sequence[FunctionSpec]
) -> dict[str, PackageMissing]:
    """Sink → the package it lacks. Raises `ConfigError` for a sink that no package would mend."""
    context = SinkContext(config.name or specs[0].name, "", config.folder)
    missing: dict[str, PackageMissing] = {}
    for sink in config.every_sink.values():
        try:
            check_sink(sink, outlet_of(sink, specs, context))
        except PackageMissing as error:
            missing[sink.name] = error
    there = [each for each in config.every_sink.values() if each.name not in missing]
    _refuse_shared_targets(there, config.folder)
    return missing


def _refuse_shared_targets(sinks: Sequence[SinkConfig], folder: Path) -> None:
    """Two sinks of one pipeline may write to one topic, or one endpoint, and to nothing else.

    What is one target under two names, its opening finds out.
    """
    writers: dict[str, str] = {}
    for each in sinks:
        if each.declared.one_writer:
            other = writers.setdefault(target_of(each, folder), each.name)
            if other != each.name:
                raise ConfigError(
                    f"The sinks {other!r} and {each.name!r} would both write to {each.place}.",
                    hint="Give each a target of its own.",
                )
