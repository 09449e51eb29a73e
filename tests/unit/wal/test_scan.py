"""A WAL file's bytes, whole and damaged: every frame found is one that was written."""

import random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wal.file import file_header, frame_header
from catchwater.wal.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    WalTooNew,
    scan,
)

SALT = 0x1234_5678_9ABC_DEF0


def frame(sequence: int, payload: bytes, salt: int = SALT) -> bytes:
    header = frame_header(sequence, salt, len(payload), crc32c(payload))
    return header + payload + bytes(-len(payload) % 8)


def file_of(payloads: list[bytes], first: int = 1) -> bytes:
    frames = [frame(first + index, payload) for index, payload in enumerate(payloads)]
    return file_header(first, SALT) + b"".join(frames)


def payloads_of(data: bytes, first: int = 1) -> dict[int, bytes]:
    found = scan("f", data, first)
    return {f.sequence: data[f.payload : f.payload + f.size] for f in found.frames}


@given(st.lists(st.binary(max_size=70), max_size=8), st.integers(1, 2**60))
def test_what_was_written_is_found(payloads: list[bytes], first: int) -> None:
    found = scan("f", data := file_of(payloads, first), first)
    assert [data[f.payload : f.payload + f.size] for f in found.frames] == payloads
    assert not found.damage
    assert found.end == len(data)
    assert found.last_sequence == first + len(payloads) - 1


def test_cut_at_every_byte_the_whole_frames_before_the_cut_are_found() -> None:
    payloads = [b"a" * 3, b"", b"b" * 100, b"c" * 8]
    data = file_of(payloads)
    written = dict(enumerate(payloads, start=1))
    ends = [f.payload + f.size for f in scan("f", data, 1).frames]
    for cut in range(len(data)):
        whole = sum(end <= cut for end in ends) if cut >= FILE_HEADER_BYTES else 0
        assert payloads_of(data[:cut]) == {n: written[n] for n in range(1, whole + 1)}


@given(st.integers(0), st.integers(0, 7))
@settings(max_examples=600)
def test_a_flipped_bit_never_gives_other_bytes(at: int, bit: int) -> None:
    rng = random.Random(7)
    payloads = [rng.randbytes(rng.randrange(60)) for _ in range(12)]
    data = bytearray(file_of(payloads))
    data[at % len(data)] ^= 1 << bit
    written = dict(enumerate(payloads, start=1))
    found = scan("f", bytes(data), 1)
    got = payloads_of(bytes(data))
    assert got.items() <= written.items()
    lost = set(written) - set(got)
    reported = {n for d in found.damage for n in range(d.first_sequence, d.last_sequence + 1)}
    reported |= {n for n in written if n > found.last_sequence}
    assert lost == reported


def test_damage_is_reported_with_its_bytes_and_its_frames() -> None:
    data = bytearray(file_of([b"x" * 24] * 5))
    second = scan("f", bytes(data), 1).frames[1]
    data[second.payload] ^= 1
    (damage,) = scan("f", bytes(data), 1).damage
    assert damage.file == "f"
    assert damage.first_byte == second.payload - FRAME_HEADER_BYTES
    assert damage.last_byte == second.end - 1
    assert (damage.first_sequence, damage.last_sequence) == (2, 2)


def test_a_frame_inside_a_torn_payload_is_not_taken_for_one_of_ours() -> None:
    forged = frame(9, b"not ours", salt=SALT + 1)
    data = file_of([b"ours"]) + frame(2, forged + bytes(64))[:-30]
    found = scan("f", data, 1)
    assert found.last_sequence == 1
    assert not found.damage


def test_a_file_without_an_intact_header_has_no_frames() -> None:
    data = bytearray(file_of([b"x"]))
    data[9] ^= 1
    assert not scan("f", bytes(data), 1).header_intact
    assert not scan("f", file_of([b"x"], first=4), 1).header_intact


def test_a_newer_format_is_refused_by_name() -> None:
    data = bytearray(file_of([]))
    data[4:6] = (3).to_bytes(2, "big")
    data[24:28] = crc32c(bytes(data[:24])).to_bytes(4, "big")
    with pytest.raises(WalTooNew, match=r"f has WAL format version 3"):
        scan("f", bytes(data), 1)
