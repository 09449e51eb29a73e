"""A Protobuf message or a JSON Schema in the terms of an Avro schema: classes and values that are
made up by a schema need one way only.

Three things Avro does not have: a field may be `absent` from a value (`declared`: the schema says
so; `unknown`: it cannot say that it never is), a map may have `keys` that are no strings, and the
logical type `date-time` is a point in time with its zone. Of a
JSON Schema types, `required`, references, `enum`, `const` and alternatives count; bounds of values
do not, for classes have none. Imports Protobuf only for its descriptors, and opens nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from catchwater.values.registry import Registered
from catchwater.values.settings import BadSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

Avro = Any
"""A schema of any type as JSON has it: a name, a union or a dict."""


# --- Protobuf ------------------------------------------------------------------------------------

_OF_PROTOBUF = {
    "INT32": "int", "INT64": "long", "UINT32": "long", "UINT64": "long", "SINT32": "int",
    "SINT64": "long", "FIXED32": "long", "FIXED64": "long", "SFIXED32": "int", "SFIXED64": "long",
    "FLOAT": "float", "DOUBLE": "double", "BOOL": "boolean", "STRING": "string", "BYTES": "bytes",
}  # fmt: skip


def of_message(described: "Descriptor") -> Mapping[str, Any]:
    """The record of a message. Only an `optional` field and one of a `oneof` declare that they may
    be absent; of a message or proto2's fields nothing else could be said.
    """
    found = _Messages().record(described)
    assert isinstance(found, dict)
    return found


class _Messages:
    def __init__(self) -> None:
        self._met: set[str] = set()
        """Named types are written where they are first met; later their name stands there."""
        from google.protobuf.descriptor import FieldDescriptor as F

        self._plain = {getattr(F, f"TYPE_{name}"): kind for name, kind in _OF_PROTOBUF.items()}

    def record(self, described: "Descriptor") -> Avro:
        if described.full_name in self._met:
            return described.full_name
        self._met.add(described.full_name)
        return {
            "type": "record", "name": described.full_name,
            "fields": [self._field(each) for each in described.fields],
        }  # fmt: skip

    def _field(self, field: "FieldDescriptor") -> dict[str, Any]:
        from catchwater.values.descriptors import is_map, is_repeated, is_required

        found: dict[str, Any] = {"name": field.name}
        if is_map(field):
            key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
            kind = {"type": "map", "keys": self._type(key), "values": self._type(value)}
            return found | {"type": kind}
        if is_repeated(field):
            return found | {"type": {"type": "array", "items": self._type(field)}}
        found["type"] = self._type(field)
        if field.has_presence and not is_required(field):
            found["absent"] = "declared" if field.containing_oneof is not None else "unknown"
        return found

    def _type(self, field: "FieldDescriptor") -> Avro:
        from catchwater.values.descriptors import PROTOBUF_TIMESTAMP

        message, enum = field.message_type, field.enum_type
        if message is not None and message.full_name == PROTOBUF_TIMESTAMP:
            return {"type": "long", "logicalType": "timestamp-millis"}
        if message is not None:
            return self.record(message)
        if enum is None:
            return self._plain[field.type]
        if enum.full_name in self._met:
            return enum.full_name
        self._met.add(enum.full_name)
        symbols = [each.name for each in enum.values]
        return {"type": "enum", "name": enum.full_name, "symbols": symbols}


# --- JSON Schema ---------------------------------------------------------------------------------

_OF_JSON = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
_FORMATS = ("date-time", "date", "uuid")


def of_json_schema(found: Registered) -> Mapping[str, Any]:
    """The record of an object's schema. Raises `BadSchema`, also for what is of any type."""
    try:
        texts = {"": found.text} | dict(zip(found.names, found.needs, strict=True))
        documents = {name: json.loads(text) for name, text in texts.items()}
    except ValueError as error:
        raise BadSchema(f"It is no JSON Schema: {error}.") from error
    record = _Json(documents).of(documents[""], "Event", "#")
    if not isinstance(record, dict) or record["type"] != "record":
        raise BadSchema("It is a JSON Schema, but not one of an object with properties.")
    return record


