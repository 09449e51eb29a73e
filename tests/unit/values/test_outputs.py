"""Outputs as values: their JSON in Avro and Protobuf, read again as events."""

import datetime as dt
import json
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from catchwater.state.records import from_plain, to_plain
from catchwater.values.events import event_values
from catchwater.values.outputs import OutputUnfit, OutputValues, check_outputs, output_settings
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings

pytest.importorskip("fastavro")

AT_MS = 1_700_000_000_123
MOMENT = dt.datetime.fromtimestamp(AT_MS / 1000, dt.UTC)


class Kind(Enum):
    SALE = "SALE"
    REFUND = "REFUND"


@dataclass
class Line:
    item: str
    at: int
    raw: bytes = b""
    inner: "Line | None" = None


@dataclass
class Alert:
    card: str
    at: int
    seen: dt.datetime
    local: dt.datetime
    day: dt.date
    hour: dt.time
    amount: Decimal
    id: UUID
    kind: Kind
    raw: bytes
    score: float
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)
    note: str | None = None


ALERT = Alert(
    "c1", AT_MS, MOMENT, dt.datetime(2026, 1, 2, 3, 4, 5), dt.date(2026, 1, 2), dt.time(3, 4, 5),
    Decimal("12.30"), UUID(int=5), Kind.REFUND, b"\0\xff", 1.0,
    [Line("tea", AT_MS, b"x", Line("cup", 1))], {"a": Line("milk", 2)},
)  # fmt: skip


def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "at", "type": of("long", "timestamp-micros")},
        {"name": "raw", "type": "bytes"},
        {"name": "inner", "type": ["null", "Line"], "default": None},
    ],
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Alert",
    "namespace": "pay",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "at", "type": of("long", "timestamp-micros")},
        {"name": "seen", "type": ["null", of("long", "timestamp-millis")]},
        {"name": "local", "type": of("long", "local-timestamp-micros")},
        {"name": "day", "type": of("int", "date")},
        {"name": "hour", "type": of("int", "time-millis")},
        {"name": "amount", "type": of("bytes", "decimal", precision=9, scale=2)},
        {"name": "id", "type": of("string", "uuid")},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SALE", "REFUND"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "score", "type": "double"},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "by_name", "type": {"type": "map", "values": "Line"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "extra", "type": "int", "default": 7},
    ],
}


def output(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=to_plain)


def avro(schema: dict[str, Any] = SCHEMA) -> ValueSettings:
    return output_settings(ValueSettings(ValueFormat.AVRO, json.dumps(schema)))


def test_an_avro_output_is_the_event_that_it_was() -> None:
    value = OutputValues(avro()).encoder()(output(ALERT))
    values = event_values(avro(), None)
    assert values is not None
    assert values.decoder(Alert, from_plain)(value) == ALERT


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"note": 5}, "note"),
        ({"more": 1}, "more"),
        ({"amount": "12.345"}, "Scale"),
        ({"amount": "x"}, "InvalidOperation"),
        ({"kind": "OTHER"}, "OTHER"),
        ({"raw": "AAAA"}, "fixed"),
        ({"at": "soon"}, "soon"),
        ({"lines": [{"item": "tea"}]}, "at"),
        ({"by_name": 3}, "items"),
    ],
)
def test_an_output_that_does_not_fit_says_why_and_shows_itself(
    change: dict[str, Any], why: str
) -> None:
    row = json.loads(output(ALERT)) | change
    with pytest.raises(OutputUnfit, match=why) as caught:
        OutputValues(avro()).encoder()(json.dumps(row).encode())
    assert '"card": "c1"' in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "needs the field 'b'"),
        (["a", "b", "x"], "have the field 'x', which valueSchema does not have; it has a, b, c, d"),
        (["a", "b"], None),
    ],
)
def test_fields_that_do_not_fit_are_named_before_a_start(
    names: list[str], message: str | None
) -> None:
    fields = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": "int"},
        {"name": "c", "type": ["null", "int"]},
        {"name": "d", "type": "int", "default": 1},
    ]
    settings = avro({"type": "record", "name": "R", "fields": fields})
    if message is None:
        check_outputs(settings, names, "counts")
        return
    with pytest.raises(BadSchema, match=message):
        check_outputs(settings, names, "counts")


