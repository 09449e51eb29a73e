"""Stored batches of one partition, taken one after the other.

Batches lie side by side with consecutive offsets, both in a run of a chunk and in a segment. In a
chunk they still carry base offset 0, in a segment the final one. `walk` gives each with its final
offset, and notices every changed byte: the record CRC covers most of a batch, and the rest of its
header (base offset, leader epoch) is known from the place it lies in. Only compaction leaves holes
between batches; base offsets then have a CRC of their own.
`place` writes the final offsets into the bytes, so that many batches can be sent as one.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wire.batch import (
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_FIELD_END,
    BatchError,
    BatchHeader,
    check_crc,
    put_leader_epoch,
    put_offset,
    read_extent,
    read_header,
    read_offset,
    record_deltas,
)
from catchwater.wire.codecs import CodecError, decompress

LEADER_EPOCH = 0
"""No partition of ours has a leader, so the epoch that clients compare never changes."""


class DamagedObject(CatchwaterError):
    """Stored bytes are not those that were written; both bytes are inclusive."""

    def __init__(self, key: str, first_byte: int, last_byte: int, reason: str) -> None:
        super().__init__(
            f"{key} is damaged in bytes {first_byte} to {last_byte}: {reason}",
            hint="Restore this object from a copy; what lies in other objects is still served.",
        )
        self.key = key
        self.first_byte = first_byte
        self.last_byte = last_byte


class StoredBatch(NamedTuple):
    """A batch where it lies. `header.base_offset` is final; the bytes may say otherwise."""

    header: BatchHeader
    position: int
    """Of its first byte in the object."""
    data: memoryview


class Block(NamedTuple):
    """Batches side by side that carry their final offsets; both arrays are by batch."""

    data: memoryview
    last_offsets: "array[int]"
    ends: "array[int]"
    """Where each batch ends, in bytes from the beginning of the block."""

    def span(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[int, int]:
        """First byte and end of the batches from the one that holds `offset` on that fit."""
        first = bisect_left(self.last_offsets, offset)
        start = self.ends[first - 1] if first else 0
        after = bisect_right(self.ends, start + max_bytes)
        if at_least_one:
            after = max(after, first + 1)
        return start, self.ends[after - 1] if after > first else start


def place(data: bytearray | memoryview, base_offset: int) -> Block:
    """Write final offsets and leader epochs into batches whose bytes are known to be right.

    This runs for every batch that is read at the tail, so it looks at two fields and no more.
    """
    view = memoryview(data)
    last_offsets, ends = array("q"), array("q")
    at = 0
    while at < len(view):
        length, last_offset_delta = read_extent(view, at)
        put_offset(view, at, base_offset)
        put_leader_epoch(view, at + LEADER_EPOCH_AT, LEADER_EPOCH)
        base_offset += last_offset_delta + 1
        at += length + LENGTH_FIELD_END
        last_offsets.append(base_offset - 1)
        ends.append(at)
    assert at == len(view), "the batches fill the run"
    return Block(view.toreadonly(), last_offsets, ends)


def placed_block(data: Buffer) -> Block:
    """Batches that carry their final offsets already, and whose bytes are known to be right."""
    view = memoryview(data)
    last_offsets, ends = array("q"), array("q")
    at = 0
    while at < len(view):
        length, last_offset_delta = read_extent(view, at)
        last_offsets.append(read_offset(view, at)[0] + last_offset_delta)
        at += length + LENGTH_FIELD_END
        ends.append(at)
    assert at == len(view), "the batches fill the run"
    return Block(view.toreadonly(), last_offsets, ends)


def whole_batches(data: Buffer, base_offset: int) -> tuple[int, int]:
    """How many of these bytes are whole batches, and the offset that follows them.

    By the batches' headers, which are not verified.
    """
    at = 0
    while at + HEADER_BYTES <= len(data):
        length, last_offset_delta = read_extent(data, at)
        if length < HEADER_BYTES - LENGTH_FIELD_END or at + length + LENGTH_FIELD_END > len(data):
            break
        at += length + LENGTH_FIELD_END
        base_offset += last_offset_delta + 1
    return at, base_offset


def heads_crc(base_offset: int, crc: int = 0) -> int:
    """The CRC-32C over base offsets (i64, one a batch) up to `crc`, with one more."""
    return int(crc32c(base_offset.to_bytes(8, "big", signed=True), crc))


def walk(
    data: Buffer,
    base_offset: int,
    last_offset: int,
    *,
    key: str,
    position: int,
    placed: bool,
    holes: int | None = None,
) -> Iterator[StoredBatch]:
    """The batches in `data`, which begins at byte `position` of the object `key`.

    They are known to hold `base_offset` to `last_offset`; `placed` says that they carry final
    offsets. Where offsets may be missing in front of a batch, `holes` is the CRC over the base
    offsets. Raises `DamagedObject`.
    """
    view = memoryview(data)
    at = crc = 0
    while at < len(view):
        try:
            header = read_header(view, at)
        except BatchError as error:
            last = position + len(view) - 1
            raise DamagedObject(key, position + at, last, error.reason) from None
        batch = view[at : at + header.size_bytes]
        if holes is not None:
            base_offset = max(base_offset, header.base_offset)
            crc = heads_crc(header.base_offset, crc)
        _verify(batch, header, base_offset if placed else None, key, position + at)
        yield StoredBatch(header._replace(base_offset=base_offset), position + at, batch)
        base_offset += header.last_offset_delta + 1
        at += header.size_bytes
    if base_offset != last_offset + 1:
        reason = f"offset {last_offset} should be the last, but it is {base_offset - 1}."
        raise DamagedObject(key, position, position + len(view) - 1, reason)
    if holes not in (None, crc):
        reason = "the batches' base offsets fail their checksum."
        raise DamagedObject(key, position, position + len(view) - 1, reason)


def _verify(
    batch: memoryview, header: BatchHeader, base_offset: int | None, key: str, position: int
) -> None:
    last = position + len(batch) - 1
    if base_offset is not None and header.base_offset != base_offset:
        reason = f"the batch says offset {header.base_offset}, but {base_offset} lies here."
        raise DamagedObject(key, position, last, reason)
    if base_offset is not None and header.leader_epoch != LEADER_EPOCH:
        reason = f"the batch says leader epoch {header.leader_epoch}, which was never written."
        raise DamagedObject(key, position, last, reason)
    try:
        check_crc(batch, header)
    except BatchError as error:
        raise DamagedObject(key, position, last, error.reason) from None


def first_record_at(batch: StoredBatch, timestamp_ms: int) -> tuple[int, int]:
    """Offset and timestamp of the batch's first record that is not older than `timestamp_ms`.

    The caller knows from the header that there is one. The batch is opened for it, but only
    timestamps and offsets are looked at. One that cannot be opened, or whose records carry the
    broker's time, answers for its first record.
    """
    header = batch.header
    if not header.log_append_time:
        try:
            records = decompress(header.compression, batch.data[HEADER_BYTES:])
            for offset_delta, timestamp_delta in record_deltas(records, header.record_count):
                timestamp = header.base_timestamp + timestamp_delta
                if timestamp >= timestamp_ms:
                    return header.base_offset + offset_delta, timestamp
        except (CodecError, IndexError):
            pass
    return header.base_offset, header.max_timestamp
