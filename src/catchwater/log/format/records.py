"""The records inside a stored batch, one by one: for compaction, which must open them.

A record stays the bytes it is; only where the batch's base timestamp changes is its timestamp
delta written anew. Decompression is capped (`wire.codecs`), and what cannot be opened is said to
be `Unopened`, never guessed. Byte layout: Apache Kafka, "Record Batch" and "Record" (KIP-98), with
the delete horizon of KIP-534.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from catchwater.config import CatchwaterError
from catchwater.log.format.batches import LEADER_EPOCH, StoredBatch
from catchwater.objects.base import Buffer
from catchwater.wire.batch import (
    COMMIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    VARLONG_BYTES,
    BatchHeader,
    assembled,
    encode_zigzag,
    marker_type,
    read_zigzag,
)
from catchwater.wire.codecs import MAX_DECOMPRESSED_BYTES, CodecError, compress, decompress


class Unopened(CatchwaterError):
    """The batch's records cannot be read: damaged inside, or larger than the cap when unfolded."""


class Record(NamedTuple):
    """One record of a batch; `key` is None where it has none."""

    offset_delta: int
    timestamp_delta: int
    key: memoryview | None
    is_tombstone: bool
    data: memoryview
    """All of it, its length in front."""
    after_timestamp: memoryview
    """What follows its timestamp delta."""


def open_records(
    header: BatchHeader, data: memoryview, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The batch's records, in order of ascending offsets. Raises `Unopened`.

    `max_bytes` is how much they may be when unfolded.
    """
    try:
        view = decompress(header.compression, data[HEADER_BYTES:], max_bytes=max_bytes)
        records, at, last = [], 0, -1
        for _ in range(header.record_count):
            record, at = _record(view, at)
            if not last < record.offset_delta <= header.last_offset_delta:
                raise CodecError(f"Offset delta {record.offset_delta} follows {last}.")
            last = record.offset_delta
            records.append(record)
        if at != len(view):
            raise CodecError(f"{len(view) - at} bytes follow the last record.")
    except (CodecError, IndexError) as error:
        raise Unopened(f"The batch at offset {header.base_offset} is not opened: {error}") from None
    return records


def values_of(view: memoryview, count: int) -> Iterator[bytes | None]:
    """The values of a batch's records, unfolded and walked before; None for a tombstone."""
    at = 0
    for _ in range(count):
        size, start = read_zigzag(view, at, VARLONG_BYTES)
        at = start + size
        _, behind = read_zigzag(view, start + 1, VARLONG_BYTES)
        _, behind = read_zigzag(view, behind, VARLONG_BYTES)
        key_bytes, behind = read_zigzag(view, behind, VARLONG_BYTES)
        value_bytes, behind = read_zigzag(view, behind + max(key_bytes, 0), VARLONG_BYTES)
        yield None if value_bytes < 0 else bytes(view[behind : behind + value_bytes])


def _record(view: memoryview, start: int) -> tuple[Record, int]:
    size, at = read_zigzag(view, start, VARLONG_BYTES)
    end = at + size
    if size < 0 or end > len(view):
        raise IndexError("a record ends past the batch.")
    at += 1  # a byte of attributes
    timestamp_delta, after_timestamp = read_zigzag(view, at, VARLONG_BYTES)
    offset_delta, at = read_zigzag(view, after_timestamp, VARLONG_BYTES)
    key_bytes, at = read_zigzag(view, at, VARLONG_BYTES)
    key = None if key_bytes < 0 else view[at : at + key_bytes]
    value_bytes, at = read_zigzag(view, at + max(key_bytes, 0), VARLONG_BYTES)
    if at > end:
        raise IndexError("a record's fields end past it.")
    record = Record(
        offset_delta, timestamp_delta, key, value_bytes < 0, view[start:end],
        view[after_timestamp:end],
    )  # fmt: skip
    return record, end


def rewritten(
    batch: StoredBatch, kept: Sequence[Record], horizon_ms: int | None
) -> tuple[BatchHeader, bytes]:
    """The batch with only these of its records; offsets, timestamps and producer stay.

    `horizon_ms` becomes its delete horizon; None leaves it as it is.
    """
    old = batch.header
    base_timestamp = old.base_timestamp if horizon_ms is None else horizon_ms
    later_ms = old.base_timestamp - base_timestamp
    if later_ms:
        records = b"".join(_moved(record, later_ms) for record in kept)
    else:
        records = b"".join(record.data for record in kept)
    newest = max(old.base_timestamp + record.timestamp_delta for record in kept)
    header = old._replace(
        attributes=old.attributes | (DELETE_HORIZON_BIT if horizon_ms is not None else 0),
        base_timestamp=base_timestamp,
        max_timestamp=old.max_timestamp if old.log_append_time else newest,
        record_count=len(kept),
    )
    return _encode(header, compress(old.compression, records))


def empty(offset: int) -> tuple[BatchHeader, bytes]:
    """A batch without records at this offset, which readers of a cleaned range arrive at."""
    header = BatchHeader(
        offset,
        HEADER_BYTES,
        LEADER_EPOCH,
        MAGIC,
        0,
        0,
        0,
        -1,
        -1,
        NO_PRODUCER_ID,
        -1,
        NO_SEQUENCE,
        0,
    )
    return _encode(header, b"")


def delete_horizon(header: BatchHeader) -> int | None:
    """From when on, in milliseconds since 1970, the batch's tombstones may go; None: not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def is_commit_marker(records: Sequence[Record]) -> bool:
    """Whether a control batch's records end a transaction with effect (KIP-98)."""
    return bool(records) and marker_type(records[0].key) == COMMIT


def _encode(header: BatchHeader, body: Buffer) -> tuple[BatchHeader, bytes]:
    return assembled(header._replace(leader_epoch=LEADER_EPOCH, magic=MAGIC), body)


def _moved(record: Record, later_ms: int) -> bytes:
    """The record with its timestamp as the difference to a base so much earlier."""
    delta = encode_zigzag(record.timestamp_delta + later_ms)
    # The attributes of a record are one byte, without a meaning yet: 0.
    size = 1 + len(delta) + len(record.after_timestamp)
    return b"".join((encode_zigzag(size), b"\0", delta, record.after_timestamp))
