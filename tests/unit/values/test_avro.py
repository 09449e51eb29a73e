"""Avro against what was written: fastavro encodes, the decoder reads; skipped without fastavro."""

import datetime as dt
import json
import sys
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.values.avro import avro_decoder
from catchwater.values.settings import (
    BadSchema,
    OnMalformed,
    ValueFormat,
    ValueSettings,
    load,
)
from catchwater.values.typed import open_decoder, typed

fastavro = pytest.importorskip("fastavro")

LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"))
MOMENT = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
MILLIS = MOMENT.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
UTC = dt.UTC


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


# A field's Avro type, what is written, and how Python sees the column; None: as it is written.
KINDS: list[tuple[Any, st.SearchStrategy[Any], Any]] = [
    ("boolean", st.booleans(), None),
    ("int", st.integers(-(2**31), 2**31 - 1), None),
    ("long", LONG, None),
    ("float", st.floats(width=32, allow_nan=False), None),
    ("double", st.floats(allow_nan=False), None),
    ("bytes", st.binary(), None),
    ("string", TEXT, None),
    (["null", "string"], st.none() | TEXT, None),
    (["int", "null", "long"], st.none() | LONG, None),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from("AB"), None),
    ({"type": "fixed", "name": "F", "size": 3}, st.binary(min_size=3, max_size=3), None),
    ({"type": "array", "items": ["null", "long"]}, st.lists(st.none() | LONG), None),
    ({"type": "map", "values": "string"}, st.dictionaries(TEXT, TEXT), None),
    ({"type": "array", "items": {"type": "record", "name": "I", "fields": [
        {"name": "a", "type": "long"}, {"name": "b", "type": logical("int", "date")}]}},
     st.lists(st.fixed_dictionaries({"a": LONG, "b": st.dates()})), None),
    (logical("int", "date"), st.dates(), None),
    (logical("long", "timestamp-millis"), MILLIS.map(lambda m: m.replace(tzinfo=UTC)), None),
    (logical("long", "timestamp-micros"), MOMENT.map(lambda m: m.replace(tzinfo=UTC)), None),
    (logical("long", "local-timestamp-millis"), MILLIS, None),
    (logical("long", "local-timestamp-micros"), MOMENT, None),
    (logical("bytes", "decimal", precision=6, scale=2),
     st.decimals(Decimal("-9999.99"), Decimal("9999.99"), places=2), None),
    (logical("string", "uuid"), st.uuids().map(str), None),
    (logical("long", "time-micros"), st.times(), lambda t: (
        ((t.hour * 60 + t.minute) * 60 + t.second) * 1_000_000 + t.microsecond)),
]  # fmt: skip


def record(kinds: list[Any]) -> dict[str, Any]:
    fields = [{"name": f"n{index}", "type": kind} for index, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "namespace": "p", "fields": fields}


def encode(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def decode(
    schema: dict[str, Any], values: list[bytes | None], fields: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    chosen = load(ValueSettings(ValueFormat.AVRO, json.dumps(schema), "", fields, OnMalformed.NULL))
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    (result,) = typed(iter([batch]), chosen, ("value",))
    return [dict(row) for row in result.to_pylist(maps_as_pydicts="strict")]


@settings(deadline=None)
@given(st.lists(st.sampled_from(range(len(KINDS))), min_size=1, unique=True), st.data())
def test_what_was_written_is_read(indexes: list[int], data: st.DataObject) -> None:
    kinds = [KINDS[index] for index in indexes]
    schema = record([kind for kind, _, _ in kinds])
    cells = st.tuples(*[strategy for _, strategy, _ in kinds])
    rows = data.draw(st.lists(cells, max_size=5))
    bad = data.draw(
        st.lists(st.sampled_from(range(len(rows))), unique=True) if rows else st.just([])
    )
    names = [f"n{index}" for index in range(len(kinds))]
    values, expected = [], []
    for index, row in enumerate(rows):
        value = encode(schema, dict(zip(names, row, strict=True)))
        if index in bad:
            values.append(value + b"\x00")
            expected.append({**dict.fromkeys(names), "_malformed": value + b"\x00"})
            continue
        values.append(value)
        seen = [see(cell) if see else cell for (_, _, see), cell in zip(kinds, row, strict=True)]
        expected.append({**dict(zip(names, seen, strict=True)), "_malformed": None})
    assert decode(schema, values) == expected
    assert decode(schema, [None]) == [dict.fromkeys([*names, "_malformed"])]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30)))
def test_any_bytes_are_a_row_or_malformed(values: list[bytes]) -> None:
    for row in decode(record([kind for kind, _, _ in KINDS]), [*values]):
        fields = [cell for name, cell in row.items() if name != "_malformed"]
        assert row["_malformed"] is None or fields == [None] * len(KINDS)


def test_fields_are_chosen_and_what_no_column_holds_is_left_out() -> None:
    schema = record(["long", ["null", "int", "string"], "string"])
    value = encode(schema, {"n0": 1, "n1": "x", "n2": "y"})
    assert decode(schema, [value], ("n2", "n0")) == [{"n2": "y", "n0": 1, "_malformed": None}]
    with pytest.raises(BadSchema, match=r"the field n1 is a union of several types"):
        decode(schema, [value])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "valueSchema is no Avro schema: JSONDecodeError"),
        ('{"type": "recrd"}', "valueSchema is no Avro schema: UnknownType"),
        ('{"type": "array", "items": "int"}', "not one of a record"),
        (json.dumps(record([["null", "R"]])), "the field n0 holds the record p.R, which holds"),
        (json.dumps(record([{"type": "array", "items": "null"}])), "the field n0[] is of the type"),
        (json.dumps(record([{"type": "map", "values": ["int", "string"]}])), "the field n0{} is a"),
        (json.dumps(record([{"type": "record", "name": "I", "fields": []}])), "has no fields"),
        (json.dumps(record([logical("bytes", "decimal", precision=39)])), "a decimal of 39 digits"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_with_the_place(text: str, what: str) -> None:
    with pytest.raises(BadSchema) as caught:
        avro_decoder(ValueSettings(ValueFormat.AVRO, text))
    assert what in str(caught.value)


def test_the_schema_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(json.dumps(record(["long"])))
    loaded = load(ValueSettings(ValueFormat.AVRO, str(path)))
    assert [field.name for field in open_decoder(loaded).fields] == ["n0"]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(BadSchema, match="fastavro is not installed") as caught:
        avro_decoder(ValueSettings(ValueFormat.AVRO, json.dumps(record(["long"]))))
    assert "catchwater[avro]" in (caught.value.hint or "")
