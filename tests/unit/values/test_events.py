"""Values as events: Avro, Protobuf and Confluent's framing, against what was written."""

import datetime as dt
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.state.records import from_plain
from catchwater.values import registry as registries
from catchwater.values.events import EventValues, event_values
from catchwater.values.registry import RegistryClient, SchemaUnavailable
from catchwater.values.settings import BadSchema, Registry, ValueFormat, ValueSettings

fastavro = pytest.importorskip("fastavro")

AT_MS = 1_700_000_000_123
MOMENT = dt.datetime.fromtimestamp(AT_MS / 1000, dt.UTC)


class Kind(Enum):
    SALE = "SALE"
    REFUND = "REFUND"


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Txn:
    card: str
    at: int
    amount: Decimal
    kind: Kind = Kind.SALE
    seen: dt.datetime | None = None
    lines: list[Line] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    note: str | None = None


SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Txn",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SALE", "REFUND"]}},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "item", "type": "string"},
                        {"name": "count", "type": "int"},
                    ],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "unknown", "type": "double"},
    ],
}
ROW = {
    "card": "c1",
    "at": MOMENT,
    "amount": Decimal("12.30"),
    "kind": "REFUND",
    "seen": MOMENT,
    "lines": [{"item": "tea", "count": 3}],
    "tags": {"a": "b"},
    "unknown": 0.5,
}
EVENT = Txn("c1", AT_MS, Decimal("12.30"), Kind.REFUND, MOMENT, [Line("tea", 3)], {"a": "b"}, None)


def written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return out.getvalue()


def avro(schema: dict[str, Any] = SCHEMA) -> EventValues:
    made = event_values(ValueSettings(ValueFormat.AVRO, json.dumps(schema)), None)
    assert made is not None
    return made


def decoder(values: EventValues, declared: Any = Txn) -> Callable[[bytes], Any]:
    return values.decoder(declared, from_plain)


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)


def of(registry: FakeRegistry, folder: Path, **more: Any) -> EventValues:
    asked = Registry(registry.url, str(folder), **more)
    made = event_values(ValueSettings(ValueFormat.AVRO), asked)
    assert made is not None
    return made


# --- Avro ----------------------------------------------------------------------------------------


def test_an_avro_value_is_an_event_of_the_class() -> None:
    assert decoder(avro())(written(SCHEMA, ROW)) == EVENT


def test_a_timestamp_is_milliseconds_where_the_class_has_a_number_also_if_it_may_be_missing() -> (
    None
):
    schema = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": name, "type": ["null", {"type": "long", "logicalType": logical}]}
            for name, logical in [("a", "timestamp-millis"), ("b", "timestamp-micros")]
        ],
    }
    declared = msgspec.defstruct("E", [("a", int | None, None), ("b", int | None, None)])
    decode = decoder(avro(schema), declared)
    assert decode(written(schema, {"a": MOMENT, "b": MOMENT})) == declared(AT_MS, AT_MS)
    assert decode(written(schema, {"a": None, "b": None})) == declared(None, None)


def test_of_an_avro_value_the_key_alone_can_be_read() -> None:
    fields = msgspec.defstruct("KeyFields", [("card", str)])
    assert decoder(avro(), fields)(written(SCHEMA, ROW)).card == "c1"


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_cut_avro_value_is_no_event(cut: int) -> None:
    with pytest.raises(Exception):  # noqa: B017  (whatever fastavro raises is the record's fault)
        decoder(avro())(written(SCHEMA, ROW)[:cut])


def test_bytes_behind_an_avro_value_make_it_no_event() -> None:
    with pytest.raises(ValueError, match="1 bytes stand behind"):
        decoder(avro())(written(SCHEMA, ROW) + b"x")


def test_a_value_that_does_not_fit_the_class_names_the_field() -> None:
    schema = {"type": "record", "name": "T", "fields": [{"name": "card", "type": "int"}]}
    declared = msgspec.defstruct("T", [("card", str)])
    with pytest.raises(msgspec.ValidationError, match=r"\$\.card"):
        decoder(avro(schema), declared)(written(schema, {"card": 1}))


