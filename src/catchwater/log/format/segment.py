"""A segment: an immutable object with the batches of one partition and all it takes to read them.

The byte table is docs/format/segment.md. Batches carry their final offsets; behind them lie a
sparse index and a footer with the topic's name and id, so a segment is readable without any
database. Encoding copies no batch. Index and footer are covered by a CRC-32C, batches by their
own, so damage anywhere is noticed by whoever reads the damaged part, and named by byte range.

Relies on `wire.batch` for batch headers. Does not know the catalog, which says what is live.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.log.format.batches import DamagedObject, StoredBatch, place
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wire.batch import BatchHeader

VERSION = 1
INDEX_STRIDE_BYTES = 64 * 1024

_MAGIC = b"CWSG"
_END_MAGIC = b"CWSE"
_HEADER = struct.Struct(">4sHH")
_ENTRY = struct.Struct(">qQq")
_FOOTER = struct.Struct(">16siqqqqIQQIH")
_CRC = struct.Struct(">I")
_TAIL = struct.Struct(">IHH4s")
HEADER_BYTES = _HEADER.size
_ENDING_BYTES = 64 * 1024
"""Read from the end at first: holds footer and index of any segment up to about 160 MiB."""


class SegmentTooNew(CatchwaterError):
    """The segment was written by a newer release."""


class IndexEntry(NamedTuple):
    """A batch that begins at `position`; the timestamp is the largest up to the next entry."""

    base_offset: int
    position: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What a segment says of itself. Offsets are inclusive, timestamps in milliseconds."""

    topic_id: bytes
    topic: str
    partition: int
    base_offset: int
    last_offset: int
    batch_count: int
    record_count: int
    min_timestamp: int
    """Smallest first timestamp of a batch; a batch's later records may be older still."""
    max_timestamp: int
    index_position: int
    """Where the index begins and the batches end."""
    index: tuple[IndexEntry, ...]

    def entry_at(self, offset: int) -> int:
        """The number of the index entry from which a search for this offset begins."""
        assert self.base_offset <= offset <= self.last_offset, f"offset {offset} lies elsewhere"
        return bisect_right(self.index, offset, key=lambda entry: entry.base_offset) - 1


class SegmentWriter:
    """Gathers the runs of one segment, in offset order; at least one."""

    def __init__(self, topic_id: bytes, topic: str, partition: int) -> None:
        self._place = (topic_id, topic, partition)
        self._parts: list[Buffer] = [_HEADER.pack(_MAGIC, VERSION, 0)]
        self._position = HEADER_BYTES
        self._index: list[IndexEntry] = []
        self._first_offset = self._last_offset = -1
        self._batches = self._records = 0
        self._min_timestamp = self._max_timestamp = -1

    def add(self, data: bytearray, base_offset: int, batches: Iterable[StoredBatch]) -> None:
        """Add the batches that lie side by side in `data`, and write their offsets into it.

        `batches` are the same batches as `walk` gives them; what it raises, this raises.
        """
        if self._batches == 0:
            self._first_offset, self._last_offset = base_offset, base_offset - 1
        for batch in batches:
            self._note(batch.header)
        self._parts.append(place(data, base_offset).data)

    def _note(self, header: BatchHeader) -> None:
        assert header.base_offset == self._last_offset + 1, "offsets are consecutive"
        index, newest = self._index, header.max_timestamp
        if not index or self._position - index[-1].position >= INDEX_STRIDE_BYTES:
            index.append(IndexEntry(header.base_offset, self._position, newest))
        elif newest > index[-1].max_timestamp:
            index[-1] = index[-1]._replace(max_timestamp=newest)
        if self._batches == 0 or header.base_timestamp < self._min_timestamp:
            self._min_timestamp = header.base_timestamp
        self._max_timestamp = max(self._max_timestamp, newest)
        self._last_offset = header.last_offset
        self._batches += 1
        self._records += header.record_count
        self._position += header.size_bytes

    def finish(self) -> tuple[list[Buffer], Footer]:
        """The segment as parts to be written one after the other, and its footer."""
        topic_id, topic, partition = self._place
        footer = Footer(
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            base_offset=self._first_offset,
            last_offset=self._last_offset,
            batch_count=self._batches,
            record_count=self._records,
            min_timestamp=self._min_timestamp,
            max_timestamp=self._max_timestamp,
            index_position=self._position,
            index=tuple(self._index),
        )
        return [*self._parts, _encode_ending(footer)], footer


