"""A schema as classes: what they are given is read back by them."""

import json
import re
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from catchwater.state.records import from_plain
from catchwater.values.classes import classes_of
from catchwater.values.descriptors import registered
from catchwater.values.registry import Registered
from catchwater.values.settings import BadSchema
from catchwater.values.subjects import as_avro, refused

pytest.importorskip("fastavro")

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "namespace": "pay.v1",
    "doc": 'What was\npaid, with "quotes".',
    "fields": [
        {"name": "place", "type": ["null", "string"], "default": None, "doc": "Where."},
        {"name": "card", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "default": "SALE", "type": {
            "type": "enum", "name": "Kind", "symbols": ["SALE", "REFUND"]}},
        {"name": "before", "type": ["null", "Kind"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Md5", "size": 16}},
        {"name": "lines", "default": [], "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "item", "type": "string"},
                {"name": "parts", "type": ["null", {"type": "array", "items": "Line"}]},
                {"name": "count", "type": "int", "default": 1}]}}},
        {"name": "last", "type": ["null", "pay.v1.Line"]},
        {"name": "tags", "type": {"type": "map", "values": ["string", "long"]}, "default": {}},
        {"name": "ok", "type": "boolean", "default": False},
    ],
}  # fmt: skip

EXPECTED = '''\
import datetime
import decimal
import uuid
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    SALE = 'SALE'
    REFUND = 'REFUND'


@dataclass
class Line:
    item: str
    parts: list["Line"] | None
    count: int = 1


@dataclass
class Payment:
    """What was paid, with "quotes"."""

    card: str
    at: int
    amount: decimal.Decimal
    day: datetime.date | None
    id: uuid.UUID
    before: Kind | None
    hash: bytes
    last: Line | None
    place: str | None = None
    """Where."""
    kind: Kind = Kind.SALE
    lines: list[Line] = field(default_factory=list)
    tags: dict[str, str | int] = field(default_factory=dict)
    ok: bool = False
'''


def made(source: str, name: str) -> Any:
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "events.py", "exec"), found)
    globals().update({key: each for key, each in found.items() if isinstance(each, type)})
    return found[name]


def of(schema: Any, kind: str = "AVRO", **needs: Any) -> Registered:
    texts = tuple(json.dumps(each) for each in needs.values())
    return Registered(kind, json.dumps(schema), texts, tuple(needs))


def test_a_schema_becomes_classes_that_take_each_of_its_values() -> None:
    source = classes_of(json.dumps(SCHEMA))
    assert source == EXPECTED
    assert refused(of(SCHEMA), made(source, "Payment"), from_plain) is None


def test_the_class_may_have_another_name_and_one_that_is_taken_gets_a_number() -> None:
    inner = {"type": "record", "name": "a.Txn", "fields": [{"name": "n", "type": "int"}]}
    schema = {"type": "record", "name": "b.Txn", "fields": [{"name": "inner", "type": inner}]}
    assert "class Txn2:" in classes_of(json.dumps(schema))
    assert "class Event:" in classes_of(json.dumps(schema), name="Event")


def test_what_a_schema_refers_to_comes_with_it() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "Inner"}]}
    source = classes_of(json.dumps(outer), [json.dumps(inner)])
    assert source.index("class Inner") < source.index("class Outer")
    with pytest.raises(BadSchema, match="nothing says what 'Inner' is"):
        classes_of(json.dumps(outer))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no Avro schema"),
        ('"int"', "not one of a record"),
        ('{"type": "record", "name": "X"}', "it has no 'fields'"),
        ('{"type": "record", "name": "X", "fields": [{"name": "class", "type": "int"}]}', "class"),
    ],
)
def test_what_has_no_class_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadSchema, match=why):
        classes_of(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("card", "int"), r"Expected `str`, got `int` - at `\$\.card`"),
        (("kind", {"type": "enum", "name": "Kind", "symbols": ["SALE", "GIFT"]}), "GIFT"),
        (("day", ["null", "string"]), r"\$\.day"),
        (("at", None), "must have the field 'at'"),
    ],
)
def test_the_first_value_that_is_no_event_is_named(change: tuple[str, Any], why: str) -> None:
    name, kind = change
    fields = [
        {**each, "type": kind} if each["name"] == name else each
        for each in SCHEMA["fields"]
        if each["name"] != name or kind is not None
    ]
    for each in fields:
        each.pop("default", None)
    declared = made(EXPECTED, "Payment")
    found = refused(of({**SCHEMA, "fields": fields}), declared, from_plain)
    assert found is not None
    assert re.search(why, found), found


