"""A pipeline's file: what runs, from where, to where, and how much of its past is kept.

One TOML file a pipeline. The keys of `[source]` are those of the data source (`replay.options`,
Kafka's and Spark's names verbatim); every key may also come from the environment, where it wins:
`CATCHWATER_PIPELINE__CHECKPOINT`, `CATCHWATER_SOURCE__STARTINGOFFSETS`, in any case and with `_`
for `.` and `-`; in sections with a name of their own, `CATCHWATER_SINK__ALERTS__TOPIC`, where the
file has that sink. An unknown key, section or sink stops the start with file, line and the nearest
known one.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit

from catchwater.config import CatchwaterError, ConfigError, duration_ms, flatten, nearest, toml_line
from catchwater.objects.open import s3_options
from catchwater.pipeline.calls.policy import SETTINGS
from catchwater.pipeline.functions.spec import MIN_HANDLER_TIMEOUT_MS, FunctionSpec, PoisonPolicy
from catchwater.recovery.fenced import LEASE_MS, SHORTEST_LEASE_MS
from catchwater.recovery.handover import current
from catchwater.recovery.ledger import OffsetMap, folder_of
from catchwater.recovery.points import MOST, NEWEST, PointPolicy
from catchwater.sinks import config as sinks
from catchwater.sinks.config import SinkConfig
from catchwater.verdicts import spelled_s
from catchwater.wire.connection import parse_bootstrap
from catchwater.wire.security.settings import resolve

_PREFIX = "CATCHWATER_"

_CLIENT_ID = "kafka.client.id"
_LOCATION = re.compile(r"kafka\.ssl\..*\.location")
_LAST_PORT = 65_535

LEAST_EPOCH_TIMEOUT_MS = 60_000
LEAST_EVERY_MS = 1000
"""Restore points are at least so far apart, where they are chosen by time."""
AVAILABLE_NOW = "available-now"
CONTINUOUS = "continuous"
DEAD_LETTER = "dead-letter"
"""The name of the sink that poisoned events go to."""

SOURCE_KEYS = (
    "kafka.bootstrap.servers",
    "kafka.security.*",
    "kafka.sasl.*",
    "kafka.ssl.*",
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "catchwater.read",
    "catchwater.control.url",
    "recordKeyIsFunctionKey",
    "valueFormat",
    "valueSchema",
    "valueMessage",
    "schema.registry.url",
    "schema.registry.folder",
    "schema.registry.basic.auth.user.info",
)
_OF_VALUES = ("recordKeyIsFunctionKey", "value", "schema.registry.")
"""What keys of `[source]` begin with that its data source does not know: the values are decoded
where the functions run."""
_OWNED_BY_US = {
    "spark.master": "Say master in [spark].",
    "spark.remote": "A pipeline writes its epochs in the driver's own process; say master.",
    "spark.api.mode": "A pipeline writes its epochs in the driver's own process.",
    "spark.app.name": "It is the pipeline's name: say name in [pipeline].",
    "spark.submit.*": "The driver runs where the command does.",
    "spark.driver.extraJavaOptions": "JAVA_TOOL_OPTIONS in the environment adds to ours.",
    "spark.hadoop.fs.file.impl": "Checksum files beside the checkpoint's would outlive them.",
    "spark.pyspark.driver.python": "It is the Python that runs this.",
    "spark.python.daemon.module": "Workers are forked with what the function needs loaded.",
    "spark.python.worker.*": "What a worker does must be known where it dies.",
    "spark.sql.adaptive.*": "The stages of an epoch are as many and as large as tasks says.",
    "spark.sql.shuffle.*": "Shards go to tasks by their labels: say tasks in [pipeline].",
    "spark.sql.streaming.*": "What an epoch is, where it is kept and how long, the checkpoint's "
    "ledger says; see trigger in [pipeline] and retain in [recovery].",
}  # fmt: skip
"""Spark's settings that a file may not say, each with what it is for, or where to say it."""
_MASTER = re.compile(
    r"local(\[(\d+|\*)\])?|local-cluster\[\d+,\d+,\d+\]|spark://[^/\s]+:\d+\S*"
    r"|yarn|k8s://(https?://)?[^/:\s]+(:\d+)?/?"
)

