"""A segment: an immutable object with the batches of one partition and all it takes to read them.

The byte table is docs/formats.md. Batches carry their final offsets; behind them lie a
sparse index, the aborted transactions and a footer with the topic's name and id, so a segment is
readable without any database. Encoding copies no batch. All that follows the batches is covered by
a CRC-32C, batches by their own, so damage anywhere is noticed by the reader of the damaged part,
and named by byte range.

A segment holds every offset from its first to its last, unless it was *cleaned* by compaction:
then offsets may be missing in front of a batch, but never behind the last one. Its key says so.

Relies on `wire.batch` for batch headers. Does not know the catalog, which says what is live.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.log.format.batches import LEADER_EPOCH, DamagedObject, StoredBatch, walk
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wire.batch import (
    CRC_COVERS_FROM,
    LENGTH_FIELD_END,
    MAGIC,
    BatchHeader,
    put_head,
    read_fields,
)
from catchwater.wire.batch import HEADER_BYTES as BATCH_HEADER_BYTES

VERSION = 2
INDEX_STRIDE_BYTES = 64 * 1024
CLEANED_STRIDE_BYTES = 1024 * 1024
"""What lies between two index entries of a cleaned segment can only be verified as a whole."""

_CLEANED = ".cleaned.seg"
_CLEANED_FLAG = 1
_MAGIC = b"CWSG"
_END_MAGIC = b"CWSE"
_HEADER = struct.Struct(">4sHH")
_FOOTER = struct.Struct(">16siqqqqIQQIH")
# What follows the fixed footer from version 2 on: flags, number of aborted transactions.
_MORE = struct.Struct(">HI")
_ENTRY_1 = struct.Struct(">qQq")
_ENTRY = struct.Struct(">qQqI")
_ABORTED = struct.Struct(">qqq")
_CRC = struct.Struct(">I")
_TAIL = struct.Struct(">IHH4s")
HEADER_BYTES = _HEADER.size
_ENDING_BYTES = 64 * 1024
"""Read from the end at first: holds footer and index of any segment up to about 160 MiB."""


class SegmentTooNew(CatchwaterError):
    """The segment was written by a newer release."""


class IndexEntry(NamedTuple):
    """A batch that begins at `position`; the rest is about it and those up to the next entry."""

    base_offset: int
    """Of the batch, or of the hole in front of it: the offset behind the batch before."""
    position: int
    max_timestamp: int
    heads_crc: int = 0
    """CRC-32C over the batches' base offsets; version 1 has none, and no holes."""


class AbortedTxn(NamedTuple):
    """The producer's records from `first_offset` to the marker at `last_offset` are void."""

    producer_id: int
    first_offset: int
    last_offset: int


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
    aborted: tuple[AbortedTxn, ...] = ()
    """Those with records or marker here that were known when the segment was written."""
    is_cleaned: bool = False
    """Written by compaction: offsets may be missing in front of a batch."""


