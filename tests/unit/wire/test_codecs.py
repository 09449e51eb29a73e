"""Every codec against the framings that other clients write, within its cap."""

import gzip
import random
import subprocess
import sys
import tracemalloc
from functools import partial

import cramjam
import lz4.frame
import pytest
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from hypothesis import given
from hypothesis import strategies as st

from catchwater.wire.codecs import (
    Codec,
    CodecError,
    DecompressionBomb,
    compress,
    decompress,
    decompress_checked,
)

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"a line that repeats itself, and a number: " * 5000


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize(
    ("codec", "written"),
    [
        (Codec.GZIP, gzip_encode(TEXT)),
        (Codec.SNAPPY, snappy_encode(TEXT)),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Codec.LZ4, lz4_encode(TEXT)),
        (Codec.LZ4, lz4.frame.compress(TEXT, store_size=False, block_linked=True)),
        (Codec.ZSTD, zstd_encode(TEXT)),
    ],
    ids=["gzip", "snappy xerial", "snappy raw", "lz4", "lz4 without size", "zstd"],
)
def test_other_writers_are_understood(codec: Codec, written: bytes) -> None:
    assert decompress(codec, written) == TEXT


def test_a_zstd_frame_without_a_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT)
    frame = bytes(compressor.finish())
    descriptor = frame[4]
    assert descriptor >> 6 == 0 and not descriptor & 0x20, "a streaming writer gives no size"
    assert decompress(Codec.ZSTD, frame) == TEXT


