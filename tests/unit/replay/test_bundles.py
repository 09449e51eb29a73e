"""Bundles hold the very records that rows do, whatever these are; cut here as their docs say."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import pack, pack_into
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.config import CatchwaterError
from catchwater.replay import bundles
from catchwater.replay.options import COLUMNS, TIMESTAMP_MS
from catchwater.replay.plan import CLEANED, Aborted, PlanRange, Slice, Task
from catchwater.replay.read import ReadSettings, read_task
from catchwater.wire.arrow import encode_batch, locate, place
from catchwater.wire.batch import marker
from catchwater.wire.bundle import BUNDLE_BYTES
from catchwater.wire.codecs import Codec

CRC_AT, ATTRIBUTES_AT = 17, 21
NOW_MS = 1_700_000_000_000
ROWS = (*(name for name in COLUMNS if name != "timestamp"), TIMESTAMP_MS)
"""The columns as rows, with times as numbers, which need not fit a year."""


def batches_of_task(
    data: bytes, folder: Path, *, aborted: Sequence[Aborted] = (), **settings: Any
) -> Iterator[pa.RecordBatch]:
    """What a task makes of these batches, which lie in a segment from offset 0 on.

    As in Spark's worker, each is done with before the next is asked for.
    """
    path = folder / "segment"
    path.write_bytes(data)
    placed = place(data)
    last = placed[-1].next_offset - 1
    where = PlanRange("t", 3, CLEANED, path.as_uri(), 0, len(data), 0, last)
    task = Task((Slice("t", 3, 0, last + 1, where, tuple(aborted)),))
    return read_task(task, ReadSettings("h:1", **settings))


def cut(bundle: dict[str, Any], columns: Sequence[str] = COLUMNS) -> Iterator[dict[str, Any]]:
    """The records of a bundle: what its arrays say, or else the longs."""
    for index, long in enumerate(bundle["places"]):
        at, gap = long & 0x3FFFF, long >> 18 & 3
        value_size, key_size, later_ms = long >> 20 & 0x7FFF, long >> 35 & 0x1FF, long >> 44
        value_at, key_at = at, at - gap - key_size
        value = None if value_size == 0x7FFF else bundle["data"][value_at : value_at + value_size]
        key = None if key_size == 0x1FF else bundle["data"][key_at : key_at + key_size]
        plain = {
            "key": ("keys", key),
            "value": ("values", value),
            "offset": ("offsets", bundle.get("first_offset", 0) + index),
            "timestamp": ("times", bundle.get("oldest_ms", 0) + (later_ms & 0xFFFFF)),
            "headers": ("headers", None),
        }
        row = {}
        for name in columns:
            if name not in plain:
                row[name] = bundle[name]
                continue
            array, by_long = plain[name]
            said = bundle[array][index] if bundle[array] is not None else None
            row[TIMESTAMP_MS if name == "timestamp" else name] = by_long if said is None else said
        yield row


def assert_alike(data: bytes, folder: Path, **more: Any) -> list[dict[str, Any]]:
    """That bundles and rows hold the same records; the bundles."""
    rows = [
        row
        for batch in batches_of_task(data, folder, columns=ROWS, **more)
        for row in batch.to_pylist()
    ]
    whole: list[dict[str, Any]] = []
    for batch in batches_of_task(data, folder, columns=COLUMNS, bundled=True, **more):
        assert batch.schema == bundles.bundle_schema(COLUMNS)
        batch.validate(full=True)
        whole += batch.to_pylist()
    assert [row for bundle in whole for row in cut(bundle)] == rows
    return whole


CONTENT = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from([1, 63, 64, 510, 511, 512, 8191, 8192, 32_766, 32_767, 32_768]).map(
        lambda size: b"w" * size
    ),
)
RECORDS = st.lists(
    st.tuples(
        CONTENT,
        CONTENT,
        st.one_of(
            st.integers(NOW_MS, NOW_MS + 1000),
            st.integers(NOW_MS, NOW_MS + 2**21),
            st.integers(-(2**53), 2**53),
        ),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=2),
    ),
    min_size=1,
    max_size=12,
)
BATCHES = st.lists(
    st.tuples(RECORDS, st.sampled_from(Codec), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=150)
@given(batches=BATCHES)
def test_whatever_the_records_bundles_hold_what_rows_do(
    tmp_path_factory: pytest.TempPathFactory, batches: Any
) -> None:
    at, data, aborted = 0, b"", []
    for records, codec, hole, is_aborted in batches:
        at += hole
        more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": at} if is_aborted else {}
        data += encode_batch(records, codec=codec, base_offset=at, transactional=is_aborted, **more)
        if is_aborted:
            marker_at = at + len(records)
            _, end = marker(7, 0, committed=False, timestamp_ms=NOW_MS)
            data += pack(">q", marker_at) + bytes(end)[8:]
            aborted.append(Aborted("t", 3, 7, at, marker_at))
        at = place(data)[-1].next_offset
    assert_alike(data, tmp_path_factory.mktemp("bundles"), aborted=aborted)


def plain(count: int, size: int = 100, at: int = 0, **more: Any) -> bytes:
    records = [(b"k%d" % n, b"%d" % n * size, NOW_MS + n, ()) for n in range(at, at + count)]
    return encode_batch(records, base_offset=at, **more)


def by_broker(batch: bytes) -> bytes:
    """The batch with LogAppendTime: the broker's, and the same for every record."""
    changed = bytearray(batch)
    changed[ATTRIBUTES_AT + 1] |= 8
    pack_into(">I", changed, CRC_AT, crc32c(changed[ATTRIBUTES_AT:]))
    return bytes(changed)


