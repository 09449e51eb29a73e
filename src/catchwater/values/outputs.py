"""A function's outputs as a topic's values: JSON to Avro, to Protobuf, or behind a schema's id.

An output is JSON when it leaves its function. Here its fields become what the schema says: texts
become bytes (base64), decimals, dates and times; a number stands for a timestamp in milliseconds
since 1970, as it does in events. A field that the schema does not have is no output that fits:
nothing is left out in silence. Imports no Spark; relies on fastavro (the extra `avro`) or protobuf
only for values in these formats.
"""

import base64
import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from catchwater.config import CatchwaterError, Restart
from catchwater.values.registry import Offered
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings, load

Convert = Callable[[Any], Any]


class OutputUnfit(CatchwaterError):
    """An output that its topic's schema cannot hold."""

    restart = Restart.ONCE


class OutputValues(msgspec.Struct, frozen=True):
    """How a sink's values are encoded; travels to the tasks."""

    settings: ValueSettings
    schema_id: int | None = None
    """What stands in front of each value, behind a zero byte; None: nothing does."""

    def encoder(self) -> Callable[[bytes], bytes]:
        """From an output's JSON to a value. What it returns raises `OutputUnfit`."""
        front = b"" if self.schema_id is None else b"\0" + self.schema_id.to_bytes(4, "big")
        match self.settings.format:
            case ValueFormat.AVRO:
                return _avro(self.settings.schema, front)
            case ValueFormat.PROTOBUF:
                return _protobuf(self.settings, front)
        return lambda value: front + value


def output_settings(settings: ValueSettings) -> ValueSettings:
    """The same with what the named file holds in place of its path. Raises `BadSchema`."""
    if settings.format is ValueFormat.JSON and settings.schema:
        if settings.schema.lstrip().startswith("{"):
            return settings
        try:
            return replace(settings, schema=Path(settings.schema).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadSchema(
                f"valueSchema names {settings.schema!r}, which cannot be read: "
                f"{getattr(error, 'strerror', None) or error}."
            ) from error
    return load(settings) if settings.schema else settings


def check_outputs(settings: ValueSettings, names: Sequence[str], whose: str) -> None:
    """Refuse a schema that outputs with fields of these names cannot fit. Raises `BadSchema`."""
    fields = _fields(settings)
    if fields is None:
        return
    for name in names:
        if name not in fields:
            raise BadSchema(
                f"The outputs of {whose} have the field {name!r}, which valueSchema does not have; "
                f"it has {', '.join(fields)}.",
                hint="Add the field to the schema, or name it as the schema does.",
            )
    for name, is_needed in fields.items():
        if is_needed and name not in names:
            raise BadSchema(
                f"valueSchema needs the field {name!r}, which the outputs of {whose} do not have.",
                hint="Give the field a default in the schema, or add it to the class.",
            )


def offered(settings: ValueSettings, subject: str) -> Offered:
    """What a registry is asked for: the schema of these settings, under this subject."""
    if settings.format is ValueFormat.PROTOBUF:
        return _offered_file(settings, subject)
    return Offered(subject, settings.format.value.upper(), settings.schema)


def _fields(settings: ValueSettings) -> dict[str, bool] | None:
    """The schema's fields, each with whether a value must have it; None: nothing is known."""
    match settings.format:
        case ValueFormat.AVRO:
            from catchwater.values.events import parsed_avro

            schema = parsed_avro(settings.schema, ())
            return {
                each["name"]: "default" not in each and "null" not in _members(each["type"])
                for each in schema["fields"]
            }
        case ValueFormat.PROTOBUF:
            from catchwater.values.descriptors import message_of

            return {
                each.name: bool(getattr(each, "is_required", False))
                for each in message_of(settings).fields
            }
    return None


def _members(schema: Any) -> Sequence[Any]:
    return schema if isinstance(schema, list) else [schema]


def _unfit(value: bytes, why: object) -> OutputUnfit:
    return OutputUnfit(
        f"An output does not fit the schema of its topic: {str(why).rstrip('.')}. It is "
        f"{value[:200].decode(errors='replace')}{'…' if len(value) > 200 else ''}",
        hint="Change the schema (valueSchema), or what the function puts out.",
    )


# --- Avro ----------------------------------------------------------------------------------------

_ERRORS = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, OverflowError,
)  # fmt: skip


def _avro(text: str, front: bytes) -> Callable[[bytes], bytes]:
    from fastavro import schemaless_writer

    from catchwater.values.events import parsed_avro

    schema = parsed_avro(text, ())
    convert = _FromJson().of(schema) or _same
    decode = msgspec.json.decode

    def encode(value: bytes) -> bytes:
        out = BytesIO()
        out.write(front)
        try:
            schemaless_writer(out, schema, convert(decode(value)), strict_allow_default=True)
        except _ERRORS as error:
            raise _unfit(value, f"{type(error).__name__}: {error}") from error
        return out.getvalue()

    return encode


def _same(value: Any) -> Any:
    return value


def _timestamp(of_each_ms: int) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, str):
            return datetime.datetime.fromisoformat(value)
        return value * of_each_ms

    return convert