def test_several_gzip_members_are_one_stream() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT) + gzip.compress(b"and more")) == (
        TEXT + b"and more"
    )


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_before_it_unfolds(codec: Codec) -> None:
    bomb = compress(codec, bytes(20_000_000))
    assert len(bomb) < 2_000_000
    with pytest.raises(DecompressionBomb, match="1000000 bytes allowed"):
        decompress(codec, bomb, max_bytes=1_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_exactly_the_cap_is_allowed(codec: Codec) -> None:
    assert decompress(codec, compress(codec, TEXT), max_bytes=len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("spare", [-1, 0, 1000])
def test_room_that_is_given_is_used_where_it_suffices(codec: Codec, spare: int) -> None:
    room = bytearray(len(TEXT) + spare)
    found = decompress(codec, compress(codec, TEXT), room=memoryview(room))
    assert found == TEXT
    assert (found.obj is room) == (spare >= 0)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_room_beyond_the_cap_allows_no_more_than_it(codec: Codec) -> None:
    room = memoryview(bytearray(2 * len(TEXT)))
    with pytest.raises(DecompressionBomb):
        decompress(codec, compress(codec, TEXT), max_bytes=len(TEXT) - 1, room=room)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_that_end_early_are_an_error(codec: Codec) -> None:
    written = bytes(compress(codec, TEXT))
    for size in (0, 1, 5, len(written) // 2, len(written) - 1):
        with pytest.raises(CodecError):
            assert decompress(codec, written[:size]) == TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
def test_damaged_bytes_raise_nothing_else(codec: Codec) -> None:
    chance = random.Random(1)
    written = bytes(compress(codec, TEXT))
    for _ in range(300):
        damaged = bytearray(written)
        for _ in range(3):
            damaged[chance.randrange(min(len(damaged), 200))] = chance.randrange(256)
        try:
            decompress(codec, damaged, max_bytes=1_000_000)
        except CodecError:
            pass


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_do_not_exist_are_named(codec: int) -> None:
    with pytest.raises(CodecError, match=f"no compression codec {codec}"):
        decompress(codec, b"")
    with pytest.raises(CodecError, match=f"no compression codec {codec}"):
        compress(codec, b"")


BOMBS = """
import gzip, zlib
import cramjam, lz4.frame
from catchwater.wire.codecs import Codec, CodecError, DecompressionBomb, decompress

MIB = 2**20
CAP = 4 * MIB
zeros = bytes(MIB)
zstd, flat = cramjam.zstd.Compressor(), zlib.compressobj(9, 8, 31)
lz = lz4.frame.LZ4FrameCompressor()
parts = [lz.begin()]
for _ in range(256):
    zstd.compress(zeros)
    parts += [lz.compress(zeros)]
def peak_kib():
    # Of this program alone: ru_maxrss begins with what the parent had.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
gzipped = b"".join(flat.compress(zeros) for _ in range(256)) + flat.flush()
unsized = cramjam.zstd.Compressor()
unsized.compress(zeros)
block = bytes(cramjam.snappy.compress_raw(zeros))
xerial = bytes.fromhex("82534e41505059000000000100000001")
sized = lz4.frame.compress(zeros, store_size=True)
bombs = {
    "gzip, one member": (Codec.GZIP, gzipped),
    "gzip, many members": (Codec.GZIP, gzip.compress(zeros) * 256),
    "gzip, a small member last": (Codec.GZIP, gzipped + gzip.compress(b"x")),
    "snappy, xerial": (Codec.SNAPPY, xerial + (len(block).to_bytes(4, "big") + block) * 256),
    "lz4, one frame": (Codec.LZ4, b"".join([*parts, lz.flush()])),
    "lz4, many frames": (Codec.LZ4, sized * 256),
    "zstd, no size": (Codec.ZSTD, bytes(zstd.finish())),
    "zstd, many frames": (Codec.ZSTD, bytes(cramjam.zstd.compress(zeros)) * 256),
    "zstd, many frames, no size": (Codec.ZSTD, bytes(unsized.finish()) * 256),
}
for name, (codec, bomb) in bombs.items():
    before = peak_kib()
    try:
        decompress(codec, bomb, max_bytes=CAP)
    except DecompressionBomb:
        pass
    else:
        raise SystemExit(f"{name} was not refused")
    grown = peak_kib() - before
    if grown * 1024 > CAP + 12 * MIB:
        raise SystemExit(f"{name} took {grown} KiB")
"""


def test_no_form_of_a_bomb_takes_much_more_than_the_cap() -> None:
    """256 MiB against a cap of 4, in a process of its own, where the peak is theirs alone."""
    done = subprocess.run(
        [sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("codec", "written"),
    [
        (Codec.GZIP, gzip.compress(b"few")[:-4] + (100_000_000).to_bytes(4, "little")),
        (Codec.SNAPPY, b"\x80\xc2\xd7\x2f" + b"few"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x40" + (100_000_000).to_bytes(8, "little") + bytes(9)),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xa0" + (100_000_000).to_bytes(4, "little") + bytes(9)),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little") + bytes(9)),
    ],
    ids=["gzip", "snappy", "lz4", "zstd", "zstd beyond any memory"],
)
def test_a_size_that_so_few_bytes_cannot_have_gets_no_memory(codec: Codec, written: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError) as caught:
            decompress(codec, written)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert not isinstance(caught.value, DecompressionBomb), "it is damaged, and no bomb"


def test_an_honest_ratio_is_not_taken_for_a_lie() -> None:
    zeros = bytes(20_000_000)
    for codec in COMPRESSING:
        assert decompress(codec, compress(codec, zeros)) == zeros


@pytest.mark.parametrize("size", [8, 9, 15])
def test_a_snappy_header_that_is_cut_short_is_an_error(size: int) -> None:
    with pytest.raises(CodecError, match="header"):
        decompress(Codec.SNAPPY, bytes(compress(Codec.SNAPPY, TEXT))[:size])


def test_very_many_snappy_blocks_take_no_memory_each() -> None:
    written = bytes(compress(Codec.SNAPPY, b""))[:16] + b"\0\0\0\1\0" * 20_000
    tracemalloc.start()
    try:
        assert decompress(Codec.SNAPPY, written) == b""
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


# What every client reads, and not only some of them.

LARGE = TEXT * 30  # what is large goes another way
MEMBER, FRAME, ZSTD = (
    bytes(compress(codec, TEXT)) for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD)
)


@pytest.mark.parametrize("room", [None, 2**20, 2**23])
@pytest.mark.parametrize("data", [b"x", TEXT, LARGE], ids=["a byte", "text", "large"])
@pytest.mark.parametrize(
    ("codec", "write"),
    [
        *((codec, partial(compress, codec)) for codec in COMPRESSING),
        (Codec.GZIP, gzip_encode),
        (Codec.GZIP, gzip.compress),
        (Codec.SNAPPY, snappy_encode),
        (Codec.SNAPPY, cramjam.snappy.compress_raw),
        (Codec.LZ4, lz4_encode),
        *(
            (Codec.LZ4, partial(lz4.frame.compress, block_linked=False, block_size=size, **more))
            for size in range(4, 8)
            for more in ({"content_checksum": True}, {"block_checksum": True, "store_size": False})
        ),
        (Codec.ZSTD, zstd_encode),
    ],
)
def test_what_clients_write_passes_the_check(codec: Codec, write, data: bytes, room) -> None:
    memory = memoryview(bytearray(room)) if room else None
    written = bytes(write(data))
    assert decompress_checked(codec, written, max_bytes=2**24, room=memory) == data
    if len(data) > 1:
        with pytest.raises(DecompressionBomb):
            decompress_checked(codec, written, max_bytes=len(data) - 1, room=memory)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("codec", COMPRESSING)
def test_what_is_before_or_behind_one_frame_is_refused(codec: Codec, large: bool) -> None:
    written, empty = (bytes(compress(codec, data)) for data in (LARGE if large else TEXT, b""))
    for data in (
        b"",
        empty + written,
        written + written,
        written + b"\0",
        written[:-1],
        b"\0" * 20,
    ):
        with pytest.raises(CodecError):
            decompress_checked(codec, data, max_bytes=2**25)


@pytest.mark.parametrize(
    ("codec", "written"),
    [
        (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True)),
        (Codec.LZ4, FRAME[:4] + bytes([FRAME[4] | 1]) + FRAME[5:]),  # with a dictionary
        (Codec.LZ4, b"\x50\x2a\x4d\x18\0\0\0\0" + FRAME),  # a frame to be skipped
        (Codec.ZSTD, b"\x50\x2a\x4d\x18\0\0\0\0" + ZSTD),
        (Codec.SNAPPY, b"\x82SNAPPY\0" + bytes(8) + bytes(snappy_encode(TEXT))[16:]),
        (Codec.GZIP, MEMBER[:-1] + b"\x7f"),  # a size that lies
        (Codec.GZIP, MEMBER[:-4] + b"\1\0\0\0"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x70" + b"\xff" * 60),  # a size beyond all memory
    ],
)
def test_what_only_some_clients_read_is_refused(codec: Codec, written: bytes) -> None:
    with pytest.raises(CodecError):
        decompress_checked(codec, written, max_bytes=2**32)