def test_a_field_that_the_schema_lacks_is_named_before_a_start() -> None:
    schema = {**SCHEMA, "fields": [f for f in SCHEMA["fields"] if f["name"] != "amount"]}
    with pytest.raises(BadSchema, match="must have the field 'amount'"):
        avro(schema).check(Txn, "event")
    avro().check(Txn, "event")


@pytest.mark.parametrize(
    ("settings", "registry", "message"),
    [
        (ValueSettings(ValueFormat.AVRO), None, "nothing says with which schema"),
        (ValueSettings(ValueFormat.AVRO, "{}"), Registry("http://r"), "valueSchema is not for"),
        (ValueSettings(ValueFormat.PROTOBUF, "x.desc"), None, "valueMessage is missing"),
        (ValueSettings(ValueFormat.AVRO, "no/such.avsc"), None, "cannot be read"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: ValueSettings, registry: Registry | None, message: str
) -> None:
    with pytest.raises(BadSchema, match=message):
        event_values(settings, registry)


@pytest.mark.parametrize("text", ["{", '{"type": "int"}'])
def test_what_is_no_schema_of_a_record_is_refused(text: str) -> None:
    made = event_values(ValueSettings(ValueFormat.AVRO, text), None)
    assert made is not None
    with pytest.raises(BadSchema):
        decoder(made)


def test_json_without_a_registry_needs_nothing_of_this() -> None:
    assert event_values(ValueSettings(ValueFormat.JSON), None) is None


# --- Confluent's framing -------------------------------------------------------------------------


def test_each_value_is_read_by_the_schema_of_its_id(registry: FakeRegistry, tmp_path: Path) -> None:
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string"}]}
    registry.register(7, SCHEMA)
    registry.register(1 << 24, newer)
    decode = decoder(of(registry, tmp_path))
    assert decode(framed(7, written(SCHEMA, ROW))) == EVENT
    late = written(newer, {**ROW, "note": "late"})
    assert decode(framed(1 << 24, late)).note == "late"
    assert decode(framed(7, written(SCHEMA, ROW))) == EVENT
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/16777216"], "each is asked for once"


def test_a_schema_that_refers_to_others_comes_with_them(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    middle = {"type": "record", "name": "Middle", "fields": [{"name": "inner", "type": "Inner"}]}
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "middle", "type": "Middle"}]}
    registry.register(1, inner, "inner")
    needs_inner = [{"name": "Inner", "subject": "inner", "version": 1}]
    registry.register(2, middle, "middle", references=needs_inner)
    needs_middle = [{"name": "Middle", "subject": "middle", "version": 1}]
    registry.register(3, outer, references=needs_middle)
    declared = msgspec.defstruct("Outer", [("middle", dict[str, dict[str, int]])])
    whole = {**outer, "fields": [{"name": "middle", "type": {**middle, "fields": [
        {"name": "inner", "type": inner}]}}]}  # fmt: skip
    value = framed(3, written(whole, {"middle": {"inner": {"x": 5}}}))
    for _ in range(2):  # from the registry, then from what was kept
        assert decoder(of(registry, tmp_path), declared)(value).middle == {"inner": {"x": 5}}
    assert len(registry.asked) == 3


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "it has 0 bytes"),
        (b"\0\0\0\0", "it has 4 bytes"),
        (b'{"card": 1}', "begins with the byte 123"),
        (framed(8, b"x"), "no schema with the id 8"),
        (framed(9, b"x"), "its schema is JSON"),
        (framed(10, b"x"), "no Avro schema"),
    ],
)
def test_a_value_whose_schema_is_not_there_is_at_fault_itself(
    registry: FakeRegistry, tmp_path: Path, value: bytes, why: str
) -> None:
    registry.register(9, {}, schemaType="JSON")
    registry.register(10, {"type": "nonsense"})
    decode = decoder(of(registry, tmp_path))
    for _ in range(3):
        with pytest.raises((ValueError, BadSchema), match=why):
            decode(value)
    assert len(registry.asked) <= 1, "what it does not have is not asked for again at once"


