"""Records in and out of batches, against aiokafka's and kafka-python's own code; and damage."""

import random
import warnings
from collections.abc import Sequence
from struct import pack_into

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wire import arrow as records_module
from catchwater.wire.arrow import (
    COLUMNS,
    AbortedTransaction,
    Record,
    RecordsDamaged,
    decode,
    encode_batch,
    encode_columns,
    place,
)
from catchwater.wire.batch import encode_zigzag, read_header
from catchwater.wire.codecs import Codec
from catchwater.wire.columns import HEADERS_TYPE

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords as OtherMemoryRecords

CRC_AT, CRC_FROM, COUNT_AT, ATTRIBUTES_AT, LAST_DELTA_AT = 17, 21, 57, 21, 23
TIMES = st.integers(0, 2**45)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        TIMES,
        st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def by_aiokafka(records: Sequence[Record], codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 10_000_000)
    for number, (key, value, timestamp, headers) in enumerate(records):
        builder.append(number, timestamp, key, value, list(headers))
    return bytes(builder.build())


def rows(data: bytes, **wanted: object) -> list[Record]:
    base_offset = wanted.pop("base_offset", None)
    found = pa.Table.from_batches(
        decode(data, place(data, base_offset=base_offset), **wanted),  # type: ignore[arg-type]
        schema=pa.schema(list(COLUMNS.items())),
    )
    found.validate(full=True)
    times = found["timestamp"].cast(pa.int64())
    columns = [found[name].to_pylist() for name in ("offset", "key", "value")]
    headers = [
        [(each["key"], each["value"]) for each in pairs or ()]
        for pairs in found["headers"].to_pylist()
    ]
    return list(zip(*columns, times.to_pylist(), headers, strict=True))


def offsets(data: bytes, **wanted: object) -> list[int]:
    return [row[0] for row in rows(data, **wanted)]


def resealed(batch: bytearray) -> bytes:
    """The batch with a checksum that fits its bytes again."""
    pack_into(">I", batch, CRC_AT, crc32c(batch[CRC_FROM:]))
    return bytes(batch)


def some(count: int, base_offset: int = 0, **more: object) -> bytes:
    plain = [(b"k%d" % n, b"v%d" % n, 1000 + n, ()) for n in range(count)]
    return encode_batch(plain, base_offset=base_offset, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", list(Codec))
@settings(deadline=None)
@given(records=RECORDS)
def test_what_another_client_writes_is_read(codec: Codec, records: list[Record]) -> None:
    expected = [(n, *record) for n, record in enumerate(records)]
    assert rows(by_aiokafka(records, codec)) == expected


@pytest.mark.parametrize("codec", list(Codec))
@settings(deadline=None)
@given(records=RECORDS)
def test_what_is_written_other_clients_read(codec: Codec, records: list[Record]) -> None:
    data = encode_batch(records, codec=codec, base_offset=7)
    readers = [MemoryRecords]
    if codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):  # the others need packages kafka-python lacks
        readers.append(OtherMemoryRecords)
    for reader in readers:
        batch = reader(data).next_batch()
        assert batch.validate_crc()
        found = [
            (r.offset, r.key, r.value, r.timestamp, [(k, v) for k, v in r.headers]) for r in batch
        ]
        assert found == [(7 + n, *record) for n, record in enumerate(records)]


def test_an_uncompressed_batch_is_the_same_to_the_byte() -> None:
    records = [(b"k", b"v" * 300, 5000, [("h", b"x"), ("n", None)]), (None, None, 4000, [])]
    ours, theirs = bytearray(encode_batch(records)), bytearray(by_aiokafka(records))
    leader_epoch = slice(12, 16)  # ours says unknown, aiokafka writes 0
    ours[leader_epoch] = theirs[leader_epoch]
    assert ours == theirs