_NAMED = ("sink", "table", "call")
"""Sections of which there are many, each with a name: `[sink.NAME]`."""
_OWN_NAMES = ("inputs",)
"""Sections whose keys are the user's names."""
_ELSEWHERE = "broker"
"""What the environment may also hold: a broker's settings."""


class _Setting(NamedTuple):
    section: str
    key: str
    value: Any
    where: str
    """For messages: file and line, or the variable."""


class _Key(NamedTuple):
    """Where a file says what a field of `PipelineConfig` is, and how that is read."""

    section: str
    name: str
    read: Callable[[_Setting, Path], Any]
    """Of what was found, and the file's folder; raises `ConfigError`."""


def _text(setting: _Setting, _: Path | None = None) -> str:
    if isinstance(setting.value, bool):
        return str(setting.value).lower()
    if isinstance(setting.value, str | int):
        return str(setting.value)
    kind = type(setting.value).__name__  # the value may be a password
    raise ConfigError(f"{setting.where}: {setting.key} must be a text, not a {kind}.")


def _path(setting: _Setting, folder: Path) -> Path:
    return folder / _text(setting)


def _checkpoint(setting: _Setting, folder: Path) -> Path:
    """A folder, or the URL of a place in a store that all machines see."""
    text = _text(setting)
    if "://" not in text:
        return folder / text
    parts = urlsplit(text)
    if parts.scheme == "s3" and parts.netloc:
        s3_options(parts)
    elif parts.scheme != "file":
        raise _wrong(setting, "a folder, or a URL such as s3://bucket/cards")
    from catchwater.pipeline.spark.session import cache_folder

    return folder_of(text, cache_folder().absolute())


def _schema(setting: _Setting, folder: Path) -> str:
    text = _text(setting)
    return text if text.lstrip().startswith("{") else str(folder / text)


def _registry_url(setting: _Setting, _: Path) -> str:
    parts = urlsplit(_text(setting))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(setting, "the URL of a schema registry, such as http://localhost:8081")
    if parts.username is not None:
        raise ConfigError(
            f"{setting.where}: the URL of a schema registry must not hold a login.",
            hint="Say it in schema.registry.basic.auth.user.info, as ${env:NAME}.",
        )
    return _text(setting)


def _count(setting: _Setting, _: Path) -> int:
    value = _text(setting)
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < 1:
        raise _wrong(setting, "a whole number from 1 on")
    return int(value)


def _flag(setting: _Setting, _: Path) -> bool:
    value = _text(setting).lower()
    if value not in ("true", "false"):
        raise _wrong(setting, "true or false")
    return value == "true"


def _one_of(*choices: str) -> Callable[[_Setting, Path], str]:
    def read(setting: _Setting, _: Path) -> str:
        if _text(setting) not in choices:
            quoted = [f'"{each}"' for each in choices]
            raise _wrong(setting, f"{', '.join(quoted[:-1])} or {quoted[-1]}")
        return _text(setting)

    return read


def _duration(setting: _Setting, _: Path) -> int:
    try:
        return duration_ms(_text(setting))
    except ValueError as problem:
        raise ConfigError(f"{setting.where}: {setting.key}: {problem}.") from None


def _retain(setting: _Setting, folder: Path) -> int | timedelta:
    """How many restore points, or how far back they reach."""
    if re.fullmatch(r"\d+", _text(setting)):
        return _count(setting, folder)
    try:
        return timedelta(milliseconds=duration_ms(_text(setting)))
    except ValueError:
        raise _wrong(setting, 'a whole number from 1 on, or a time such as "24h"') from None


def _checkpoints(setting: _Setting, folder: Path) -> int:
    found = _duration(setting, folder)
    if found < LEAST_EVERY_MS:
        raise ConfigError(
            f"{setting.where}: checkpoints must be at least 1s.",
            hint="It says how far restore points are apart, such as 60s; without it, every epoch "
            "is one.",
        )
    return found


def _handler_timeout(setting: _Setting, folder: Path) -> int:
    found = _duration(setting, folder)
    if found < MIN_HANDLER_TIMEOUT_MS:
        raise ConfigError(f"{setting.where}: handler_timeout must be at least 1s.")
    return found


