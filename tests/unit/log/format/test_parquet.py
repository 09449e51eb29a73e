"""Segments that are unlike others, as Parquet."""

import io
import struct

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from catchwater.log.format.parquet import NotParquet, Written, parquet_key, write
from catchwater.log.format.records import empty
from catchwater.log.format.segment import Footer, SegmentWriter, batches_of
from catchwater.objects.base import Buffer
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import BatchHeader, read_header

_LOG_APPEND_TIME = 0x08


def segment_of(*batches: tuple[BatchHeader, Buffer]) -> tuple[bytes, Footer]:
    """What lies behind the header of a segment of these batches, and its footer."""
    segment = SegmentWriter(b"t" * 16, "t", 0, cleaned_from=0)
    for batch in batches:
        segment.put(*batch)
    parts, footer = segment.finish()
    return b"".join(parts[1:-1]), footer


def written(*batches: tuple[BatchHeader, Buffer]) -> Written:
    data, footer = segment_of(*batches)
    return write(data, batches_of(footer, "k", data), footer, lambda: None)


def placed(batch: bytes) -> tuple[BatchHeader, Buffer]:
    """The batch as it lies in a segment, with leader epoch 0."""
    batch = batch[:12] + b"\0\0\0\0" + batch[16:]
    return read_header(memoryview(batch)), batch


def summed(batch: bytes) -> bytes:
    """The batch with the checksum of what is in it now."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def test_what_compaction_has_emptied_is_a_file_without_rows() -> None:
    found = written(empty(9))
    assert found.records == pq.read_table(io.BytesIO(found.data)).num_rows == 0
    assert found.crc == crc32c(bytes(found.data))


def test_an_object_is_named_after_its_segment() -> None:
    _, footer = segment_of(empty(9))
    name = f"{(b't' * 16).hex()}/0/00000000000000000000-ab"
    assert parquet_key(footer, "ab") == f"parquet/{name}.parquet"


def test_the_brokers_time_is_told_as_such() -> None:
    batch = bytearray(encode_batch([(None, b"v", 5, []), (None, b"w", 9, [])]))
    batch[22] |= _LOG_APPEND_TIME
    rows = pq.read_table(io.BytesIO(written(placed(summed(bytes(batch)))).data)).to_pydict()
    assert rows["timestampType"] == [1, 1]
    assert [time.microsecond for time in rows["timestamp"]] == [9000, 9000]


def test_records_that_do_not_fill_their_batch_are_refused() -> None:
    batch = bytearray(encode_batch([(None, b"v", 5, [])]))
    struct.pack_into(">i", batch, 57, 2)
    with pytest.raises(NotParquet, match="offset 0"):
        written(placed(summed(bytes(batch))))
