"""The subjects of a schema registry: what their schemas mean for the columns and classes that read.

A topic's values have the subject `TOPIC-value`, as Confluent's serializers name it by default.
Imports no Spark.
"""

import datetime
import decimal
import functools
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import msgspec

from catchwater.config import CatchwaterError
from catchwater.values.as_avro import of_json_schema, of_message
from catchwater.values.events import (
    EventValues,
    Hook,
    event_reader,
    fastavro_or_refusal,
    parsed_avro,
    protobuf_reader,
    required,
)
from catchwater.values.registry import Registered, RegistryClient
from catchwater.values.settings import BadSchema, Registry, ValueFormat, ValueSettings

LOOK_S = 1.0
"""How long a start waits for an answer: it goes on without one, by the schemas that are known."""
_MAY_DROP = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE")
"""What a subject may be whose next schema may lack a field that readers need."""


class EventsUnfit(CatchwaterError):
    """Values of a subject's schema are no events of the class that a function declares."""

    exit_code = 2


def subject_of(topic: str) -> str:
    """The subject of a topic's values."""
    return f"{topic}-value"


def newest(registry: Registry, topic: str) -> str:
    """The newest schema of a topic's values, with all that it refers to in one text.

    Raises `BadSchema` and `SchemaUnavailable`.
    """
    return whole(_latest(registry, topic, ValueFormat.AVRO))


def newest_values(registry: Registry, topic: str, kind: ValueFormat) -> ValueSettings:
    """How a topic's values, which begin with the id of their schema, are decoded by the newest;
    of a Protobuf file its first message. Raises as `newest`.
    """
    found = _latest(registry, topic, kind)
    if kind is ValueFormat.AVRO:
        return ValueSettings(kind, whole(found), registry=registry)
    from catchwater.values.descriptors import first_message

    message, files = first_message(found)
    return ValueSettings(
        kind, subject_of(topic), message, descriptors=files, registry=registry, path=(0,)
    )


def _latest(registry: Registry, topic: str, kind: ValueFormat) -> Registered:
    subject = subject_of(topic)
    try:
        _, found = RegistryClient(registry).latest(subject)
    except LookupError as error:
        raise BadSchema(
            f"{error}.", hint="Name a schema, or have the topic's producers register theirs."
        ) from error
    if found.kind.lower() != kind.value:
        raise BadSchema(
            f"The schema of {subject} is {found.kind}, and the values' format is {kind.value}."
        )
    return found


def whole(found: Registered) -> str:
    """An Avro schema with each that it refers to where it is first met. Raises `BadSchema`."""
    named: dict[str, Any] = {}
    for index, each in enumerate(found.needs):
        schema = parsed_avro(each, found.needs[:index], any_type=True)
        named[schema["name"]] = schema
    return json.dumps(_put_in(parsed_avro(found.text, found.needs), named))


def check_subject(
    values: EventValues, topic: str, declared: Any, hook: Hook, *, patience_s: float = LOOK_S
) -> None:
    """Raise `EventsUnfit` unless values of the topic's newest schema are events of the class.

    A subject that is not there says nothing, nor does a JSON Schema that leaves a type open. Raises
    `SchemaUnavailable`.
    """
    registry, kind = values.registry, values.settings.format
    if registry is None or values.settings.schema:
        return
    subject = subject_of(topic)
    client = RegistryClient(registry, answer_s=patience_s)
    try:
        schema_id, found = client.latest(subject)
    except LookupError:
        return
    if found.kind.lower() != kind.value:
        raise EventsUnfit(
            f"The newest schema of {subject!r} (id {schema_id}) is {named_kind(found)}, and "
            f"valueFormat is {kind.value}.",
            hint="Say valueFormat as the producers write.",
        )
    try:
        wrong = refused(found, declared, hook, of_type_only=True)
    except BadSchema:
        if kind is ValueFormat.JSON:
            return
        raise
    if wrong is not None:
        raise EventsUnfit(
            f"Values of {subject!r} by its newest schema (id {schema_id}) are no events of "
            f"{declared.__name__}: {wrong}",
            hint="Give the field a default or the type of the schema: catchwater schema pull "
            f"{subject} --registry {registry.url} shows the class.",
        )


