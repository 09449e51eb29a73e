"""Chunks written and read back, whole and damaged."""

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.log.format.chunk import (
    ENTRY_BYTES,
    HEADER_BYTES,
    ChunkError,
    decode,
    decode_index,
    encode,
)
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import BatchHeader, read_header, stamp

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
keys = st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[bytes, int], BatchHeader, bytes]:
    data = draw(st.binary(max_size=80))
    header = BatchHeader(
        base_offset=0,
        size_bytes=len(data),
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=draw(st.integers(-(2**15), 2**15 - 1)),
        last_offset_delta=draw(i32),
        base_timestamp=0,
        max_timestamp=draw(i64),
        producer_id=draw(i64),
        producer_epoch=draw(st.integers(-(2**15), 2**15 - 1)),
        base_sequence=draw(i32),
        record_count=draw(i32),
    )
    return draw(keys), header, data


@given(st.lists(batches(), max_size=12), i64)
def test_what_was_encoded_is_decoded(
    written: list[tuple[tuple[bytes, int], BatchHeader, bytes]], created_ms: int
) -> None:
    parts, chunk = encode(written, created_ms)
    data = b"".join(parts)
    assert decode_index(data) == chunk
    assert chunk.created_ms == created_ms
    assert chunk.size_bytes == len(data)
    for entry, (key, header, batch) in zip(chunk.entries, written, strict=True):
        assert data[entry.byte_offset : entry.byte_offset + entry.size_bytes] == batch
        assert (entry.topic_id, entry.partition) == key
        for name in entry._fields[4:]:
            assert getattr(entry, name) == getattr(header, name)


@given(st.lists(batches(), min_size=1, max_size=4), st.data())
@settings(max_examples=500)
def test_a_flipped_bit_in_header_or_index_is_always_noticed(
    written: list[tuple[tuple[bytes, int], BatchHeader, bytes]], data: st.DataObject
) -> None:
    parts, _ = encode(written, 1)
    damaged = bytearray(b"".join(parts))
    end = HEADER_BYTES + ENTRY_BYTES * len(written)
    damaged[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ChunkError):
        decode_index(damaged)


@given(st.lists(batches(), min_size=1, max_size=4), st.data())
def test_a_chunk_cut_anywhere_is_refused_or_shorter_than_it_says(
    written: list[tuple[tuple[bytes, int], BatchHeader, bytes]], data: st.DataObject
) -> None:
    parts, _ = encode(written, 1)
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        assert decode_index(whole[:cut]).size_bytes > cut
    except ChunkError:
        assert cut < HEADER_BYTES + ENTRY_BYTES * len(written)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_chunk(data: bytes) -> None:
    with pytest.raises(ChunkError):
        decode_index(data)


def test_no_batch_is_copied() -> None:
    data = b"x" * 61
    header = BatchHeader(0, 61, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    parts, _ = encode([((b"t" * 16, 0), header, data)], 1)
    assert parts[1] is data


def test_a_newer_format_is_refused_by_name() -> None:
    parts, _ = encode([], 1)
    data = bytearray(b"".join(parts))
    data[4:6] = (3).to_bytes(2, "big")
    data[28:32] = crc32c(bytes(data[:28])).to_bytes(4, "big")
    with pytest.raises(ChunkError, match="format version 3"):
        decode_index(data)


def produced(count: int) -> tuple[tuple[bytes, int], BatchHeader, bytes]:
    data = encode_batch([(None, b"value", 7, ())] * count)
    return (b"t" * 16, 0), read_header(memoryview(data)), data


def test_a_whole_chunk_is_checked_batch_by_batch() -> None:
    parts, chunk = encode([produced(1), produced(3)], 1)
    assert decode(b"".join(parts)) == chunk
    damaged = bytearray(b"".join(parts))
    damaged[-1] ^= 1
    with pytest.raises(ChunkError, match=f"batch at byte {chunk.entries[1].byte_offset}"):
        decode(damaged)
    with pytest.raises(ChunkError, match="but its index says"):
        decode(b"".join(parts) + b"x")


def test_an_index_that_says_other_than_its_batches_is_refused() -> None:
    key, header, data = produced(3)
    parts, _ = encode([(key, header._replace(record_count=2), data)], 1)
    with pytest.raises(ChunkError, match="disagree"):
        decode(b"".join(parts))


def test_an_index_whose_batches_do_not_lie_side_by_side_is_refused() -> None:
    parts, chunk = encode([produced(1)], 1)
    data = bytearray(b"".join(parts))
    at = HEADER_BYTES + 20
    data[at : at + 4] = (chunk.entries[0].byte_offset + 1).to_bytes(4, "big")
    index = bytes(data[HEADER_BYTES : HEADER_BYTES + ENTRY_BYTES])
    data[24:28] = crc32c(index).to_bytes(4, "big")
    data[28:32] = crc32c(bytes(data[:28])).to_bytes(4, "big")
    with pytest.raises(ChunkError, match=f"not {chunk.entries[0].byte_offset}"):
        decode_index(data)


def test_a_batch_that_bears_the_time_of_its_append_is_intact() -> None:
    view = memoryview(bytearray(encode_batch([(b"k", b"v", 1, ())])))
    header = stamp(view, read_header(view), 5_000)
    parts, chunk = encode([((bytes(16), 0), header, view)], 5_000)
    assert decode(b"".join(parts)) == chunk
    assert chunk.entries[0].max_timestamp == 5_000
