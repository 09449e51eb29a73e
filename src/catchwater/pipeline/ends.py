"""What a pipeline reads and writes, as Python says it: `Kafka`, `Topic`, `Table` and the others.

Each is what a section of a pipeline's file says, with its names and types: `section` is that
section, which is then read and checked as the file's are (`run.config`). Opens nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from catchwater.config import ConfigError
from catchwater.pipeline.functions.declare import spec_of
from catchwater.sinks.config import Delivery

Function = Callable[..., Any]
"""A class or function that is declared with `@function`."""

Values = dict[str, Any]
"""What a section says: key → value."""

_DATABASES = {"postgresql": "postgres", "postgres": "postgres"}
_SQLITE = "sqlite:///"


class Kafka:
    """The topics of any Kafka; of our own log the pipeline also pins what it would replay.

    With several topics, or `inputs` (the function's inputs → topic) for a function that declares
    some. `starting_offsets` is "earliest", "latest" or Spark's JSON; it counts for the first start
    only. Events in other formats than JSON have a `value_schema` (an Avro schema or the path of
    one, a Protobuf descriptor set and its `value_message`), or each begins with the id of its
    schema in a `registry` (a URL). `options` are Kafka's own (`kafka.security.protocol`,
    `kafka.sasl.…`); their values may be `${env:NAME}` or `${file:PATH:KEY}`, and are not shown.
    """

    def __init__(
        self,
        bootstrap: str,
        *topics: str,
        inputs: Mapping[str, str] | None = None,
        starting_offsets: str | None = None,
        starting_timestamp: int | None = None,
        max_offsets_per_trigger: int | None = None,
        fail_on_data_loss: bool | None = None,
        read: Literal["auto", "direct", "kafka"] | None = None,
        record_key_is_function_key: bool | None = None,
        value_format: Literal["json", "avro", "protobuf"] | None = None,
        value_schema: str | None = None,
        value_message: str | None = None,
        registry: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.topics = topics
        self.inputs = dict(inputs or {})
        self.section: Values = {
            **(options or {}),
            **_said(
                {
                    "kafka.bootstrap.servers": bootstrap,
                    "subscribe": ",".join(topics) or None,
                    "startingOffsets": starting_offsets,
                    "startingTimestamp": starting_timestamp,
                    "maxOffsetsPerTrigger": max_offsets_per_trigger,
                    "failOnDataLoss": fail_on_data_loss,
                    "catchwater.read": read,
                    "recordKeyIsFunctionKey": record_key_is_function_key,
                    "valueFormat": value_format,
                    "valueSchema": value_schema,
                    "valueMessage": value_message,
                    "schema.registry.url": registry,
                }
            ),
        }

    def __repr__(self) -> str:
        topics = self.inputs or ", ".join(map(repr, self.topics))
        return f"{type(self).__name__}({self.bootstrap!r}, {topics})"


@dataclass(frozen=True)
class Sink:
    """Where outputs go; one of the classes below.

    `name` is what the checkpoint knows the sink by; else that is the target's, with the kind where
    another sink has it too. `outputs_of` is
    the function of a chain whose outputs it takes; else the last. `keep` is how long what was
    written is kept to verify and repair from, such as "7d".
    """

    name: str | None = field(default=None, kw_only=True)
    outputs_of: Function | str | None = field(default=None, kw_only=True)
    delivery: Delivery | None = field(default=None, kw_only=True)
    keep: str | None = field(default=None, kw_only=True)

    kind: ClassVar[str] = ""
    _NOT_KEYS: ClassVar[tuple[str, ...]] = ("name", "outputs_of", "options")

    @property
    def called(self) -> str:
        """Its name in the pipeline."""
        return self.name or self.kind

    @property
    def section(self) -> Values:
        """What `[sink.NAME]` would say. Raises `ConfigError`."""
        source = self.outputs_of
        given = source if source is None or isinstance(source, str) else spec_of(source).name
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self._NOT_KEYS}
        return _said({"kind": self.kind, "from": given, **own})


@dataclass(frozen=True)
class Topic(Sink):
    """A topic of the log that the pipeline reads, written in one transaction an epoch.

    `kafka` is another Kafka (`HOST:PORT`), or the source's own where that is not our log; `options`
    are librdkafka's properties, each beginning with `kafka.`, and `schema.registry.…`.

    Values are JSON, or what `value_format` says by a `value_schema` (a schema or the path of one; a
    Protobuf descriptor set and its `value_message`). With a `registry` (a URL) each begins with the
    id that its schema has there under TOPIC-value; `register` has it registered if it is not.
    """

    topic: str
    partitions: int | None = None
    kafka: str | None = field(default=None, kw_only=True)
    retry: str | None = field(default=None, kw_only=True)
    value_format: Literal["json", "avro", "protobuf"] | None = field(default=None, kw_only=True)
    value_schema: str | None = field(default=None, kw_only=True, repr=False)
    value_message: str | None = field(default=None, kw_only=True)
    registry: str | None = field(default=None, kw_only=True)
    register: bool | None = field(default=None, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)

    _KEYS: ClassVar[Mapping[str, str]] = {
        "value_format": "valueFormat",
        "value_schema": "valueSchema",
        "value_message": "valueMessage",
        "registry": "schema.registry.url",
        "register": "schema.registry.register",
    }
    _NOT_KEYS = (*Sink._NOT_KEYS, "kafka", *_KEYS)

    @property
    def called(self) -> str:
        """Its name in the pipeline."""
        return self.name or self.topic

    @property
    def section(self) -> Values:
        """What `[sink.NAME]` would say."""
        values = _said({key: getattr(self, name) for name, key in self._KEYS.items()})
        own = {**super().section, **values}
        if self.kafka is None and not any(key.startswith("kafka.") for key in self.options):
            return {**own, "kind": "log", **self.options}
        servers = {} if self.kafka is None else {"kafka.bootstrap.servers": self.kafka}
        return {**own, "kind": "kafka", **servers, **self.options}


@dataclass(frozen=True)
class Table(Sink):
    """A table in PostgreSQL (`postgresql://user@host/database`) or SQLite (`sqlite:///alerts.db`).

    `mode` is "append", or "upsert" by the function's `output_id`.
    """

    url: str = field(repr=False)
    table: str
    mode: Literal["append", "upsert"] | None = field(default=None, kw_only=True)
    retry: str | None = field(default=None, kw_only=True)

    @property
    def called(self) -> str:
        """Its name in the pipeline."""
        return self.name or self.table.rpartition(".")[2]

    @property
    def section(self) -> Values:
        """What `[sink.NAME]` would say. Raises `ConfigError` for a database that there is not."""
        if self.url.startswith(_SQLITE):
            rest = {key: value for key, value in super().section.items() if key != "url"}
            return {**rest, "kind": "sqlite", "path": self.url.removeprefix(_SQLITE)}
        kind = _DATABASES.get(self.url.partition("://")[0])
        if kind is None:
            raise ConfigError(
                f"Table {self.table!r} is in a database that no sink writes to.",
                hint="Its URL begins with postgresql:// or sqlite:///.",
            )
        return {**super().section, "kind": kind}


@dataclass(frozen=True)
class Files(Sink):
    """Parquet files in a folder or an object store (`s3://bucket/alerts`)."""

    url: str

    kind = "parquet"


@dataclass(frozen=True)
class Iceberg(Sink):
    """An Iceberg table; `catalog` are pyiceberg's properties (`catalog.uri` and so on)."""

    table: str
    warehouse: str | None = None
    snapshots: int | None = field(default=None, kw_only=True)
    retry: str | None = field(default=None, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)

    kind = "iceberg"

    @property
    def called(self) -> str:
        """Its name in the pipeline."""
        return self.name or self.table.rpartition(".")[2]

    @property
    def section(self) -> Values:
        """What `[sink.NAME]` would say."""
        return {**super().section, **self.options}


@dataclass(frozen=True)
class Http(Sink):
    """An endpoint that is sent every row; the URL may hold `{key}`, `{id}` and `{row}`."""

    url: str
    method: Literal["PUT", "POST"] | None = None
    deduplicates: bool | None = field(default=None, kw_only=True)
    concurrency: int | None = field(default=None, kw_only=True)
    timeout: str | None = field(default=None, kw_only=True)
    retry: str | None = field(default=None, kw_only=True)
    authorization: str | None = field(default=None, kw_only=True, repr=False)

    kind = "http"


def _said(values: Mapping[str, Any]) -> Values:
    """Those that were given."""
    return {key: value for key, value in values.items() if value is not None}