# --- Protobuf and JSON Schema --------------------------------------------------------------------

F = descriptor_pb2.FieldDescriptorProto
PROTOBUF = """from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    SALE = 'SALE'
    REFUND = 'REFUND'


@dataclass
class Line:
    item: str
    count: int


@dataclass
class Txn:
    card: str
    kind: Kind
    lines: list[Line]
    by_place: dict[int, Line]
    at: int | None = None
    note: str | None = None
    before: "Txn | None" = None
"""


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="txn.proto", package="pay", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="SALE", number=0)
    kind.value.add(name="REFUND", number=1)
    txn, line = file.message_type.add(name="Txn"), file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=F.TYPE_STRING, label=1)
    line.field.add(name="count", number=2, type=F.TYPE_INT64, label=1)
    entry = txn.nested_type.add(name="ByPlaceEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, type_name=".pay.Line", label=1)
    txn.oneof_decl.add(name="_note")
    inner = F.TYPE_MESSAGE
    txn.field.add(name="card", number=1, type=F.TYPE_STRING, label=1)
    stamp = ".google.protobuf.Timestamp"
    txn.field.add(name="at", number=2, type=inner, type_name=stamp, label=1)
    txn.field.add(name="kind", number=3, type=F.TYPE_ENUM, type_name=".pay.Kind", label=1)
    txn.field.add(name="lines", number=4, type=inner, type_name=".pay.Line", label=3)
    places = ".pay.Txn.ByPlaceEntry"
    txn.field.add(name="by_place", number=5, type=inner, type_name=places, label=3)
    note = txn.field.add(name="note", number=6, type=F.TYPE_STRING, label=1, oneof_index=0)
    note.proto3_optional = True
    txn.field.add(name="before", number=7, type=inner, type_name=".pay.Txn", label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def test_a_protobuf_message_becomes_classes_that_take_each_of_its_values() -> None:
    found = registered(descriptors().SerializeToString())
    source = classes_of(*as_avro(found))
    assert source == PROTOBUF
    assert refused(found, made(source, "Txn"), from_plain) is None
    assert "class Line:" in classes_of(*as_avro(found, "pay.Line"))
    with pytest.raises(BadSchema, match=r"no message pay\.Other .*; it has: pay\.Txn, pay\.Line"):
        as_avro(found, "pay.Other")
    with pytest.raises(BadSchema, match="no descriptor set"):
        registered(b"")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("card: str", "card: int", r"Expected `int`, got `str` - at `\$\.card`"),
        ("note: str | None = None", "note: str = ''", None),
        ("REFUND = 'REFUND'", "OTHER = 'OTHER'", "Invalid enum value 'REFUND'"),
        ("card: str", "card: str\n    place: str", "must have the field 'place'"),
        ("dict[int, Line]", "dict[int, str]", r"Expected `str`, got `object`"),
        ("at: int | None = None", "at: datetime.datetime | None = None", None),
    ],
)
def test_a_class_is_held_against_values_of_a_protobuf_message(
    before: str, after: str, why: str | None
) -> None:
    file = descriptors()
    del file.file[0].message_type[1:]
    line = file.file[0].message_type[0].nested_type.add(name="Line")  # the only one at the top
    line.CopyFrom(descriptors().file[0].message_type[1])
    for each in (file.file[0].message_type[0], *file.file[0].message_type[0].nested_type):
        for field in each.field:
            if field.type_name == ".pay.Line":
                field.type_name = ".pay.Txn.Line"
    found = registered(file.SerializeToString())
    declared = made("import datetime\n" + PROTOBUF.replace(before, after), "Txn")
    said = refused(found, declared, from_plain)
    assert said is None if why is None else re.search(why, said or ""), said


