"""Batches from outside: what the header shows to be wrong is refused, with Kafka's code for it."""

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wire.batch import (
    ABORT,
    COMMIT,
    HEADER_BYTES,
    SOUND,
    VARLONG_BYTES,
    BatchError,
    BatchHeader,
    assembled,
    check,
    check_crc,
    encode_zigzag,
    marker,
    marker_type,
    patched,
    read_header,
    read_single,
    read_zigzag,
    split,
    stamp,
    walk_plainly,
)
from catchwater.wire.errors import ErrorCode

HEADER = struct.Struct(">qiibIhiqqqhii")
GZIP, ZSTD, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 1, 4, 0x08, 0x10, 0x20

GOOD = BatchHeader(
    base_offset=0,
    size_bytes=HEADER_BYTES + 21,
    leader_epoch=-1,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=2,
    base_timestamp=1_000,
    max_timestamp=2_000,
    producer_id=7,
    producer_epoch=0,
    base_sequence=0,
    record_count=3,
)


def batch(records: bytes = bytes(21), **changes: int) -> memoryview:
    """A good batch but for `changes`, its checksum right unless that is what is changed."""
    header = GOOD._replace(**{"size_bytes": HEADER_BYTES + len(records)} | changes)
    data = bytearray(HEADER.pack(header[0], header[1] - 12, *header[2:]) + records)
    if "crc" not in changes:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return memoryview(data)


def refusal(view: memoryview, **limits: int) -> ErrorCode:
    with pytest.raises(BatchError) as caught:
        check(view, read_single(view), **{"latest_timestamp_ms": 2**62} | limits)
    assert caught.value.reason.endswith(".")
    return caught.value.code


def test_a_good_batch_is_taken() -> None:
    for attributes in (0, GZIP, ZSTD, TRANSACTIONAL | GZIP):
        view = batch(attributes=attributes)
        header = read_single(view)
        check(view, header)
        assert header == GOOD._replace(crc=header.crc, attributes=attributes)


def test_a_batch_without_a_producer_id_is_taken() -> None:
    view = batch(producer_id=-1, producer_epoch=-1, base_sequence=-1)
    check(view, read_single(view))


def test_attributes_have_their_names() -> None:
    header = GOOD._replace(attributes=ZSTD | LOG_APPEND_TIME, base_offset=10)
    assert header.compression == 4
    assert header.log_append_time
    assert not header.is_transactional
    assert not header.is_control
    assert GOOD._replace(attributes=TRANSACTIONAL).is_transactional
    assert GOOD._replace(attributes=CONTROL).is_control
    assert header.last_offset == 12


@pytest.mark.parametrize("magic", [0, 1, 3, 127, -1])
def test_another_message_format_is_refused_by_name_at_any_size(magic: int) -> None:
    view = batch(magic=magic)
    for size in range(17, len(view) + 1):
        assert refusal(view[:size]) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"size_bytes": HEADER_BYTES - 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"size_bytes": HEADER_BYTES + 22}, ErrorCode.CORRUPT_MESSAGE),
        ({"size_bytes": 12}, ErrorCode.CORRUPT_MESSAGE),
        ({"size_bytes": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"size_bytes": -(2**31) + 12}, ErrorCode.CORRUPT_MESSAGE),
        ({"size_bytes": 2**31 - 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"crc": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"crc": 2**32 - 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 3}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1, "record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -2, "record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2**31 - 1, "record_count": -(2**31)}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2**31 - 2, "record_count": 2**31 - 1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 3, "record_count": 4}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL | TRANSACTIONAL}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL, "producer_id": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"producer_epoch": -1}, ErrorCode.INVALID_RECORD),
        ({"base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": LOG_APPEND_TIME}, ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=str,
)
def test_a_batch_is_refused_for_what_its_header_shows(
    changes: dict[str, int], code: ErrorCode
) -> None:
    assert refusal(batch(**changes)) == code


def test_a_compressed_batch_may_hold_more_records_than_its_bytes_would_hold_plainly() -> None:
    view = batch(attributes=GZIP, last_offset_delta=99_999, record_count=100_000)
    check(view, read_single(view))


