"""Segments: what was written is read back, and damage anywhere is noticed and named."""

import hashlib
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.log.format.batches import DamagedObject, StoredBatch, place, walk
from catchwater.log.format.segment import (
    HEADER_BYTES,
    INDEX_STRIDE_BYTES,
    AbortedTxn,
    Footer,
    SegmentTooNew,
    SegmentWriter,
    batches_of,
    decode_ending,
    is_cleaned,
    read_footer,
    segment_key,
)
from catchwater.objects.memory import MemoryStore
from catchwater.wire.batch import read_header, split

MakeBatch = Callable[..., bytes]
TOPIC = bytes(range(16))
KEY = "segments/00/0/a.seg"
VERSION_1 = (
    "435753470001000000000000000000280000004100000000022a504a5b00000000000100000000000000070000"
    "000000000009ffffffffffffffffffffffffffff000000020e000000010261000e000402010262000000000000"
    "00002a0000003900000000020d58479300000000000000000000000000080000000000000008ffffffffffffff"
    "ffffffffffffff000000010e000000010263000000000000000028000000000000000800000000000000090001"
    "02030405060708090a0b0c0d0e0f000000030000000000000028000000000000002a0000000000000007000000"
    "0000000009000000020000000000000003000000000000009a0000000100087061796d656e747376be92530000"
    "005a0001000043575345"
)
"""Offsets 40 to 42 of payments-3 in two batches, as the first release wrote it."""


def segment(batches: list[bytes], base_offset: int = 0, topic: str = "payments") -> bytes:
    """A segment of these batches, in two runs if there are enough of them."""
    writer = SegmentWriter(TOPIC, topic, 3)
    for run in (batches[:2], batches[2:]):
        data = bytearray(b"".join(run))
        if run:
            count = sum(header.record_count for header, _ in split(memoryview(data)))
            last = base_offset + count - 1
            writer.add(data, base_offset, last, key="wal/1", position=0, placed=False)
            base_offset += count
    return b"".join(writer.finish()[0])


def opened(data: bytes) -> tuple[Footer, list[StoredBatch]]:
    """Everything a reader may do with a segment, every byte of the batches verified."""
    store = MemoryStore()
    store.put(KEY, [data])
    footer = read_footer(store, KEY)
    body = store.get_range(KEY, HEADER_BYTES, footer.index_position - HEADER_BYTES)
    places = (footer.base_offset, footer.last_offset)
    walked = walk(body, *places, key=KEY, position=HEADER_BYTES, placed=True)
    return footer, list(walked)


@settings(deadline=None)  # a loaded machine is no finding
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    base_offset=st.integers(0, 2**60),
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
)
def test_a_segment_describes_itself(
    make_batch: MakeBatch, sizes: list[int], base_offset: int, topic: str
) -> None:
    batches = [make_batch([b"x"] * size, list(range(9, 9 + size))) for size in sizes]
    footer, found = opened(segment(batches, base_offset, topic))
    assert (footer.topic_id, footer.topic, footer.partition) == (TOPIC, topic, 3)
    assert footer.base_offset == base_offset
    assert footer.last_offset == base_offset + sum(sizes) - 1
    assert (footer.batch_count, footer.record_count) == (len(sizes), sum(sizes))
    assert (footer.min_timestamp, footer.max_timestamp) == (9, 8 + max(sizes))
    assert [batch.data[16:] for batch in found] == [batch[16:] for batch in batches]
    expected = base_offset
    for batch, size in zip(found, sizes, strict=True):
        assert struct.unpack_from(">qii", batch.data) == (expected, len(batch.data) - 12, 0)
        expected += size


def test_the_index_is_sparse_and_leads_to_every_offset(make_batch: MakeBatch) -> None:
    batches = [make_batch([b"x" * 1000] * 3, [i, i + 7, i]) for i in range(400)]
    footer, found = opened(segment(batches, base_offset=1000))
    gaps = [b.position - a.position for a, b in pairwise(footer.index)]
    assert len(gaps) > 10
    assert all(INDEX_STRIDE_BYTES <= gap < INDEX_STRIDE_BYTES + len(batches[0]) for gap in gaps)
    starts = {batch.position: batch.header for batch in found}
    for number, entry in enumerate(footer.index):
        assert starts[entry.position].base_offset == entry.base_offset
        following = [*footer.index, None][number + 1]
        after = following.base_offset if following else footer.last_offset + 1
        inside = [h for h in starts.values() if entry.base_offset <= h.base_offset < after]
        assert entry.max_timestamp == max(header.max_timestamp for header in inside)
        assert entry.base_offset < after