_LOGICAL: Mapping[str, Convert] = {
    "decimal": lambda value: decimal.Decimal(str(value)),
    "timestamp-millis": _timestamp(1),
    "timestamp-micros": _timestamp(1000),
    "date": datetime.date.fromisoformat,
    "time-millis": datetime.time.fromisoformat,
    "time-micros": datetime.time.fromisoformat,
    "local-timestamp-millis": datetime.datetime.fromisoformat,
    "local-timestamp-micros": datetime.datetime.fromisoformat,
}


class _FromJson:
    """From what JSON has for a parsed schema to what fastavro writes; None: they are the same."""

    def __init__(self) -> None:
        self._named: dict[str, Convert] = {}

    def of(self, schema: Any) -> Convert | None:
        """Raises `BadSchema` for a union whose members JSON does not tell apart."""
        if isinstance(schema, list):
            return self._of_union(schema)
        if isinstance(schema, str):
            if schema == "bytes":
                return base64.b64decode
            return (lambda value: self._named[schema](value)) if schema in self._named else None
        kind, logical = schema["type"], schema.get("logicalType")
        if logical in _LOGICAL and kind in ("bytes", "fixed", "int", "long"):
            return _LOGICAL[logical]
        match kind:
            case "record" | "error":
                return self._of_record(schema)
            case "array":
                item = self.of(schema["items"])
                return item and (lambda values: [item(each) for each in values])
            case "map":
                one = self.of(schema["values"])
                return one and (lambda values: {key: one(each) for key, each in values.items()})
            case "fixed":
                return base64.b64decode
        return None if kind == "enum" else self.of(kind)

    def _of_union(self, members: list[Any]) -> Convert | None:
        others = [self.of(each) for each in members if each != "null"]
        converts = [each for each in others if each is not None]
        if not converts:
            return None
        if len(others) > 1:
            raise BadSchema(
                "valueSchema has a union of several types whose values JSON does not tell apart.",
                hint="Make it a union of one type with null, or of plain types and records.",
            )
        (convert,) = converts
        return lambda value: None if value is None else convert(value)

    def _of_record(self, schema: Mapping[str, Any]) -> Convert:
        fields: dict[str, Convert] = {}

        def convert(row: Any) -> Any:
            for name, of_field in fields.items():
                if name in row:
                    row[name] = of_field(row[name])
            return row

        self._named[schema["name"]] = convert
        for each in schema["fields"]:
            if (of_field := self.of(each["type"])) is not None:
                fields[each["name"]] = of_field
        return convert


# --- Protobuf ------------------------------------------------------------------------------------


def _protobuf(settings: ValueSettings, front: bytes) -> Callable[[bytes], bytes]:
    from google.protobuf import json_format, message, message_factory

    from catchwater.values.descriptors import message_of, path_of

    described = message_of(settings)
    made = message_factory.GetMessageClass(described)
    convert = _stamped(described, ()) or _same
    front += _varints(path_of(described)) if front else b""
    errors = (*_ERRORS, json_format.Error, message.Error)

    def encode(value: bytes) -> bytes:
        try:
            row = json_format.ParseDict(convert(msgspec.json.decode(value)), made())
            return front + bytes(row.SerializeToString(deterministic=True))
        except errors as error:
            raise _unfit(value, error) from error

    return encode


def _stamped(described: Any, within: tuple[str, ...]) -> Convert | None:
    """From a message's JSON to the same with texts for timestamps that are numbers."""
    from catchwater.values.descriptors import PROTOBUF_TIMESTAMP, is_map, is_repeated

    if described.full_name == PROTOBUF_TIMESTAMP:
        return _stamp
    if described.full_name in within:
        return None  # of a message that holds itself, timestamps are texts
    fields: dict[str, Convert] = {}
    for each in described.fields:
        kind = each.message_type
        if is_map(each):
            kind = kind.fields_by_name["value"].message_type
        one = _stamped(kind, (*within, described.full_name)) if kind is not None else None
        if one is not None:
            fields[each.name] = (
                _each_value(one) if is_map(each) else _each(one) if is_repeated(each) else one
            )
    if not fields:
        return None

    def convert(row: Any) -> Any:
        for name, of_field in fields.items():
            if row.get(name) is not None:
                row[name] = of_field(row[name])
        return row

    return convert


def _each(one: Convert) -> Convert:
    return lambda values: [one(each) for each in values]


def _each_value(one: Convert) -> Convert:
    return lambda values: {key: one(each) for key, each in values.items()}


def _stamp(value: Any) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp

    if not isinstance(value, int):
        return value
    found = Timestamp()
    found.FromMilliseconds(value)
    return found.ToJsonString()


def _varints(path: Sequence[int]) -> bytes:
    """A path as Confluent writes it: zigzag varints, counted first; of the first message one 0."""
    if tuple(path) == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(path), *path):
        left = number << 1
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
    return bytes(out)


def _offered_file(settings: ValueSettings, subject: str) -> Offered:
    """The file of the message, and those that it imports, each under its path."""
    from catchwater.values.descriptors import OF_GOOGLE, message_of

    def of(file: Any, subject: str) -> Offered:
        needs = [of(each, each.name) for each in file.dependencies if each.name not in OF_GOOGLE]
        text = base64.b64encode(file.serialized_pb).decode()
        return Offered(subject, "PROTOBUF", text, tuple(needs))

    return of(message_of(settings).file, subject)