@pytest.mark.parametrize(
    "trouble", [500, 401, "closed", "nonsense", "a proxy's page", "silent", "half"]
)
def test_a_schema_that_cannot_be_had_is_nobodys_fault_and_what_was_read_goes_on(
    registry: FakeRegistry, tmp_path: Path, trouble: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(7, SCHEMA)
    values = of(registry, tmp_path)
    decode = decoder(values)
    assert decode(framed(7, written(SCHEMA, ROW))) == EVENT
    match trouble:
        case int():
            registry.status = trouble
        case "nonsense":
            registry.body = b'["no schema"]'
        case "a proxy's page":
            registry.status, registry.body = 404, b"<html>"
        case "silent":
            registry.pause.clear()
            monkeypatch.setattr(registries, "ANSWER_S", 0.1)
            decode = decoder(values)
        case "half":
            registry.half = True
        case "closed":
            registry.url = "http://127.0.0.1:1"
            values = of(registry, tmp_path)
            decode = decoder(values)
    with pytest.raises(SchemaUnavailable, match="does not give schema id 8"):
        decode(framed(8, b"x"))
    assert decode(framed(7, written(SCHEMA, ROW))) == EVENT
    other_process = decoder(of(registry, tmp_path))
    assert other_process(framed(7, written(SCHEMA, ROW))) == EVENT


def test_another_answer_for_an_id_that_is_known_changes_nothing(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.register(7, SCHEMA)
    decode = decoder(of(registry, tmp_path))
    value = framed(7, written(SCHEMA, ROW))
    assert decode(value) == EVENT
    registry.register(7, {**SCHEMA, "fields": SCHEMA["fields"][::-1]})
    assert decode(value) == EVENT
    assert decoder(of(registry, tmp_path))(value) == EVENT
    assert len(registry.asked) == 1


def test_an_answer_that_is_no_schema_is_not_kept(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.register(7, {"type": "nonsense"})
    decode = decoder(of(registry, tmp_path))
    value = framed(7, written(SCHEMA, ROW))
    for _ in range(3):
        with pytest.raises(ValueError, match="no Avro schema"):
            decode(value)
    assert len(registry.asked) == 1, "nor asked for again at once"
    registry.register(7, SCHEMA)
    assert decoder(of(registry, tmp_path))(value) == EVENT


def test_a_torn_file_of_a_schema_is_asked_for_again(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.register(7, SCHEMA)
    (tmp_path / "7.json").write_text('{"kind": "AV')
    assert decoder(of(registry, tmp_path))(framed(7, written(SCHEMA, ROW))) == EVENT
    assert json.loads((tmp_path / "7.json").read_text())["kind"] == "AVRO"


def test_a_folder_that_cannot_be_written_costs_a_question_a_process(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.register(7, SCHEMA)
    (tmp_path / "file").write_text("")
    assert decoder(of(registry, tmp_path / "file"))(framed(7, written(SCHEMA, ROW))) == EVENT


def test_the_login_is_sent_and_never_shown(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.register(7, SCHEMA)
    registry.login = "user:hunter2"
    values = of(registry, tmp_path, login="user:hunter2")
    assert decoder(values)(framed(7, written(SCHEMA, ROW))) == EVENT
    assert "hunter2" not in repr(values)


def test_it_travels_to_workers_with_the_declaration(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.register(7, SCHEMA)
    values = of(registry, tmp_path)
    as_json = msgspec.json.decode(msgspec.json.encode(values), type=EventValues)
    for travelled in (pickle.loads(pickle.dumps(values)), as_json):
        assert decoder(travelled)(framed(7, written(SCHEMA, ROW))) == EVENT


def test_json_behind_an_id_is_json(registry: FakeRegistry, tmp_path: Path) -> None:
    made = event_values(ValueSettings(ValueFormat.JSON), Registry(registry.url, str(tmp_path)))
    assert made is not None
    decode = decoder(made, Line)
    assert decode(framed(3, b'{"item": "tea"}')) == Line("tea")
    with pytest.raises(ValueError, match="magic byte"):
        decode(b'{"item": "tea"}')


def test_the_newest_schema_of_a_subject_is_found(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.register(7, SCHEMA, "payments-value")
    asked = RegistryClient(Registry(registry.url))
    schema_id, found = asked.latest("payments-value")
    assert (schema_id, json.loads(found.text)) == (7, SCHEMA)
    with pytest.raises(LookupError, match="no subject 'other'"):
        asked.latest("other")


# --- Protobuf ------------------------------------------------------------------------------------

F = descriptor_pb2.FieldDescriptorProto


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="txn.proto", package="pay", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="SALE", number=0)
    kind.value.add(name="REFUND", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=F.TYPE_STRING, label=1)
    line.field.add(name="count", number=2, type=F.TYPE_INT64, label=1)
    txn = file.message_type.add(name="Txn")
    entry = txn.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_STRING, label=1)
    stamp, message = ".google.protobuf.Timestamp", F.TYPE_MESSAGE
    txn.field.add(name="card", number=1, type=F.TYPE_STRING, label=1)
    txn.field.add(name="at", number=2, type=message, type_name=stamp, label=1)
    txn.field.add(name="amount", number=3, type=F.TYPE_STRING, label=1)
    txn.field.add(name="kind", number=4, type=F.TYPE_ENUM, type_name=".pay.Kind", label=1)
    txn.field.add(name="seen", number=5, type=message, type_name=stamp, label=1)
    txn.field.add(name="lines", number=6, type=message, type_name=".pay.Line", label=3)
    txn.field.add(name="tags", number=7, type=message, type_name=".pay.Txn.TagsEntry", label=3)
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    return descriptor_pb2.FileDescriptorSet(file=[stamps, file])


def message(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptors().file:
        pool.Add(each)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("pay.Txn"))(**fields)
    return bytes(made.SerializeToString())


@pytest.fixture
def protobuf(tmp_path: Path) -> ValueSettings:
    path = tmp_path / "txn.desc"
    path.write_bytes(descriptors().SerializeToString())
    return ValueSettings(ValueFormat.PROTOBUF, str(path), "pay.Txn")


def test_a_protobuf_value_is_an_event_of_the_class(protobuf: ValueSettings) -> None:
    moment = {"seconds": AT_MS // 1000, "nanos": 123_000_000}
    value = message(
        card="c1", at=moment, amount="12.30", kind="REFUND", seen=moment,
        lines=[{"item": "tea", "count": 3}], tags={"a": "b"},
    )  # fmt: skip
    values = event_values(protobuf, None)
    assert values is not None
    values.check(Txn, "event")
    assert decoder(values)(value) == EVENT
    least = decoder(values)(message(card="c", at=moment, amount="1"))
    assert least == Txn("c", AT_MS, Decimal(1)), "what is not set takes the class's default"
    with pytest.raises(Exception):  # noqa: B017  (whatever protobuf raises is the record's fault)
        decoder(values)(value[:-1])


@pytest.mark.parametrize(
    ("path", "is_whole"),
    [(b"\0", True), (b"\x02\x02", True), (b"\x04\x00\xa2\x02", True), (b"\x08\x02", False)],
)
def test_a_protobuf_value_stands_behind_its_id_and_the_path_of_its_type(
    protobuf: ValueSettings, path: bytes, is_whole: bool
) -> None:
    values = event_values(protobuf, Registry("http://127.0.0.1:1"))
    assert values is not None
    value = framed(3, path + message(card="c", at={"seconds": 1}, amount="1"))
    if is_whole:
        assert decoder(values)(value) == Txn("c", 1000, Decimal(1))
    with pytest.raises(ValueError, match="within the path"):
        decoder(values)(framed(3, b"\x08\x80"))