def test_a_batch_carries_its_producer_and_sequence() -> None:
    data = some(3, producer_id=9, producer_epoch=2, base_sequence=40, transactional=True)
    header = read_header(memoryview(data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    assert header.is_transactional
    assert header.last_offset_delta == 2 and header.record_count == 3
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)


def test_a_batch_without_records_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


def test_batches_of_a_chunk_take_consecutive_offsets() -> None:
    data = some(3) + some(2, codec=Codec.LZ4) + some(1)
    assert offsets(data, base_offset=100) == [100, 101, 102, 103, 104, 105]
    assert [batch.base_offset for batch in place(data, base_offset=100)] == [100, 103, 105]


def test_batches_of_a_segment_keep_their_offsets() -> None:
    assert offsets(some(2, 10) + some(2, 50)) == [10, 11, 50, 51]


def test_only_the_wanted_offsets_are_read() -> None:
    data = some(3, 10) + some(3, 13, codec=Codec.ZSTD) + some(3, 16)
    assert offsets(data, first=11, stop=17) == [11, 12, 13, 14, 15, 16]
    assert offsets(data, first=12, stop=12) == []
    assert offsets(data, first=100) == []


def test_batches_outside_the_range_are_not_even_checked() -> None:
    data = bytearray(some(2, 0) + some(2, 2))
    data[70] ^= 1
    assert offsets(bytes(data), first=2) == [2, 3]


def test_only_the_columns_asked_for_are_built() -> None:
    data = some(2)
    (found,) = decode(data, place(data), columns=["offset", "value"])
    assert found.schema.names == ["offset", "value"]
    with pytest.raises(ValueError, match="'colour'"):
        list(decode(data, place(data), columns=["colour"]))
    with pytest.raises(ValueError, match="at least one column"):
        list(decode(data, place(data), columns=[]))


def test_records_without_headers_have_null_as_in_spark() -> None:
    data = encode_batch([(b"k", b"v", 1, ()), (b"k", b"v", 1, [("a", b"")])])
    (found,) = decode(data, place(data), columns=["headers"])
    assert found["headers"].to_pylist() == [None, [{"key": "a", "value": b""}]]


def test_the_broker_s_time_replaces_the_producer_s() -> None:
    batch = bytearray(some(3))
    batch[ATTRIBUTES_AT + 1] |= 0x08
    pack_into(">q", batch, 35, 9999)
    data = resealed(batch) + some(1, 3)
    (found,) = decode(data, place(data), columns=["timestamp", "timestampType"])
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [9999, 9999, 9999, 1000]
    assert found["timestampType"].to_pylist() == [1, 1, 1, 0]


def test_no_time_of_the_broker_stands_for_none() -> None:
    batch = bytearray(some(1))
    batch[ATTRIBUTES_AT + 1] |= 0x08
    pack_into(">q", batch, 35, -(2**63))
    data = resealed(batch)
    (found,) = decode(data, place(data), columns=["timestamp", "timestampType"])
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [-(2**63)]
    assert found["timestampType"].to_pylist() == [1]


def test_a_compacted_batch_keeps_its_gaps() -> None:
    batch = bytearray(some(2))
    pack_into(">i", batch, LAST_DELTA_AT, 9)
    data = resealed(batch)
    assert offsets(data) == [0, 1]
    assert place(data)[0].next_offset == 10


def control(producer_id: int, base_offset: int, kind: int) -> bytes:
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    batch = bytearray(
        encode_batch(
            [(key, b"\x00\x00\x00\x00\x00\x00", 1, ())],
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
        )
    )
    batch[ATTRIBUTES_AT + 1] |= 0x20
    return resealed(batch)


def test_control_batches_are_no_records() -> None:
    data = some(1, 0, producer_id=5, transactional=True) + control(5, 1, 1) + some(1, 2)
    assert offsets(data) == [0, 2]


def test_aborted_transactions_are_left_out_up_to_their_marker() -> None:
    mine = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    data = b"".join(
        (
            some(2, 0, **mine),
            some(1, 2, producer_id=6, producer_epoch=0, transactional=True),
            control(5, 3, 0),
            some(1, 4, **mine),
            control(5, 5, 1),
            some(1, 6),
        )
    )
    assert offsets(data) == [0, 1, 2, 4, 6]
    assert offsets(data, aborted=[AbortedTransaction(5, 0)]) == [2, 4, 6]


def test_a_batch_that_is_cut_short_is_an_error_unless_expected() -> None:
    data = some(2) + some(2, 2)
    whole = len(some(2))
    for size in range(whole + 1, len(data)):
        with pytest.raises(RecordsDamaged) as caught:
            place(data[:size])
        assert caught.value.offset == 2
        assert [batch.end for batch in place(data[:size], partial_tail=True)] == [whole]


def test_a_length_that_cannot_be_is_an_error_even_in_a_fetch() -> None:
    for length in (0, -1, 48, -(2**31)):
        batch = bytearray(some(2))
        pack_into(">i", batch, 8, length)
        with pytest.raises(RecordsDamaged):
            place(bytes(batch), partial_tail=True)


def test_damage_is_named_by_offset() -> None:
    data = bytearray(some(2, 10) + some(2, 12))
    data[len(some(2)) + 65] ^= 1
    with pytest.raises(RecordsDamaged, match=r"offset 12 .*CRC") as caught:
        rows(bytes(data))
    assert caught.value.offset == 12


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize("count", [-1, 0, 1, 3, 1000, 2**31 - 1])
def test_a_wrong_count_is_damage(codec: Codec, count: int) -> None:
    batch = bytearray(some(2, codec=codec))
    pack_into(">i", batch, COUNT_AT, count)
    with pytest.raises(RecordsDamaged):
        rows(resealed(batch))


def test_an_unknown_codec_is_damage() -> None:
    batch = bytearray(some(2))
    batch[ATTRIBUTES_AT + 1] |= 7
    with pytest.raises(RecordsDamaged, match="codec 7"):
        rows(resealed(batch))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_no_byte_out_of_bounds_is_read_even_where_the_checksum_fits(codec: Codec) -> None:
    """Any damage under a right checksum gives rows or `RecordsDamaged`; every row is in bounds."""
    chance = random.Random(2)
    records = [
        (b"key-%d" % n, b"value" * (n % 9), n, [("h", b"x" * (n % 5))] if n % 3 else ())
        for n in range(30)
    ]
    plain = encode_batch(records)
    outcomes = {"rows": 0, "damage": 0}
    for _ in range(3000):
        batch = bytearray(plain)
        for _ in range(chance.choice((1, 1, 2, 8))):
            batch[chance.randrange(61, len(batch))] = chance.choice((0, 1, 127, 128, 255)) ^ (
                chance.randrange(4)
            )
        if chance.random() < 0.2:
            del batch[chance.randrange(62, len(batch)) :]
            pack_into(">i", batch, 8, len(batch) - 12)
        if codec:
            body = records_module.codecs.compress(codec, bytes(batch[61:]))
            batch[61:] = body
            batch[ATTRIBUTES_AT + 1] |= codec
            pack_into(">i", batch, 8, len(batch) - 12)
        data = resealed(batch)
        try:
            for found in decode(data, place(data)):
                for name in ("key", "value"):
                    found[name].validate(full=True)
                assert found["headers"].flatten().field("value").nbytes >= 0
            outcomes["rows"] += 1
        except RecordsDamaged:
            outcomes["damage"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_every_truncation_under_a_right_checksum_is_damage() -> None:
    whole = encode_batch([(b"key", b"value" * 20, 1, [("h", b"x")]), (None, b"v", 2, ())])
    for size in range(61, len(whole)):
        batch = bytearray(whole[:size])
        pack_into(">i", batch, 8, size - 12)
        with pytest.raises(RecordsDamaged):
            rows(resealed(batch))


@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=200), count=st.integers(0, 40))
def test_random_bytes_under_a_right_checksum_are_bounded(body: bytes, count: int) -> None:
    batch = bytearray(some(1)[:61]) + body
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">i", batch, COUNT_AT, count)
    data = resealed(batch)
    try:
        for found in decode(data, place(data)):
            assert found.num_rows <= count
    except RecordsDamaged:
        pass


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 11, 12])
def test_a_varint_of_any_length_is_read_to_ten_bytes(size: int) -> None:
    """The timestamp delta, padded with continuation bytes: legal up to ten bytes, as in Java."""
    padded = b"\x80" * (size - 1) + b"\x00"
    body = b"\x00" + padded + b"\x00\x01\x01\x00"
    record = bytes([len(body) * 2]) + body
    batch = bytearray(some(1)[:61]) + record
    pack_into(">i", batch, 8, len(batch) - 12)
    data = resealed(batch)
    if size <= 10:
        assert rows(data) == [(0, None, None, 1000, [])]
    else:
        with pytest.raises(RecordsDamaged):
            rows(data)


