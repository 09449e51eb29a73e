"""What a pipeline's file amounts to, before anything runs: the answer of `pipeline plan`.

Loads the functions and opens nothing. Raises what a start would raise for a file that cannot be.
"""

from typing import Any

from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.artefact import find_function
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.fit import check_fit
from catchwater.pipeline.run.outlets import check_outlets, source_of
from catchwater.replay.options import parse_options
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.guarantee import guarantee
from catchwater.wire.security.settings import UNSECURED


def plan_of(config: PipelineConfig) -> dict[str, Any]:
    """Source, shards, functions, tables, sinks, as `--json` prints them. Raises `ConfigError`."""
    specs = [find_function(named, config.folder) for named in config.functions]
    check_fit(config, specs)
    options = parse_options(config.source_options)
    check_outlets(config, specs)
    last = specs[-1]
    secured = "" if options.security == UNSECURED else f", {options.security}"
    sinks = [_sink(sink, source_of(sink, specs)) for sink in config.sinks.values()]
    if config.dead_letter is not None:
        sinks.append(_sink(config.dead_letter, None))
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


def _sink(sink: SinkConfig, source: FunctionSpec | None) -> dict[str, str]:
    given = guarantee(sink, output_id=source.output_id if source else ())
    return {
        "sink": sink.name,
        "kind": sink.kind,
        "to": sink.place,
        "from": source.name if source else "what functions cannot handle",
        "guarantee": given.level,
        "why": given.why,
    }
