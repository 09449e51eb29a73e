"""How the values of a topic are encoded, for the sinks that write to one: `log` and `kafka`.

Outputs are JSON where nothing is said. Encoding happens in the task, before an output is staged:
what is staged is what the topic gets, so that it is verified and repaired byte by byte. With a
schema registry each value has the id of its schema in front. The schema is looked up under its
subject when the sink is first opened, and registered only where the file says so; its id is kept
beside the checkpoint, so that a repeated epoch has the same bytes and a registry that is away stops
nobody.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from catchwater.config import ConfigError
from catchwater.objects.base import ObjectMissing
from catchwater.sinks.base import OutputRecord, Staged, Stager
from catchwater.sinks.columns import names_of
from catchwater.sinks.config import anything, count, flag, one_of, option, text, topic
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings

if TYPE_CHECKING:
    from catchwater.sinks.config import SinkConfig, SinkContext
    from catchwater.sinks.staged import Archive
    from catchwater.values.outputs import OutputValues
    from catchwater.values.registry import RegistryClient


def _registry_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("the URL of a schema registry without a login, such as http://host:8081")
    return value


@dataclass(frozen=True)
class TopicOptions:
    """The keys of a sink that writes to a topic."""

    topic: str = option(topic, doc="the topic, which is made if it is missing")
    partitions: int | None = option(count, None, doc="of a topic that has to be made")
    value_format: str = option(
        one_of("json", "avro", "protobuf"), "json", key="valueFormat", doc="of the values"
    )
    value_schema: str = option(
        text, "", key="valueSchema",
        doc="a schema, or the path of one; of Protobuf that of a descriptor set",
    )  # fmt: skip
    value_message: str = option(
        text, "", key="valueMessage", doc="of Protobuf the message's full name"
    )
    registry_url: str = option(
        _registry_url, "", key="schema.registry.url",
        doc="a registry: each value begins with the id that its schema has there",
    )  # fmt: skip
    registry_login: str = option(
        anything, "", key="schema.registry.basic.auth.user.info",
        doc="`user:password`; best from the environment",
    )  # fmt: skip
    subject: str = option(
        text, "", key="schema.registry.subject", doc="else the topic's name and `-value`"
    )
    register: bool = option(
        flag, False, key="schema.registry.register",
        doc="whether the schema is registered if it is not there",
    )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether the values are JSON, as they leave their function."""
        return self.value_format == "json" and not self.registry_url


@dataclass(frozen=True)
class Encoding:
    """A stager whose outputs are encoded first."""

    stager: Stager
    values: "OutputValues"

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """See `base.Stager`. Raises `OutputUnfit`."""
        encode = _encoder(self.values)
        encoded = [each._replace(value=encode(each.value)) for each in records]
        return self.stager.stage(epoch, shard, encoded)


@cache
def _encoder(values: "OutputValues") -> Any:
    """Made once in a process: a schema is parsed for it."""
    return values.encoder()


def check_together(options: TopicOptions) -> None:
    """Refuse keys that contradict each other. Raises `ConfigError`."""
    kind = options.value_format
    if options.is_plain and (options.value_schema or options.value_message):
        raise ConfigError(
            "has a valueSchema or a valueMessage, and its values are plain JSON.",
            hint="valueFormat is avro or protobuf, or schema.registry.url names a registry.",
        )
    if not options.is_plain and not options.value_schema:
        raise ConfigError(
            f"writes {kind}, and nothing says with which schema.",
            hint="valueSchema is a schema or its path; of Protobuf the path of a descriptor set.",
        )
    if (kind == "protobuf") != bool(options.value_message):
        raise ConfigError("has a valueMessage where valueFormat is protobuf, and only there.")
    if not options.registry_url and (options.register or options.subject or options.registry_login):
        raise ConfigError("has keys of a schema registry, and no schema.registry.url.")


def kept_subject(options: TopicOptions) -> dict[str, str]:
    """See `Kind.keeps`: values that are written elsewhere have the schema that they had."""
    return {"subject": _subject(options)} if options.registry_url else {}


def check_values(config: "SinkConfig", context: "SinkContext") -> None:
    """Refuse a schema that the outputs do not fit, as far as it shows. Raises `ConfigError`."""
    options: TopicOptions = config.options
    if not options.is_plain:
        _settings(config, context)


def look_at_values(config: "SinkConfig", context: "SinkContext") -> None:
    """Raise what `open_values` would raise, but ask once and register nothing."""
    from catchwater.values.outputs import offered

    options: TopicOptions = config.options
    if options.registry_url:
        schema = offered(_settings(config, context), _subject(options))
        _client(options).look(schema, register=options.register)


def open_values(
    config: "SinkConfig", context: "SinkContext", truth: "Archive"
) -> "OutputValues | None":
    """How the sink's values are encoded; None: they are JSON as they come.

    Raises `BadSchema`, `SchemaRefused` and `SchemaUnavailable`.
    """
    from catchwater.values.outputs import OutputValues, offered

    options: TopicOptions = config.options
    if options.is_plain:
        return None
    settings = _settings(config, context)
    if not options.registry_url:
        return OutputValues(settings)
    schema = offered(settings, _subject(options))
    content = "\n".join((options.registry_url, schema.subject, schema.kind, schema.text))
    key = f"{truth.folder}/schema-{hashlib.sha256(content.encode()).hexdigest()[:24]}.json"
    try:
        kept = truth.store.get(key)
        return OutputValues(settings, int(msgspec.json.decode(kept)["id"]))
    except ObjectMissing:
        schema_id = _client(options).id_of(schema, register=options.register)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{key} beside the checkpoint is damaged: {error}.") from error
    truth.store.put(key, [msgspec.json.encode({"id": schema_id, "subject": schema.subject})])
    return OutputValues(settings, schema_id)


def _subject(options: TopicOptions) -> str:
    return options.subject or f"{options.topic}-value"


def _client(options: TopicOptions) -> "RegistryClient":
    from catchwater.values.registry import RegistryClient
    from catchwater.values.settings import Registry

    return RegistryClient(Registry(options.registry_url, login=options.registry_login))


def _settings(config: "SinkConfig", context: "SinkContext") -> ValueSettings:
    """The settings with their schema, which the outputs' fields fit. Raises `ConfigError`."""
    from catchwater.values.outputs import OutputValues, check_outputs, output_settings

    options: TopicOptions = config.options
    if context.output_type is None:
        raise ConfigError(
            f"The sink {config.name!r} takes records as they came, and cannot encode them.",
            hint="Leave out valueFormat and schema.registry.url for dead letters and late events.",
        )
    schema = options.value_schema
    if not schema.lstrip().startswith("{"):
        schema = str(context.folder / schema)
    kind = ValueFormat(options.value_format)
    try:
        settings = output_settings(ValueSettings(kind, schema, options.value_message))
        whose = getattr(context.output_type, "__name__", str(context.output_type))
        check_outputs(settings, names_of(context.output_type), whose)
        OutputValues(settings, 0).encoder()
    except BadSchema as error:
        raise ConfigError(f"The sink {config.name!r}: {error}", hint=error.hint) from error
    return settings
