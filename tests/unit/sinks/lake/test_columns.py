"""Columns: every supported annotation comes through Arrow, and its digest with it."""

import datetime as dt
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from catchwater.sinks.arrow_columns import Columns, ColumnUnsupported, ValueUnfit
from catchwater.sinks.base import OutputRecord, RowId, StagedRow
from catchwater.sinks.columns import ROW_COLUMNS


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(msgspec.Struct):
    name: str
    at: dt.datetime | None = None


@dataclass
class Everything:
    text: str
    number: int
    amount: float
    flag: bool
    raw: bytes
    day: dt.date
    hour: dt.time
    at: dt.datetime
    exact: Decimal
    ident: UUID
    colour: Colour
    kind: Literal["x", "y"]
    either: int | float
    places: list[Place] = field(default_factory=list)
    prices: dict[str, Decimal] = field(default_factory=dict)
    times: dict[int, dt.datetime] = field(default_factory=dict)
    nested: Place | None = None
    missing: str | None = None


def record(value: Any) -> OutputRecord:
    return OutputRecord(b"k", msgspec.json.encode(value), 0)


def expected(*values: Any) -> list[StagedRow]:
    return [StagedRow(RowId(3, 1, row), record(value)) for row, value in enumerate(values)]


zones = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=2))])
moments = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1), timezones=zones)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(-(10**9), 10**9, places=18)
places = st.builds(Place, texts, st.none() | moments)
everything = st.builds(
    Everything, texts, numbers, floats, st.booleans(), st.binary(max_size=8),
    st.dates(), st.times(), moments, decimals, st.uuids(), st.sampled_from(Colour),
    st.sampled_from(["x", "y"]), floats | st.integers(-(2**53), 2**53),
    st.lists(places, max_size=2), st.dictionaries(texts, decimals, max_size=2),
    st.dictionaries(numbers, moments, max_size=2), st.none() | places, st.none() | texts,
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(st.lists(everything, max_size=4))
def test_what_comes_out_of_arrow_has_the_digest_of_the_record_that_went_in(
    values: list[Everything],
) -> None:
    columns = Columns(Everything)
    rows = expected(*values)
    found = list(columns.rows_of(columns.table(rows)))
    assert [(row.id, row.digest) for row in found] == [
        (row_id, columns.digest(record)) for row_id, record in rows
    ]


def test_another_value_has_another_digest() -> None:
    class Row(msgspec.Struct):
        a: int
        b: str | None = None

    columns = Columns(Row)
    digests = [columns.digest(record(r)) for r in (Row(1), Row(2), Row(1, ""), Row(1, "null"))]
    assert len(set(digests)) == 4


def test_the_columns_of_a_type_are_named_and_typed_as_it_is() -> None:
    class Line(msgspec.Struct, rename="camel"):
        card_id: str
        at: int
        amount: float | None = None

    columns = Columns(Line)
    assert columns.output == pa.schema(
        [("cardId", pa.string()), ("at", pa.int64()), ("amount", pa.float64())]
    )
    table = columns.table(expected(Line("c", 1), Line("d", 2, 0.5)))
    assert table.schema == columns.schema
    assert table.to_pylist() == [
        {
            **dict(zip(ROW_COLUMNS, (3, 1, row), strict=True)),
            "cardId": card,
            "at": at,
            "amount": amount,
        }
        for row, (card, at, amount) in enumerate([("c", 1, None), ("d", 2, 0.5)])
    ]


def test_a_union_has_the_columns_of_all_its_records_and_the_tag_that_tells_them() -> None:
    class Opened(msgspec.Struct, tag=True):
        card: str

    class Closed(msgspec.Struct, tag=True):
        card: str
        why: str

    columns = Columns(Opened | Closed)
    assert columns.output.names == ["type", "card", "why"]
    table = columns.table(expected(Opened("c"), Closed("c", "lost")))
    assert table.column("type").to_pylist() == ["Opened", "Closed"]
    assert table.column("why").to_pylist() == [None, "lost"]


def test_typed_dicts_and_pydantic_models_have_columns_too() -> None:
    class Note(TypedDict, total=False):
        text: str

    class Inner(BaseModel):
        n: int

    class Model(BaseModel):
        at: dt.datetime
        raw: bytes
        inner: Inner | None = None

    assert Columns(Note).output == pa.schema([("text", pa.string())])
    columns = Columns(Model)
    assert columns.output.field("raw").type == pa.string()
    value = Model(at=dt.datetime(2024, 1, 1), raw=b"a", inner=Inner(n=1)).model_dump(mode="json")
    assert columns.table(expected(value)).column("at").to_pylist() == [
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    ]


class Anything(msgspec.Struct):
    payload: Any


class Mixed(msgspec.Struct):
    value: int | str


class Positional(msgspec.Struct, array_like=True):
    value: int


class Ours(msgspec.Struct):
    catchwater_row: int


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Anything, r"the output\.payload is of a type that no column holds: Any"),
        (Mixed, r"the output\.value may be int64 or string; a column has one type"),
        (Positional, "has no named fields"),
        (int, "has no named fields"),
        (Ours, "catchwater_row has a name that is ours"),
    ],
)
def test_what_no_column_holds_is_refused_with_its_field(declared: Any, message: str) -> None:
    with pytest.raises(ColumnUnsupported, match=message) as refused:
        Columns(declared)
    assert refused.value.exit_code == 2


class Number(msgspec.Struct):
    value: int
    exact: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"value": 2**63}, "3/1/1 does not fit the column value of type int64"),
        ({"value": 1, "exact": "0.0000000000000000001"}, "3/1/1 does not fit the column exact"),
        ({"value": "one"}, "3/1/1 does not fit its columns: Expected `int"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_named_with_its_row(
    value: Any, message: str
) -> None:
    with pytest.raises(ValueUnfit, match=message):
        Columns(Number).table(expected({"value": 0}, value))


def test_more_rows_than_are_converted_at_once_keep_their_order_and_names() -> None:
    values: list[Any] = [{"value": n} for n in range(1000)]
    columns = Columns(Number)
    table = columns.table(expected(*values))
    assert table.column("value").to_pylist() == list(range(1000))
    assert [row.id.row for row in columns.rows_of(table)] == list(range(1000))
    with pytest.raises(ValueUnfit, match="3/1/1000 does not fit the column value"):
        columns.table(expected(*values, {"value": 2**63}))


def test_no_rows_are_a_table_without_rows() -> None:
    table = Columns(Number).table([])
    assert table.num_rows == 0
    assert table.schema == Columns(Number).schema


def test_a_default_that_the_json_leaves_out_is_in_its_column() -> None:
    class Sparse(msgspec.Struct, omit_defaults=True):
        a: int = 7
        tags: list[str] = []
        at: dt.datetime = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

    columns = Columns(Sparse)
    (row,) = columns.table(expected(Sparse())).select(columns.output.names).to_pylist()
    assert row == {"a": 7, "tags": [], "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}


def test_dead_letters_keep_their_bytes_and_headers() -> None:
    columns = Columns(None)
    letter = OutputRecord(b"k", b"\xff not JSON", 1500, (("error", b"no"), ("offset", b"7")))
    table = columns.table([StagedRow(RowId(0, 0, 0), letter)])
    (row,) = table.select(columns.output.names).to_pylist()
    assert (row["key"], row["value"], dict(row["headers"])) == (
        b"k", b"\xff not JSON", {"error": b"no", "offset": b"7"},
    )  # fmt: skip
    assert row["timestamp"].timestamp() == 1.5
    assert [each.digest for each in columns.rows_of(table)] == [columns.digest(letter)]
