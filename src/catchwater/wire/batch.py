"""A record batch seen from outside: its header, its checksum, its base offset; never its records.

A batch is Kafka's record batch v2 (magic 2, KIP-98): 61 bytes of header, then the records, often
compressed. The write path and the tail-read path stay out of the records, so everything that can
be known to be wrong with a batch must be read from the header here. Base offset and leader epoch
lie before the bytes that the CRC-32C covers, and are patched without touching the rest.

Relies on the caller to keep the buffer unchanged while a view of it is in use. Promises that a
batch which passed `check` has the size it claims, an intact checksum, and a record count that its
offsets agree with. Does not look at keys, values or record timestamps, and does not decompress.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import Buffer

HEADER_BYTES = 61

NO_PRODUCER_ID = -1

_HEADER = Struct(">qiibIhiqqqhii")
# Base offset, length, leader epoch: the bytes in front of the magic byte.
_PATCHED_HEAD = Struct(">qii")
_CRC, _ATTRIBUTES, _TIMESTAMP = Struct(">I"), Struct(">h"), Struct(">q")
_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 17, 21, 35
# The length field counts from behind itself; `size_bytes` counts the whole batch.
_LENGTH_FIELD_END = 12
_MAGIC_AT = 16
_KEEP, _RELEASE, _QUICK_BYTES = 0, 1, 1 << 20
_CRC_COVERS_FROM = 21
_MAGIC = 2

_CODEC_BITS = 0x07
_LOG_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_HIGHEST_CODEC = 4
# Length, attributes, timestamp delta, offset delta, key length, value length, header count.
_SMALLEST_RECORD_BYTES = 7

_MAX_I32 = 2**31 - 1


class BatchError(ValueError):
    """A batch that must not be appended or served; `code` is what the reply says about it.

    `records` are those that are to blame, where single ones are: (index in the batch, reason).
    """

    def __init__(
        self, code: ErrorCode, reason: str, records: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.records = records


class BatchHeader(NamedTuple):
    """The header of one record batch, in wire order. Times are milliseconds since 1970."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        """Kafka's codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC_BITS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def log_append_time(self) -> bool:
        """Whether the timestamps are the broker's (true) or the producer's."""
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)


def read_header(view: memoryview, at: int = 0) -> BatchHeader:
    """The header of the batch that begins at byte `at` and lies in `view` as a whole.

    Raises `BatchError`: UNSUPPORTED_FOR_MESSAGE_FORMAT for a magic other than 2 (the magic byte
    lies at the same place in every format), CORRUPT_MESSAGE for a size that cannot be.
    """
    available = len(view) - at
    if available > _MAGIC_AT and view[at + _MAGIC_AT] != _MAGIC:
        raise BatchError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"The batch at byte {at} has magic {view[at + _MAGIC_AT]}; only magic 2 is taken.",
        )
    if available < HEADER_BYTES:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE,
            f"The {available} bytes at byte {at} are too few for a batch header of 61 bytes.",
        )
    base_offset, length, *rest = _HEADER.unpack_from(view, at)
    size_bytes = length + _LENGTH_FIELD_END
    if not HEADER_BYTES <= size_bytes <= available:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE,
            f"The batch at byte {at} claims {size_bytes} bytes, but {available} are there.",
        )
    return BatchHeader(base_offset, size_bytes, *rest)


def read_single(view: memoryview) -> BatchHeader:
    """The header of the only batch in `view`, as a Produce request must carry it (KIP-98).

    Raises `BatchError` as `read_header` does, and INVALID_RECORD when bytes follow the batch.
    """
    header = read_header(view)
    if header.size_bytes != len(view):
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"Exactly one batch is taken for a partition, but {len(view) - header.size_bytes} "
            f"bytes follow the first, of {header.size_bytes} bytes.",
        )
    return header


def split(view: memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """The batches that lie side by side in `view`, nothing before, between or after them.

    Raises `BatchError` as `read_header` does, also for a last batch that is cut short.
    """
    batches = []
    at = 0
    while at < len(view):
        header = read_header(view, at)
        batches.append((header, view[at : at + header.size_bytes]))
        at += header.size_bytes
    return batches


def check_crc(view: memoryview, header: BatchHeader) -> None:
    """Whether the bytes are those that were once written; `view` begins with the batch.

    Raises `BatchError` with CORRUPT_MESSAGE.
    """
    # Beside other threads it takes longer to get the interpreter back than to sum up 1 MiB.
    release = _RELEASE if header.size_bytes > _QUICK_BYTES else _KEEP
    actual = crc32c(view[_CRC_COVERS_FROM : header.size_bytes], gil_release_mode=release)
    if actual != header.crc:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE,
            f"The batch's CRC-32C is {actual:08x}, but its header says {header.crc:08x}.",
        )


