"""The values of records as events: JSON, Avro or Protobuf to the class that a function declares.

An Avro or Protobuf value becomes plain Python first and then, by msgspec, the declared class with
all its checks; fields that the class does not have are left out, those that the value does not have
take the class's default. A timestamp is a `datetime` where the class says so, and milliseconds
since 1970 where it says `int`. Relies on fastavro (the extra `avro`) or protobuf only for values in
these formats. Imports no Spark.
"""

import datetime
import functools
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import msgspec

from catchwater.values.registry import (
    FRAME_BYTES,
    Registered,
    RegistryClient,
    framed,
    unframed,
)
from catchwater.values.settings import BadSchema, Registry, ValueFormat, ValueSettings, load

Hook = Callable[[type, Any], Any]
"""What msgspec asks for a class that it does not know."""

_TIMESTAMPS = {"timestamp-millis": 1, "timestamp-micros": 1000}
"""Avro's logical types, and how many of each make a millisecond."""


class EventValues(msgspec.Struct, frozen=True):
    """How the values of a pipeline's input are encoded; travels with the function's code."""

    settings: ValueSettings
    registry: Registry | None = None
    """If set, each value begins with the id of its schema."""

    def decoder(self, declared: Any, hook: Hook) -> Callable[[bytes], Any]:
        """From a value to an event of the declared class.

        What it returns raises whatever a value raises that is none, and `SchemaUnavailable`.
        Raises `BadSchema` itself.
        """
        plain = self._plain_decoder(declared)
        if plain is None:
            decode = msgspec.json.Decoder(declared, dec_hook=hook).decode
            return decode if self.registry is None else lambda value: decode(unframed(value))
        return event_reader(plain, declared, hook)

    def check(self, declared: Any, role: str) -> None:
        """Refuse a schema that lacks a field which the class must have. Raises `BadSchema`.

        Of a registry nothing is asked: each of its records says what schema it has.
        """
        known = self._fields()
        if known is None:
            return
        for name in required(declared):
            if name not in known:
                raise BadSchema(
                    f"The {role} {declared.__name__} must have the field {name!r}, which "
                    f"valueSchema does not have; it has {', '.join(sorted(known))}.",
                    hint="Give the field a default in the class, or name it as the schema does.",
                )

    def _plain_decoder(self, declared: Any) -> Callable[[bytes], Any] | None:
        """From a value to plain Python; None: it is JSON."""
        match self.settings.format:
            case ValueFormat.AVRO if self.registry is not None:
                return _RegisteredAvro(RegistryClient(self.registry), declared)
            case ValueFormat.AVRO:
                return avro_reader(self.settings.schema, (), declared)
            case ValueFormat.PROTOBUF if not self.settings.schema:
                assert self.registry is not None, "event_values has seen to it"
                return _RegisteredProtobuf(RegistryClient(self.registry), declared)
            case ValueFormat.PROTOBUF:
                decode = protobuf_reader(_message_of(self.settings), declared)
                if self.registry is None:
                    return decode
                return lambda value: decode(behind_path(unframed(value)))
        return None

    def _fields(self) -> set[str] | None:
        """The names of the schema's fields; None if each record says what it has."""
        if self.settings.format is ValueFormat.PROTOBUF and self.settings.schema:
            return {field.name for field in _message_of(self.settings).fields}
        if self.settings.format is ValueFormat.AVRO and self.registry is None:
            return {field["name"] for field in parsed_avro(self.settings.schema, ())["fields"]}
        return None


def event_reader(
    plain: Callable[[bytes], Any], declared: Any, hook: Hook
) -> Callable[[bytes], Any]:
    """From a value to an event of the class, by what makes plain Python of the value."""
    convert = functools.partial(msgspec.convert, type=declared, dec_hook=hook)
    return lambda value: convert(plain(value))


