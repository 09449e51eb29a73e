"""The bytes of a state object: they come back, or something is said to be wrong with them."""

import struct

import cramjam
import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state import frame
from catchwater.state.entries import Table, no_changes
from catchwater.state.frame import (
    EntryTooLarge,
    FrameDamaged,
    Header,
    decode_object,
    encode_body,
    encode_object,
)
from catchwater.state.roll import EMPTY, Piece, Position, Roll

AT = Position(7, "token")
CHANGES = st.tuples(
    *[st.dictionaries(st.binary(max_size=9), st.none() | st.binary(max_size=20)) for _ in Table]
)


def header_of(body, **fields):
    return Header("delta", "f", 3, AT, 0, len(body.blocks), **fields)


def read(data):
    header, blocks = decode_object(data)
    together = no_changes()
    for changes in blocks:
        for table in Table:
            together[table].update(changes[table])
    return header, together


@settings(deadline=None)
@given(CHANGES, st.integers(1, 500), st.integers(1, 5), st.data())
def test_changes_come_back_in_their_order_whatever_the_blocks(changes, block, entries, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "BLOCK_BYTES", block)
        patch.setattr(frame, "_BLOCK_ENTRIES", entries)
        body = encode_body(changes)
    roll = Roll(pieces=(Piece(AT, 7, AT, body.entries, body.weight, body.size_bytes),))
    header = header_of(body, base=EMPTY, roll=roll)
    whole = b"".join(encode_object(header, body))
    window = data.draw(st.integers(1, len(whole)))
    found, together = read(whole[at : at + window] for at in range(0, len(whole), window))
    assert found == header
    assert [list(table.items()) for table in together] == [list(t.items()) for t in changes]
    assert body.entries == sum(map(len, changes))
    assert all(size <= block or block < 200 for size, _ in body.blocks)


def one_entry(value):
    changes = no_changes()
    changes[Table.RECORD][b"key"] = value
    return changes


def test_the_same_changes_make_the_same_bytes():
    first, second = (encode_body(one_entry(b"value")) for _ in range(2))
    assert encode_object(header_of(first), first) == encode_object(header_of(second), second)


def test_blocks_of_two_objects_cannot_be_exchanged():
    one, other = encode_body(one_entry(b"one")), encode_body(one_entry(b"two"))
    data = encode_object(header_of(one), one)
    foreign = encode_object(Header("delta", "g", 3, AT, 0, 1), other)
    with pytest.raises(FrameDamaged, match="checksum"):
        read([*data[:2], *foreign[2:]])


def test_an_entry_that_no_object_can_hold_is_named(monkeypatch):
    monkeypatch.setattr(frame, "BLOCK_BYTES", 100)
    monkeypatch.setattr(frame, "LARGEST_FRAME_BYTES", 1000)
    changes = one_entry(bytes(2000))
    changes[Table.SEEN][b"other"] = b"small"
    with pytest.raises(EntryTooLarge, match=r"key.*of table RECORD takes 20"):
        encode_body(changes)


def crafted(*frames):
    """Frames with good checksums around any bytes."""
    data, crc = b"", 0
    for size, packed in frames:
        crc = crc32c(packed, crc32c(struct.pack(">II", len(packed), size), crc))
        data += struct.pack(">4sIII", b"CWS1", crc, len(packed), size) + packed
    return data


def zstd(plain):
    return bytes(cramjam.zstd.compress(plain))


GOOD = msgspec.msgpack.encode(Header("delta", "f", 3, AT, 0, 1))


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "ends in the middle"),
        (b"XXXX" + bytes(12), "does not begin as it must"),
        (crafted((1 << 30, b"x")), "claims 1073741824 bytes"),
        (crafted((1, zstd(bytes(1 << 20)))), "cannot be decompressed"),
        (crafted((50, zstd(b"short"))), "has 5 bytes where it claims 50"),
        (crafted((5, b"no zstd")), "cannot be decompressed"),
        (crafted((5, zstd(b"\xc1\xc1\xc1\xc1\xc1"))), "no header of ours"),
        (crafted((len(GOOD), zstd(GOOD)), (1, zstd(b"\x01"))), "no list of tables"),
        (crafted((len(GOOD), zstd(GOOD)), (1, zstd(b"\x90"))), "has 0 tables"),
        (crafted((len(GOOD), zstd(GOOD))), "ends in the middle"),
    ],
)
def test_crafted_bytes_are_refused_and_cost_no_memory(data, reason):
    with pytest.raises(FrameDamaged, match=reason):
        read([data])
