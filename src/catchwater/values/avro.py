"""Values in Avro: one datum each, without a header, all written with the schema that is given.

Behind a schema registry each is written with the schema of its id, and resolved to the one that is
given, as Avro has it: fields are found by name, missing ones take their defaults.

Relies on fastavro (the extra `avro`). Types as in Spark's own Avro source: an enum and a uuid are
strings, fixed is binary, a union with null is a field that may be null, and one of int and long is
a long. Other unions and recursive records are refused, because no column could hold them; leave
them out by `valueFields`. Bytes behind the datum make it malformed.
"""

import json
import struct
from collections.abc import Callable
from functools import cache
from io import BytesIO
from operator import methodcaller
from typing import Any

from pyspark.sql import types

from catchwater.values.decoder import Decoder, cells_by, only, refused
from catchwater.values.registry import FRAME_BYTES, RegistryClient, framed
from catchwater.values.settings import BadSchema, Registry, ValueSettings

_PLAIN: dict[str, type[types.DataType]] = {
    "boolean": types.BooleanType,
    "int": types.IntegerType,
    "long": types.LongType,
    "float": types.FloatType,
    "double": types.DoubleType,
    "bytes": types.BinaryType,
    "fixed": types.BinaryType,
    "string": types.StringType,
    "enum": types.StringType,
}
_LOGICAL: dict[str, type[types.DataType]] = {
    "date": types.DateType,
    "timestamp-millis": types.TimestampType,
    "timestamp-micros": types.TimestampType,
    "local-timestamp-millis": types.TimestampNTZType,
    "local-timestamp-micros": types.TimestampNTZType,
}
# Those fastavro converts. Days and microseconds are what Arrow takes as they are.
_CONVERTED = ("decimal", "timestamp-millis", "local-timestamp-millis")
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
_MAX_DECIMAL = 38
_ERRORS = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    MemoryError,
    RecursionError,
    struct.error,
)


def avro_decoder(settings: ValueSettings) -> Decoder:
    """The decoder of records with an Avro schema, given as JSON text. Raises `BadSchema`."""
    fastavro = _library()
    try:
        content = json.loads(settings.schema)
        schema = fastavro.parse_schema(content)
        reading = fastavro.parse_schema(_plain(content))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise BadSchema(
            f"valueSchema is no Avro schema: {type(error).__name__}: {error}."
        ) from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise BadSchema("valueSchema is an Avro schema, but not one of a record.")
    names = only(settings.fields, [field["name"] for field in schema["fields"]])
    spark = _Types(schema)
    fields = tuple(types.StructField(name, spark.of_field(name)) for name in names)
    cells = tuple(cells_by(methodcaller("get", name)) for name in names)
    if settings.registry is not None:
        errors = (*_ERRORS, fastavro.read.SchemaResolutionError)
        return Decoder(fields, cells, _resolved(settings.registry, reading), errors, {})
    read = fastavro.schemaless_reader

    def decode(value: bytes) -> Any:
        stream = BytesIO(value)
        row = read(stream, reading, None)
        return _ended(stream, value, row)

    return Decoder(fields, cells, decode, _ERRORS, {})


def _ended(stream: BytesIO, value: bytes, row: Any) -> Any:
    if stream.tell() != len(value):
        raise ValueError(f"{len(value) - stream.tell()} bytes stand behind the datum")
    return row


def _resolved(registry: Registry, reading: Any) -> Callable[[bytes], Any]:
    """From a value behind its schema's id to a row of the schema that is given.

    What it returns raises `SchemaUnavailable` too: the value is not at fault then.
    """
    from catchwater.values.events import parsed_avro

    fastavro, client = _library(), _client(registry)
    read = fastavro.schemaless_reader
    writers: dict[int, Any] = {}

    def decode(value: bytes) -> Any:
        schema_id = framed(value)
        writer = writers.get(schema_id)
        if writer is None:
            found = client.schema(schema_id)
            if found.kind != "AVRO":
                raise ValueError(f"its schema is {found.kind} and valueFormat is avro")
            try:
                writer = _plain(parsed_avro(found.text, found.needs))
            except BadSchema as error:
                raise client.useless(schema_id, str(error)) from error
            writers[schema_id] = writer
        stream = BytesIO(value)
        stream.seek(FRAME_BYTES)
        return _ended(stream, value, read(stream, writer, reading))

    return decode


_client = cache(RegistryClient)
"""One a process: it keeps what it has read."""


def _library() -> Any:
    try:
        import fastavro
        import fastavro.read
        import fastavro.schema
    except ImportError as error:
        raise BadSchema(
            "valueFormat is avro, but fastavro is not installed.",
            hint="Install catchwater with the extra avro: pip install 'catchwater[avro]'.",
        ) from error
    return fastavro


def _plain(schema: Any) -> Any:
    """The schema without the logical types that are not to be converted."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _plain(each) for name, each in schema.items()}
    if kept.get("logicalType") not in _CONVERTED:
        kept.pop("logicalType", None)
    return kept


class _Types:
    """Spark's types for a parsed schema; `_named` are the types that other places refer to."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self._named: dict[str, Any] = {}
        self._collect(record)

    def of_field(self, name: str) -> types.DataType:
        """The type of a field of the outermost record."""
        (field,) = (each for each in self._record["fields"] if each["name"] == name)
        return self._of(field["type"], name, (self._record["name"],))

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._collect(each)
        elif isinstance(schema, dict):
            if schema.get("type") in ("record", "enum", "fixed", "error"):
                self._named[schema["name"]] = schema
            for field in schema.get("fields", ()):
                self._collect(field["type"])
            for inner in ("items", "values", "type"):
                self._collect(schema.get(inner))

    def _of(self, schema: Any, path: str, within: tuple[str, ...]) -> types.DataType:
        if isinstance(schema, list):
            return self._of(self._one_of(schema, path), path, within)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(schema, path)
        if logical in _LOGICAL and kind in ("int", "long"):
            return _LOGICAL[logical]()
        if kind == "array":
            return types.ArrayType(self._of(schema["items"], f"{path}[]", within))
        if kind == "map":
            inner = self._of(schema["values"], f"{path}{{}}", within)
            return types.MapType(types.StringType(), inner)
        if kind == "record":
            return self._struct(schema, path, within)
        if kind in _PLAIN:
            return _PLAIN[kind]()
        if isinstance(kind, dict | list):
            return self._of(kind, path, within)
        raise refused(path, f"is of the type {kind}, which no column can hold")

    def _struct(
        self, schema: dict[str, Any], path: str, within: tuple[str, ...]
    ) -> types.StructType:
        name = schema["name"]
        if name in within:
            raise refused(path, f"holds the record {name}, which holds itself")
        if not schema["fields"]:
            raise refused(path, f"holds the record {name}, which has no fields")
        return types.StructType(
            [
                types.StructField(
                    each["name"], self._of(each["type"], f"{path}.{each['name']}", (*within, name))
                )
                for each in schema["fields"]
            ]
        )

    def _one_of(self, union: list[Any], path: str) -> Any:
        present = [each for each in union if each != "null"]
        if len(present) == 1:
            return present[0]
        if all(isinstance(each, str) for each in present):
            wider = _WIDER.get(frozenset(present))
            if wider:
                return wider
        raise refused(path, "is a union of several types, which no column can hold")

    def _decimal(self, schema: dict[str, Any], path: str) -> types.DecimalType:
        precision = int(schema["precision"])
        if precision > _MAX_DECIMAL:
            raise refused(path, f"is a decimal of {precision} digits; Spark holds {_MAX_DECIMAL}")
        return types.DecimalType(precision, int(schema.get("scale", 0)))
