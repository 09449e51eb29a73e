"""The newest schema of a subject against the class of events, before a start."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.state.records import from_plain
from catchwater.values.events import EventValues
from catchwater.values.registry import SchemaUnavailable
from catchwater.values.settings import Registry, ValueFormat, ValueSettings
from catchwater.values.subjects import EventsUnfit, check_subject, may_drop

pytest.importorskip("fastavro")


class Kind(Enum):
    SALE = "SALE"


@dataclass
class Txn:
    card: str
    n: int
    kind: Kind = Kind.SALE

    def __post_init__(self) -> None:
        if self.n < 100:
            raise ValueError("no such amount")


def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "Txn", "fields": named}


CARD, N = ("card", "string"), ("n", "long")


def kinds(*symbols: str) -> tuple[str, Any]:
    return "kind", {"type": "enum", "name": "Kind", "symbols": [*symbols]}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


def check(registry: FakeRegistry, kind: ValueFormat = ValueFormat.AVRO) -> None:
    values = EventValues(ValueSettings(kind), Registry(registry.url))
    check_subject(values, "payments", Txn, from_plain, patience_s=60)


@pytest.mark.parametrize(
    ("newest", "field"),
    [
        (schema(CARD), "'n'"),
        (schema(("card", "int"), N), "card"),
        (schema(CARD, ("n", ["null", "long"])), "n"),
        (schema(CARD, N, kinds("SALE", "REFUND")), "REFUND"),
    ],
)
def test_a_newest_schema_whose_values_are_no_events_is_refused_by_its_field(
    registry: FakeRegistry, newest: dict[str, Any], field: str
) -> None:
    registry.register(1, schema(CARD, N), "payments-value")
    check(registry)
    registry.register(2, newest, "payments-value", 2)
    with pytest.raises(
        EventsUnfit, match=r"payments-value.*\(id 2\).* no events of Txn"
    ) as refused:
        check(registry)
    assert field in str(refused.value)
    assert refused.value.exit_code == 2


def test_bounds_of_the_class_and_more_fields_are_no_reason(registry: FakeRegistry) -> None:
    registry.register(1, schema(CARD, N, kinds("SALE"), ("more", "double")), "payments-value")
    check(registry)


def test_a_subject_that_is_not_there_says_nothing_and_another_format_is_refused(
    registry: FakeRegistry,
) -> None:
    check(registry)
    check(registry, ValueFormat.JSON)
    registry.register(1, "{}", "payments-value", schemaType="JSON")
    with pytest.raises(EventsUnfit, match="is JSON Schema, and valueFormat is avro"):
        check(registry)
    registry.status = 500
    with pytest.raises(SchemaUnavailable):
        check(registry)


def test_a_json_schema_whose_values_are_no_events_is_refused_and_one_of_open_types_says_nothing(
    registry: FakeRegistry,
) -> None:
    of = {"card": {"type": "string"}, "n": {"type": "integer"}}
    good = {"type": "object", "properties": of, "required": ["card", "n"]}
    registry.register(1, json.dumps(good), "payments-value", schemaType="JSON")
    check(registry, ValueFormat.JSON)
    registry.register(
        2, json.dumps(good | {"required": ["card"]}), "payments-value", 2, schemaType="JSON"
    )
    with pytest.raises(EventsUnfit, match=r"\(id 2\) are no events of Txn: .*required field `n`"):
        check(registry, ValueFormat.JSON)
    is_open = {"type": "object", "properties": {**of, "n": {}}, "required": ["card", "n"]}
    registry.register(3, json.dumps(is_open), "payments-value", 3, schemaType="JSON")
    check(registry, ValueFormat.JSON)


def test_a_protobuf_file_whose_values_are_no_events_is_refused(registry: FakeRegistry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="txn.proto", package="pay", syntax="proto3")
    txn = file.message_type.add(name="Txn")
    txn.field.add(
        name="card", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=1
    )
    amount = txn.field.add(
        name="n", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64, label=1
    )
    for number, kind in ((1, "TYPE_INT64"), (2, "TYPE_STRING")):
        amount.type = descriptor_pb2.FieldDescriptorProto.Type.Value(kind)
        text = base64.b64encode(file.SerializeToString()).decode()
        registry.register(number, text, "payments-value", number, schemaType="PROTOBUF")
        if number == 1:
            check(registry, ValueFormat.PROTOBUF)
    with pytest.raises(EventsUnfit, match=r"\(id 2\) are no events of Txn: .*got `str`.*\$\.n"):
        check(registry, ValueFormat.PROTOBUF)


def test_what_the_next_schema_may_leave_out_its_level_says() -> None:
    assert may_drop("BACKWARD", Txn) == ["card", "n"]
    assert may_drop("NONE", Txn) == ["card", "n"]
    assert not may_drop("FORWARD", Txn)
    assert not may_drop("FULL_TRANSITIVE", Txn)