def _epoch_timeout(setting: _Setting, folder: Path) -> int:
    found = _duration(setting, folder)
    if found < LEAST_EPOCH_TIMEOUT_MS:
        raise ConfigError(
            f"{setting.where}: epoch_timeout must be at least 1m.",
            hint="A start of Spark is in it, where an epoch runs again. For a handler there is "
            "handler_timeout.",
        )
    return found


def _lease(setting: _Setting, folder: Path) -> int:
    found = _duration(setting, folder)
    if found < SHORTEST_LEASE_MS:
        raise ConfigError(
            f"{setting.where}: lease must be at least {SHORTEST_LEASE_MS // 1000}s.",
            hint="A driver that is held up for longer than its lease loses the checkpoint.",
        )
    return found


def _trigger(setting: _Setting, folder: Path) -> str:
    value = _text(setting)
    if value in (CONTINUOUS, AVAILABLE_NOW):
        return value
    return f"{_duration(setting, folder)} milliseconds"


def _address(setting: _Setting, _: Path) -> str:
    value = _text(setting)
    host, _colon, port = value.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) > _LAST_PORT:
        raise ConfigError(
            f"{setting.where}: {setting.key} must be of the form host:port, not {value!r}.",
            hint='Such as "127.0.0.1:9400"; with "0.0.0.0:9400" other machines can ask, too.',
        )
    return value


def _chain(setting: _Setting, _: Path) -> tuple[str, ...]:
    """The chain of functions; `function` is one of a single link."""
    if setting.key == "function":
        return (_text(setting),)
    named = setting.value.split(",") if isinstance(setting.value, str) else setting.value
    if not isinstance(named, list) or not named or not all(isinstance(n, str) for n in named):
        raise ConfigError(f"{setting.where}: functions must be a list of module:Class.")
    return tuple(name.strip() for name in named)


def _wrong(setting: _Setting, wanted: str) -> ConfigError:
    return ConfigError(f"{setting.where}: {setting.key} must be {wanted}, not {_text(setting)!r}.")


@dataclass(frozen=True)
class ValueConfig:
    """How values are encoded, as `[source]` and `[table.NAME]` say it."""

    value_format: str = "json"
    value_schema: str = ""
    value_message: str = ""
    registry_url: str = ""
    registry_folder: Path | None = None
    registry_login: str = field(default="", repr=False)