def test_a_very_large_index_takes_a_second_read(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.log.format.segment.INDEX_STRIDE_BYTES", 1)
    monkeypatch.setattr("catchwater.log.format.segment._ENDING_BYTES", 200)
    footer, found = opened(segment([make_batch([b"x"])] * 500))
    assert len(footer.index) == len(found) == 500


def test_a_segment_cut_off_anywhere_is_refused(make_batch: MakeBatch) -> None:
    whole = segment([make_batch([b"abc", b"def"]), make_batch([b"g"])])
    for size in range(len(whole)):
        with pytest.raises(DamagedObject, match=r"segments/00/0/a\.seg is damaged in bytes"):
            opened(whole[:size])


def test_a_segment_with_bytes_added_is_refused(make_batch: MakeBatch) -> None:
    whole = segment([make_batch([b"abc"])])
    with pytest.raises(DamagedObject):
        opened(b"\0" + whole)
    with pytest.raises(DamagedObject):
        opened(whole + b"\0")
    with pytest.raises(DamagedObject):
        opened(whole + whole[-90:])


def test_every_flipped_bit_gives_the_right_bytes_or_a_named_error(make_batch: MakeBatch) -> None:
    whole = segment([make_batch([b"abc", b"def"], [5, 6]), make_batch([b"g"])], base_offset=7)
    right = opened(whole)
    wrong_but_silent = 0
    for position in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            try:
                if opened(bytes(changed)) != right:
                    wrong_but_silent += 1
            except DamagedObject as damage:
                assert damage.key == KEY
                assert 0 <= damage.first_byte <= damage.last_byte < len(whole)
                assert damage.first_byte <= position, "the damage lies in the range that is named"
            except SegmentTooNew:
                assert position == len(whole) - 8 or position == len(whole) - 7
    assert wrong_but_silent == 0


def test_a_newer_format_is_refused_by_name(make_batch: MakeBatch) -> None:
    whole = bytearray(segment([make_batch([b"abc"])]))
    whole[-8:-6] = struct.pack(">H", 3)
    with pytest.raises(SegmentTooNew, match=r"a\.seg has format version 3"):
        decode_ending(KEY, whole, len(whole))


def test_nothing_at_all_is_no_segment() -> None:
    with pytest.raises(DamagedObject, match="0 bytes are too few"):
        decode_ending(KEY, b"", 0)


def test_writing_copies_no_records(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"x" * 100]) * 10)
    writer = SegmentWriter(TOPIC, "t", 0)
    writer.add(data, 0, 9, key="wal/1", position=0, placed=False)
    parts, _ = writer.finish()
    assert [part.obj is data for part in parts if isinstance(part, memoryview)] == [True]


def test_segments_are_the_bytes_that_earlier_releases_wrote(make_batch: MakeBatch) -> None:
    batches = [
        make_batch([b"x" * 1000] * (1 + i % 3), [i * 7 % 50 + j for j in range(1 + i % 3)])
        for i in range(400)
    ]
    offsets = [7, 8, 20, 21, 500, *range(1000, 1100, 3)]
    written = [segment(batches, base_offset=1000), cleaned(make_batch, offsets, first=2)]
    assert [hashlib.sha256(each).hexdigest() for each in written] == [
        "f2539e9e599323664232f38ab4be8756f85de4e2a502d306175f19dab2b33eba",
        "bc1ce549f5628ee0dd4b055d23661432bd4a2ed507d46048a82428f444862e49",
    ]


