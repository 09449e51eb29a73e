"""Protobuf against what was written: messages are built from descriptors made here."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.values.protobuf import protobuf_decoder
from catchwater.values.settings import (
    BadSchema,
    OnMalformed,
    ValueFormat,
    ValueSettings,
    load,
)
from catchwater.values.typed import typed

F = descriptor_pb2.FieldDescriptorProto
TEXT = st.text(st.characters(codec="utf-8"))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# A proto3 scalar without presence: its type, and what is written.
SCALARS: dict[str, tuple[int, st.SearchStrategy[Any]]] = {
    "i32": (F.TYPE_INT32, signed(32)),
    "s32": (F.TYPE_SINT32, signed(32)),
    "sf64": (F.TYPE_SFIXED64, signed(64)),
    "i64": (F.TYPE_INT64, signed(64)),
    "u32": (F.TYPE_UINT32, st.integers(0, 2**32 - 1)),
    "u64": (F.TYPE_UINT64, st.integers(0, 2**64 - 1)),
    "f": (F.TYPE_FLOAT, st.floats(width=32, allow_nan=False)),
    "d": (F.TYPE_DOUBLE, st.floats(allow_nan=False)),
    "b": (F.TYPE_BOOL, st.booleans()),
    "t": (F.TYPE_STRING, TEXT),
    "y": (F.TYPE_BYTES, st.binary()),
}


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """`p.M` with every scalar, `p.Loop` that holds itself, `p.Empty`, and `q.Old` of proto2."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    enum = file.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    enum.value.add(name="ONE", number=1)
    message = file.message_type.add(name="M")
    for number, (name, (kind, _)) in enumerate(SCALARS.items(), start=1):
        message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    inner = message.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=F.TYPE_UINT64, label=F.LABEL_REPEATED)
    inner.field.add(name="e", number=2, type=F.TYPE_ENUM, type_name=".p.E", label=F.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, type_name=".p.M.Inner", label=1)
    message.oneof_decl.add(name="_maybe")
    message.field.add(name="maybe", number=30, type=F.TYPE_INT32, label=1,
                      oneof_index=0, proto3_optional=True)  # fmt: skip
    for number, (name, kind, label) in enumerate(
        [("one", ".p.M.Inner", 1), ("many", ".p.M.Inner", 3), ("by", ".p.M.ByEntry", 3),
         ("at", ".google.protobuf.Timestamp", 1)], start=31,
    ):  # fmt: skip
        message.field.add(
            name=name, number=number, type=F.TYPE_MESSAGE, type_name=kind, label=label
        )
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="n", number=1, type=F.TYPE_INT32, label=1)
    loop.field.add(name="next", number=2, type=F.TYPE_MESSAGE, type_name=".p.Loop", label=1)
    loop.field.add(name="nothing", number=3, type=F.TYPE_MESSAGE, type_name=".p.Empty", label=1)
    file.message_type.add(name="Empty")
    old = descriptor_pb2.FileDescriptorProto(name="old.proto", package="q", syntax="proto2")
    message = old.message_type.add(name="Old")
    message.field.add(name="must", number=1, type=F.TYPE_INT32, label=F.LABEL_REQUIRED)
    message.field.add(name="text", number=2, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.extend([file, old])
    return files


FILES = descriptors()
POOL = descriptor_pool.DescriptorPool()
for each in FILES.file:
    POOL.Add(each)
M = message_factory.GetMessageClass(POOL.FindMessageTypeByName("p.M"))


def chosen(message: str = "p.M", fields: tuple[str, ...] = ()) -> ValueSettings:
    return ValueSettings(
        ValueFormat.PROTOBUF, "m.pb", message, fields, OnMalformed.NULL, FILES.SerializeToString()
    )


def decode(values: list[bytes | None], using: ValueSettings) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    (result,) = typed(iter([batch]), using, ("value",))
    return [dict(row) for row in result.to_pylist(maps_as_pydicts="strict")]


INNER = st.fixed_dictionaries(
    {"x": st.lists(st.integers(0, 2**64 - 1), max_size=3), "e": st.integers(0, 2)}
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        **{name: strategy for name, (_, strategy) in SCALARS.items()},
        "maybe": signed(32),
        "one": INNER,
        "many": st.lists(INNER, max_size=2),
        "by": st.dictionaries(TEXT, INNER, max_size=2),
        "at": st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)),
    },
)
ZERO = {F.TYPE_BOOL: False, F.TYPE_STRING: "", F.TYPE_BYTES: b""}