@dataclass(frozen=True)
class PipelineConfig:
    """One pipeline. Paths in a file are relative to it; times are milliseconds.

    A field with a `_Key` is one key of the file, declared here and nowhere else: where it stands,
    its type, how it is read and what it is if it is left out.
    """

    functions: Annotated[tuple[str, ...], _Key("pipeline", "functions", _chain)]
    """The chain, each `module:Class`; the modules are looked for beside the file first."""
    checkpoint: Annotated[Path, _Key("pipeline", "checkpoint", _checkpoint)]
    """A folder; where the file names a URL, this machine's scratch of it (`recovery.remote`)."""
    source: Mapping[str, str] = field(repr=False)
    """The data source's options, a password among them."""
    sinks: Mapping[str, SinkConfig]
    dead_letter: SinkConfig | None = None
    """Where poisoned events go."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The first function's inputs → topic; empty: it has one, and `subscribe` names its topics."""
    tables: Mapping[str, str] = field(default_factory=dict)
    table_values: Mapping[str, ValueConfig] = field(default_factory=dict)
    """How the rows of tables are encoded, by name."""
    """Table → compacted topic."""
    calls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Call → what is to be other than the function declares."""
    folder: Path = Path(".")
    file: str = field(default="", compare=False)
    """What a command names it by, `cards.toml` or `cards.py:pipeline`; empty: no file has it."""
    name: Annotated[str | None, _Key("pipeline", "name", _text)] = None
    """None: the first function's name."""
    state: Annotated[str | None, _Key("pipeline", "state", _text)] = None
    """URL of the object store for the shards' state; None: in the checkpoint."""
    local: Annotated[Path | None, _Key("pipeline", "local", _path)] = None
    """Where this machine keeps its copies of shards; None: in the cache folder."""
    tasks: Annotated[int, _Key("pipeline", "tasks", _count)] = 2
    shards: Annotated[int | None, _Key("pipeline", "shards", _count)] = None
    """None: two a task."""
    trigger: Annotated[str, _Key("pipeline", "trigger", _trigger)] = CONTINUOUS
    """`continuous`, `available-now`, or a duration between the starts of epochs."""
    idle_timeout_ms: Annotated[int | None, _Key("pipeline", "idle_timeout", _duration)] = None
    """After so long without input the watermark goes on with the clock; None: it stands."""
    poison: Annotated[
        PoisonPolicy | None, _Key("pipeline", "poison", _one_of("fail", "skip", "dead-letter"))
    ] = None
    """None: as each function declares."""
    poison_limit: Annotated[int | None, _Key("pipeline", "poison_limit", _count)] = None
    """How many poisoned events fail the pipeline; None: as each function declares."""
    handler_timeout_ms: Annotated[
        int | None, _Key("pipeline", "handler_timeout", _handler_timeout)
    ] = None
    """How long one call of a handler may take; None: as each function declares."""
    restarts: Annotated[int | None, _Key("pipeline", "restarts", _count)] = None
    """How often a failed query is started again before it fails for good; None: the default."""
    epoch_timeout_ms: Annotated[int | None, _Key("pipeline", "epoch_timeout", _epoch_timeout)] = (
        None
    )
    """How long an epoch may take before its driver is ended and started anew; None: any time."""
    spare: Annotated[bool, _Key("pipeline", "spare", _flag)] = False
    """Whether a started Spark session waits for the one that runs to fail."""
    lease_ms: Annotated[int, _Key("pipeline", "lease", _lease)] = LEASE_MS
    """How long the driver of a checkpoint at a URL may be silent before another may take over."""
    metrics: Annotated[str | None, _Key("pipeline", "metrics", _address)] = None
    """`host:port` where Prometheus finds them; None: nowhere."""
    trace_every: Annotated[int | None, _Key("pipeline", "trace_every", _count)] = None
    """Every n-th epoch is traced; None: none is."""
    max_staleness_ms: Annotated[int | None, _Key("pipeline", "max_staleness", _duration)] = None
    """How old the oldest unprocessed record may be; None: the default of `verdicts`."""
    owner: Annotated[str | None, _Key("pipeline", "owner", _text)] = None
    """Who answers for it, for people and reports."""
    runbook: Annotated[str | None, _Key("pipeline", "runbook", _text)] = None
    """Where it says what to do when it fails: a URL or a path."""
    checkpoints_ms: Annotated[int | None, _Key("recovery", "checkpoints", _checkpoints)] = None
    """How far restore points are apart; None: every epoch is one."""
    retain: Annotated[int | timedelta, _Key("recovery", "retain", _retain)] = NEWEST
    """Restore points, or how far back they reach."""
    retain_most: Annotated[int, _Key("recovery", "retain_most", _count)] = MOST
    """The most restore points, where `retain` is a time."""
    max_restore_ms: Annotated[int | None, _Key("recovery", "max_restore", _duration)] = None
    """How long a restore may take until it has caught up (the recovery time objective)."""
    max_replay_ms: Annotated[int | None, _Key("recovery", "max_replay", _duration)] = None
    """How far back the input may begin that a restore reads again (recovery point objective)."""
    savepoints: Annotated[str | None, _Key("recovery", "savepoints", _text)] = None
    """URL of the object store that savepoints go to."""
    savepoint_every_ms: Annotated[int | None, _Key("recovery", "savepoint_every", _duration)] = None
    """How often a savepoint is taken; None: only when somebody asks for one."""
    savepoint_keep: Annotated[int, _Key("recovery", "savepoint_keep", _count)] = 24
    """How many of those are kept."""
    record_key_is_function_key: Annotated[bool, _Key("source", "recordKeyIsFunctionKey", _flag)] = (
        False
    )
    """If it is, the source does not decode values to find the key."""
    value_format: Annotated[
        str, _Key("source", "valueFormat", _one_of("json", "avro", "protobuf"))
    ] = "json"
    value_schema: Annotated[str, _Key("source", "valueSchema", _schema)] = ""
    """An Avro schema or the path of one, or that of a Protobuf descriptor set."""
    value_message: Annotated[str, _Key("source", "valueMessage", _text)] = ""
    """The Protobuf message in it."""
    registry_url: Annotated[str, _Key("source", "schema.registry.url", _registry_url)] = ""
    """If set, each value begins with the id of its schema there."""
    registry_folder: Annotated[Path | None, _Key("source", "schema.registry.folder", _path)] = None
    """Where what the registry gave is kept; None: in the cache folder."""
    registry_login: Annotated[
        str, _Key("source", "schema.registry.basic.auth.user.info", _text)
    ] = field(default="", repr=False)
    """`user:password`."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's own settings, and `master` (`session.settings_of`)."""
    specs: tuple[FunctionSpec, ...] | None = field(default=None, repr=False, compare=False)
    """The functions themselves, where Python declares the pipeline; None: they are imported."""
    until: OffsetMap | None = None
    """Where a run with the trigger `available-now` ends; None: where the input ends by then."""
    from_tables: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By partition: the offsets that a backfill reads from the topic's table; from there on a pin
    holds the log."""

    @property
    def shard_count(self) -> int:
        """How many shards the state has, for the life of the checkpoint."""
        return self.shards or 2 * self.tasks

    @property
    def kept(self) -> PointPolicy:
        """Which epochs can be restored."""
        every_ms = self.checkpoints_ms or 0
        if isinstance(self.retain, int):
            return PointPolicy(self.retain, every_ms)
        return PointPolicy(self.retain_most, every_ms, self.retain // timedelta(milliseconds=1))

    @property
    def every_sink(self) -> dict[str, SinkConfig]:
        """All sinks by name, that of dead letters the last."""
        dead = {self.dead_letter.name: self.dead_letter} if self.dead_letter else {}
        return {**self.sinks, **dead}

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the data source that reads all inputs."""
        topics = {"subscribe": ",".join(sorted(self.inputs.values()))} if self.inputs else {}
        return {**self._named, **self.source, **topics}

    @property
    def table_options(self) -> dict[str, str]:
        """The options of the data source that reads all tables, from their beginning."""
        kept = ("kafka.", "catchwater.", "failOnDataLoss")
        options = {key: v for key, v in self.source.items() if key.startswith(kept)}
        topics = ",".join(sorted(self.tables.values()))
        own = {"subscribe": topics, "startingOffsets": "earliest"}
        return {**self._named, **options, **own}

    @property
    def _named(self) -> dict[str, str]:
        """Brokers know the pipeline by its name, for their quotas."""
        return {_CLIENT_ID: self.name} if self.name else {}