def _encode_ending(footer: Footer) -> bytes:
    index = b"".join(_ENTRY.pack(*entry) for entry in footer.index)
    name = footer.topic.encode()
    fixed = _FOOTER.pack(
        footer.topic_id,
        footer.partition,
        footer.base_offset,
        footer.last_offset,
        footer.min_timestamp,
        footer.max_timestamp,
        footer.batch_count,
        footer.record_count,
        footer.index_position,
        len(footer.index),
        len(name),
    )
    covered = index + fixed + name
    footer_bytes = len(fixed) + len(name) + _CRC.size
    return covered + _CRC.pack(crc32c(covered)) + _TAIL.pack(footer_bytes, VERSION, 0, _END_MAGIC)


def read_footer(objects: ObjectStore, key: str) -> Footer:
    """The footer and index of the segment `key`, in one or two reads of its end.

    Raises `DamagedObject`, `SegmentTooNew`, or the store's errors.
    """
    size = objects.size(key)
    at = max(0, size - _ENDING_BYTES)
    ending = objects.get_range(key, at, size - at)
    index_bytes = _index_bytes(key, ending, size)
    if index_bytes > len(ending):
        at = size - index_bytes
        ending = objects.get_range(key, at, index_bytes)
    return decode_ending(key, ending, size)


def decode_ending(key: str, ending: Buffer, size: int) -> Footer:
    """The footer from the last bytes of a segment of `size` bytes: its index and what follows."""
    view = memoryview(ending)[-_index_bytes(key, ending, size) :]
    first_byte = size - len(view)
    covered = view[: -_CRC.size - _TAIL.size]
    (crc,) = _CRC.unpack_from(view, len(covered))
    if crc32c(covered) != crc:
        raise DamagedObject(key, first_byte, size - 1, "index or footer fail their checksum.")
    footer_bytes, *_ = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    at = len(view) - _TAIL.size - footer_bytes
    (topic_id, partition, base_offset, last_offset, min_timestamp, max_timestamp, batch_count,
     record_count, index_position, _, name_bytes) = _FOOTER.unpack_from(view, at)  # fmt: skip
    name_at = at + _FOOTER.size
    return Footer(
        topic_id=topic_id,
        topic=bytes(view[name_at : name_at + name_bytes]).decode(),
        partition=partition,
        base_offset=base_offset,
        last_offset=last_offset,
        batch_count=batch_count,
        record_count=record_count,
        min_timestamp=min_timestamp,
        max_timestamp=max_timestamp,
        index_position=index_position,
        index=tuple(IndexEntry(*fields) for fields in _ENTRY.iter_unpack(view[:at])),
    )


def _index_bytes(key: str, ending: Buffer, size: int) -> int:
    """The bytes from the index on to the end of the object, by the lengths that lie there."""
    view = memoryview(ending)
    smallest = _FOOTER.size + _CRC.size
    if len(view) < smallest + _TAIL.size:
        raise DamagedObject(key, 0, max(0, size - 1), f"{size} bytes are too few for a segment.")
    tail_at = len(view) - _TAIL.size
    footer_bytes, version, _, magic = _TAIL.unpack_from(view, tail_at)
    if magic != _END_MAGIC:
        reason = "it does not end as a segment does; it was cut off or overwritten."
        raise DamagedObject(key, size - _TAIL.size, size - 1, reason)
    if version > VERSION:
        raise SegmentTooNew(
            f"{key} has format version {version}, and this release reads up to {VERSION}.",
            hint="Run a Catchwater release at least as new as the one that wrote it.",
        )
    if not smallest <= footer_bytes <= tail_at:
        reason = f"its footer claims {footer_bytes} bytes."
        raise DamagedObject(key, size - _TAIL.size, size - 1, reason)
    *_, index_position, entries, name_bytes = _FOOTER.unpack_from(view, tail_at - footer_bytes)
    index_bytes = entries * _ENTRY.size + footer_bytes + _TAIL.size
    if smallest + name_bytes != footer_bytes or index_position + index_bytes != size:
        reason = "the lengths in its footer disagree."
        raise DamagedObject(key, size - footer_bytes - _TAIL.size, size - 1, reason)
    return int(index_bytes)