def check(
    view: memoryview,
    header: BatchHeader,
    *,
    max_bytes: int = _MAX_I32,
    latest_timestamp_ms: int | None = None,
) -> None:
    """Whether a producer may append this batch; `view` begins with it.

    `max_bytes` is the topic's largest batch, `latest_timestamp_ms` the newest time accepted; None
    for a batch that was accepted before, and may bear the broker's time.
    Raises `BatchError` with the code that Kafka's brokers give (`LogValidator`): MESSAGE_TOO_LARGE,
    INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP, CORRUPT_MESSAGE.
    """
    if header.size_bytes > max_bytes:
        raise BatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {header.size_bytes} bytes; the topic takes up to {max_bytes}.",
        )
    if header.compression > _HIGHEST_CODEC:
        raise BatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"The batch's compression type {header.compression} does not exist.",
        )
    if latest_timestamp_ms is not None and (
        header.log_append_time or header.max_timestamp > latest_timestamp_ms
    ):
        raise BatchError(
            ErrorCode.INVALID_TIMESTAMP,
            f"The batch's newest timestamp is {header.max_timestamp} ms; a producer gives its own "
            f"times, up to {latest_timestamp_ms} ms.",
        )
    _check_count(header)
    _check_origin(header)
    check_crc(view, header)


def _check_count(header: BatchHeader) -> None:
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1 or header.base_offset != 0:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"The batch has base offset {header.base_offset}, last offset delta "
            f"{header.last_offset_delta} and {count} records; a producer numbers from 0 and "
            "leaves no gaps.",
        )
    # A compressed batch may hold any number of records; only opening it would tell.
    records_bytes = header.size_bytes - HEADER_BYTES
    if header.compression == 0 and count * _SMALLEST_RECORD_BYTES > records_bytes:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"{count} records cannot lie in {records_bytes} bytes.",
        )


def _check_origin(header: BatchHeader) -> None:
    if header.is_control:
        raise BatchError(ErrorCode.INVALID_RECORD, "Control batches are written by brokers only.")
    if header.producer_id == NO_PRODUCER_ID:
        if header.is_transactional:
            raise BatchError(
                ErrorCode.INVALID_RECORD, "The batch is transactional but names no producer id."
            )
    elif min(header.producer_id, header.producer_epoch, header.base_sequence) < 0:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"Producer id {header.producer_id} with epoch {header.producer_epoch} and base "
            f"sequence {header.base_sequence}: none of them may be negative.",
        )


def patched(view: memoryview, base_offset: int, leader_epoch: int = 0) -> tuple[bytes, memoryview]:
    """The batch in `view` at another offset: 16 new bytes, and the rest as it was, not copied."""
    head = _PATCHED_HEAD.pack(base_offset, len(view) - _LENGTH_FIELD_END, leader_epoch)
    return head, view[_MAGIC_AT:]


def stamp(view: memoryview, header: BatchHeader, append_ms: int) -> BatchHeader:
    """Give all records of the batch in `view` the time of their append, in place (KIP-32).

    Readers then take the header's largest timestamp for every record's; what the producer gave
    stays in the records, unread. Returns the new header.
    """
    attributes = header.attributes | _LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(view, _ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, append_ms)
    crc = crc32c(view[_CRC_COVERS_FROM : header.size_bytes])
    _CRC.pack_into(view, _CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=append_ms, crc=crc)


def assembled(header: BatchHeader, records: Buffer) -> tuple[BatchHeader, bytes]:
    """A batch with this header, but for its size and CRC, which are those of these records."""
    data = bytearray(HEADER_BYTES)
    size_bytes = HEADER_BYTES + len(records)
    _HEADER.pack_into(data, 0, header.base_offset, size_bytes - _LENGTH_FIELD_END, *header[2:])
    crc = int(crc32c(records, crc32c(memoryview(data)[_CRC_COVERS_FROM:])))
    _CRC.pack_into(data, _CRC_AT, crc)
    return header._replace(size_bytes=size_bytes, crc=crc), bytes(data) + bytes(records)