def event_values(settings: ValueSettings, registry: Registry | None) -> EventValues | None:
    """How values are decoded by these settings; None: they are JSON. Raises `BadSchema`."""
    match settings.format:
        case ValueFormat.JSON if registry is None:
            return None
        case ValueFormat.AVRO if registry is not None and settings.schema:
            raise BadSchema(
                "valueSchema is not for values that carry the id of their schema.",
                hint="Leave out valueSchema, or schema.registry.url.",
            )
        case ValueFormat.AVRO if registry is None and not settings.schema:
            raise BadSchema(
                "valueFormat is avro, and nothing says with which schema.",
                hint="valueSchema is an Avro schema or the path of one; schema.registry.url names "
                "the registry of which the values carry ids.",
            )
        case ValueFormat.PROTOBUF if bool(settings.schema) != bool(settings.message) or (
            registry is None and not settings.schema
        ):
            raise BadSchema(
                "valueFormat is protobuf, and valueSchema or valueMessage is missing.",
                hint="valueSchema is the path of a descriptor set (protoc --include_imports "
                "--descriptor_set_out=FILE NAME.proto), valueMessage the message's full name; "
                "schema.registry.url alone names the registry of which the values carry ids.",
            )
    if settings.format is ValueFormat.AVRO:
        fastavro_or_refusal()  # so that its lack is no fault of the values
    return EventValues(load(settings) if settings.schema else settings, registry)


def required(declared: Any) -> Iterator[str]:
    """The names, as they are encoded, of the fields that a class must be given."""
    try:
        found = msgspec.inspect.type_info(declared)
    except TypeError:
        return
    for field in getattr(found, "fields", ()):
        if field.required:
            yield field.encode_name


# --- Avro ----------------------------------------------------------------------------------------


class _RegisteredAvro:
    """Avro values in Confluent's framing: each schema is parsed once."""

    def __init__(self, registry: RegistryClient, declared: Any) -> None:
        self._registry = registry
        self._declared = declared
        self._decoders: dict[int, Callable[[bytes], Any]] = {}

    def __call__(self, value: bytes) -> Any:
        schema_id = framed(value)
        decode = self._decoders.get(schema_id)
        if decode is None:
            found = self._registry.schema(schema_id)
            try:
                decode = self._decoders[schema_id] = self._decoder(found)
            except BadSchema as error:
                raise self._registry.useless(schema_id, str(error)) from error
        return decode(value[FRAME_BYTES:])

    def _decoder(self, found: Registered) -> Callable[[bytes], Any]:
        if found.kind != "AVRO":
            raise ValueError(f"its schema is {found.kind} and valueFormat is avro")
        return avro_reader(found.text, found.needs, self._declared)


def avro_reader(text: str, needs: Sequence[str], declared: Any) -> Callable[[bytes], Any]:
    """From one datum to plain Python. Raises `BadSchema`."""
    schema = parsed_avro(text, needs)
    divisors = _as_milliseconds(schema, declared)
    within = _Milliseconds(schema).of_fields(schema, declared)
    read = fastavro_or_refusal().schemaless_reader

    def decode(value: bytes) -> Any:
        stream = BytesIO(value)
        row = read(stream, schema, None)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes stand behind the datum")
        for name, divisor in divisors.items():
            if row[name] is not None:
                row[name] //= divisor
        for name, convert in within.items():
            row[name] = convert(row[name])
        return row

    return decode


def parsed_avro(text: str, needs: Sequence[str], *, any_type: bool = False) -> dict[str, Any]:
    """A schema of a record, or any named type, that fastavro reads by. Raises `BadSchema`."""
    fastavro = fastavro_or_refusal()
    named: dict[str, Any] = {}
    try:
        for each in needs:
            fastavro.parse_schema(json.loads(each), named_schemas=named)
        schema = fastavro.parse_schema(json.loads(text), named_schemas=named)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise BadSchema(f"It is no Avro schema: {type(error).__name__}: {error}.") from error
    if not isinstance(schema, dict) or (schema.get("type") != "record" and not any_type):
        raise BadSchema("It is an Avro schema, but not one of a record.")
    return schema