_DECLARED: Mapping[str, _Key] = {
    name: each
    for name, hint in get_type_hints(PipelineConfig, include_extras=True).items()
    for each in getattr(hint, "__metadata__", ())
}
"""Field → its key."""

_OF_TABLES = {
    each.name: (name, each.read)
    for name, each in _DECLARED.items()
    if name in {of.name for of in fields(ValueConfig)}
}
"""What a table says of its values, with the keys of `[source]`: key → field and how it is read."""

RECOVERY_KEYS = tuple(key.name for key in _DECLARED.values() if key.section == "recovery")

_KEYS: Mapping[str, tuple[str, ...]] = {
    "pipeline": ("function", *(k.name for k in _DECLARED.values() if k.section == "pipeline")),
    "source": SOURCE_KEYS,
    "inputs": (),
    "table": ("topic", *_OF_TABLES),
    "sink": tuple(sinks.known_keys()),
    "dead_letter": tuple(sinks.known_keys()),
    "call": SETTINGS,
    "recovery": RECOVERY_KEYS,
    "spark": ("master", "spark.*"),
}
"""Section → what it may say."""


class _Origin(NamedTuple):
    """Where settings stand, for messages, and the folder that paths in them are relative to."""

    name: str
    folder: Path
    text: str | None = None
    """Of a file; None: there are no lines to name."""

    def at(self, key: str) -> str:
        """Where this key is."""
        return self.name if self.text is None else f"{self.name}, line {toml_line(self.text, key)}"


