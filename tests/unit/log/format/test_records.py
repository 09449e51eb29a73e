"""Records inside a batch: opened, left out, and told from another base timestamp."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.log.format.batches import StoredBatch
from catchwater.log.format.records import (
    Unopened,
    delete_horizon,
    empty,
    open_records,
    rewritten,
)
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.batch import BatchHeader, check_crc, read_header

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.integers(0, 2**40),
        st.lists(st.tuples(st.text("abc"), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


def stored(data: bytes) -> StoredBatch:
    view = memoryview(data)
    return StoredBatch(read_header(view), 0, view)


def split(data: bytes) -> tuple[BatchHeader, memoryview]:
    return read_header(memoryview(data)), memoryview(data)


def rows(data: bytes) -> list[dict[str, object]]:
    return [row for batch in decode(data, place(data)) for row in batch.to_pylist()]


@settings(max_examples=50, deadline=None)
@given(RECORDS, st.sampled_from([0, 1, 2, 3, 4]), st.data())
def test_what_is_left_of_a_batch_says_the_same_at_the_same_offsets(
    records: list, codec: int, data: st.DataObject
) -> None:
    original = encode_batch(records, codec=codec, base_offset=1000)
    found = open_records(*split(original))
    assert [record.key for record in found] == [record[0] for record in records]
    assert [record.is_tombstone for record in found] == [record[1] is None for record in records]
    wanted = data.draw(st.sets(st.sampled_from(range(len(found))), min_size=1))
    kept = [record for record in found if record.offset_delta in wanted]
    horizon = data.draw(st.none() | st.integers(0, 2**42))
    header, left = rewritten(stored(original), kept, horizon)
    check_crc(memoryview(left), header)
    offsets = {1000 + record.offset_delta for record in kept}
    assert rows(left) == [row for row in rows(original) if row["offset"] in offsets]
    assert header.last_offset == 1000 + len(records) - 1
    assert header.max_timestamp == max(records[record.offset_delta][2] for record in kept)
    assert delete_horizon(header) == horizon


def test_an_empty_batch_is_one_that_readers_pass() -> None:
    header, data = empty(77)
    check_crc(memoryview(data), header)
    assert (header.base_offset, header.last_offset, header.record_count) == (77, 77, 0)
    assert rows(data) == []
    assert open_records(header, memoryview(data)) == []


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 255))
def test_damage_inside_is_said_and_never_read_past(at: int, value: int) -> None:
    data = bytearray(encode_batch([(b"key", b"value" * 9, 5, [("h", b"v")])] * 3))
    data[61 + at % (len(data) - 61)] = value
    try:
        for record in open_records(*split(bytes(data))):
            assert len(record.data) <= len(data)
    except Unopened as reason:
        assert "The batch at offset 0 is not opened" in str(reason)


def test_a_batch_that_unfolds_beyond_the_cap_is_not_opened(
    make_batch: Callable[..., bytes],
) -> None:
    header, bomb = split(make_batch([b"\0" * 1_000_000], codec=4))
    assert len(open_records(header, bomb)) == 1
    with pytest.raises(Unopened, match="unfold to more than the 100000 bytes allowed"):
        open_records(header, bomb, max_bytes=100_000)


def test_offsets_that_do_not_ascend_are_not_opened() -> None:
    data = encode_batch([(b"k", b"v", 0, ())] * 2)
    header, view = split(data)
    second = open_records(header, view)[1].data
    at = data.rindex(bytes(second)) + 3
    for delta in (0, 2):
        wrong = bytearray(data)
        wrong[at] = delta << 1
        with pytest.raises(Unopened, match=f"Offset delta {delta} follows 0"):
            open_records(*split(bytes(wrong)))