@pytest.mark.parametrize("placed", [False, True], ids=["chunk", "segment"])
def test_what_is_added_is_verified_as_readers_verify_it(
    make_batch: MakeBatch, placed: bool
) -> None:
    """In every changed byte, in a run that is cut short, and in one of other offsets."""
    whole = bytearray(make_batch([b"abc", b"def"], [5, 6]) + make_batch([b"g"]))
    place(whole, 7)
    runs = [(whole[:cut], 7, 9) for cut in range(len(whole) + 1)]
    runs += [(whole, 7, 8), (whole, 7, 10), (whole, 8, 10)]
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x81
        runs.append((changed, 7, 9))
    refused = 0
    for data, first, last in runs:
        told = {"key": "wal/1", "position": 100, "placed": placed}
        try:
            list(walk(data, first, last, **told))
        except DamagedObject as damage:
            refused += 1
            with pytest.raises(DamagedObject, match=re.escape(str(damage))):
                SegmentWriter(TOPIC, "t", 0).add(data, first, last, **told)
        else:
            SegmentWriter(TOPIC, "t", 0).add(data, first, last, **told)
    assert refused >= len(runs) - 2 * (8 + 4) - 2, "base offsets and epochs of a chunk may differ"


def test_the_format_page_has_the_sizes_of_the_code() -> None:
    page = Path(__file__).parents[4].joinpath("docs/formats.md").read_text()
    assert f"## Header ({HEADER_BYTES} bytes)" in page
    assert "## Tail (12 bytes)" in page


def test_a_segment_of_version_1_is_still_read() -> None:
    whole = bytes.fromhex(VERSION_1)
    footer = decode_ending(KEY, whole, len(whole))
    assert (footer.topic, footer.partition, footer.aborted) == ("payments", 3, ())
    assert (footer.base_offset, footer.last_offset, footer.is_cleaned) == (40, 42, False)
    found = list(batches_of(footer, KEY, whole[HEADER_BYTES : footer.index_position]))
    assert [batch.header.base_offset for batch in found] == [40, 42]


def test_aborted_transactions_are_told_by_the_segment_that_has_their_records_or_marker(
    make_batch: MakeBatch,
) -> None:
    writer = SegmentWriter(TOPIC, "t", 0)
    data = bytearray(make_batch([b"x"] * 3))
    writer.add(data, 5, 7, key="wal/1", position=0, placed=False)
    aborted = (AbortedTxn(7, 2, 6), AbortedTxn(2**40, 5, 7))
    footer, _ = opened(b"".join(writer.finish(aborted)[0]))
    assert footer.aborted == aborted


def cleaned(make_batch: MakeBatch, offsets: list[int], first: int) -> bytes:
    writer = SegmentWriter(TOPIC, "t", 0, cleaned_from=first)
    for offset in offsets:
        data = bytearray(make_batch([b"x" * 50_000]))
        place(data, offset)
        writer.put(read_header(memoryview(data)), data)
    return b"".join(writer.finish()[0])


def test_in_a_cleaned_segment_offsets_may_be_missing_in_front_of_a_batch(
    make_batch: MakeBatch,
) -> None:
    offsets = [7, 8, 20, 21, 500, *range(1000, 1100, 3)]
    whole = cleaned(make_batch, offsets, first=2)
    footer = decode_ending(KEY, whole, len(whole))
    assert (footer.base_offset, footer.last_offset) == (2, offsets[-1])
    assert footer.is_cleaned and is_cleaned(segment_key(footer, "token"))
    body = whole[HEADER_BYTES : footer.index_position]
    found = [batch.header.base_offset for batch in batches_of(footer, KEY, body)]
    assert found == offsets
    assert len(footer.index) == 2, "the batches take a little more than one stride"


def test_in_a_cleaned_segment_too_every_changed_byte_is_noticed(make_batch: MakeBatch) -> None:
    whole = bytearray(cleaned(make_batch, [7, 1 << 20, 1 << 40], first=2))
    footer = decode_ending(KEY, whole, len(whole))
    ends = [HEADER_BYTES, HEADER_BYTES + 50_000, footer.index_position - 1]
    heads = [at + near for at in ends for near in range(160)]
    for at in {at for at in heads if HEADER_BYTES <= at < footer.index_position}:
        whole[at] ^= 4
        with pytest.raises(DamagedObject):
            list(batches_of(footer, KEY, whole[HEADER_BYTES : footer.index_position]))
        whole[at] ^= 4
