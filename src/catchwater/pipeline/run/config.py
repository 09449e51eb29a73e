"""A pipeline's file: what runs, from where, to where, and how much of its past is kept.

One TOML file a pipeline. The keys of `[source]` are those of the data source (`replay.options`,
Kafka's and Spark's names verbatim); every key may also come from the environment, where it wins:
`CATCHWATER_PIPELINE__CHECKPOINT`, `CATCHWATER_SOURCE__STARTINGOFFSETS`, in any case and with `_`
for `.`. An unknown key stops the start with file, line and the nearest known one.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from catchwater.config import ConfigError, flatten, nearest, toml_line
from catchwater.pipeline.functions.durations import duration_ms

_PREFIX = "CATCHWATER_"

AVAILABLE_NOW = "available-now"
CONTINUOUS = "continuous"

SOURCE_KEYS = (
    "kafka.bootstrap.servers",
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "catchwater.read",
    "catchwater.control.url",
    "recordKeyIsFunctionKey",
)
_KEYS: Mapping[str, tuple[str, ...]] = {
    "pipeline": ("name", "function", "checkpoint", "local", "shards", "tasks", "trigger"),
    "source": SOURCE_KEYS,
    "sink": ("topic", "partitions"),
    "recovery": ("retain", "max_restore"),
}


@dataclass(frozen=True)
class PipelineConfig:
    """One pipeline. Paths in a file are relative to it; times are milliseconds."""

    function: str
    """`module:Class`; the module is looked for beside the file first."""
    checkpoint: Path
    source: Mapping[str, str]
    sinks: Mapping[str, str]
    """Sink name → output topic."""
    folder: Path = Path(".")
    name: str | None = None
    """None: the function's name."""
    local: Path | None = None
    """Where this machine keeps its copies of shards; None: in the cache folder."""
    tasks: int = 2
    shards: int | None = None
    """None: two a task."""
    trigger: str = CONTINUOUS
    """`continuous`, `available-now`, or a duration between the starts of epochs."""
    retain: int = 5
    """Checkpoints that can be restored."""
    max_restore_ms: int | None = None
    record_key_is_function_key: bool = False
    """Then the source need not look into the values."""
    sink_partitions: Mapping[str, int] = field(default_factory=dict)
    """Partitions of an output topic that has to be created; 0: the broker's default."""

    @property
    def shard_count(self) -> int:
        """How many shards the state has, for the life of the checkpoint."""
        return self.shards or 2 * self.tasks


class _Setting(NamedTuple):
    section: str
    key: str
    value: Any
    where: str
    """For messages: file and line, or the variable."""


