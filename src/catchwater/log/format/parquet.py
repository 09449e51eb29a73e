"""A segment's records as one Parquet object, for engines that read Parquet themselves.

The columns are docs/format/parquet.md's. Values and keys are plain binary under Zstandard: with
dictionaries they are slower to read and, being mostly unlike each other, no smaller. Offsets and
times are stored as differences. Only offsets have statistics, so that a reader who wants some of
them skips the row groups without any.

Relies on `wire.records`, and like it needs numba and pyarrow (the extra `history`). Promises one
row for every record of a data batch, in order, or `NotParquet`. Holds one row group and what was
written so far; the caller verifies the batches.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.log.format.batches import StoredBatch
from catchwater.log.format.segment import Footer
from catchwater.objects.base import Buffer
from catchwater.wire.records import HEADERS_TYPE, PlacedBatch, RecordsDamaged, decode

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Of what the rows unfold to."""
_PIECE_BYTES = 4 * 1024 * 1024
"""Of batches whose headers are in memory at once; they may be many."""

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)

_OPTIONS = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["timestampType"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["offset"],
    "write_page_checksum": True,
    "store_schema": False,
}


class NotParquet(CatchwaterError):
    """Records that Parquet, or Spark's reader of it, could not hold."""


class Written(NamedTuple):
    """A Parquet object in memory."""

    data: memoryview
    records: int
    crc: int
    """CRC-32C of the bytes."""


def write(
    data: Buffer, batches: Iterable[StoredBatch], begins_at: int, step: Callable[[], None]
) -> Written:
    """The records of these batches as Parquet; `data` is what lies at `begins_at` of the segment.

    `step` is called every few megabytes. Raises `NotParquet`, and what `batches` and `step` raise.
    """
    sink = pa.BufferOutputStream()
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = records = 0
    with pq.ParquetWriter(sink, SCHEMA, **_OPTIONS) as file:
        for decoded in _decoded(data, batches, begins_at):
            waiting.append(decoded)
            waiting_bytes += decoded.nbytes
            records += decoded.num_rows
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
    data: Buffer, batches: Iterable[StoredBatch], begins_at: int
) -> Iterator[pa.RecordBatch]:
    """The records in the columns of `SCHEMA`."""
    for piece in _pieces(batches, begins_at):
        left = sum(each.header.record_count for each in piece if not each.header.is_control)
        try:
            for rows in decode(data, piece, columns=SCHEMA.names):
                yield _as_spark_has_it(rows)
                left -= rows.num_rows
        except RecordsDamaged as error:
            raise NotParquet(str(error)) from error
        assert left == 0, f"{left} records too few were decoded"


def _pieces(batches: Iterable[StoredBatch], begins_at: int) -> Iterator[list[PlacedBatch]]:
    piece: list[PlacedBatch] = []
    for batch in batches:
        at = batch.position - begins_at
        piece.append(PlacedBatch(batch.header, at, batch.header.base_offset))
        if piece[-1].end - piece[0].at >= _PIECE_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def _as_spark_has_it(decoded: pa.RecordBatch) -> pa.RecordBatch:
    times = decoded.column("timestamp")
    try:
        microseconds = times.cast(SCHEMA.field("timestamp").type)
    except pa.ArrowInvalid as error:
        raise NotParquet(f"A record's timestamp does not fit into microseconds: {error}.") from None
    arrays = [
        microseconds if name == "timestamp" else decoded.column(name) for name in SCHEMA.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _write_group(file: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches, SCHEMA)
    file.write_table(table, row_group_size=table.num_rows)
