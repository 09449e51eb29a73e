"""A segment's records as one Parquet object, for engines that read Parquet themselves.

The columns are docs/formats.md's. Values and keys are plain binary under Zstandard: with
dictionaries they are slower to read and, being mostly unlike each other, no smaller. Offsets and
times are stored as differences. Offsets and place have statistics, so that a reader who wants some
of them skips the row groups without any.

Relies on `wire.arrow`, and like it needs numba and pyarrow (the extra `history`). Promises one
row for every record of a data batch, in order, or `NotParquet`. Holds one row group and what was
written so far; the caller verifies the batches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.log.format.batches import StoredBatch
from catchwater.log.format.segment import HEADER_BYTES, Footer
from catchwater.objects.base import Buffer
from catchwater.wire.arrow import PlacedBatch, RecordsDamaged, decode
from catchwater.wire.columns import HEADERS_TYPE

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Of what the rows unfold to."""
FIELDS = "fields"
"""The column of values as they were declared."""
_FIELDS_ROWS = 2_000
"""Decoded in one go, for that keeps other threads waiting."""
_PIECE_BYTES = 4 * 1024 * 1024
"""Of batches whose headers are in memory at once; they may be many."""

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)

_DECODED = SCHEMA.names[2:]
"""The others are the segment's, the same in every row."""

_OPTIONS: Mapping[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["topic", "partition", "timestampType"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["topic", "partition", "offset"],
    "write_page_checksum": True,
    "store_schema": False,
}


class NotParquet(CatchwaterError):
    """Records that Parquet, or Spark's reader of it, could not hold."""


class NotAsDeclared(CatchwaterError):
    """A value is not what its topic declared; the records can be written without the columns."""


class Fields(Protocol):
    """What makes columns of values; see `catchwater.values.typed.StructOfFields`."""

    type: pa.StructType

    def column(self, values: list[bytes | None]) -> pa.StructArray | None:
        """The values as a struct; None if any is malformed."""
        ...


class Written(NamedTuple):
    """A Parquet object in memory."""

    data: memoryview
    records: int
    crc: int
    """CRC-32C of the bytes."""


def write(
    data: Buffer,
    batches: Iterable[StoredBatch],
    footer: Footer,
    step: Callable[[], None],
    fields: Fields | None = None,
) -> Written:
    """The records of a segment's batches as Parquet; `data` is what lies behind its header.

    With `fields` the values are columns, too. `step` is called every few megabytes. Raises
    `NotParquet`, `NotAsDeclared`, and what `batches` and `step` raise.
    """
    schema, options = _with_fields(fields) if fields else (SCHEMA, _OPTIONS)
    sink = pa.BufferOutputStream()
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = records = 0
    with pq.ParquetWriter(sink, schema, **options) as file:
        for decoded in _decoded(data, batches, footer):
            rows = _typed(decoded, schema, fields, step) if fields else decoded
            waiting.append(rows)
            waiting_bytes += rows.nbytes
            records += rows.num_rows
            if waiting_bytes >= ROW_GROUP_BYTES:
                _write_group(file, waiting)
                waiting, waiting_bytes = [], 0
            step()
        if waiting:
            _write_group(file, waiting)
    written = memoryview(sink.getvalue())
    return Written(written, records, crc32c(written))


def parquet_key(footer: Footer, token: str) -> str:
    """The object key for the records of this segment; the token makes it one nothing ever had."""
    place = f"{footer.topic_id.hex()}/{footer.partition}"
    return f"parquet/{place}/{footer.base_offset:020d}-{token}.parquet"


def _decoded(
    data: Buffer, batches: Iterable[StoredBatch], footer: Footer
) -> Iterator[pa.RecordBatch]:
    """The records in the columns of `SCHEMA`."""
    for piece in _pieces(batches):
        left = sum(each.header.record_count for each in piece if not each.header.is_control)
        try:
            for rows in decode(data, piece, columns=_DECODED):
                yield _as_spark_has_it(rows, footer)
                left -= rows.num_rows
        except RecordsDamaged as error:
            raise NotParquet(str(error)) from error
        assert left == 0, f"{left} records too few were decoded"


def _pieces(batches: Iterable[StoredBatch]) -> Iterator[list[PlacedBatch]]:
    piece: list[PlacedBatch] = []
    for batch in batches:
        at = batch.position - HEADER_BYTES
        piece.append(PlacedBatch(batch.header, at, batch.header.base_offset))
        if piece[-1].end - piece[0].at >= _PIECE_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def _as_spark_has_it(decoded: pa.RecordBatch, footer: Footer) -> pa.RecordBatch:
    times = decoded.column("timestamp")
    try:
        microseconds = times.cast(SCHEMA.field("timestamp").type)
    except pa.ArrowInvalid as error:
        raise NotParquet(f"A record's timestamp does not fit into microseconds: {error}.") from None
    arrays = [
        pa.repeat(pa.scalar(footer.topic), decoded.num_rows),
        pa.repeat(pa.scalar(footer.partition, pa.int32()), decoded.num_rows),
        *(microseconds if name == "timestamp" else decoded.column(name) for name in _DECODED),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _with_fields(fields: Fields) -> tuple[pa.Schema, Mapping[str, Any]]:
    """Values of one field are alike: dictionaries pay there."""
    dictionaries = [*_OPTIONS["use_dictionary"], *_leaves(FIELDS, fields.type)]
    options = {**_OPTIONS, "use_dictionary": dictionaries}
    return SCHEMA.append(pa.field(FIELDS, fields.type)), options


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The columns that Parquet makes of a nested one."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


def _typed(
    rows: pa.RecordBatch, schema: pa.Schema, fields: Fields, step: Callable[[], None]
) -> pa.RecordBatch:
    values, pieces = rows.column("value"), []
    for at in range(0, rows.num_rows, _FIELDS_ROWS):
        piece = fields.column(values.slice(at, _FIELDS_ROWS).to_pylist())
        if piece is None:
            first = rows.column("offset")[at].as_py()
            last = first + min(_FIELDS_ROWS, rows.num_rows - at) - 1
            raise NotAsDeclared(f"A value about offsets {first} to {last} is malformed.")
        pieces.append(piece)
        step()
    return pa.RecordBatch.from_arrays([*rows.columns, pa.concat_arrays(pieces)], schema=schema)


def _write_group(file: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches, batches[0].schema)
    file.write_table(table, row_group_size=table.num_rows)
