"""What every format has in common: places, nulls, malformed rows, columns; shown with JSON."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from catchwater.replay.plan import Task
from catchwater.replay.read import ReadSettings, arrow_schema
from catchwater.replay.source import CatchwaterSource, SourcePartition
from catchwater.values.settings import (
    BadSchema,
    OnMalformed,
    ValueFormat,
    ValueSettings,
    load,
)
from catchwater.values.typed import ValueMalformed, read_columns, typed, value_fields

SETTINGS = ValueSettings(ValueFormat.JSON, "n long, s string", on_malformed=OnMalformed.NULL)
STRICT = ValueSettings(ValueFormat.JSON, "n long, s string, d decimal(4, 2)")
COLUMNS = ("key", "value", "timestamp")


def batch(values: list[bytes | None], first: int = 0) -> pa.RecordBatch:
    """What `read_task` yields for these values, in the columns that are read for COLUMNS."""
    count = len(values)
    columns = {
        "key": [b"k%d" % index for index in range(count)],
        "value": values,
        "timestamp": list(range(count)),
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": list(range(first, first + count)),
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(read_columns(COLUMNS)))


# A value, and its fields or None where it is malformed.
GOOD = st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"))).map(
    lambda row: (_json(*row), row)
)
BAD = st.sampled_from(
    [b"", b" ", b"{", b"[]", b"null", b'{"n": "1"}', b'{"n": 1}{"n": 2}', b'{"s": 1}', b"\xff"]
).map(lambda value: (value, None))
TOMBSTONE = st.just((None, (None, None)))


def _json(number: int, text: str) -> bytes:
    return json.dumps({"s": text, "other": [number], "n": number}, indent=1).encode()


@settings(deadline=None)
@given(st.lists(st.lists(GOOD | BAD | TOMBSTONE, max_size=6), max_size=3))
def test_malformed_rows_are_null_with_their_bytes_and_others_stay(
    blocks: list[list[tuple[bytes | None, tuple[int | None, str | None] | None]]],
) -> None:
    batches = [batch([value for value, _ in block]) for block in blocks]
    results = list(typed(iter(batches), SETTINGS, COLUMNS))
    assert len(results) == len(blocks)
    for block, given_batch, result in zip(blocks, batches, results, strict=True):
        assert result.schema.names == ["key", "n", "s", "_malformed", "timestamp"]
        expected = [row or (None, None) for _, row in block]
        assert list(zip(*[result.column(n).to_pylist() for n in "ns"], strict=True)) == expected
        malformed = [value if row is None else None for value, row in block]
        assert result.column("_malformed").to_pylist() == malformed
        assert result.column("key") == given_batch.column("key")
        assert result.column("timestamp") == given_batch.column("timestamp")


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.data())
def test_a_malformed_value_is_named_by_its_place(
    before: int, after: int, data: st.DataObject
) -> None:
    bad, why = data.draw(
        st.sampled_from(
            [
                (b"{", "Input data was truncated"),
                (b'{"n": true}', "Expected `int | null`, got `bool` - at `$.n`"),
                (b'{"n": 9223372036854775808}', "`int` <= 9223372036854775807 - at `$.n`"),
                (b'{"d": 1.234}', "field d: Rescaling Decimal value would cause data loss"),
                (b'{"d": 123}', "field d: Decimal type with precision 3 does not fit"),
            ]
        )
    )
    values = [b'{"n": 1, "d": 1.23}'] * before + [bad] + [b"{}", b"no"] * after
    whole = batch([b"{}"] * 7)
    results = typed(iter([whole, batch(values, first=1000)]), STRICT, COLUMNS)
    assert next(results).num_rows == 7
    with pytest.raises(ValueMalformed) as caught:
        next(results)
    assert f"The value of t-3 at offset {1000 + before} is not json" in str(caught.value)
    assert why in str(caught.value)
    assert "onMalformed" in (caught.value.hint or "")


def test_the_schema_is_what_spark_expects_of_it() -> None:
    nested = "a array<map<string, struct<d: decimal(10, 2), t: timestamp>>>, b byte, d date"
    settings = ValueSettings(ValueFormat.JSON, nested, on_malformed=OnMalformed.NULL)
    fields = value_fields(settings, COLUMNS)
    (result,) = typed(iter([batch([b"{}", None])]), settings, ("value",))
    assert result.schema.equals(to_arrow_schema(StructType(fields), timezone="UTC"))
    assert result.num_rows == 2


def test_fields_are_chosen_and_ordered_by_value_fields() -> None:
    settings = ValueSettings(ValueFormat.JSON, "a int, b int, c int", fields=("c", "a"))
    (result,) = typed(iter([batch([b'{"a": 1, "b": "x", "c": 3}'])]), settings, ("value",))
    assert result.to_pylist() == [{"c": 3, "a": 1}]


@pytest.mark.parametrize("name", ["Timestamp", "key", "_malformed"])
def test_a_field_named_like_another_column_is_refused(name: str) -> None:
    settings = ValueSettings(
        ValueFormat.JSON, f"n int, {name} string", on_malformed=OnMalformed.NULL
    )
    with pytest.raises(BadSchema, match=f"The field {name} of valueSchema is named like"):
        value_fields(settings, COLUMNS)


def test_a_field_that_is_not_there_is_refused_with_those_that_are() -> None:
    settings = ValueSettings(ValueFormat.JSON, "a int, b int", fields=("a", "x"))
    with pytest.raises(BadSchema, match=r"valueFields names x, but the fields .* are: a, b"):
        value_fields(settings, COLUMNS)


def test_a_file_that_cannot_be_read_is_named() -> None:
    for format in (ValueFormat.AVRO, ValueFormat.PROTOBUF):
        with pytest.raises(BadSchema, match="valueSchema names '/nowhere/x', which cannot"):
            load(ValueSettings(format, "/nowhere/x"))


def test_the_source_hands_out_typed_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastavro")
    path = tmp_path / "r.avsc"
    field = {"name": "n", "type": "long"}
    path.write_text(json.dumps({"type": "record", "name": "R", "fields": [field]}))
    source = CatchwaterSource(
        {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "t",
            "columns": "key,value,timestamp",
            "valueFormat": "avro",
            "valueSchema": str(path),
            "onMalformed": "null",
        }
    )
    asked: list[ReadSettings] = []

    def read_task(task: Task, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        asked.append(settings)
        return iter([batch([b"\x02", b"", None])])

    monkeypatch.setattr("catchwater.replay.read.read_task", read_task)
    # An executor has the reader, but not the file.
    reader = pickle.loads(pickle.dumps(source.reader(None)))
    schema = source.schema()
    path.unlink()
    (result,) = reader.read(SourcePartition(Task(()), None))
    assert asked[0].columns == (*COLUMNS, "topic", "partition", "offset")
    assert result.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert result.column("n").to_pylist() == [1, None, None]
    assert result.column("_malformed").to_pylist() == [None, b"", None]


def test_ordinary_columns_are_read_once_and_the_place_is_read_with_them() -> None:
    assert read_columns(("value", "offset")) == ("value", "offset", "topic", "partition")