class SegmentWriter:
    """Gathers the batches of one segment, in offset order; at least one.

    Without `cleaned_from` batches follow each other without a hole, and come a run at a time
    through `add`; with it they may leave out offsets from there on, and come one by one through
    `put`.
    """

    def __init__(
        self, topic_id: bytes, topic: str, partition: int, *, cleaned_from: int | None = None
    ) -> None:
        self._place = (topic_id, topic, partition)
        self._is_cleaned = cleaned_from is not None
        self._stride = CLEANED_STRIDE_BYTES if self._is_cleaned else INDEX_STRIDE_BYTES
        self._parts: list[Buffer] = [_HEADER.pack(_MAGIC, VERSION, 0)]
        self._position = HEADER_BYTES
        self._index: list[IndexEntry] = []
        # The entry that is not in the index yet begins at (offset, position), and these batches are
        # its own: base offset, first and newest timestamp, records.
        self._entry_at = (cleaned_from or 0, HEADER_BYTES)
        self._noted: list[tuple[int, int, int, int]] = []
        self._first_offset = self._next_offset = cleaned_from or 0
        self._batches = self._records = 0
        self._min_timestamp = self._max_timestamp = -1

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch."""
        return self._next_offset

    def add(
        self,
        data: bytearray | memoryview,
        base_offset: int,
        last_offset: int,
        *,
        key: str,
        position: int,
        placed: bool,
    ) -> None:
        """Add the batches of a run: verify each as `walk` does, and write its offset into `data`.

        The arguments are those of `walk`. Raises `DamagedObject`; the segment is spoilt then.
        """
        assert not self._is_cleaned, "where offsets are missing they cannot be counted"
        if not self._noted:
            self._first_offset = self._next_offset = base_offset
            self._entry_at = (base_offset, HEADER_BYTES)
        assert base_offset == self._next_offset, "offsets are consecutive"
        view, at, end, offset = memoryview(data), 0, len(data), base_offset
        note, before = self._noted.append, self._position
        entry_ends_at = self._entry_at[1] + self._stride - before
        # All that is packed comes through this loop, small batches by the million. So it is one
        # pass, without a call or an object of ours for each; what is wrong only ends it.
        while at + BATCH_HEADER_BYTES <= end:
            (base, length, leader_epoch, magic, crc, _, last_offset_delta, first_ms, newest_ms,
             _, _, _, records) = read_fields(view, at)  # fmt: skip
            behind = at + length + LENGTH_FIELD_END
            if magic != MAGIC or not at + BATCH_HEADER_BYTES <= behind <= end:
                break
            if crc32c(view[at + CRC_COVERS_FROM : behind]) != crc:
                break
            if not placed:
                put_head(view, at, offset, length, LEADER_EPOCH)
            elif base != offset or leader_epoch != LEADER_EPOCH:
                break
            if at >= entry_ends_at:
                self._end_entry(offset, before + at)
                entry_ends_at = at + self._stride
            note((offset, first_ms, newest_ms, records))
            offset += last_offset_delta + 1
            at = behind
        if at < end or offset != last_offset + 1:
            # `walk` has the same rules, and says what is wrong.
            found = walk(view, base_offset, last_offset, key=key, position=position, placed=placed)
            deque(found, maxlen=0)
            raise AssertionError(f"`walk` finds nothing wrong with {key} at byte {position}")
        self._next_offset = offset
        self._position += end
        self._parts.append(view)

    def put(self, header: BatchHeader, data: Buffer) -> None:
        """Add one batch that carries its final offset."""
        assert self._is_cleaned and header.base_offset >= self._next_offset, "offsets ascend"
        if self._position - self._entry_at[1] >= self._stride:
            self._end_entry(self._next_offset, self._position)
        self._noted.append(
            (header.base_offset, header.base_timestamp, header.max_timestamp, header.record_count)
        )
        self._next_offset = header.last_offset + 1
        self._position += header.size_bytes
        self._parts.append(data)

    def _end_entry(self, offset: int, position: int) -> None:
        """Put the entry of the batches noted into the index; another one begins here."""
        bases, firsts_ms, newest_ms, records = zip(*self._noted, strict=True)
        crc = crc32c(struct.pack(f">{len(bases)}q", *bases))
        self._index.append(IndexEntry(*self._entry_at, max(newest_ms), crc))
        oldest_ms = min(firsts_ms)
        self._min_timestamp = min(self._min_timestamp, oldest_ms) if self._batches else oldest_ms
        self._max_timestamp = max(self._max_timestamp, *newest_ms)
        self._batches += len(bases)
        self._records += sum(records)
        self._noted.clear()
        self._entry_at = (offset, position)

    def finish(self, aborted: Iterable[AbortedTxn] = ()) -> tuple[list[Buffer], Footer]:
        """The segment as parts to be written one after the other, and its footer."""
        self._end_entry(self._next_offset, self._position)
        topic_id, topic, partition = self._place
        footer = Footer(
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            base_offset=self._first_offset,
            last_offset=self._next_offset - 1,
            batch_count=self._batches,
            record_count=self._records,
            min_timestamp=self._min_timestamp,
            max_timestamp=self._max_timestamp,
            index_position=self._position,
            index=tuple(self._index),
            aborted=tuple(aborted),
            is_cleaned=self._is_cleaned,
        )
        return [*self._parts, _encode_ending(footer)], footer


def segment_key(footer: Footer, token: str) -> str:
    """The object key of a new segment; the token makes it one that nothing ever had."""
    ending = _CLEANED if footer.is_cleaned else ".seg"
    place = f"{footer.topic_id.hex()}/{footer.partition}"
    return f"segments/{place}/{footer.base_offset:020d}-{token}{ending}"


def is_header(data: Buffer) -> bool:
    """Whether a segment begins with these bytes; readers do not look at them."""
    magic, version, reserved = _HEADER.unpack(data)
    return bool(magic == _MAGIC and 1 <= version <= VERSION and reserved == 0)


def is_cleaned(object_key: str) -> bool:
    """Whether offsets may be missing in this segment."""
    return object_key.endswith(_CLEANED)


def batches_of(footer: Footer, key: str, data: Buffer) -> Iterator[StoredBatch]:
    """All batches of a segment; `data` is what lies between header and index.

    Raises `DamagedObject`; every byte is verified.
    """
    view = memoryview(data)
    end = IndexEntry(footer.last_offset + 1, footer.index_position, 0)
    for entry, after in zip(footer.index, (*footer.index[1:], end), strict=True):
        yield from walk(
            view[entry.position - HEADER_BYTES : after.position - HEADER_BYTES],
            entry.base_offset,
            after.base_offset - 1,
            key=key,
            position=entry.position,
            placed=True,
            holes=entry.heads_crc if footer.is_cleaned else None,
        )


def _encode_ending(footer: Footer) -> bytes:
    index = b"".join(_ENTRY.pack(*entry) for entry in footer.index)
    aborted = b"".join(_ABORTED.pack(*txn) for txn in footer.aborted)
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
    more = _MORE.pack(_CLEANED_FLAG if footer.is_cleaned else 0, len(footer.aborted))
    covered = index + aborted + fixed + more + name
    footer_bytes = len(fixed) + len(more) + len(name) + _CRC.size
    return covered + _CRC.pack(crc32c(covered)) + _TAIL.pack(footer_bytes, VERSION, 0, _END_MAGIC)


def read_footer(objects: ObjectStore, key: str) -> Footer:
    """The footer and index of the segment `key`, in one or two reads of its end.

    Raises `DamagedObject`, `SegmentTooNew`, or the store's errors.
    """
    size = objects.size(key)
    at = max(0, size - _ENDING_BYTES)
    ending = objects.get_range(key, at, size - at)
    ending_bytes = _layout(key, ending, size).ending_bytes
    if ending_bytes > len(ending):
        ending = objects.get_range(key, size - ending_bytes, ending_bytes)
    return decode_ending(key, ending, size)


def decode_ending(key: str, ending: Buffer, size: int) -> Footer:
    """The footer from the last bytes of a segment of `size` bytes: its index and what follows."""
    layout = _layout(key, ending, size)
    view = memoryview(ending)[-layout.ending_bytes :]
    covered = view[: -_CRC.size - _TAIL.size]
    (crc,) = _CRC.unpack_from(view, len(covered))
    if crc32c(covered) != crc:
        first_byte = size - len(view)
        raise DamagedObject(key, first_byte, size - 1, "index or footer fail their checksum.")
    (topic_id, partition, base_offset, last_offset, min_timestamp, max_timestamp, batch_count,
     record_count, index_position, _, _) = layout.fixed  # fmt: skip
    index = covered[: layout.index_bytes]
    aborted = covered[layout.index_bytes : layout.index_bytes + layout.aborted_bytes]
    return Footer(
        topic_id=topic_id,
        topic=bytes(covered[len(covered) - layout.name_bytes :]).decode(),
        partition=partition,
        base_offset=base_offset,
        last_offset=last_offset,
        batch_count=batch_count,
        record_count=record_count,
        min_timestamp=min_timestamp,
        max_timestamp=max_timestamp,
        index_position=index_position,
        index=tuple(IndexEntry(*fields) for fields in layout.entry.iter_unpack(index)),
        aborted=tuple(AbortedTxn(*fields) for fields in _ABORTED.iter_unpack(aborted)),
        is_cleaned=bool(layout.flags & _CLEANED_FLAG),
    )


class _Layout(NamedTuple):
    """How long the parts behind the batches are, by the lengths that lie there."""

    fixed: Sequence[Any]
    flags: int
    entry: struct.Struct
    index_bytes: int
    aborted_bytes: int
    footer_bytes: int

    @property
    def name_bytes(self) -> int:
        return int(self.fixed[-1])

    @property
    def ending_bytes(self) -> int:
        """From the index on to the end of the object."""
        return self.index_bytes + self.aborted_bytes + self.footer_bytes + _TAIL.size


def _layout(key: str, ending: Buffer, size: int) -> _Layout:
    view = memoryview(ending)
    if len(view) < _FOOTER.size + _CRC.size + _TAIL.size:
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
    fixed_bytes = _FOOTER.size + (_MORE.size if version > 1 else 0)
    if not fixed_bytes + _CRC.size <= footer_bytes <= tail_at:
        reason = f"its footer claims {footer_bytes} bytes."
        raise DamagedObject(key, size - _TAIL.size, size - 1, reason)
    fixed = _FOOTER.unpack_from(view, tail_at - footer_bytes)
    *_, index_position, entries, name_bytes = fixed
    flags, aborted = 0, 0
    if version > 1:
        flags, aborted = _MORE.unpack_from(view, tail_at - footer_bytes + _FOOTER.size)
    entry = _ENTRY if version > 1 else _ENTRY_1
    layout = _Layout(
        fixed, flags, entry, entries * entry.size, aborted * _ABORTED.size, footer_bytes
    )
    lengths_agree = fixed_bytes + name_bytes + _CRC.size == footer_bytes
    if not lengths_agree or index_position + layout.ending_bytes != size:
        reason = "the lengths in its footer disagree."
        raise DamagedObject(key, size - footer_bytes - _TAIL.size, size - 1, reason)
    return layout
