"""JSON against a model over Python's own parser."""

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.values.json import json_decoder
from catchwater.values.settings import BadSchema, OnMalformed, ValueFormat, ValueSettings
from catchwater.values.typed import typed

NULLS = OnMalformed.NULL


def decode(schema: str, values: list[bytes]) -> list[dict[str, Any]]:
    """The fields of each value; those of a malformed one are null, and `_malformed` is not."""
    settings = ValueSettings(ValueFormat.JSON, schema, on_malformed=NULLS)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    (result,) = typed(iter([batch]), settings, ("value",))
    return [dict(row) for row in result.to_pylist(maps_as_pydicts="strict")]


BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**n + d for n in (7, 15, 31, 63, 64) for d in (-1, 0, 1)])
    | st.sampled_from([-(2**n) - d for n in (7, 15, 31, 63) for d in (-1, 0, 1)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=6,
)


class Wrong(Exception):
    """The model's own word for malformed."""


def model(kind: str, cell: Any) -> Any:
    """What a cell is in a column of this type."""
    if cell is None:
        return None
    number = isinstance(cell, int | float) and not isinstance(cell, bool)
    if kind in BITS and number and isinstance(cell, int):
        if -(2 ** (BITS[kind] - 1)) <= cell < 2 ** (BITS[kind] - 1):
            return cell
    elif kind == "double" and number:
        return float(cell)
    elif kind == "string" and isinstance(cell, str):
        return cell
    elif kind == "boolean" and isinstance(cell, bool):
        return cell
    elif kind == "array<int>" and isinstance(cell, list):
        return [model("int", each) for each in cell]
    elif kind == "map<string, int>" and isinstance(cell, dict):
        return {name: model("int", each) for name, each in cell.items()}
    elif kind == "struct<x: int, y: string>" and isinstance(cell, dict):
        return {"x": model("int", cell.get("x")), "y": model("string", cell.get("y"))}
    raise Wrong(kind)


KINDS = [*BITS, "double", "string", "boolean"]
KINDS += ["array<int>", "map<string, int>", "struct<x: int, y: string>"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.data())
def test_every_row_is_what_the_model_says(kinds: list[str], data: st.DataObject) -> None:
    names = [f"n{index}" for index in range(len(kinds))]
    row = st.dictionaries(st.sampled_from([*names, "more"]), JSON) | JSON
    rows = data.draw(st.lists(row, max_size=8))
    indent = data.draw(st.sampled_from([None, 2]))
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    values = [json.dumps(each, indent=indent, ensure_ascii=bool(indent)).encode() for each in rows]
    expected: list[dict[str, Any]] = []
    for each, value in zip(rows, values, strict=True):
        try:
            if not isinstance(each, dict):
                raise Wrong("no object")
            fields = {n: model(k, each.get(n)) for n, k in zip(names, kinds, strict=True)}
            expected.append({**fields, "_malformed": None})
        except Wrong:
            expected.append({**dict.fromkeys(names), "_malformed": value})
    assert decode(schema, values) == expected


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12) | st.text(alphabet='{}[]":,ntrue01e.-\n ').map(str.encode)))
def test_bytes_that_python_refuses_are_malformed(values: list[bytes]) -> None:
    for value, row in zip(values, decode("t long", values), strict=True):
        try:
            good = isinstance(json.loads(value.decode()), dict)
        except ValueError:
            good = False
        assert good or row["_malformed"] == value


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("float", "1.5", 1.5),
        ("float", "3.4028234663852886e38", 3.4028234663852886e38),
        ("float", "3.5e38", None),
        ("double", "1e400", None),
        ("double", "5e-324", 5e-324),
        ("double", "NaN", None),
        ("double", '"1"', None),
        ("long", "1.0", None),
        ("long", "1" * 5000, None),
        ("decimal(4, 2)", "12.34", Decimal("12.34")),
        ("decimal(4, 2)", '"12.3"', Decimal("12.30")),
        ("decimal(4, 2)", "12.345", None),
        ("decimal(4, 2)", "123", None),
        ("decimal(4, 2)", '"NaN"', None),
        ("decimal(38, 0)", "9" * 38, Decimal("9" * 38)),
        ("binary", json.dumps(base64.b64encode(b"\x00\xff").decode()), b"\x00\xff"),
        ("binary", '"?"', None),
        ("date", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("date", '"2023-02-29"', None),
        ("timestamp", '"2024-01-02T03:04:05.000006Z"', dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)),
        ("timestamp", '"2024-01-02T03:04:05+02:00"', dt.datetime(2024, 1, 2, 1, 4, 5, 0, dt.UTC)),
        ("timestamp", '"2024-01-02 03:04:05"', dt.datetime(2024, 1, 2, 3, 4, 5, 0, dt.UTC)),
        ("timestamp", "1704164645", None),
        ("string", '"\\ud83d\\ude00"', "😀"),
        ("string", '"\\ud800"', None),
        ("string", '"a\\nb"', "a\nb"),
        ("string", '"a\nb"', None),
        ("array<struct<a: array<date>>>", '[{"a": ["2024-01-01", null]}, null]',
         [{"a": [dt.date(2024, 1, 1), None]}, None]),
        ("array<decimal(3, 1)>", "[1.2, 1.23]", None),
        ("map<string, timestamp>", '{"": "2024-01-01T00:00:00Z"}',
         {"": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}),
    ],
)  # fmt: skip
def test_edges_of_the_types(kind: str, text: str, expected: Any) -> None:
    value = f'{{"v": {text}}}'.encode()
    malformed = value if expected is None else None
    good = {"v": None, "_malformed": None}
    rows = decode(f"v {kind}", [b"{}", value, b"{}"])
    assert rows == [good, {"v": expected, "_malformed": malformed}, good]


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_floats_come_back(numbers: list[float]) -> None:
    rows = decode("v float, w double", [json.dumps({"v": n, "w": n}).encode() for n in numbers])
    assert [(row["v"], row["w"]) for row in rows] == [(n, n) for n in numbers]
    assert [math.copysign(1, r["v"]) for r in rows] == [math.copysign(1, n) for n in numbers]


@settings(deadline=None)
@given(st.lists(st.decimals(-(10**5), 10**5, places=3) | st.integers(-(10**4), 10**4)))
def test_decimals_are_exact_or_malformed(numbers: list[Decimal | int]) -> None:
    rows = decode("v decimal(6, 2)", [f'{{"v": {number}}}'.encode() for number in numbers])
    for number, row in zip(numbers, rows, strict=True):
        fits = abs(number) < 10**4 and Decimal(number) * 100 % 1 == 0
        assert row["v"] == (number if fits else None)
        assert (row["_malformed"] is None) == fits


def test_any_name_will_do_but_those_that_json_escapes() -> None:
    assert decode("`a b` int, `class` int, `ü.x` int", ['{"a b": 1, "ü.x": 2}'.encode()]) == [
        {"a b": 1, "class": None, "ü.x": 2, "_malformed": None}
    ]
    with pytest.raises(BadSchema, match="cannot be named"):
        json_decoder(ValueSettings(ValueFormat.JSON, 'a struct<`"`: int>'))
    with pytest.raises(BadSchema, match="valueSchema, character 3"):
        json_decoder(ValueSettings(ValueFormat.JSON, "a lng"))


def test_nesting_without_end_is_malformed() -> None:
    deep = b'{"x": ' + b"[" * 100_000
    assert decode("v int", [deep]) == [{"v": None, "_malformed": deep}]
