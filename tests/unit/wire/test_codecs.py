"""Every codec against the framings that other clients write, within its cap."""

import gzip
import random

import cramjam
import lz4.frame
import pytest
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from hypothesis import given
from hypothesis import strategies as st

from catchwater.wire.codecs import Codec, CodecError, DecompressionBomb, compress, decompress

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