def named_kind(found: Registered) -> str:
    """What a schema is, as its kind writes itself."""
    return {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}.get(
        found.kind, found.kind
    )


def as_avro(found: Registered, message: str | None = None) -> tuple[str, Sequence[str]]:
    """A schema of any kind in the terms of Avro (see `catchwater.values.as_avro`), and what it
    refers to. `message`: the full name of one of a Protobuf file, else its first.

    Raises `BadSchema`.
    """
    if found.kind == "PROTOBUF":
        return json.dumps(of_message(_message_named(found, message))), ()
    if message is not None:
        raise BadSchema(f"It is {named_kind(found)}, and has no messages.")
    if found.kind == "JSON":
        return json.dumps(of_json_schema(found)), ()
    return found.text, found.needs


def _message_named(found: Registered, name: str | None) -> Any:
    from catchwater.values.descriptors import messages

    described = {each.full_name: each for each in messages(found)}
    if name is not None and name not in described:
        raise BadSchema(
            f"There is no message {name} in the Protobuf file; it has: {', '.join(described)}."
        )
    return described[name or next(iter(described))]


def refused(
    found: Registered, declared: Any, hook: Hook, *, of_type_only: bool = False
) -> str | None:
    """Why some value of a schema is no event of the class; None: each one made up is.

    Values are made up so that each member of a union, each name of an enum, and each field that may
    be absent is met once; of a Protobuf file with several messages it is enough that the values of
    one are events. `of_type_only`: what the class itself refuses of a value does not count, for
    values that are made up may lie where real ones never do. Raises `BadSchema`.
    """
    first: str | None = None
    for made in _made_up(found):
        wrong = made.refused(declared, hook, of_type_only)
        if wrong is None:
            return None
        first = first or wrong
    return first


def may_drop(level: str, declared: Any) -> Sequence[str]:
    """The fields of a class that a subject of this level lets its next schema leave out."""
    return [*required(declared)] if level.upper() in _MAY_DROP else []


def _put_in(schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_put_in(each, named) for each in schema]
    if isinstance(schema, str):
        return _put_in(named.pop(schema), named) if schema in named else schema
    if not isinstance(schema, dict):
        return schema
    return {
        key: _put_in(each, named) if _is_type(key, each) else each
        for key, each in schema.items()
        if not key.startswith("__")
    }


def _is_type(key: str, value: Any) -> bool:
    """Whether a type stands there, and not a name, a default or the word for a kind of type."""
    if key == "type":
        return isinstance(value, dict | list) or value not in _KINDS
    return key in ("items", "values", "fields")


_KINDS = ("record", "enum", "fixed", "error", "array", "map")


# --- values that a schema may have ---------------------------------------------------------------


class _MadeUp(NamedTuple):
    """Values by a schema of a record: how one is encoded, and what reads it as a class's event."""

    schema: Any
    """In the terms of Avro."""
    encode: Callable[[Any], bytes]
    decoder: Callable[[Any, Hook], Callable[[bytes], Any]]

    def refused(self, declared: Any, hook: Hook, of_type_only: bool) -> str | None:
        names = [each["name"] for each in self.schema["fields"]]
        for name in required(declared):
            if name not in names:
                return (
                    f"The class {declared.__name__} must have the field {name!r}, which the schema "
                    f"does not have; it has {', '.join(names)}."
                )
        decode = self.decoder(declared, hook)
        for row in _Samples().of(self.schema):
            try:
                decode(self.encode(row))
            except _OF_THE_CLASS as error:
                if of_type_only and not _is_of_type(error):
                    continue
                return f"{error} (for the value {row!r})"
        return None