def test_groups_are_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(some(10, 10 * n) for n in range(20))
    monkeypatch.setattr(records_module, "GROUP_RECORDS", 35)
    assert [found.num_rows for found in decode(data, place(data))] == [30] * 6 + [20]
    monkeypatch.setattr(records_module, "GROUP_BYTES", (len(some(10)) - 61) * 2)
    assert {found.num_rows for found in decode(data, place(data))} == {20}


def test_a_group_does_not_reach_past_what_positions_can_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    data = some(1, 0) + some(50, 1, **mine) + some(1, 51) + some(1, 52)
    aborted = [AbortedTransaction(5, 1)]
    pieces = list(decode(data, place(data), aborted=aborted))
    assert [piece.num_rows for piece in pieces] == [3]
    monkeypatch.setattr(records_module, "_MOST_SPAN_BYTES", len(some(50, 1, **mine)))
    pieces = list(decode(data, place(data), aborted=aborted))
    assert [piece.num_rows for piece in pieces] == [1, 2]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
@pytest.mark.parametrize("room", [0, 100, 400, 10_000])
def test_batches_that_unfold_to_more_than_there_is_room_for_are_read_as_well(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, room: int
) -> None:
    """Records that unfold to very different sizes, some larger than all the room."""
    sizes = [1, 5, 900, 3, 3, 120, 2, 2000, 4, 30, 1, 1]
    records = [(b"k%d" % n, b"v" * size, 1000 + n, ()) for n, size in enumerate(sizes)]
    data = b"".join(
        encode_batch([record], codec=codec, base_offset=n) for n, record in enumerate(records)
    )
    monkeypatch.setattr(records_module, "GROUP_BYTES", 300)
    monkeypatch.setattr(records_module, "_ROOM_BYTES", room)
    found = [row for rows in decode(data, place(data)) for row in rows.to_pylist()]
    assert [row["offset"] for row in found] == list(range(len(sizes)))
    assert [(row["key"], row["value"]) for row in found] == [each[:2] for each in records]