class _Json:
    """Where a schema stands is said as `$ref` says it: the document, `#`, the path in it."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._names: dict[str, str] = {}
        """Where each record and enum stands, and its name: what refers to it gives that."""

    def of(self, schema: Any, called: str, where: str) -> Avro:
        """`called`: what gives it a name if it has no title."""
        if not isinstance(schema, dict):
            raise _untyped(where)
        if "$ref" in schema:
            return self._referred(schema["$ref"], where)
        if "allOf" in schema:
            schema = self._together(schema, where)
        for several in ("oneOf", "anyOf"):
            if several in schema:
                members = enumerate(schema[several])
                at = f"{where}/{several}"
                return _union([self.of(each, called, f"{at}/{n}") for n, each in members])
        if "enum" in schema or "const" in schema:
            return self._of_values(schema, called, where)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            return _union([self.of({**schema, "type": each}, called, where) for each in kind])
        return self._of_type(kind, schema, called, where)

    def _of_type(self, kind: Any, schema: Any, called: str, where: str) -> Avro:
        match kind:
            case "null":
                return "null"
            case "array" if "items" in schema:
                return {
                    "type": "array",
                    "items": self.of(schema["items"], called, f"{where}/items"),
                }
            case "object" if "properties" in schema:
                return self._record(schema, called, where)
            case "object" if isinstance(more := schema.get("additionalProperties"), dict):
                at = f"{where}/additionalProperties"
                return {"type": "map", "values": self.of(more, called, at)}
            case "string" if schema.get("format") in _FORMATS:
                return {"type": "string", "logicalType": schema["format"]}
        if kind in _OF_JSON:
            return _OF_JSON[kind]
        raise _untyped(where)

    def _record(self, schema: Any, called: str, where: str) -> Avro:
        name = self._name(schema, called, where)
        required = schema.get("required", ())
        fields = []
        for each, of in schema["properties"].items():
            field = {"name": each, "type": self.of(of, each, f"{where}/properties/{each}")}
            if isinstance(doc := of.get("description"), str):
                field["doc"] = doc
            fields.append(field if each in required else field | {"absent": "declared"})
        return {"type": "record", "name": name, "fields": fields}

    def _of_values(self, schema: Any, called: str, where: str) -> Avro:
        """One of some values: an enum where they are names, else what they are."""
        values = schema.get("enum", [schema.get("const")])
        words = [each for each in values if isinstance(each, str)]
        found: list[Avro] = []
        if words and all(each.isidentifier() for each in words):
            name = self._name(schema, called, where)
            found.append({"type": "enum", "name": name, "symbols": list(dict.fromkeys(words))})
        elif words:
            found.append("string")
        of_python = {bool: "boolean", int: "long", float: "double", type(None): "null"}
        kinds = {type(each) for each in values}
        return _union(found + [name for kind, name in of_python.items() if kind in kinds])

    def _referred(self, target: str, where: str) -> Avro:
        at, found = self._at(target, where)
        if at in self._names:
            return self._names[at]
        document, _, path = at.partition("#")
        stem = document.rpartition("/")[2].partition(".")[0]
        return self.of(found, path.rpartition("/")[2] or stem or "Event", at)

    def _at(self, target: str, where: str) -> tuple[str, Any]:
        """Where a reference leads, and what is there."""
        document, _, path = target.partition("#")
        document = document or where.partition("#")[0]
        found: Any = self._documents.get(document)
        try:
            for each in path.strip("/").split("/") if path.strip("/") else ():
                found = found[each.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            found = None
        if not isinstance(found, dict):
            raise BadSchema(f"The JSON Schema refers to {target!r} at {where}: nothing is there.")
        return f"{document}#{path.rstrip('/')}", found

    def _together(self, schema: Any, where: str) -> Any:
        """One schema of several that all hold: of objects the properties side by side."""
        properties: dict[str, Any] = {}
        required: list[str] = []
        merged: dict[str, Any] = {}
        for part in [{k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]]:
            while isinstance(part, dict) and "$ref" in part:
                _, part = self._at(part["$ref"], where)
            if not isinstance(part, dict):
                raise _untyped(where)
            merged |= part
            properties |= part.get("properties", {})
            required += part.get("required", ())
        merged.pop("allOf", None)
        return merged | ({"properties": properties, "required": required} if properties else {})

    def _name(self, schema: Any, called: str, where: str) -> str:
        title = schema.get("title", "")
        base = title if isinstance(title, str) and title.isidentifier() else _capital(called)
        name, count = base, 1
        while name in self._names.values():
            count += 1
            name = f"{base}{count}"
        self._names[where] = name
        return name


def _untyped(where: str) -> BadSchema:
    return BadSchema(
        f"The JSON Schema does not say of which type {where} is.",
        hint="Say its type there, and of an object its properties; or write the class by hand.",
    )


def _union(members: Sequence[Avro]) -> Avro:
    flat = [one for each in members for one in (each if isinstance(each, list) else [each])]
    found = [each for index, each in enumerate(flat) if each not in flat[:index]]
    return found[0] if len(found) == 1 else found


def _capital(name: str) -> str:
    words = "".join(each if each.isalnum() else " " for each in name).split()
    return "".join(each[0].upper() + each[1:] for each in words) or "Event"
