"""A chunk: batches of many partitions side by side, with an index in front of them.

One chunk is the payload of one WAL frame, or one staged object of a sink. The byte table is in
`docs/formats.md`. Encoding copies no batch: it returns a list of buffers to be written one
after the other. Decoding reads the header and the index only; a batch has its own CRC, which
the reader of a batch checks.

Batches keep the base offset they came with: their real offsets are in the catalog.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from catchwater.catalog.rows import (
    PartitionKey,
)
from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wire.batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchError,
    BatchHeader,
    check,
    check_crc,
    read_single,
)
from catchwater.wire.batch import marker as marker_batch

MAGIC = b"CWCK"
VERSION = 2
"""Chunks without transactions are still written as version 1, which older releases read."""
MAX_CHUNK_BYTES = 2**32 - 1

TRANSACTIONAL = TRANSACTIONAL_BIT
CONTROL = CONTROL_BIT
KAFKAS_ATTRIBUTES = 0xFF
# Ours, where Kafka has nothing: what stands there in the batch itself is not looked at.
COMMIT = 0x100
ADDS_PARTITION = 0x200

_HEADER = struct.Struct(">4sHHqIII")
_CRC = struct.Struct(">I")
_new_tuple = tuple.__new__
_ENTRY = struct.Struct(">16siIIqhiiiqh")
HEADER_BYTES = _HEADER.size + _CRC.size
ENTRY_BYTES = _ENTRY.size


class ChunkError(CatchwaterError):
    """These bytes are no chunk, or a damaged one."""


class Entry(NamedTuple):
    """What the index says of one batch; the numbers are those of the batch's own header."""

    topic_id: bytes
    partition: int
    byte_offset: int
    """From the first byte of the chunk."""
    size_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_offset_delta: int
    record_count: int
    max_timestamp: int
    attributes: int
    """The batch's own (16 bits, KIP-98) and in its high byte what only the index knows."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_commit(self) -> bool:
        """Of a control batch: commit or abort."""
        return bool(self.attributes & COMMIT)

    @property
    def adds_partition(self) -> bool:
        """Whether the batch makes its partition part of the transaction (KIP-890)."""
        return bool(self.attributes & ADDS_PARTITION)


class Chunk(NamedTuple):
    """A decoded index; `size_bytes` is the length the whole chunk must have."""

    created_ms: int
    entries: list[Entry]
    size_bytes: int


def marker(
    producer_id: int, epoch: int, *, committed: bool, started_ms: int
) -> tuple[BatchHeader, memoryview]:
    """The batch that ends a transaction, and its header as the index takes it.

    The index says in a bit of its own what consumers read in the record. The timestamp is the time
    the transaction began, so that the marker names its transaction.
    """
    header, data = marker_batch(producer_id, epoch, committed=committed, timestamp_ms=started_ms)
    bits = header.attributes | (COMMIT if committed else 0)
    return header._replace(attributes=bits), memoryview(data)


def index_bytes(batches: int) -> int:
    """What a chunk of so many batches has before them."""
    return HEADER_BYTES + ENTRY_BYTES * batches


def encode(
    batches: Sequence[tuple[PartitionKey, BatchHeader, Buffer]], created_ms: int
) -> tuple[list[Buffer], Chunk]:
    """The buffers of a chunk that holds these batches, and the index as a reader will see it.

    The batches keep the order given: bring those of one partition together, and
    they become one run. `created_ms` is the time of the append, milliseconds. The headers'
    attributes may bear the index's own bits.
    """
    at = HEADER_BYTES + ENTRY_BYTES * len(batches)
    entries: list[Entry] = []
    parts: list[Buffer] = [b""]
    all_attributes = 0
    for (topic_id, partition), header, data in batches:
        # Unpacked at once: this is done for every batch, and names cost more than places.
        _, size, _, _, _, attributes, delta, _, newest, producer, epoch, sequence, count = header
        assert len(data) == size, "a batch is as long as its header says"
        fields = (topic_id, partition, at, size, producer, epoch, sequence, delta, count, newest,
                  attributes)  # fmt: skip
        entries.append(_new_tuple(Entry, fields))
        parts.append(data)
        at += size
        all_attributes |= attributes
    assert at <= MAX_CHUNK_BYTES, "the appender bounds a chunk far below the format's limit"
    index = b"".join([_ENTRY.pack(*entry) for entry in entries])
    version = VERSION if all_attributes & TRANSACTIONAL else 1
    head = _HEADER.pack(MAGIC, version, 0, created_ms, len(entries), len(index), crc32c(index))
    parts[0] = b"".join((head, _CRC.pack(crc32c(head)), index))
    return parts, Chunk(created_ms, entries, at)


def decode_index(view: Buffer) -> Chunk:
    """Read header and index. Raises `ChunkError`; the batches are not looked at."""
    view = memoryview(view)
    if len(view) < HEADER_BYTES:
        raise ChunkError(f"A chunk has at least {HEADER_BYTES} bytes, this one has {len(view)}.")
    head = view[: _HEADER.size]
    magic, version, _flags, created_ms, count, index_bytes, index_crc = _HEADER.unpack(head)
    if magic != MAGIC:
        raise ChunkError(f"A chunk begins with {MAGIC!r}, this begins with {bytes(magic)!r}.")
    if _CRC.unpack_from(view, _HEADER.size)[0] != crc32c(head):
        raise ChunkError("The chunk's header is damaged: its checksum is wrong.")
    if version > VERSION:
        raise ChunkError(
            f"The chunk has format version {version}; this release reads up to {VERSION}.",
            hint="Upgrade Catchwater.",
        )
    index = view[HEADER_BYTES : HEADER_BYTES + index_bytes]
    if len(index) != index_bytes or index_bytes != count * ENTRY_BYTES:
        raise ChunkError(f"The chunk's index of {count} batches is cut short or too long.")
    if crc32c(index) != index_crc:
        raise ChunkError("The chunk's index is damaged: its checksum is wrong.")
    entries = [Entry._make(fields) for fields in _ENTRY.iter_unpack(index)]
    return Chunk(created_ms, entries, _end(entries, HEADER_BYTES + index_bytes))


def decode(view: Buffer) -> Chunk:
    """Read a whole chunk and check all of it: its length, its index, and every batch.

    Raises `ChunkError`.
    """
    view = memoryview(view)
    chunk = decode_index(view)
    if chunk.size_bytes != len(view):
        raise ChunkError(f"The chunk has {len(view)} bytes, but its index says {chunk.size_bytes}.")
    for entry in chunk.entries:
        batch = view[entry.byte_offset : entry.byte_offset + entry.size_bytes]
        try:
            header = read_single(batch)
            if header.is_control:
                check_crc(batch, header)
            else:
                check(batch, header)
        except BatchError as error:
            raise ChunkError(
                f"The chunk's batch at byte {entry.byte_offset} is refused: {error.reason}"
            ) from error
        *fields, attributes = (getattr(header, name) for name in entry._fields[4:])
        if entry[4:-1] != tuple(fields) or (entry.attributes ^ attributes) & KAFKAS_ATTRIBUTES:
            raise ChunkError(f"The chunk's index and its batch at {entry.byte_offset} disagree.")
    return chunk


def _end(entries: Sequence[Entry], at: int) -> int:
    """Where the last batch ends, if they lie side by side from `at` on."""
    for entry in entries:
        if entry.byte_offset != at:
            raise ChunkError(
                f"The chunk's index has a batch at byte {entry.byte_offset}, not {at}."
            )
        at += entry.size_bytes
    return at