@given(RECORDS, st.integers(0, 50), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_columns_become_the_batch_that_their_records_would(
    records: list[Record], first: int, kind: pa.DataType
) -> None:
    """Also those of a part of a column, and where bytes lie behind a null."""
    keys, values, times, headers = zip(*records, strict=True)
    first = min(first, len(records) - 1)
    pairs = [[{"key": key, "value": value} for key, value in each] or None for each in headers]
    hidden = pa.array([value or b"behind" for value in values], kind)
    where = pa.array([value is None for value in values])
    masked = pa.array([None if value is None else value for value in values], kind)
    assert encode_columns(
        pa.array(keys, kind)[first:],
        masked[first:],
        np.array(times[first:], np.int64),
        pa.array(pairs, HEADERS_TYPE)[first:],
    ) == encode_batch(records[first:])
    buffers = [masked.buffers()[0], *hidden.buffers()[1:]]
    behind = pa.Array.from_buffers(kind, len(values), buffers)
    if not any(value == b"" for value in values):
        columns = pa.array(keys, kind), behind, np.array(times, np.int64)
        assert where.equals(behind.is_null())
        assert encode_columns(*columns, pa.array(pairs, HEADERS_TYPE)) == encode_batch(records)


def test_codecs_may_change_from_batch_to_batch() -> None:
    data = b"".join(some(4, 4 * n, codec=Codec(n % 5)) for n in range(25))
    assert offsets(data) == list(range(100))


def test_nothing_to_read_gives_nothing() -> None:
    assert place(b"") == []
    assert list(decode(b"", [])) == []


def test_any_buffer_will_do() -> None:
    for data in (
        some(3),
        bytearray(some(3)),
        memoryview(some(3)),
        np.frombuffer(some(3), "u1").data,
    ):
        assert offsets(data) == [0, 1, 2]


def unnumbered(codec: Codec, deltas: Sequence[int], last_delta: int) -> bytes:
    """A batch of records with these offset deltas."""
    bodies = [b"\x00\x00" + encode_zigzag(delta) + b"\x01\x01\x00" for delta in deltas]
    body = b"".join(encode_zigzag(len(each)) + each for each in bodies)
    batch = bytearray(some(1)[:61]) + records_module.codecs.compress(codec, body)
    batch[ATTRIBUTES_AT + 1] |= codec
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">i", batch, LAST_DELTA_AT, last_delta)
    pack_into(">i", batch, COUNT_AT, len(deltas))
    return resealed(batch)


@pytest.mark.parametrize("deltas", [[0, 3], [-1, 0], [1, 0], [0, 0], [0, 2**31], [0, -(2**62)]])
def test_a_record_outside_of_its_batch_s_offsets_is_damage(deltas: list[int]) -> None:
    """Otherwise it would be left out in silence by who reads the offsets it should have had."""
    assert offsets(unnumbered(Codec.NONE, [0, 2], 2)) == [0, 2]
    with pytest.raises(RecordsDamaged, match="numbered"):
        rows(unnumbered(Codec.NONE, deltas, 2))