def test_what_lies_side_by_side_is_handed_over_as_it_lies(tmp_path: Path) -> None:
    data = plain(300) + plain(300, at=300)
    (whole,) = assert_alike(data, tmp_path)
    assert whole["data"] in data
    assert whole["first_offset"] == 0 and whole["oldest_ms"] == NOW_MS
    assert all(whole[name] is None for name in ("keys", "values", "offsets", "times", "headers"))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_bundle_ends_where_a_long_reaches_no_further(tmp_path: Path, codec: Codec) -> None:
    data = b"".join(plain(3000, 1000, at, codec=codec) for at in range(0, 9000, 3000))
    found = assert_alike(data, tmp_path)
    assert len(found) > 5
    assert all(len(each["data"]) <= BUNDLE_BYTES for each in found)
    assert sum(len(each["data"]) > BUNDLE_BYTES * 0.9 for each in found) > 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_of_any_size_are_the_same(tmp_path: Path, codec: Codec) -> None:
    sizes = (1, 17 * 2**20, 1, BUNDLE_BYTES - 1, BUNDLE_BYTES, BUNDLE_BYTES + 1, 0, 5)
    records = [(b"k" * min(size, 600), b"v" * size, NOW_MS, ()) for size in sizes]
    assert_alike(encode_batch(records, codec=codec), tmp_path)


@pytest.mark.parametrize(
    ("array", "records"),
    [
        ("keys", [(b"k" * 511, b"v", NOW_MS, ())]),
        ("values", [(b"k", b"v" * 32_767, NOW_MS, ())]),
        ("times", [(b"k", b"v", NOW_MS, ()), (b"k", b"v", NOW_MS - 2**20, ())]),
        ("times", [(b"k", b"v", -(2**53), ()), (b"k", b"v", 2**53, ())]),
        ("headers", [(b"k", b"v", NOW_MS, ()), (b"k", b"v", NOW_MS, [("h", None)])]),
    ],
)
def test_what_does_not_fit_a_long_stands_in_an_array(
    tmp_path: Path, array: str, records: Any
) -> None:
    (only,) = assert_alike(encode_batch(records), tmp_path)
    assert only[array] is not None


def test_holes_between_offsets_are_an_array(tmp_path: Path) -> None:
    (only,) = assert_alike(plain(3) + plain(3, at=5), tmp_path)
    assert only["offsets"] == [0, 1, 2, 5, 6, 7]


def test_one_bundle_has_one_type_of_timestamps(tmp_path: Path) -> None:
    found = assert_alike(plain(3) + by_broker(plain(3, at=3)) + plain(2, at=6), tmp_path)
    assert [each["timestampType"] for each in found] == [0, 1, 0]
    assert [len(each["places"]) for each in found] == [3, 3, 2]


def test_columns_that_are_not_wanted_are_not_there(tmp_path: Path) -> None:
    (batch,) = batches_of_task(plain(3), tmp_path, columns=("value", "offset"), bundled=True)
    assert batch.schema.names == ["data", "places", "values", "first_offset", "offsets"]
    long_keys = encode_batch([(b"k" * 1000, b"v", NOW_MS, ())] * 3)
    (batch,) = batches_of_task(long_keys, tmp_path, columns=("value",), bundled=True)
    (only,) = batch.to_pylist()
    assert only["values"] is None, "a long key that nobody wants is no reason"
    assert list(cut({**only, "offsets": None}, ("value",))) == [{"value": b"v"}] * 3


def test_large_bundles_side_by_side_share_a_batch_and_nothing_is_copied(tmp_path: Path) -> None:
    data = b"".join(plain(1000, at=at) for at in range(0, 9000, 1000))
    (batch,) = batches_of_task(data, tmp_path, columns=COLUMNS, bundled=True)
    assert batch.num_rows > 10
    located = next(locate(data, place(data)))
    (batch,) = bundles.bundled(located, "t", 3, COLUMNS)
    at = batch.column("data").buffers()[2].address - located.source.ctypes.data
    assert 0 <= at < 200, "where they lie"


def test_small_bundles_share_a_batch_and_outlive_what_was_unfolded(tmp_path: Path) -> None:
    """Batches in different codecs are groups of their own, unfolded into the same memory."""
    parts = [plain(10, at=at, codec=Codec(at // 10 % 2 * 3)) for at in range(0, 400, 10)]
    data = b"".join(parts)
    (batch,) = batches_of_task(data, tmp_path, columns=COLUMNS, bundled=True)
    assert batch.num_rows == len(parts)
    assert len(assert_alike(data, tmp_path)) == len(parts)


def test_large_bundles_and_small_ones_keep_their_order(tmp_path: Path) -> None:
    data, at = b"", 0
    for count, codec in [(5, 0), (4000, 3), (5, 0), (5, 3), (9000, 0), (5, 4)]:
        data += plain(count, at=at, codec=codec)
        at += count
    assert_alike(data, tmp_path)


def test_a_time_that_spark_cannot_hold_is_refused_as_in_rows(tmp_path: Path) -> None:
    data = encode_batch([(b"k", b"v", NOW_MS, ()), (b"k", b"v", 2**62, ())])
    said = []
    for bundled in (False, True):
        with pytest.raises(CatchwaterError, match="t-3 from offset 0 on has a timestamp") as raised:
            list(batches_of_task(data, tmp_path, columns=COLUMNS, bundled=bundled))
        said.append(str(raised.value))
    assert said[0] == said[1]
    (batch,) = batches_of_task(data, tmp_path, columns=("value", "offset"), bundled=True)
    assert len(batch["places"][0]) == 2