def load(path: Path, environment: Mapping[str, str]) -> PipelineConfig:
    """Read a pipeline's file, and see which checkpoint it goes on from.

    Raises `ConfigError` for what is unknown, missing or out of range, and `LedgerDamaged`.
    """
    config = read(path, environment)
    return replace(config, checkpoint=current(config.checkpoint))


def read(path: Path, environment: Mapping[str, str]) -> PipelineConfig:
    """A pipeline's file as it is, with the checkpoint that it names. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"There is no pipeline file {path.absolute()}.",
            hint="Name one that is there; catchwater init DIRECTORY writes one to start from.",
        ) from problem
    except OSError as problem:
        message = f"The pipeline file {path} cannot be read: {problem.strerror}."
        raise ConfigError(message) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"The pipeline file {path} cannot be read: {problem}.") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path}: not valid TOML: {problem}.") from problem
    origin = _Origin(str(path), path.resolve().parent, text)
    settings = [*_from_document(origin, document), *_from_environment(environment, document)]
    return replace(_build(origin, settings, document, environment), file=str(path.absolute()))


def of_document(
    name: str, folder: Path, document: Mapping[str, Any], environment: Mapping[str, str]
) -> PipelineConfig:
    """What a file with this content would say, without a file: what Python declares.

    Messages begin with `name`; the environment only keeps secrets. Raises `ConfigError`.
    """
    origin = _Origin(name, folder.resolve())
    return _build(origin, [*_from_document(origin, document)], document, environment)


def _resolved(setting: _Setting, environment: Mapping[str, str], folder: Path) -> _Setting:
    """A Kafka client's setting: secrets are read where they are kept, paths start at the file."""
    if not setting.key.startswith(("kafka.", "schema.registry.basic.")) or not isinstance(
        setting.value, str
    ):
        return setting
    try:
        value = resolve(setting.value, environment, folder)
    except ConfigError as error:
        raise ConfigError(f"{setting.where}: {setting.key}: {error}", hint=error.hint) from error
    if _LOCATION.fullmatch(setting.key) and value != "probe":  # librdkafka's own choice
        value = str(folder.resolve() / value)
    return setting._replace(value=value)


def _from_document(origin: _Origin, document: Mapping[str, Any]) -> Iterator[_Setting]:
    for section, table in document.items():
        if section not in _KEYS:
            raise _unknown(origin.at(section), f"[{section}]", _KEYS)
        if not isinstance(table, dict):
            raise ConfigError(f"{origin.at(section)}: {section} is a section.")
        parts = {section: table}
        if section in _NAMED:
            parts = {f"{section}.{name}": keys for name, keys in table.items()}
        for name, keys in parts.items():
            own = name.removeprefix(f"{section}.")
            if not isinstance(keys, dict):
                raise ConfigError(f"{origin.at(own)}: a {section} has a name: [{section}.NAME].")
            for key, value in flatten(keys):
                where = origin.at(key)
                if not _is_known(section, key):
                    raise _unknown(where, f"{key} in [{name}]", _KEYS[section])
                yield _Setting(name, key, value, where)


def _from_environment(
    environment: Mapping[str, str], document: Mapping[str, Any]
) -> Iterator[_Setting]:
    for variable, value in sorted(environment.items()):
        section, separator, rest = _spelled(variable.removeprefix(_PREFIX)).partition("__")
        if not variable.startswith(_PREFIX) or not separator or section == _ELSEWHERE:
            continue
        where = f"the environment variable {variable}"
        if section not in _KEYS:
            raise _unknown(where, f"[{section}]", [*_KEYS, _ELSEWHERE])
        name, there = section, document.get(section, {})
        if section in _NAMED:
            own, _, rest = rest.partition("__")
            own = _own_name(section, own, there, where)
            name, there = f"{section}.{own}", there.get(own, {})
        written = (key for key, _ in flatten(there))
        spelled = {_spelled(key): key for key in (*_KEYS[section], *written)}
        if section in _OWN_NAMES:
            spelled = {rest: spelled.get(rest, rest)}
        elif rest not in spelled and _is_known(section, rest.replace("_", ".")):
            spelled = {rest: rest.replace("_", ".")}
        if rest not in spelled:
            raise _unknown(where, rest, _KEYS[section])
        yield _Setting(name, spelled[rest], value, where)


