"""A task's rows as one Parquet file, as Spark would read it back. No Spark.

Keys, values and headers are plain bytes: with dictionaries they are slower to write and, being
mostly unlike each other, no smaller. Offsets and times are stored as differences, all other columns
with dictionaries. Holds one row group in memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COMPRESSIONS = ("snappy", "zstd", "lz4", "none")
"""What files may be compressed by; Spark's own default comes first."""
ROW_GROUP_BYTES = 64 * 2**20
"""Of what the rows unfold to."""

_RISING = {"offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
_BYTES = ("key", "value", "headers")


def write(
    path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], compression: str
) -> int:
    """Write the rows of these batches, all of this schema, to a new file; returns how many.

    Raises `OSError`, and what the iterator raises.
    """
    rows = waiting_bytes = 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(str(path), schema, **_options(schema, compression)) as file:
        for batch in batches:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            rows += batch.num_rows
            if waiting_bytes >= ROW_GROUP_BYTES:
                _write_group(file, waiting)
                waiting, waiting_bytes = [], 0
        if waiting:
            _write_group(file, waiting)
    return rows


def _write_group(file: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    file.write_table(table, row_group_size=table.num_rows)


def _options(schema: pa.Schema, compression: str) -> dict[str, Any]:
    """How `ParquetWriter` encodes the columns of a schema."""
    rising = [
        name
        for name, kind in _RISING.items()
        if name in schema.names and schema.field(name).type == kind
    ]
    plain = [
        field.name
        for field in schema
        if field.name in (*_BYTES, *rising) or pa.types.is_binary(field.type)
    ]
    leaves = _leaves(schema)
    alike = [leaf for leaf in leaves if leaf.partition(".")[0] not in plain]
    return {
        "compression": compression,
        "use_dictionary": alike,
        "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        "write_statistics": [*alike, *rising],
        "write_page_checksum": True,
        "store_schema": False,
    }


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns that Parquet makes of these; of a nested one, of each of its parts."""
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.ParquetFile(empty.getvalue()).schema
    return [columns.column(index).path for index in range(len(columns))]