def message(row: dict[str, Any]) -> bytes:
    built = M()
    for name, cell in row.items():
        if name == "at":
            built.at.FromDatetime(cell)
        elif name == "one":
            built.one.SetInParent()
            fill(built.one, cell)
        elif name == "many":
            for each in cell:
                fill(built.many.add(), each)
        elif name == "by":
            for key, each in cell.items():
                fill(built.by[key], each)
        else:
            setattr(built, name, cell)
    return bytes(built.SerializeToString())


def fill(inner: Any, cell: dict[str, Any]) -> None:
    inner.x.extend(cell["x"])
    inner.e = cell["e"]


def seen(inner: dict[str, Any]) -> dict[str, Any]:
    return {"x": [Decimal(n) for n in inner["x"]], "e": ["ZERO", "ONE", "2"][inner["e"]]}


def model(row: dict[str, Any]) -> dict[str, Any]:
    """What the columns hold of a message that was built from `row`."""
    scalars = {name: row.get(name, ZERO.get(kind, 0)) for name, (kind, _) in SCALARS.items()}
    return {
        **scalars,
        "u64": Decimal(scalars["u64"]),
        "maybe": row.get("maybe"),
        "one": seen(row["one"]) if "one" in row else None,
        "many": [seen(inner) for inner in row.get("many", [])],
        "by": {key: seen(inner) for key, inner in row.get("by", {}).items()},
        "at": row["at"].replace(tzinfo=dt.UTC) if "at" in row else None,
    }


# A field of number 1 with a length beyond the end; a wire type that does not exist; no UTF-8.
BAD = st.sampled_from([b"\x0a\x05x", b"\x0f", b"\x52\x01\xff", b"\x08"]).map(lambda b: (b, None))


@settings(deadline=None)
@given(st.lists(ROWS.map(lambda row: (message(row), model(row))) | BAD, max_size=5))
def test_what_was_written_is_read(rows: list[tuple[bytes, dict[str, Any] | None]]) -> None:
    nulls = dict.fromkeys(model({}))
    expected = [
        {**nulls, "_malformed": value} if row is None else {**row, "_malformed": None}
        for value, row in rows
    ]
    assert decode([value for value, _ in rows], chosen()) == expected
    projected = [{name: row[name] for name in ("at", "i32", "_malformed")} for row in expected]
    assert decode([value for value, _ in rows], chosen(fields=("at", "i32"))) == projected


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30)))
def test_any_bytes_are_a_row_or_malformed(values: list[bytes]) -> None:
    for row in decode([*values], chosen()):
        fields = [cell for name, cell in row.items() if name != "_malformed"]
        assert row["_malformed"] is None or not any(cell is not None for cell in fields)


def test_an_empty_value_is_a_message_and_a_tombstone_is_not() -> None:
    empty, tombstone = decode([b"", None], chosen())
    assert empty == {**model({}), "_malformed": None}
    assert tombstone == dict.fromkeys([*model({}), "_malformed"])


def test_required_fields_and_text_of_proto2_are_checked() -> None:
    values = [b"\x08\x01", b"", b"\x08\x01\x12\x01\xff", b"\x08\x02\x12\x01x"]
    assert decode([*values], chosen("q.Old")) == [
        {"must": 1, "text": None, "_malformed": None},
        {"must": None, "text": None, "_malformed": b""},
        {"must": None, "text": None, "_malformed": values[2]},
        {"must": 2, "text": "x", "_malformed": None},
    ]


def test_a_timestamp_that_spark_cannot_hold_is_malformed() -> None:
    built = M()
    built.at.seconds = 2**62
    value = bytes(built.SerializeToString())
    assert decode([value], chosen(fields=("at",))) == [{"at": None, "_malformed": value}]


@pytest.mark.parametrize(
    ("using", "what"),
    [
        (chosen("p.N"), "There is no message p.N in m.pb; it has: google.protobuf.Timestamp, p.M"),
        (chosen("p.Loop"), "the field next holds the message p.Loop, which holds itself"),
        (chosen("p.Loop", ("nothing",)), "the field nothing holds the message p.Empty"),
        (chosen("p.M", ("no",)), "valueFields names no, but the fields of valueSchema are: i32"),
        (ValueSettings(ValueFormat.PROTOBUF, "m.pb", "p.M", descriptors=b"\x0f"), "no descriptor"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(using: ValueSettings, what: str) -> None:
    with pytest.raises(BadSchema) as caught:
        protobuf_decoder(using)
    assert what in str(caught.value)


def test_a_descriptor_set_must_hold_what_it_imports(tmp_path: Path) -> None:
    path = tmp_path / "m.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[FILES.file[1]]).SerializeToString())
    loaded = load(ValueSettings(ValueFormat.PROTOBUF, str(path), "p.M"))
    with pytest.raises(BadSchema, match="do not fit together") as caught:
        protobuf_decoder(loaded)
    assert caught.value.hint == "Make it with protoc --include_imports."