def test_a_union_that_json_does_not_tell_apart_is_refused() -> None:
    both = ["bytes", "string"]
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": both}]}
    with pytest.raises(BadSchema, match="union of several types"):
        OutputValues(avro(schema)).encoder()
    plain = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}
    encode = OutputValues(avro(plain)).encoder()
    assert (encode(b'{"a": 1}'), encode(b'{"a": "x"}')) == (b"\0\2", b"\2\2x")


def test_json_is_left_as_it_is_behind_its_schemas_id(tmp_path: Path) -> None:
    (tmp_path / "alert.json").write_text('{"type": "object"}')
    path = str(tmp_path / "alert.json")
    settings = output_settings(ValueSettings(ValueFormat.JSON, path))
    assert settings.schema == '{"type": "object"}'
    assert OutputValues(settings, 258).encoder()(b'{"a": 1}') == b'\0\0\0\1\2{"a": 1}'
    with pytest.raises(BadSchema, match="cannot be read"):
        output_settings(ValueSettings(ValueFormat.JSON, path + "x"))


def descriptors() -> bytes:
    text, of, label = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, 11, 1
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="pay", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=text, label=label)
    line.field.add(name="at", number=2, type=of, type_name=".google.protobuf.Timestamp", label=1)
    line.field.add(name="raw", number=3, type=12, label=label)
    line.field.add(name="inner", number=4, type=of, type_name=".pay.Line", label=1)
    alert = file.message_type.add(name="Alert")
    alert.field.add(name="count", number=1, type=3, label=label)
    alert.field.add(name="seen", number=2, type=of, type_name=".google.protobuf.Timestamp", label=1)
    alert.field.add(name="lines", number=3, type=of, type_name=".pay.Line", label=3)
    alert.field.add(name="note", number=4, type=text, label=label)
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    return descriptor_pb2.FileDescriptorSet(file=[stamps, file]).SerializeToString()


@dataclass
class Noted:
    count: int
    seen: dt.datetime
    lines: list[Line] = field(default_factory=list)
    note: str = ""


def test_a_protobuf_output_is_the_event_that_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.desc").write_bytes(descriptors())
    given = ValueSettings(ValueFormat.PROTOBUF, str(tmp_path / "a.desc"), "pay.Alert")
    settings = output_settings(given)
    noted = Noted(2**53 + 1, MOMENT, [Line("tea", AT_MS, b"\0x")])
    encode = OutputValues(settings).encoder()
    value = encode(output(noted))
    values = event_values(given, None)
    assert values is not None
    assert values.decoder(Noted, from_plain)(value) == noted
    found = descriptor_of(settings).FromString(value)
    assert (found.count, found.seen.ToMilliseconds()) == (2**53 + 1, AT_MS)
    (line,) = found.lines
    assert (line.item, line.raw, line.at.ToMilliseconds()) == ("tea", b"\0x", AT_MS)
    assert not line.HasField("inner")
    framed = OutputValues(settings, 3).encoder()(output(noted))
    assert framed == b"\0\0\0\0\3" + b"\2\2" + value, "the second message of its file"
    for wrong in ({"count": "x"}, {"more": 1}, {"seen": "soon"}, {"lines": 3}):
        with pytest.raises(OutputUnfit):
            encode(json.dumps(wrong).encode())
    check_outputs(settings, ["count", "lines"], "counts")
    with pytest.raises(BadSchema, match="have the field 'x'"):
        check_outputs(settings, ["x"], "counts")


def descriptor_of(settings: ValueSettings) -> Any:
    from google.protobuf import message_factory

    from catchwater.values.descriptors import message_of

    return message_factory.GetMessageClass(message_of(settings))