@pytest.mark.parametrize("last_delta", [-1, -(2**31)])
def test_a_batch_that_ends_before_it_begins_is_damage(last_delta: int) -> None:
    batch = bytearray(some(2, 10))
    pack_into(">i", batch, LAST_DELTA_AT, last_delta)
    with pytest.raises(RecordsDamaged, match="offset 10 "):
        rows(resealed(batch))


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**63 - 1, 2**63 - 2**31])
def test_offsets_that_cannot_be_are_damage(base_offset: int) -> None:
    with pytest.raises(RecordsDamaged, match=f"offset {base_offset} "):
        place(some(2, base_offset))


def test_offsets_that_grow_too_large_on_the_way_are_damage() -> None:
    with pytest.raises(RecordsDamaged):
        place(some(2) * 2, base_offset=2**63 - 2**31 - 1)


def test_a_header_s_key_that_is_no_text_is_mended_as_java_does() -> None:
    batch = bytearray(encode_batch([(b"k", b"v", 1, [("name", b"x"), ("other", None)])]))
    batch[batch.index(b"name")] = 0xFF
    assert rows(resealed(batch))[0][4] == [("\N{REPLACEMENT CHARACTER}ame", b"x"), ("other", None)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_of_very_many_records_is_decoded_piece_by_piece(codec: Codec) -> None:
    count = 3 * records_module.GROUP_RECORDS + 5
    data = encode_batch([(None, None, 0, ())] * count, codec=codec, base_offset=7)
    sizes, found, before = [], [], pa.total_allocated_bytes()
    for each in decode(data, place(data), columns=["offset"], first=10):
        sizes.append(each.num_rows)
        found += each["offset"].to_pylist()
        most = 100 * records_module.GROUP_RECORDS + records_module._ROOM_BYTES
        assert pa.total_allocated_bytes() - before < most
    assert max(sizes) == records_module.GROUP_RECORDS
    assert found == list(range(10, 7 + count))


def test_damage_far_into_a_batch_of_very_many_records_is_found() -> None:
    count = 2 * records_module.GROUP_RECORDS
    data = unnumbered(Codec.LZ4, [*range(count - 1), 0], count - 1)
    pieces = decode(data, place(data), columns=["offset"])
    assert next(pieces).num_rows == records_module.GROUP_RECORDS
    with pytest.raises(RecordsDamaged):
        next(pieces)


def with_headers(count: int, copies: int) -> bytes:
    """A batch of `copies` records, each with so many empty headers."""
    varint = encode_zigzag
    records = [
        b"\x00\x00" + varint(n) + b"\x01\x01" + varint(count) + b"\x00\x01" * count
        for n in range(copies)
    ]
    body = b"".join(varint(len(each)) + each for each in records)
    batch = bytearray(some(1)[:61]) + records_module.codecs.compress(Codec.ZSTD, body)
    batch[ATTRIBUTES_AT + 1] |= Codec.ZSTD
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">i", batch, LAST_DELTA_AT, copies - 1)
    pack_into(">i", batch, COUNT_AT, copies)
    return resealed(batch)


def test_headers_without_end_do_not_become_memory_without_end() -> None:
    most = records_module.kernels.MOST_HEADERS
    data = with_headers(most // 4, 9)
    pieces = list(decode(data, place(data), columns=["offset", "headers"]))
    assert [piece.num_rows for piece in pieces] == [4, 4, 1]
    assert sum(len(piece["headers"].flatten()) for piece in pieces) == 9 * (most // 4)
    with pytest.raises(RecordsDamaged, match=f"more than {most} headers"):
        list(decode(with_headers(most + 1, 1), place(with_headers(most + 1, 1))))


def test_a_batch_that_unfolds_without_end_is_refused_by_its_offset() -> None:
    batch = bytearray(some(1, 40)[:61]) + bytes(cramjam.zstd.compress(bytes(2**20))) * 129
    batch[ATTRIBUTES_AT + 1] |= Codec.ZSTD
    pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(RecordsDamaged, match=r"offset 40 .* unfold to more than") as caught:
        rows(resealed(batch))
    assert caught.value.offset == 40
