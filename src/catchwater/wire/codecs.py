"""Compression by Kafka's codec numbers: none, gzip, snappy, lz4, zstd.

A batch's records are compressed as one block, in the framing that the Java client settled for each
codec: gzip members, xerial's snappy blocks, the lz4 frame with independent blocks, zstd frames.
Other producers write raw snappy, and frames that say how much they hold or do not; all are read.

`decompress` reads all that can be read; `decompress_checked` what every client can read, for those
stop at different places: one frame, with blocks that stand alone, and nothing behind it.

Relies on the caller to choose the cap. Promises never to hold more than the cap of output, however
small the input that claims to be more. Does not look at what is compressed.
"""

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

import cramjam
import lz4.frame

from catchwater.config import CatchwaterError
from catchwater.wire.fields import Buffer

MAX_DECOMPRESSED_BYTES = 128 * 2**20
"""Far above any honest batch (message.max.bytes is 1 MiB unless set), far below a worker's RAM."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = Struct(">i")

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_BIT, _LZ4_CONTENT_SUM_BIT, _LZ4_BLOCK_SUM_BIT = 0x08, 0x04, 0x10
# Version 1, blocks that stand alone, no dictionary: Java's client takes no other frame.
_LZ4_KIND_BITS, _LZ4_KIND = 0xE3, 0x60
_GZIP_LOOK_BYTES = 4096
# Up to here a codec's own Python library is faster, which makes room for what it unfolds itself.
_AT_ONCE_BYTES = 4 * 2**20
_ZSTD_SINGLE_BIT, _ZSTD_CONTENT_SUM_BIT, _ZSTD_REPEATED = 0x20, 0x04, 1

# No byte of input can unfold to more (a copy of 258 in 2 bits, of 64 in 3 bytes, 255 a byte, a
# block of 128 KiB in 4 bytes). A size that claims more is wrong, and gets no memory.
_MOST_GZIP, _MOST_SNAPPY, _MOST_LZ4, _MOST_ZSTD = 1032, 22, 255, 2**15
_FIRST_GUESS = 8
_MAPPED_BYTES = 2**20
_PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS
_GROWTH = 4
# What cramjam says when the output buffer is full; every other message means damaged input.
_OUTPUT_FULL = "failed to write whole buffer"


_DecompressInto = Callable[[memoryview, bytearray | mmap | memoryview], int]


class Codec(IntEnum):
    """Kafka's codec numbers: the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CodecError(CatchwaterError):
    """Compressed bytes that cannot be read, or a codec that does not exist."""


class DecompressionBomb(CodecError):
    """Input that would unfold to more bytes than the cap."""


