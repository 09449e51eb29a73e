"""The bytes of a state object: a header, then blocks of entries (docs/formats.md).

Every frame is zstd behind magic, CRC-32C and sizes. The CRC begins with that of the frame before,
so a block that is missing, foreign or elsewhere than it was written does not pass. The header says
how many blocks follow. No frame is decompressed into more than `LARGEST_FRAME_BYTES`.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.state.entries import Changes, Table
from catchwater.state.roll import Position, Roll

LARGEST_FRAME_BYTES = 256 << 20
BLOCK_BYTES = 2 << 20
"""A block of more bytes than this is split, if it has more than one entry."""

_BLOCK_ENTRIES = 8192
_FRAME = struct.Struct(">4sIII")
_SIZES = struct.Struct(">II")
_MAGIC = b"CWS1"
_LEVEL = 1


class FrameDamaged(CatchwaterError):
    """Bytes that are not what was written; says what is wrong, not where they lie."""


class EntryTooLarge(CatchwaterError):
    """An entry of state that no object can hold."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What an object is, and of whom; `number` tells an attempt's chunks apart."""

    kind: str
    """`delta`, `merged` or `chunk`."""
    function: str
    shard: int
    by: Position
    number: int
    blocks: int
    base: Position | None = None
    """Of a delta: what it leads on from."""
    roll: Roll | None = None
    """Of a delta: all that its position needs, itself included."""


class Body(NamedTuple):
    """Entries as blocks that are not framed yet."""

    blocks: list[tuple[int, bytes]]
    """Size before compression, and the compressed bytes."""
    entries: int
    weight: int
    size_bytes: int


_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_block = msgspec.msgpack.Decoder(list[dict[bytes, bytes | None]]).decode


def encode_body(changes: Changes) -> Body:
    """Changes as blocks, in the order they were made. Raises EntryTooLarge."""
    blocks = [
        (len(plain), bytes(cramjam.zstd.compress(plain, level=_LEVEL)))
        for part in _parts(changes)
        for plain in _encode(part)
    ]
    return Body(
        blocks,
        sum(map(len, changes)),
        sum(size for size, _ in blocks),
        sum(_FRAME.size + len(packed) for _, packed in blocks),
    )


def encode_object(header: Header, body: Body) -> list[bytes]:
    """The object's bytes, in parts."""
    plain = msgspec.msgpack.encode(header)
    packed = bytes(cramjam.zstd.compress(plain, level=_LEVEL))
    parts: list[bytes] = []
    crc = 0
    for size, data in ((len(plain), packed), *body.blocks):
        crc = _crc(data, size, crc)
        parts += (_FRAME.pack(_MAGIC, crc, len(data), size), data)
    return parts


def decode_object(windows: Iterable[bytes]) -> tuple[Header, Iterator[Changes]]:
    """Header and blocks of an object that comes in parts of any size. Raises FrameDamaged."""
    frames = _Frames(windows)
    try:
        header = _decode_header(frames.next())
    except msgspec.DecodeError as error:
        raise FrameDamaged(f"its header is no header of ours: {error}") from None
    return header, _blocks(frames, header.blocks)


def _blocks(frames: "_Frames", count: int) -> Iterator[Changes]:
    for _ in range(count):
        try:
            tables = _decode_block(frames.next())
        except msgspec.DecodeError as error:
            raise FrameDamaged(f"a block is no list of tables: {error}") from None
        if len(tables) != len(Table):
            raise FrameDamaged(f"a block has {len(tables)} tables, not {len(Table)}")
        yield tuple(tables)
    frames.end()


class _Frames:
    """Takes frames off the bytes as they come."""

    def __init__(self, windows: Iterable[bytes]) -> None:
        self._windows = iter(windows)
        self._held = b""
        self._at = 0
        self._crc = 0

    def next(self) -> bytearray:
        """The next frame, decompressed."""
        magic, crc, packed_size, size = _FRAME.unpack(self._take(_FRAME.size))
        if magic != _MAGIC:
            raise FrameDamaged("a frame does not begin as it must")
        if max(size, packed_size) > LARGEST_FRAME_BYTES:
            raise FrameDamaged(f"a frame claims {max(size, packed_size)} bytes")
        packed = self._take(packed_size)
        self._crc = _crc(packed, size, self._crc)
        if self._crc != crc:
            raise FrameDamaged("a checksum does not match")
        plain = bytearray(size)
        try:
            found = cramjam.zstd.decompress_into(packed, plain)
        except cramjam.DecompressionError as error:
            raise FrameDamaged(f"a frame cannot be decompressed: {error}") from None
        if found != size:
            raise FrameDamaged(f"a frame has {found} bytes where it claims {size}")
        return plain

    def end(self) -> None:
        """There must be no more bytes."""
        if self._at < len(self._held) or any(self._windows):
            raise FrameDamaged("bytes follow the last block")

    def _take(self, size: int) -> memoryview:
        while len(self._held) - self._at < size:
            more = next(self._windows, b"")
            if not more:
                raise FrameDamaged("it ends in the middle of a frame")
            self._held = self._held[self._at :] + more
            self._at = 0
        self._at += size
        return memoryview(self._held)[self._at - size : self._at]


def _crc(packed: bytes | memoryview, size: int, before: int) -> int:
    return int(crc32c(packed, crc32c(_SIZES.pack(len(packed), size), before)))


def _parts(changes: Changes) -> Iterator[Changes]:
    """The changes in parts of a few thousand entries; as they are, if they are no more."""
    if sum(map(len, changes)) <= _BLOCK_ENTRIES:
        if any(changes):
            yield changes
        return
    for table, changed in zip(Table, changes, strict=True):
        items = iter(changed.items())
        while part := dict(islice(items, _BLOCK_ENTRIES)):
            yield _only(table, part)


def _only(table: Table, part: dict[bytes, bytes | None]) -> Changes:
    return tuple(part if other == table else {} for other in Table)


def _encode(changes: Changes) -> Iterator[bytes]:
    plain = msgspec.msgpack.encode(changes)
    entries = sum(map(len, changes))
    if len(plain) <= BLOCK_BYTES or entries == 1:
        if len(plain) > LARGEST_FRAME_BYTES:
            where, key = next((t, k) for t, d in zip(Table, changes, strict=True) for k in d)
            raise EntryTooLarge(
                f"The entry {key[:60]!r}… of table {where.name} takes {len(plain)} bytes; state "
                f"can have entries of at most {LARGEST_FRAME_BYTES}.",
                hint="Keep less in one key: a map state has an entry of its own for each of its "
                "keys.",
            )
        yield plain
        return
    share = max(entries * BLOCK_BYTES // len(plain), 1)
    del plain
    for table, changed in zip(Table, changes, strict=True):
        items = iter(changed.items())
        while part := dict(islice(items, share)):
            yield from _encode(_only(table, part))
