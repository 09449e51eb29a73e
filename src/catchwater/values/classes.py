"""An Avro schema as the Python of the classes that its values become; Protobuf and JSON Schema are
brought into its terms first (see `as_avro`).

A record is a dataclass, an enum an `Enum`. Fields that have a default stand last, since Python
wants it so and values are read by name. A timestamp is an `int`, milliseconds since 1970 (see
`events`): an event's time is one. Pure.
"""

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catchwater.values.settings import BadSchema

_PLAIN = {
    "boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float",
    "bytes": "bytes", "string": "str",
}  # fmt: skip
_LOGICAL = {
    "decimal": "decimal.Decimal", "uuid": "uuid.UUID", "date": "datetime.date",
    "time-millis": "datetime.time", "time-micros": "datetime.time",
    "timestamp-millis": "int", "timestamp-micros": "int",
    "local-timestamp-millis": "datetime.datetime", "local-timestamp-micros": "datetime.datetime",
    "date-time": "datetime.datetime",
}  # fmt: skip
_MODULES = ("datetime", "decimal", "uuid")


def classes_of(text: str, needs: Sequence[str] = (), *, name: str | None = None) -> str:
    """The source of a module with the classes of a record's schema; the record's own is the last.

    `needs` are schemas that it refers to, as the registry gives them; `name` is the class's, else
    the record's. Raises `BadSchema` for what is no schema of a record, and for what has no class.
    """
    try:
        schema, *others = [json.loads(each) for each in (text, *needs)]
    except ValueError as error:
        raise BadSchema(f"It is no Avro schema: {error}.") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise BadSchema("It is an Avro schema, but not one of a record.")
    writer = _Writer()
    try:
        for each in (schema, *others):
            writer.know(each)
        writer.record(schema, name)
    except KeyError as error:
        raise BadSchema(f"It is no Avro schema: it has no {error}.") from error
    body = "\n\n".join(writer.written)
    imports = [f"import {each}" for each in _MODULES if f"{each}." in body]
    if "@dataclass" in body:
        names = "dataclass, field" if "field(" in body else "dataclass"
        imports.append(f"from dataclasses import {names}")
    if "(Enum)" in body:
        imports.append("from enum import Enum")
    return "\n".join(imports) + "\n\n\n" + body


class _Writer:
    """Writes each named type once, before what has a field of it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._known: dict[str, Any] = {}
        """Named types that were not met yet, by their names."""
        self._classes: dict[str, str] = {}
        """Named type → its class."""
        self._open: set[str] = set()

    def know(self, schema: Any) -> None:
        """Find the named types of a schema, and give each its full name in it."""
        for full, each in [*_named(schema, "")]:
            each["name"] = full
            self._known.setdefault(full, each)

    def record(self, schema: Mapping[str, Any], name: str | None = None) -> str:
        """Write the class of a record; its name."""
        full = schema["name"]
        cls = self._name_of(full, name)
        self._open.add(full)
        required: list[str] = []
        optional: list[str] = []
        for each in schema["fields"]:
            line = self._field(each)
            (optional if " = " in line.partition("\n")[0] else required).append(line)
        self._open.discard(full)
        doc = f'    """{_text(schema["doc"])}"""\n\n' if schema.get("doc") else ""
        body = "\n".join([*required, *optional]) or "    pass"
        self.written.append(f"@dataclass\nclass {cls}:\n{doc}{body}\n")
        return cls

    def _enum(self, schema: Mapping[str, Any]) -> str:
        cls = self._name_of(schema["name"], None)
        lines = "\n".join(f"    {_name(each)} = {each!r}" for each in schema["symbols"])
        self.written.append(f"class {cls}(Enum):\n{lines}\n")
        return cls

    def _name_of(self, full: str, name: str | None) -> str:
        cls = base = _name(name or full.rpartition(".")[2])
        count = 1
        while cls in self._classes.values():
            count += 1
            cls = f"{base}{count}"
        self._classes[full] = cls
        return cls

    def _field(self, field: Mapping[str, Any]) -> str:
        name, kind = _name(field["name"]), self._type(field["type"])
        doc = f'\n    """{_text(field["doc"])}"""' if field.get("doc") else ""
        default = self._default(field, kind) if "default" in field else ""
        if field.get("absent"):
            default = " = None"
            kind += "" if kind.endswith("| None") else " | None"
        if kind.startswith('"') or '| "' in kind:
            # A class within itself: a union of its name in quotes is no type.
            kind = '"' + kind.replace('"', "") + '"'
        return f"    {name}: {kind}{default}{doc}"

    def _default(self, field: Mapping[str, Any], kind: str) -> str:
        value = field["default"]
        if isinstance(value, list | dict) and not value:
            return f" = field(default_factory={'list' if value == [] else 'dict'})"
        first = field["type"][0] if isinstance(field["type"], list) else field["type"]
        plain = first if isinstance(first, str) else first.get("type")
        if value is None or (
            plain in ("boolean", "int", "long", "float", "double", "string")
            and not (isinstance(first, dict) and "logicalType" in first)
        ):
            return f" = {value!r}"
        if plain == "enum":
            return f" = {self._type(first)}.{_name(value)}"
        return ""

    def _type(self, schema: Any) -> str:
        if isinstance(schema, list):
            members = [self._type(each) for each in schema if each != "null"]
            if "null" in schema:
                members.append("None")
            return " | ".join(dict.fromkeys(members))
        if isinstance(schema, str):
            return self._by_name(schema)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        match kind:
            case "array":
                return f"list[{self._type(schema['items'])}]"
            case "map":
                key = self._type(schema.get("keys", "string"))
                return f"dict[{key}, {self._type(schema['values'])}]"
            case "fixed":
                return "bytes"
            case "record" | "enum" | "error":
                return self._class(schema["name"], schema)
        return self._type(kind)

    def _by_name(self, name: str) -> str:
        if name in _PLAIN:
            return _PLAIN[name]
        full = next((f for f in self._known if f == name or f.endswith(f".{name}")), None)
        if full is None:
            raise BadSchema(f"It is no Avro schema: nothing says what {name!r} is.")
        return self._class(full, self._known[full])

    def _class(self, full: str, schema: Mapping[str, Any]) -> str:
        if schema["type"] == "fixed":
            return "bytes"
        if full in self._open:
            return f'"{self._classes[full]}"'
        if full in self._classes:
            return self._classes[full]
        return self._enum(schema) if schema["type"] == "enum" else self.record(schema)


def _named(schema: Any, space: str) -> Iterator[tuple[str, Any]]:
    """Every named type within a schema, by its full name."""
    if isinstance(schema, list):
        for each in schema:
            yield from _named(each, space)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum", "fixed", "error") and "name" in schema:
            full = _full_name(schema, space)
            yield full, schema
            space = full.rpartition(".")[0]
        for field in schema.get("fields", ()):
            yield from _named(field.get("type"), space)
        for inner in ("items", "values", "type"):
            yield from _named(schema.get(inner), space)


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    name, space = schema["name"], schema.get("namespace") or space
    return name if "." in name or not space else f"{space}.{name}"


def _name(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise BadSchema(
            f"The name {name!r} cannot be one in Python.",
            hint="Write the class by hand: a msgspec.Struct whose field has another name, with "
            "msgspec.field(name=…).",
        )
    return name


def _text(doc: str) -> str:
    return re.sub(r"\s+", " ", doc).strip().replace("\\", r"\\").replace('"""', "'''")
