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

import msgspec

from catchwater.config import ConfigError
from catchwater.objects.base import ObjectMissing
from catchwater.sinks.base import OutputRecord, Staged, Stager
from catchwater.sinks.columns import names_of
from catchwater.sinks.config import TopicOptions
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings

if TYPE_CHECKING:
    from catchwater.sinks.config import SinkConfig, SinkContext
    from catchwater.sinks.epochs import Archive
    from catchwater.values.outputs import OutputValues
    from catchwater.values.registry import RegistryClient


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


def kept_subject(options: TopicOptions) -> dict[str, str]:
    """See `Kind.keeps`: values that are written elsewhere have the schema that they had."""
    return {"subject": _subject(options)} if options.registry_url else {}


def look_at_values(config: "SinkConfig", context: "SinkContext") -> None:
    """Raise what `open_values` would raise, but ask once and register nothing."""
    from catchwater.values.outputs import offered

    options: TopicOptions = config.options
    if options.registry_url:
        schema = offered(settings_of(config, context), _subject(options))
        _client(options).look(schema, register=options.register)


def open_values(config: "SinkConfig", context: "SinkContext", truth: "Archive") -> "OutputValues":
    """How the sink's values are encoded, where they are not JSON as they come.

    Raises `BadSchema`, `SchemaRefused` and `SchemaUnavailable`.
    """
    from catchwater.values.outputs import OutputValues, offered

    options: TopicOptions = config.options
    settings = settings_of(config, context)
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


def settings_of(config: "SinkConfig", context: "SinkContext") -> ValueSettings:
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
