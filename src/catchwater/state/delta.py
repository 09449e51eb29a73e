"""What Spark's state store holds of a shard: a snapshot in chunks, and the deltas after it.

Both are zstd-compressed msgpack behind a 12-byte header (magic, CRC-32C, uncompressed size). A
delta says which (version, token) it leads from and to: the token is drawn anew for every attempt
at an epoch, so two attempts at the same version can never be mistaken for each other. Changes
stand in the order they were made, which is the same whenever the input is (sorting them would cost
more than everything else here); a snapshot is in the order of its keys.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.state.entries import Changes, Entries, Table, no_changes
from catchwater.state.roll import EMPTY, Position

CHUNK_BYTES = 4 << 20
"""A snapshot chunk holds about this much before compression."""

_HEADER = struct.Struct(">4sII")
_MAGIC_DELTA = b"CWD1"
_MAGIC_CHUNK = b"CWS1"
_LEVEL = 1

MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class ShardDamaged(CatchwaterError):
    """What the checkpoint holds of a shard is broken or does not fit together."""


class Delta(msgspec.Struct, array_like=True):
    """The changes of one epoch."""

    function: str
    base: Position
    to: Position
    changes: list[dict[bytes, bytes | None]]


class Chunk(msgspec.Struct, array_like=True):
    """A part of a snapshot, at most one table's."""

    function: str
    at: Position
    index: int
    last: bool
    table: Table
    entries: dict[bytes, bytes]


def encode_delta(function: str, base: Position, to: Position, changes: Changes) -> bytes:
    """The delta's bytes."""
    return _frame(_MAGIC_DELTA, Delta(function, base, to, list(changes)))


def decode_delta(data: bytes) -> Delta:
    """A delta; ShardDamaged if its bytes are not what was written."""
    return _unframe(_MAGIC_DELTA, data, Delta)


def encode_snapshot(
    function: str, at: Position, entries: Entries, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[bytes]:
    """All entries as chunks, in order; at least one chunk, the last one says so."""
    waiting = Chunk(function, at, 0, False, Table.RECORD, {})
    for table, part in _parts(entries, chunk_bytes):
        if waiting.entries:
            yield _frame(_MAGIC_CHUNK, waiting)
            waiting.index += 1
        waiting.table, waiting.entries = table, part
    waiting.last = True
    yield _frame(_MAGIC_CHUNK, waiting)


def decode_snapshot(function: str, chunks: Iterable[bytes]) -> Iterator[Chunk]:
    """The chunks of one snapshot, checked to be complete and in order."""
    previous: Chunk | None = None
    for data in chunks:
        chunk = _unframe(_MAGIC_CHUNK, data, Chunk)
        follows = (previous.at, previous.index + 1) if previous else (chunk.at, 0)
        if chunk.function != function or (chunk.at, chunk.index) != follows:
            raise ShardDamaged(
                f"Snapshot chunk {chunk.index} of {chunk.function!r} at version "
                f"{chunk.at.version} stands where chunk {follows[1]} of {function!r} at version "
                f"{follows[0].version} belongs."
            )
        yield chunk
        previous = chunk
    if previous is not None and not previous.last:
        raise ShardDamaged(
            f"The snapshot of {function!r} at version {previous.at.version} ends after chunk "
            f"{previous.index}; its last chunk is missing."
        )


def restore(
    function: str, chunks: Iterable[bytes], deltas: Iterable[bytes]
) -> Iterator[tuple[Position, Changes]]:
    """What to apply, in order, to an empty store, and where each step leads.

    Deltas that the snapshot contains are skipped. Raises ShardDamaged at a gap or a foreign part.
    """
    at = EMPTY
    for chunk in decode_snapshot(function, chunks):
        at = chunk.at
        changes = no_changes()
        changes[chunk.table].update(chunk.entries)
        yield at, changes
    for delta in map(decode_delta, deltas):
        if delta.to.version <= at.version:
            continue
        if delta.base != at or delta.function != function:
            raise ShardDamaged(
                f"The delta of {delta.function!r} from version {delta.base.version} does not "
                f"follow version {at.version} of {function!r}."
            )
        at = delta.to
        yield at, tuple(delta.changes)


def _parts(entries: Entries, chunk_bytes: int) -> Iterator[tuple[Table, dict[bytes, bytes]]]:
    for table in Table:
        part: dict[bytes, bytes] = {}
        size = 0
        for key, value in entries.scan(table):
            part[key] = value
            size += len(key) + len(value)
            if size >= chunk_bytes:
                yield table, part
                part, size = {}, 0
        if part:
            yield table, part


def _frame(magic: bytes, message: msgspec.Struct) -> bytes:
    plain = msgspec.msgpack.encode(message)
    packed = bytes(cramjam.zstd.compress(plain, level=_LEVEL))
    return _HEADER.pack(magic, crc32c(packed), len(plain)) + packed


def _unframe(magic: bytes, data: bytes, message_type: type[MessageT]) -> MessageT:
    size = len(data)
    if size < _HEADER.size:
        raise ShardDamaged(f"A shard's delta or snapshot chunk has only {size} bytes.")
    found, crc, plain_size = _HEADER.unpack_from(data)
    packed = memoryview(data)[_HEADER.size :]
    if found != magic or crc32c(packed) != crc:
        raise ShardDamaged(
            f"{size} bytes of a shard's state are not a whole {message_type.__name__.lower()}: "
            "the checksum does not match."
        )
    plain = cramjam.zstd.decompress(packed, output_len=plain_size)
    return msgspec.msgpack.decode(bytes(plain), type=message_type)