def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    view = batch()
    check(view, read_single(view), max_bytes=len(view))
    assert refusal(view, max_bytes=len(view) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_timestamp_from_too_far_ahead_is_refused() -> None:
    view = batch(max_timestamp=5_000)
    check(view, read_single(view), latest_timestamp_ms=5_000)
    assert refusal(view, latest_timestamp_ms=4_999) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("trailing", [b"x", bytes(16), bytes(100), bytes(batch())])
def test_nothing_may_follow_the_batch_of_a_produce_request(trailing: bytes) -> None:
    assert refusal(memoryview(bytes(batch()) + trailing)) == ErrorCode.INVALID_RECORD


def test_a_batch_cut_short_anywhere_is_corrupt() -> None:
    view = batch()
    for size in range(len(view)):
        assert refusal(view[:size]) == ErrorCode.CORRUPT_MESSAGE


@settings(deadline=None)
@given(st.integers(21, HEADER_BYTES + 20), st.integers(0, 7))
def test_any_flipped_bit_under_the_checksum_is_noticed(at: int, bit: int) -> None:
    view = batch()
    view[at] ^= 1 << bit
    with pytest.raises(BatchError):
        check(view, read_single(view))


def test_batches_side_by_side_are_split_without_copying() -> None:
    data = bytearray(b"".join(bytes(batch(bytes(size))) for size in (21, 40, 500)))
    parts = split(memoryview(data))
    assert [header.size_bytes - HEADER_BYTES for header, _ in parts] == [21, 40, 500]
    assert b"".join(part for _, part in parts) == bytes(data)
    data[-1] = 0xFF
    assert parts[-1][1][-1] == 0xFF
    assert split(memoryview(b"")) == []


@pytest.mark.parametrize("trailing", [b"x", bytes(16), bytes(batch())[:-1]])
def test_a_tail_that_is_no_batch_is_never_dropped_in_silence(trailing: bytes) -> None:
    with pytest.raises(BatchError, match=f"byte {len(batch())}"):
        split(memoryview(bytes(batch()) + trailing))


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_a_patched_batch_differs_in_offset_and_epoch_only_and_keeps_its_checksum(
    base_offset: int, leader_epoch: int
) -> None:
    view = batch()
    head, rest = patched(view, base_offset, leader_epoch)
    assert len(head) == 16 and rest.obj is view.obj
    moved = memoryview(head + rest)
    header = read_header(moved)
    check_crc(moved, header)
    assert header == read_header(view)._replace(base_offset=base_offset, leader_epoch=leader_epoch)


header_fields: dict[str, Any] = {
    "base_offset": st.integers(-1, 1) | st.integers(-(2**63), 2**63 - 1),
    "size_bytes": st.integers(HEADER_BYTES, HEADER_BYTES + 40),
    "magic": st.sampled_from([2, 2, 2, 1, 3]),
    "attributes": st.integers(-(2**15), 2**15 - 1),
    "last_offset_delta": st.integers(-1, 5),
    "max_timestamp": st.integers(-(2**63), 2**63 - 1),
    "producer_id": st.integers(-2, 3),
    "producer_epoch": st.integers(-2, 3),
    "base_sequence": st.integers(-2, 3),
    "record_count": st.integers(-1, 6),
}


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional=header_fields))
def test_what_passes_the_check_can_be_given_offsets(changes: dict[str, int]) -> None:
    view = batch(**changes)
    try:
        header = read_single(view)
        check(view, header)
    except BatchError:
        return
    assert header.record_count == header.last_offset_delta + 1 > 0
    assert header.size_bytes == len(view)
    assert not header.is_control
    assert header.compression <= ZSTD


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_worse(noise: bytes) -> None:
    with pytest.raises(BatchError):
        view = memoryview(noise)
        check(view, read_single(view))


@pytest.mark.parametrize("attributes", [0, ZSTD | TRANSACTIONAL])
def test_a_stamped_batch_bears_the_time_of_its_append_and_is_intact(attributes: int) -> None:
    view = batch(attributes=attributes)
    before = read_single(view)
    stamped = stamp(view, before, 12_345)
    assert stamped == read_single(view)
    check(view, stamped)
    changed = {"attributes": attributes | LOG_APPEND_TIME, "max_timestamp": 12_345}
    assert stamped == before._replace(crc=stamped.crc, **changed)
    assert refusal(view) == ErrorCode.INVALID_TIMESTAMP, "a producer may not send it so"


def test_an_assembled_batch_is_intact_whatever_size_and_checksum_its_header_had() -> None:
    header, data = assembled(GOOD._replace(size_bytes=7, crc=9), bytes(30))
    assert header == read_single(memoryview(data))
    check(memoryview(data), header)
    assert header == GOOD._replace(size_bytes=HEADER_BYTES + 30, crc=header.crc)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_a_zigzag_varint_is_read_as_it_was_written(value: int, behind: bytes) -> None:
    encoded = encode_zigzag(value)
    assert len(encoded) <= VARLONG_BYTES
    for data in (encoded + behind, memoryview(encoded + behind)):
        assert read_zigzag(data, 0, VARLONG_BYTES) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02"])
def test_a_varint_that_is_cut_short_or_too_long_is_no_number(data: bytes) -> None:
    with pytest.raises(IndexError):
        read_zigzag(data, 0, VARLONG_BYTES)


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_batch_of_one_record_that_says_how_the_transaction_ended(
    committed: bool,
) -> None:
    header, data = marker(7, 3, committed=committed, timestamp_ms=55)
    view = memoryview(data)
    assert read_single(view) == header
    check_crc(view, header)
    assert header.is_control and header.is_transactional
    assert walk_plainly(view[HEADER_BYTES:], 1)[0] == SOUND
    key = view[HEADER_BYTES + 5 : HEADER_BYTES + 9]
    assert marker_type(key) == (COMMIT if committed else ABORT)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_key_too_short_is_no_markers(key: bytes | None) -> None:
    assert marker_type(key) is None
