"""A schema as classes: what they are given is read back by them."""

import json
import re
from typing import Any

import pytest

from catchwater.state.records import from_plain
from catchwater.values.classes import classes_of
from catchwater.values.events import EventValues
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings
from catchwater.values.subjects import refused_sample

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


def of(schema: Any) -> EventValues:
    return EventValues(ValueSettings(ValueFormat.AVRO, json.dumps(schema)))


def test_a_schema_becomes_classes_that_take_each_of_its_values() -> None:
    source = classes_of(json.dumps(SCHEMA))
    assert source == EXPECTED
    assert refused_sample(of(SCHEMA), made(source, "Payment"), from_plain) is None


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
    found = refused_sample(of({**SCHEMA, "fields": fields}), declared, from_plain)
    assert found is not None
    assert re.search(why, found), found