def _made_up(found: Registered) -> Iterator[_MadeUp]:
    """By each record that values may be of. Raises `BadSchema`."""
    if found.kind == "PROTOBUF":
        from catchwater.values.descriptors import encoded, messages

        for message in messages(found):
            yield _MadeUp(
                of_message(message),
                functools.partial(encoded, message),
                lambda declared, hook, message=message: event_reader(  # type: ignore[misc]
                    protobuf_reader(message, declared), declared, hook
                ),
            )
    elif found.kind == "JSON":
        values = EventValues(ValueSettings(ValueFormat.JSON))
        yield _MadeUp(of_json_schema(found), msgspec.json.encode, values.decoder)
    else:
        values = EventValues(ValueSettings(ValueFormat.AVRO, whole(found)))
        schema = parsed_avro(values.settings.schema, ())
        yield _MadeUp(schema, functools.partial(_encoded, schema), values.decoder)


def _encoded(schema: Any, row: Any) -> bytes:
    out = BytesIO()
    fastavro_or_refusal().schemaless_writer(out, schema, row)
    return out.getvalue()


_OF_TYPE = re.compile(r"Expected .*, got |Object missing required field|Invalid enum value")


def _is_of_type(error: Exception) -> bool:
    """Whether a value has another type or lacks a field, and is not merely out of bounds."""
    plain = isinstance(error, msgspec.ValidationError) and error.__cause__ is None
    return plain and _OF_TYPE.match(str(error)) is not None


_OF_THE_CLASS = (Exception,)
"""What reading an event may raise: its class is the user's, and so is a `__post_init__` of it."""
_SAMPLES: Mapping[str, Any] = {
    "null": None, "boolean": True, "int": 1, "long": 1, "float": 1.5, "double": 1.5,
    "bytes": b"x", "string": "x", "date": datetime.date(2026, 1, 2),
    "time-millis": datetime.time(1), "time-micros": datetime.time(1),
    "timestamp-millis": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "timestamp-micros": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "local-timestamp-millis": datetime.datetime(2026, 1, 2),
    "local-timestamp-micros": datetime.datetime(2026, 1, 2),
    "uuid": uuid.UUID(int=1),
}  # fmt: skip


class _Samples:
    """Values of a parsed schema, as few as meet each member of a union and each name of an enum."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        """Records within which it is: of what holds itself there is no value that goes on."""

    def of(self, schema: Any) -> list[Any]:
        """Empty if every value would hold itself."""
        if isinstance(schema, list):
            return [each for member in schema for each in self.of(member)]
        if not isinstance(schema, str):
            return self._of_declared(schema)
        if schema in _SAMPLES:
            return [_SAMPLES[schema]]
        return [] if schema in self._open else self.of(self._named[schema])[:1]

    def _of_declared(self, schema: Mapping[str, Any]) -> list[Any]:
        kind, logical = schema["type"], schema.get("logicalType")
        if "name" in schema:
            self._named[schema["name"]] = schema
        if logical == "decimal":
            return [decimal.Decimal(1).scaleb(-int(schema.get("scale", 0)))]
        if isinstance(logical, str) and logical in _SAMPLES:
            return [_SAMPLES[logical]]
        if logical == "date-time":
            return [_SAMPLES["timestamp-millis"]]
        match kind:
            case "array":
                return [[], *([each] for each in self.of(schema["items"]))]
            case "map":
                [key] = self.of(schema.get("keys", "string"))
                return [{}, *({key: each} for each in self.of(schema["values"]))]
            case "enum":
                return list(schema["symbols"])
            case "fixed":
                return [bytes(schema["size"])]
            case "record" | "error":
                return self._of_record(schema)
        return self.of(kind)

    def _of_record(self, schema: Mapping[str, Any]) -> list[Any]:
        self._open.add(schema["name"])
        found = {each["name"]: (self.of(each["type"]), each) for each in schema["fields"]}
        self._open.discard(schema["name"])
        of_fields = {name: made for name, (made, each) in found.items() if made}
        if not all(made or each.get("absent") for made, each in found.values()):
            return []
        first = {name: found[0] for name, found in of_fields.items()}
        others = [{**first, name: each} for name, found in of_fields.items() for each in found[1:]]
        absent = [each["name"] for each in schema["fields"] if each.get("absent") == "declared"]
        without = [{k: v for k, v in first.items() if k != name} for name in absent]
        return [first, *others, *without]
