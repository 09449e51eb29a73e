"""A task's rows as a Parquet file: what goes in comes out, encoded as it was meant to be."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchwater.replay.export import file as file_module
from catchwater.replay.export.file import COMPRESSIONS, write
from catchwater.replay.read import arrow_schema

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    arrays = [
        [b"k%d" % n if n % 5 else None for n in numbers],
        [b"value %d" % n if n % 7 else None for n in numbers],
        ["t"] * count,
        [3] * count,
        list(numbers),
        [1_700_000_000_000_000 + n * 1000 for n in numbers],
        [0] * count,
        [[("n", b"%d" % n), ("none", None)] if n % 3 else None for n in numbers],
    ]
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(each, kind) for each, kind in zip(arrays, schema.types, strict=True)],
        schema=schema,
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_rows_come_out_as_they_went_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setattr(file_module, "ROW_GROUP_BYTES", 20_000)
    batches = [rows(first, 500) for first in range(0, 2_000, 500)]
    path = tmp_path / "x.parquet"
    assert write(path, batches[0].schema, iter(batches), compression) == 2_000
    found = pq.read_table(path)
    assert found.schema.remove_metadata() == batches[0].schema
    assert found.to_pylist() == pa.Table.from_batches(batches).to_pylist()
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups > 1
    first = {each["path_in_schema"]: each for each in metadata.row_group(0).to_dict()["columns"]}
    assert "DELTA_BINARY_PACKED" in first["offset"]["encodings"]
    assert first["topic"]["has_dictionary_page"] and not first["value"]["has_dictionary_page"]
    assert first["offset"]["statistics"]["max"] > first["offset"]["statistics"]["min"] == 0


def test_no_rows_are_a_file_that_has_the_columns(tmp_path: Path) -> None:
    schema = arrow_schema(COLUMNS)
    assert write(tmp_path / "x", schema, iter(()), "snappy") == 0
    assert pq.read_table(tmp_path / "x").schema.remove_metadata() == schema


def test_fields_named_like_a_running_number_may_be_of_any_type(tmp_path: Path) -> None:
    schema = pa.schema([("offset", pa.string()), ("timestamp", pa.map_(pa.string(), pa.int32()))])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([[("x", 1)]], schema.types[1])],
                                       schema=schema)  # fmt: skip

    def given() -> Iterator[pa.RecordBatch]:
        yield batch

    assert write(tmp_path / "x", schema, given(), "zstd") == 1
    assert pq.read_table(tmp_path / "x").to_pylist() == batch.to_pylist()