def _as_milliseconds(schema: dict[str, Any], declared: Any) -> dict[str, int]:
    """Take the logical type off the timestamps that the class has as numbers, in `schema` itself.

    Returns by what they are divided then.
    """
    hints = _hints(declared)
    divisors: dict[str, int] = {}
    for field in schema["fields"]:
        if not _is_number(hints.get(field["name"])):
            continue
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            logical = kind.get("logicalType") if isinstance(kind, dict) else None
            if logical in _TIMESTAMPS:
                del kind["logicalType"]
                divisors[field["name"]] = _TIMESTAMPS[logical]
    return divisors


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class _Milliseconds:
    """Timestamps within lists, maps and records that the class has as numbers.

    What is read of them are datetimes, because a record may be used in several places.
    """

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._made: dict[tuple[str, Any], dict[str, Callable[[Any], Any]]] = {}
        self._know(schema)

    def of_fields(self, schema: Any, declared: Any) -> dict[str, Callable[[Any], Any]]:
        """By field of a record: what makes numbers in it; fields without such are left out.

        A timestamp that is itself a field of the outermost record is read as a number already.
        """
        key = (schema["name"], declared)
        if key not in self._made:
            found = self._made[key] = {}
            hints = _hints(declared)
            for field in schema["fields"]:
                convert = self._of(field["type"], hints.get(field["name"]))
                if convert is not None:
                    found[field["name"]] = convert
        return self._made[key]

    def _know(self, schema: Any) -> None:
        for each in schema if isinstance(schema, list) else [schema]:
            if isinstance(each, dict):
                if "name" in each:
                    self._named[each["name"]] = each
                for inner in (*(f["type"] for f in each.get("fields", ())), each.get("items")):
                    self._know(inner)
                self._know(each.get("values"))

    def _of(self, schema: Any, hint: Any) -> Callable[[Any], Any] | None:
        hint = _one(hint)
        if hint is None:
            return None
        if isinstance(schema, list):
            members = [each for each in schema if each != "null"]
            convert = self._of(members[0], hint) if len(members) == 1 else None
            return convert and (lambda value: None if value is None else convert(value))
        if isinstance(schema, str):
            return self._of(self._named[schema], hint) if schema in self._named else None
        if schema.get("logicalType") in _TIMESTAMPS:
            return _as_number if _is_number(hint) else None
        match schema["type"]:
            case "array":
                item = self._of(schema["items"], _item(hint))
                return item and (lambda values: [item(each) for each in values])
            case "map":
                one = self._of(schema["values"], _item(hint))
                return one and (lambda values: {key: one(each) for key, each in values.items()})
            case "record":
                return self._of_record(schema, hint)
        return None

    def _of_record(self, schema: Any, hint: Any) -> Callable[[Any], Any] | None:
        is_open = (schema["name"], hint) in self._made
        fields = self.of_fields(schema, hint)

        def convert(row: Any) -> Any:
            for name, of_field in fields.items():
                row[name] = of_field(row[name])
            return row

        # One that holds itself is not known to the end yet: it may have some.
        return convert if fields or is_open else None


def _as_number(value: Any) -> Any:
    return (value - _EPOCH) // _MILLISECOND if isinstance(value, datetime.datetime) else value


def _is_number(hint: Any) -> bool:
    """Whether a class has timestamps of this field as numbers."""
    return hint is not None and datetime.datetime not in (hint, *typing.get_args(hint))