def compress(codec: int, data: Buffer) -> Buffer:
    """`data` in the framing that Kafka's clients expect of this codec; raises `CodecError`."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            # The Java client refuses frames whose blocks build on each other.
            return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))
    raise CodecError(f"Kafka has no compression codec {codec}; it numbers them from 0 to 4.")


def decompress(
    codec: int,
    data: Buffer,
    *,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    room: memoryview | None = None,
) -> memoryview:
    """What was compressed into `data`; raises `CodecError`, `DecompressionBomb` above the cap.

    It lies at the beginning of `room` where that is given and large enough: memory in use already
    is written to in half the time of fresh memory.
    """
    view = memoryview(data)
    room = None if room is None else room[:max_bytes]
    match codec:
        case Codec.NONE:
            return view
        case Codec.GZIP:
            claimed = _possible(_gzip_size(view), len(view) * _MOST_GZIP)
            return _unfold(cramjam.gzip.decompress_into, view, claimed, max_bytes, room)
        case Codec.SNAPPY:
            return _decompress_snappy(view, max_bytes, room)
        case Codec.LZ4:
            claimed = _possible(_lz4_size(view), len(view) * _MOST_LZ4)
            return _unfold(cramjam.lz4.decompress_into, view, claimed, max_bytes, room)
        case Codec.ZSTD:
            claimed = _possible(_zstd_size(view), len(view) * _MOST_ZSTD)
            return _unfold(cramjam.zstd.decompress_into, view, claimed, max_bytes, room)
    raise CodecError(f"Kafka has no compression codec {codec}; it numbers them from 0 to 4.")


def decompress_checked(
    codec: int, data: Buffer, *, max_bytes: int, room: memoryview | None = None
) -> memoryview:
    """As `decompress`, and refuses what some client would read otherwise or not at all.

    Raises `CodecError`, `DecompressionBomb` above the cap.
    """
    view = memoryview(data)
    match codec:
        case Codec.GZIP:
            return _decompress_gzip_member(view, max_bytes, room)
        case Codec.SNAPPY:
            if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC and not any(view[8:12]):
                raise CodecError("The version in the snappy header is 0.")
        case Codec.LZ4:
            return _decompress_lz4_frame(view, max_bytes, room)
        case Codec.ZSTD:
            _check_zstd_frame(view)
    return decompress(codec, view, max_bytes=max_bytes, room=room)


def _decompress_gzip_member(
    view: memoryview, max_bytes: int, room: memoryview | None
) -> memoryview:
    """librdkafka reads the first member of several, and others all of them."""
    claimed = _possible(_gzip_size(view), len(view) * _MOST_GZIP)
    if claimed is None:
        raise CodecError(f"{len(view)} bytes are no gzip member, or more than one.")
    if claimed > max_bytes:
        raise _bomb(len(view), max_bytes)
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        if claimed > _AT_ONCE_BYTES:
            # zlib would hold it twice. A first member that is not empty is the only one, if all
            # of them have what the last one claims.
            is_first = bool(inflater.decompress(view[:_GZIP_LOOK_BYTES], 1))
            output = decompress(Codec.GZIP, view, max_bytes=max_bytes, room=room)
            is_only = is_first and len(output) == claimed
        else:
            output = memoryview(inflater.decompress(view, claimed + 1))
            is_only = inflater.eof and not inflater.unused_data
    except zlib.error as error:
        raise CodecError(f"The compressed records are damaged: {error}.") from error
    if not is_only:
        raise CodecError("The compressed records are not one gzip member.")
    return output


def _decompress_lz4_frame(view: memoryview, max_bytes: int, room: memoryview | None) -> memoryview:
    most_bytes = _lz4_frame_bytes(view)
    claimed = _lz4_size(view)
    if claimed is not None and claimed > most_bytes:
        raise CodecError(f"The lz4 frame cannot hold the {claimed} bytes that it claims.")
    if most_bytes > _AT_ONCE_BYTES:
        return decompress(Codec.LZ4, view, max_bytes=max_bytes, room=room)
    try:
        # Ten times as fast for small frames, but nothing bounds what it returns.
        output = lz4.frame.decompress(view)
    except RuntimeError as error:
        raise CodecError(f"The compressed records are damaged: {error}.") from error
    if len(output) > max_bytes:
        raise _bomb(len(view), max_bytes)
    return memoryview(output)


def _lz4_frame_bytes(view: memoryview) -> int:
    """The most bytes that the frame's blocks can hold, found in their headers.

    Raises `CodecError` unless the frame fills `view` and is of the kind that Java's client reads.
    """
    if len(view) < 7 or view[:4] != _LZ4_MAGIC:
        raise CodecError("The compressed records do not begin with an lz4 frame.")
    flags = view[4]
    if flags & _LZ4_KIND_BITS != _LZ4_KIND:
        raise CodecError("The lz4 frame has dependent blocks, a dictionary or another version.")
    block_bytes = 1 << 2 * (view[5] >> 4 & 7) + 8
    at = 15 if flags & _LZ4_CONTENT_SIZE_BIT else 7
    most_bytes = 0
    while size := int.from_bytes(view[at : at + 4], "little") & 0x7FFFFFFF:
        at += 4 + size + (4 if flags & _LZ4_BLOCK_SUM_BIT else 0)
        most_bytes += block_bytes
    at += 4 + (4 if flags & _LZ4_CONTENT_SUM_BIT else 0)
    if at != len(view):
        raise CodecError(f"The lz4 frame has {at} bytes, but there are {len(view)}.")
    return most_bytes


def _check_zstd_frame(view: memoryview) -> None:
    """Whether one frame (RFC 8878, 3.1.1) fills `view`. Raises `CodecError`."""
    if len(view) < 6 or view[:4] != _ZSTD_MAGIC:
        raise CodecError("The compressed records do not begin with a zstd frame.")
    descriptor = view[4]
    at = _zstd_size_at(descriptor) + _zstd_size_width(descriptor)
    is_last = False
    while not is_last:
        if at + 3 > len(view):
            raise CodecError("The zstd frame ends past the compressed records.")
        head = int.from_bytes(view[at : at + 3], "little")
        is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        at += 3 + (1 if kind == _ZSTD_REPEATED else size)
    at += 4 if descriptor & _ZSTD_CONTENT_SUM_BIT else 0
    if at != len(view):
        raise CodecError(f"The zstd frame has {at} bytes, but there are {len(view)}.")


def _possible(claimed_bytes: int | None, most_bytes: int) -> int | None:
    return None if claimed_bytes is None or claimed_bytes > most_bytes else claimed_bytes


def _unfold(
    decompress_into: _DecompressInto,
    view: memoryview,
    claimed_bytes: int | None,
    max_bytes: int,
    room: memoryview | None,
) -> memoryview:
    """Decompress into `room`, or into memory of the claimed or a guessed size that may grow."""
    if claimed_bytes is not None and claimed_bytes > max_bytes:
        raise _bomb(len(view), max_bytes)
    if room is not None and (claimed_bytes or 0) <= len(room):
        found = _within(decompress_into, view, room)
        if found is not None:
            return found
    size = len(view) * _FIRST_GUESS if claimed_bytes is None else claimed_bytes
    while True:
        size = min(size, max_bytes)
        output = _room(size)
        found = _within(decompress_into, view, output)
        if found is not None:
            return found
        if size == max_bytes:
            raise _bomb(len(view), max_bytes)
        output = bytearray()  # the last one is let go before there is a larger
        size = max(size, _XERIAL_BLOCK_BYTES) * _GROWTH


def _within(
    decompress_into: _DecompressInto, view: memoryview, output: bytearray | mmap | memoryview
) -> memoryview | None:
    """What was decompressed into `output`; None if that is too small."""
    try:
        return memoryview(output)[: decompress_into(view, output)]
    except cramjam.DecompressionError as error:
        if str(error) != _OUTPUT_FULL:
            raise CodecError(f"The compressed records are damaged: {error}.") from error
        return None


def _room(size: int) -> bytearray | mmap:
    """Memory of this size: of much, only what is used is touched, and all is given back."""
    return bytearray(size) if size < _MAPPED_BYTES else mmap(-1, size, flags=_PRIVATE)


def _bomb(input_bytes: int, max_bytes: int) -> DecompressionBomb:
    return DecompressionBomb(
        f"{input_bytes} compressed bytes unfold to more than the {max_bytes} bytes allowed.",
        hint="No honest producer writes such a batch; look at who wrote it.",
    )


def _gzip_size(view: memoryview) -> int | None:
    """The last four bytes: the size of the last member modulo 2**32; right for a single member."""
    return int.from_bytes(view[-4:], "little") if len(view) >= 18 else None


def _lz4_size(view: memoryview) -> int | None:
    if len(view) < 14 or view[:4] != _LZ4_MAGIC or not view[4] & _LZ4_CONTENT_SIZE_BIT:
        return None
    return int.from_bytes(view[6:14], "little")


def _zstd_size(view: memoryview) -> int | None:
    """The frame's content size (RFC 8878, 3.1.1.1), which streaming producers leave out."""
    if len(view) < 6 or view[:4] != _ZSTD_MAGIC:
        return None
    descriptor = view[4]
    width = _zstd_size_width(descriptor)
    if width == 0:
        return None
    at = _zstd_size_at(descriptor)
    return int.from_bytes(view[at : at + width], "little") + (256 if width == 2 else 0)