def _spelled(name: str) -> str:
    """How the environment spells a name: in any case, with `_` for what no variable may have."""
    return name.lower().replace(".", "_").replace("-", "_")


def _own_name(section: str, own: str, there: Iterable[str], where: str) -> str:
    """The name in the file that a variable spells. Raises `ConfigError` for a sink it has not.

    What a function declares (a call, a table) may stand in the environment alone.
    """
    names = {_spelled(name): name for name in there}
    if own not in names and section == "sink":
        nearby = f"The nearest is {names[nearest(own, names)]}. " if names else ""
        raise ConfigError(
            f"{where}: there is no [sink.{own}].",
            hint=f"{nearby}The file has to have the section; its keys may then come from "
            "the environment.",
        )
    return names.get(own, own)


def _is_known(section: str, key: str) -> bool:
    """Whether a section may have the key; `kafka.*` stands for any that begins with `kafka.`."""
    if section in _OWN_NAMES or key in _KEYS[section]:
        return True
    return any(known[-1] == "*" and key.startswith(known[:-1]) for known in _KEYS[section])


class _File:
    """What was found, by section and key."""

    def __init__(
        self,
        origin: _Origin,
        found: Mapping[tuple[str, str], _Setting],
        document: Mapping[str, Any],
    ) -> None:
        self.name = origin.name
        self.folder = origin.folder
        self.found = found
        self._document = document

    def required(self, section: str, key: str) -> str:
        """A text that has to be set."""
        setting = self.found.get((section, key))
        value = "" if setting is None else _text(setting)
        if not value:
            raise ConfigError(f"{self.name}: {key} in [{section}] is missing.")
        return value

    def declared(self) -> dict[str, Any]:
        """What the file says of the fields of `PipelineConfig` that have a key of their own."""
        self.required("pipeline", "checkpoint")
        one, chain = (self.found.get(("pipeline", key)) for key in ("function", "functions"))
        if chain is None:
            self.required("pipeline", "function")
        settings = {name: self.found.get(key[:2]) for name, key in _DECLARED.items()}
        settings["functions"] = chain or one
        values = {
            name: _DECLARED[name].read(setting, self.folder)
            for name, setting in settings.items()
            if setting is not None
        }
        if one is not None and chain is not None:
            raise ConfigError(f"{chain.where}: give either function or functions.")
        return values

    def names(self, section: str) -> list[str]:
        """The names of a section of which there are many, those of empty ones among them."""
        prefix = f"{section}."
        set_there = {s.removeprefix(prefix) for s, _ in self.found if s.startswith(prefix)}
        return sorted({*set_there, *self._document.get(section, {})})

    def values(self, section: str) -> dict[str, str]:
        """All keys of a section."""
        return {k: _text(each) for (s, k), each in self.found.items() if s == section}

    def table_values(self, name: str) -> ValueConfig:
        """How a table's rows are encoded. Raises `ConfigError`."""
        settings = {key: self.found.get((f"table.{name}", key)) for key in _OF_TABLES}
        said = {key: setting for key, setting in settings.items() if setting is not None}
        read = {_OF_TABLES[k][0]: _OF_TABLES[k][1](s, self.folder) for k, s in said.items()}
        return ValueConfig(**read)

    def sink(self, section: str, name: str) -> SinkConfig:
        """One sink's section. Raises `ConfigError`."""

        def where(key: str) -> str:
            setting = self.found.get((section, key))
            return setting.where if setting else self.name

        return sinks.parse(name, self.values(section), where)