def _one(hint: Any) -> Any:
    """The type of a field that may be missing; None where it is one of several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [each for each in typing.get_args(hint) if each is not types.NoneType]
        return members[0] if len(members) == 1 else None
    return hint


def _item(hint: Any) -> Any:
    """The type of a list's items, or of a map's values."""
    inner = [each for each in typing.get_args(_one(hint)) if each is not Ellipsis]
    return inner[-1] if inner else None


def _hints(declared: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(declared)
    except (TypeError, NameError):
        return {}


def fastavro_or_refusal() -> Any:
    """The module that reads and writes Avro. Raises `BadSchema` where it is not installed."""
    try:
        import fastavro
        import fastavro.schema
    except ImportError as error:
        raise BadSchema(
            "valueFormat is avro, but fastavro is not installed.",
            hint="Install catchwater with the extra avro: pip install 'catchwater[avro]'.",
        ) from error
    return fastavro


# --- Protobuf ------------------------------------------------------------------------------------


class _RegisteredProtobuf:
    """Protobuf values in Confluent's framing: which message a value is, its path says."""

    def __init__(self, registry: RegistryClient, declared: Any) -> None:
        self._registry = registry
        self._declared = declared
        self._decoders: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any]] = {}

    def __call__(self, value: bytes) -> Any:
        schema_id = framed(value)
        path, message = with_path(value[FRAME_BYTES:])
        decode = self._decoders.get((schema_id, path))
        if decode is None:
            from catchwater.values.descriptors import message_at

            found = self._registry.schema(schema_id)
            if found.kind != "PROTOBUF":
                raise ValueError(f"its schema is {found.kind} and valueFormat is protobuf")
            try:
                decode = protobuf_reader(message_at(found, path), self._declared)
            except BadSchema as error:
                raise self._registry.useless(schema_id, str(error)) from error
            self._decoders[schema_id, path] = decode
        return decode(message)


def _message_of(settings: ValueSettings) -> Any:
    from catchwater.values.descriptors import message_of

    return message_of(settings)


def protobuf_reader(described: Any, declared: Any) -> Callable[[bytes], Any]:
    """From one message of this type to plain Python."""
    from google.protobuf import message_factory

    parse = message_factory.GetMessageClass(described).FromString
    plain = _message(described, _hints(declared))

    def decode(value: bytes) -> Any:
        row = parse(value)
        if not row.IsInitialized():
            raise ValueError(f"required and not set: {', '.join(row.FindInitializationErrors())}")
        return plain(row)

    return decode


def _message(described: Any, hints: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """From a message to its fields: those with presence that are not set are left out."""
    readers = [
        (each.name, each.has_presence, _field(each, hints.get(each.name)))
        for each in described.fields
    ]

    def plain(row: Any) -> dict[str, Any]:
        return {
            name: read(getattr(row, name))
            for name, may_be_unset, read in readers
            if not may_be_unset or row.HasField(name)
        }

    return plain


def _field(field: Any, hint: Any) -> Callable[[Any], Any]:
    from catchwater.values.descriptors import is_map, is_repeated

    if is_map(field):
        value = _single(field.message_type.fields_by_name["value"], _item(hint))
        return lambda found: {key: value(each) for key, each in found.items()}
    if is_repeated(field):
        each_one = _single(field, _item(hint))
        return lambda found: [each_one(each) for each in found]
    return _single(field, hint)


def _single(field: Any, hint: Any) -> Callable[[Any], Any]:
    from catchwater.values.descriptors import PROTOBUF_TIMESTAMP

    kind = field.message_type
    if kind is not None and kind.full_name == PROTOBUF_TIMESTAMP:
        if not _is_number(hint):
            return lambda found: found.ToDatetime(tzinfo=datetime.UTC)
        return lambda found: found.seconds * 1000 + found.nanos // 1_000_000
    if kind is not None:
        # Made when a value first has one: a message may hold itself.
        made = functools.cache(lambda: _message(kind, _hints(_one(hint))))
        return lambda found: made()(found)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number, number)
    return lambda found: found


# --- Confluent's framing -------------------------------------------------------------------------


def behind_path(value: bytes) -> bytes:
    """The message behind the path of its type. Raises `ValueError`."""
    return with_path(value)[1]


_DEEPEST = 32
"""Steps of a path: one a level of nested messages."""


def with_path(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The path of a message's type in the schema's file, and the message behind it.

    The path is zigzag varints, counted first; none stand for the file's first message. Raises
    `ValueError`.
    """
    count, at = _varint(value, 0)
    if not 0 <= count <= _DEEPEST:
        raise ValueError(f"the path of its message's type has {count} steps")
    path = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path) or (0,), value[at:]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("it ends within the path of its message's type")
        byte = value[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