def load(path: Path, environment: Mapping[str, str]) -> PipelineConfig:
    """Read a pipeline's file. Raises `ConfigError` for what is unknown, missing or out of range."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"The pipeline file {path} cannot be read: {problem}.") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path}: not valid TOML: {problem}.") from problem
    found = {
        (each.section, each.key): each
        for each in [*_from_document(path, text, document), *_from_environment(environment)]
    }
    return _build(path, found)


def _from_document(path: Path, text: str, document: Mapping[str, Any]) -> Iterator[_Setting]:
    for section, table in document.items():
        if section not in _KEYS:
            raise _unknown(f"{path}, line {toml_line(text, section)}", f"[{section}]", _KEYS)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}, line {toml_line(text, section)}: {section} is a section.")
        names = [f"sink.{name}" for name in table] if section == "sink" else [section]
        for name in names:
            keys = table[name.removeprefix("sink.")] if section == "sink" else table
            if not isinstance(keys, dict):
                where = f"{path}, line {toml_line(text, name.removeprefix('sink.'))}"
                raise ConfigError(f"{where}: a sink has a name: [sink.NAME].")
            for key, value in flatten(keys):
                where = f"{path}, line {toml_line(text, key)}"
                if key not in _KEYS[section]:
                    raise _unknown(where, f"{key} in [{name}]", _KEYS[section])
                yield _Setting(name, key, value, where)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Setting]:
    for variable, value in sorted(environment.items()):
        section, separator, rest = variable.removeprefix(_PREFIX).lower().partition("__")
        if not variable.startswith(_PREFIX) or not separator or section not in _KEYS:
            continue
        name, where = section, f"the environment variable {variable}"
        if section == "sink":
            sink, _, rest = rest.partition("__")
            name = f"sink.{sink}"
        spelled = {key.lower().replace(".", "_"): key for key in _KEYS[section]}
        if rest not in spelled:
            raise _unknown(where, rest, _KEYS[section])
        yield _Setting(name, spelled[rest], value, where)


def _build(path: Path, found: Mapping[tuple[str, str], _Setting]) -> PipelineConfig:
    def text(section: str, key: str) -> str | None:
        setting = found.get((section, key))
        return None if setting is None else _text(setting)

    def number(section: str, key: str, default: int) -> int:
        setting = found.get((section, key))
        return default if setting is None else _number(setting)

    def required(section: str, key: str) -> str:
        value = text(section, key)
        if not value:
            raise ConfigError(f"{path}: {key} in [{section}] is missing.")
        return value

    sinks = sorted(s.removeprefix("sink.") for s, _ in found if s.startswith("sink."))
    if not sinks:
        raise ConfigError(
            f"{path}: no sink: the outputs would go nowhere.",
            hint='Add a section such as [sink.alerts] with topic = "alerts".',
        )
    folder = path.resolve().parent
    local = text("pipeline", "local")
    source = {k: _text(each) for (s, k), each in found.items() if s == "source"}
    for key in ("kafka.bootstrap.servers", "subscribe"):
        required("source", key)
    return PipelineConfig(
        function=required("pipeline", "function"),
        checkpoint=folder / required("pipeline", "checkpoint"),
        source={k: v for k, v in source.items() if k != "recordKeyIsFunctionKey"},
        sinks={name: required(f"sink.{name}", "topic") for name in dict.fromkeys(sinks)},
        folder=folder,
        name=text("pipeline", "name"),
        local=None if local is None else folder / local,
        tasks=number("pipeline", "tasks", 2),
        shards=number("pipeline", "shards", 0) or None,
        trigger=_trigger(found.get(("pipeline", "trigger"))),
        retain=number("recovery", "retain", 5),
        max_restore_ms=_duration(found.get(("recovery", "max_restore"))),
        record_key_is_function_key=source.get("recordKeyIsFunctionKey", "false") == "true",
        sink_partitions={name: number(f"sink.{name}", "partitions", 0) for name in sinks},
    )


def _text(setting: _Setting) -> str:
    if isinstance(setting.value, bool):
        return str(setting.value).lower()
    if isinstance(setting.value, str | int):
        return str(setting.value)
    raise ConfigError(f"{setting.where}: {setting.key} must be a text, not {setting.value!r}.")


def _number(setting: _Setting) -> int:
    value = _text(setting)
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < 1:
        raise ConfigError(
            f"{setting.where}: {setting.key} must be a whole number from 1 on, not {value!r}."
        )
    return int(value)


def _duration(setting: _Setting | None) -> int | None:
    if setting is None:
        return None
    try:
        return duration_ms(_text(setting))
    except ValueError as problem:
        raise ConfigError(f"{setting.where}: {setting.key}: {problem}.") from None


def _trigger(setting: _Setting | None) -> str:
    if setting is None:
        return CONTINUOUS
    value = _text(setting)
    if value not in (CONTINUOUS, AVAILABLE_NOW):
        return f"{_duration(setting)} milliseconds"
    return value


def _unknown(where: str, what: str, known: Iterable[str]) -> ConfigError:
    closest = nearest(what.split(" ")[0].strip("[]"), known)
    return ConfigError(f"{where}: there is no {what}.", hint=f"The nearest is {closest}.")