def _zstd_size_at(descriptor: int) -> int:
    """Behind magic, descriptor, window (which a single segment has not) and dictionary id."""
    return 5 + (not descriptor & _ZSTD_SINGLE_BIT) + (0, 1, 2, 4)[descriptor & 3]


def _zstd_size_width(descriptor: int) -> int:
    return (1 if descriptor & _ZSTD_SINGLE_BIT else 0, 2, 4, 8)[descriptor >> 6]


def _compress_xerial(view: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
        parts += [_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _decompress_snappy(view: memoryview, max_bytes: int, room: memoryview | None) -> memoryview:
    try:
        size = 0
        for block in _snappy_blocks(view):
            claimed = cramjam.snappy.decompress_raw_len(block)
            if claimed > len(block) * _MOST_SNAPPY:
                raise CodecError(
                    f"A snappy block of {len(block)} bytes cannot hold {claimed} bytes."
                )
            size += claimed
            if size > max_bytes:
                raise _bomb(len(view), max_bytes)
        fits = room is not None and size <= len(room)
        output = room[:size] if room is not None and fits else memoryview(_room(size))
        at = 0
        for block in _snappy_blocks(view):
            at += cramjam.snappy.decompress_raw_into(block, output[at:])
        return output
    except cramjam.DecompressionError as error:
        raise CodecError(f"The snappy-compressed records are damaged: {error}.") from error


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield view
        return
    at = len(_XERIAL_HEADER)
    if len(view) < at:
        raise CodecError(f"The snappy header ends past the {len(view)} bytes.")
    while at < len(view):
        size = _LENGTH.unpack_from(view, at)[0] if at + 4 <= len(view) else -1
        if size < 0 or at + 4 + size > len(view):
            raise CodecError(f"The snappy block at byte {at} ends past the {len(view)} bytes.")
        yield view[at + 4 : at + 4 + size]
        at += 4 + size