def test_of_several_messages_of_a_protobuf_file_one_must_be_the_class() -> None:
    found = registered(descriptors().SerializeToString())
    source = classes_of(*as_avro(found, "pay.Line"))
    assert refused(found, made(source, "Line"), from_plain) is None


def test_a_required_field_that_protobuf_declares_optional_is_named() -> None:
    file = descriptors()
    del file.file[0].message_type[1:], file.file[0].message_type[0].field[3:5]
    del file.file[0].message_type[0].nested_type[:]
    found = registered(file.SerializeToString())
    source = classes_of(*as_avro(found)).replace("note: str | None = None", "note: str = None")
    assert refused(found, made(source, "Txn"), from_plain) is None
    needs = source.replace("    note: str = None\n", "").replace(
        "card: str", "card: str\n    note: str"
    )
    said = refused(found, made(needs, "Txn"), from_plain)
    assert said is not None and "missing required field `note`" in said


ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "required": ["id", "lines", "kind", "size"],
    "properties": {
        "id": {"type": "integer", "description": "Of the shop."},
        "kind": {"enum": ["SALE", "REFUND"]},
        "size": {"enum": ["very large", "small", 3]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        "at": {"type": "string", "format": "date-time"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "tags": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "home": {"$ref": "address.json"},
        "before": {"$ref": "#"},
        "paid": {"allOf": [{"$ref": "address.json"}, {"properties": {"sum": {"type": "number"}}}]},
    },
    "definitions": {
        "line": {
            "type": "object",
            "required": ["item"],
            "properties": {"item": {"type": "string"}, "next": {"$ref": "#/definitions/line"}},
        }
    },
}
ADDRESS = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
JSON_CLASSES = """import datetime
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    SALE = 'SALE'
    REFUND = 'REFUND'


@dataclass
class Line:
    item: str
    next: "Line | None" = None


@dataclass
class Address:
    city: str


@dataclass
class Paid:
    city: str
    sum: float | None = None


@dataclass
class Order:
    id: int
    \"\"\"Of the shop.\"\"\"
    kind: Kind
    size: str | int
    lines: list[Line]
    at: datetime.datetime | None = None
    note: str | None = None
    tags: dict[str, float | None] | None = None
    home: Address | None = None
    before: "Order | None" = None
    paid: Paid | None = None
"""


def test_a_json_schema_becomes_classes_that_take_each_of_its_values() -> None:
    found = of(ORDER, "JSON", **{"address.json": ADDRESS})
    source = classes_of(*as_avro(found))
    assert source == JSON_CLASSES
    assert refused(found, made(source, "Order"), from_plain) is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("at: datetime.datetime", "at: int", r"Expected `int \| null`, got `str` - at `\$\.at`"),
        ("tags: dict[str, float | None]", "tags: dict[str, float]", r"got `null`"),
        ("city: str", "city: str\n    street: str", "missing required field `street`"),
        ("note: str | None = None", "note: str = ''", "got `null` - at `\\$.note`"),
    ],
)
def test_a_class_is_held_against_values_of_a_json_schema(before: str, after: str, why: str) -> None:
    found = of(ORDER, "JSON", **{"address.json": ADDRESS})
    said = refused(found, made(JSON_CLASSES.replace(before, after), "Order"), from_plain)
    assert said is not None
    assert re.search(why, said), said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"x": {}}, "of which type #/properties/x is"),
        ({"x": {"type": "array"}}, "of which type #/properties/x is"),
        ({"x": {"$ref": "#/definitions/none"}}, "refers to '#/definitions/none' at #/properties/x"),
        ({"x": {"$ref": "other.json"}}, r"refers to 'other\.json'"),
    ],
)
def test_a_json_schema_that_leaves_a_type_open_is_refused_where_it_does(
    change: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadSchema, match=why):
        as_avro(of({"type": "object", "properties": change}, "JSON"))


@pytest.mark.parametrize("schema", [{"type": "string"}, [], {"type": "null"}])
def test_a_json_schema_of_no_object_is_refused(schema: Any) -> None:
    with pytest.raises(BadSchema):
        as_avro(of(schema, "JSON"))