def _build(
    origin: _Origin,
    settings: Iterable[_Setting],
    document: Mapping[str, Any],
    environment: Mapping[str, str],
) -> PipelineConfig:
    """Of several settings of one key the last one counts."""
    found = {(s.section, s.key): _resolved(s, environment, origin.folder) for s in settings}
    file = _File(origin, found, document)
    outlets = {name: file.sink(f"sink.{name}", name) for name in file.names("sink")}
    dead_letter = outlets.pop(DEAD_LETTER, None)
    if file.values("dead_letter"):
        dead_letter = file.sink("dead_letter", DEAD_LETTER)
    if not outlets:
        raise ConfigError(
            f"{origin.name}: no sink: the outputs would go nowhere.",
            hint='Add a section such as [sink.alerts] with topic = "alerts".',
        )
    source, inputs = file.values("source"), file.values("inputs")
    _check_bootstrap(file)
    if not inputs:
        file.required("source", "subscribe")
    declared = file.declared()
    _check_points(file, declared)
    return PipelineConfig(
        **declared,
        source={k: v for k, v in source.items() if not k.startswith(_OF_VALUES)},
        sinks=outlets,
        dead_letter=dead_letter,
        inputs=inputs,
        tables={name: file.required(f"table.{name}", "topic") for name in file.names("table")},
        table_values={name: file.table_values(name) for name in file.names("table")},
        calls={name: file.values(f"call.{name}") for name in file.names("call")},
        spark=_spark(file),
        folder=file.folder,
    )


def _check_points(file: _File, declared: Mapping[str, Any]) -> None:
    """Refuse restore points that cannot be as they are asked for. Raises `ConfigError`."""
    every_ms, retain = declared.get("checkpoints_ms"), declared.get("retain", NEWEST)
    trigger = str(declared.get("trigger", CONTINUOUS)).split(" ")
    if isinstance(retain, timedelta) and every_ms is None:
        said = file.found["recovery", "retain"]
        raise ConfigError(
            f"{said.where}: retain = {said.value!r} needs checkpoints.",
            hint='Say how far restore points are apart: checkpoints = "60s". Or how many there '
            "are: retain = 100.",
        )
    if isinstance(retain, timedelta) and retain < timedelta(milliseconds=every_ms or 0):
        said, every = file.found["recovery", "retain"], file.found["recovery", "checkpoints"]
        raise ConfigError(
            f"{said.where}: retain = {said.value!r} is shorter than checkpoints = {every.value!r}.",
            hint="Keep restore points for longer than they are apart.",
        )
    if every_ms is not None and trigger[0].isdigit() and every_ms < int(trigger[0]):
        said = file.found["recovery", "checkpoints"]
        raise ConfigError(
            f"{said.where}: checkpoints = {said.value!r} is shorter than an epoch, which begins "
            f"every {spelled_s(int(trigger[0]) / 1000)} (trigger).",
            hint="Only the end of an epoch can be restored.",
        )


def _spark(file: _File) -> dict[str, str]:
    """What `[spark]` says. Raises `ConfigError` for what is ours to say, and what cannot be."""
    said = file.values("spark")
    for key in said:
        owned = (k for k in _OWNED_BY_US if k == key or (k[-1] == "*" and key.startswith(k[:-1])))
        if (of := next(owned, None)) is not None:
            raise ConfigError(
                f"{file.found['spark', key].where}: {key} is not for a pipeline's file to set.",
                hint=_OWNED_BY_US[of],
            )
    master = said.get("master", "local")
    if not _MASTER.fullmatch(master):
        raise ConfigError(
            f"{file.found['spark', 'master'].where}: master = {master!r} is none that Spark has.",
            hint='"local[4]", "spark://HOST:PORT" of a standalone cluster, "yarn", or '
            '"k8s://https://HOST:PORT" of Kubernetes.',
        )
    return said


def _check_bootstrap(file: _File) -> None:
    """Refuse brokers that no client could look for: no later start would find them."""
    servers = file.required("source", "kafka.bootstrap.servers")
    try:
        parse_bootstrap(servers)
    except CatchwaterError as error:
        where = file.found["source", "kafka.bootstrap.servers"].where
        raise ConfigError(
            f"{where}: {error}",
            hint="Several are separated by commas: 10.0.0.1:9092,10.0.0.2:9092.",
        ) from error


def _unknown(where: str, what: str, known: Iterable[str]) -> ConfigError:
    closest = nearest(what.split(" ")[0].strip("[]"), known)
    return ConfigError(f"{where}: there is no {what}.", hint=f"The nearest is {closest}.")
