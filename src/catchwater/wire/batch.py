"""The record batch v2 (magic 2, KIP-98): the one place that knows where in a batch what lies.

61 bytes of header, then the records, often compressed. Base offset and leader epoch lie before the
bytes that the CRC-32C covers, and are patched without touching the rest. First here is the header,
then the markers that end transactions, then the records.

The tail-read path stays out of the records, and the write path only walks them: `walk` follows all
of them as a reader would, because a reader finds the next record by the length of the one before,
so that one wrong number stops every reader at this batch. Each record's fields fill it exactly, its
offset delta is its index, and the records fill the batch. What the walk accepts, Kafka's clients
and our own decoder (`arrow`) read to the end; so it is stricter than some of them: varints of 32
bits have at most 5 bytes, no length is below -1, no record has more than MOST_HEADERS headers, and
the attributes, which mean nothing yet, are below 128, since two clients in Python read them as a
varint. Keys, values and header keys may be any bytes.

Relies on the caller to keep a buffer unchanged while a view of it is in use, and to decompress
records before they are walked. Promises that a batch which passed `check` has the size it claims,
an intact checksum, and a record count that its offsets agree with.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import Buffer, encode_varint

HEADER_BYTES = 61
NO_PRODUCER_ID, NO_SEQUENCE = -1, -1
MAGIC = 2

_HEADER = Struct(">qiibIhiqqqhii")
_BEFORE_CRC, _COVERED_BY_CRC = Struct(">qiibI"), Struct(">hiqqqhii")
# Base offset, length, leader epoch: the bytes in front of the magic byte.
_PATCHED_HEAD = Struct(">qii")
_CRC, _ATTRIBUTES, _TIMESTAMP = Struct(">I"), Struct(">h"), Struct(">q")
_MAGIC_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 16, 17, 21, 35
CRC_COVERS_FROM = 21
_KEEP, _RELEASE, _QUICK_BYTES = 0, 1, 1 << 20
_new_tuple = tuple.__new__
"""What a named tuple's own constructor calls, at half the cost."""

# For loops that look at every batch of a buffer, and at no more than this. Methods, not structs:
# Python 3.11 makes an object for each call of a method of an imported name.
_OFFSET, _LEADER_EPOCH = Struct(">q"), Struct(">i")
read_offset, put_offset = _OFFSET.unpack_from, _OFFSET.pack_into
put_leader_epoch, LEADER_EPOCH_AT = _LEADER_EPOCH.pack_into, 12
read_extent = Struct(">8xi11xi").unpack_from
"""The length and the last offset delta."""
read_fields = _HEADER.unpack_from
"""What `BatchHeader` names, in its order, but for the length in place of the size."""
put_head = _PATCHED_HEAD.pack_into
"""Base offset, length and leader epoch, which all lie before the bytes that the CRC covers."""
LENGTH_FIELD_END = 12
"""The length counts from behind itself; `BatchHeader.size_bytes` counts the whole batch."""

COMPRESSION_BITS = 0x07
_LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""The base timestamp is the time from which tombstones and markers may go (KIP-534)."""
_HIGHEST_CODEC = 4

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
        return self.attributes & COMPRESSION_BITS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

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
    if available > _MAGIC_AT and view[at + _MAGIC_AT] != MAGIC:
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
    size_bytes = length + LENGTH_FIELD_END
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


def next_record(view: memoryview, offset: int) -> tuple[int, int | None]:
    """How many offsets of markers lie at `offset`, and the time of the record behind them, ms.

    None: the batches here are all markers, or the first that is none is cut short. The time is that
    of its batch: the broker's, or that of the batch's first record.
    """
    markers, at = 0, 0
    with suppress(BatchError):
        while at < len(view):
            header = read_header(view, at)
            if not header.is_control:
                late = header.log_append_time
                return markers, header.max_timestamp if late else header.base_timestamp
            markers = header.last_offset + 1 - offset
            at += header.size_bytes
    return markers, None


def check_crc(view: memoryview, header: BatchHeader) -> None:
    """Whether the bytes are those that were once written; `view` begins with the batch.

    Raises `BatchError` with CORRUPT_MESSAGE.
    """
    # Beside other threads it takes longer to get the interpreter back than to sum up 1 MiB.
    release = _RELEASE if header.size_bytes > _QUICK_BYTES else _KEEP
    actual = crc32c(view[CRC_COVERS_FROM : header.size_bytes], gil_release_mode=release)
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
    if header.compression == 0 and count * SMALLEST_RECORD_BYTES > records_bytes:
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


def plain(
    view: memoryview, max_bytes: int, latest_timestamp_ms: int, most_records: int
) -> BatchHeader | None:
    """The header of the only batch in `view`, if `read_single`, `check` and `walk` are content, its
    times are what it says, and it is nothing but records: neither compressed nor transactional.

    One pass, for what nearly every batch is; of any other it says only that it is another.
    """
    size_bytes = len(view)
    if not HEADER_BYTES <= size_bytes <= max_bytes or size_bytes > _QUICK_BYTES:
        return None
    # Into names at once: to slice the fields would cost as much as all the comparisons.
    (base_offset, length, leader_epoch, magic, crc, attributes, last_delta, base_ms, newest_ms,
     producer_id, epoch, sequence, count) = _HEADER.unpack_from(view)  # fmt: skip
    if (
        base_offset != 0
        or length + LENGTH_FIELD_END != size_bytes
        or magic != MAGIC
        or attributes != 0
        or not 0 < count <= most_records
        or last_delta != count - 1
        or newest_ms > latest_timestamp_ms
        or (producer_id != NO_PRODUCER_ID and min(producer_id, epoch, sequence) < 0)
        or crc32c(view[CRC_COVERS_FROM:], 0, _KEEP) != crc
    ):
        return None
    fault, _, newest_delta, oldest_delta, _ = walk(view[HEADER_BYTES:].toreadonly(), count)
    if fault or oldest_delta < 0 or base_ms + newest_delta != newest_ms:
        return None
    fields = (base_offset, size_bytes, leader_epoch, magic, crc, attributes, last_delta, base_ms,
              newest_ms, producer_id, epoch, sequence, count)  # fmt: skip
    return _new_tuple(BatchHeader, fields)


def patched(view: memoryview, base_offset: int, leader_epoch: int = 0) -> tuple[bytes, memoryview]:
    """The batch in `view` at another offset: 16 new bytes, and the rest as it was, not copied."""
    head = _PATCHED_HEAD.pack(base_offset, len(view) - LENGTH_FIELD_END, leader_epoch)
    return head, view[_MAGIC_AT:]


def stamp(view: memoryview, header: BatchHeader, append_ms: int) -> BatchHeader:
    """Give all records of the batch in `view` the time of their append, in place (KIP-32).

    Readers then take the header's largest timestamp for every record's; what the producer gave
    stays in the records, unread. Returns the new header.
    """
    attributes = header.attributes | _LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(view, _ATTRIBUTES_AT, attributes)
    _TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, append_ms)
    crc = crc32c(view[CRC_COVERS_FROM : header.size_bytes])
    _CRC.pack_into(view, _CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=append_ms, crc=crc)


def encode(header: BatchHeader, records: Buffer) -> bytes:
    """A batch with this header, but for its size and CRC, which are those of these records."""
    covered = _COVERED_BY_CRC.pack(*header[5:])
    crc = crc32c(records, crc32c(covered))
    length = HEADER_BYTES + len(records) - LENGTH_FIELD_END
    head = _BEFORE_CRC.pack(header.base_offset, length, header.leader_epoch, header.magic, crc)
    return b"".join((head, covered, records))


def assembled(header: BatchHeader, records: Buffer) -> tuple[BatchHeader, bytes]:
    """As `encode`, and the header with that size and CRC."""
    data = encode(header, records)
    return header._replace(size_bytes=len(data), crc=_CRC.unpack_from(data, _CRC_AT)[0]), data


# Markers: how a transaction ended on a partition, as a batch of one record that brokers write.

ABORT, COMMIT = 0, 1
"""The type of a marker, the second field of its key."""
_MARKER_KEY = Struct(">hh")
# Length, attributes, timestamp delta, offset delta, key length, key (version 0, type), value
# length, value (version 0, coordinator epoch 0), header count; lengths are zigzag varints.
_MARKER_RECORD = Struct(">bbbbbhhbhib")


def marker(
    producer_id: int, epoch: int, *, committed: bool, timestamp_ms: int
) -> tuple[BatchHeader, bytes]:
    """The control batch that ends a producer's transaction."""
    kind = COMMIT if committed else ABORT
    record = _MARKER_RECORD.pack(
        (_MARKER_RECORD.size - 1) << 1, 0, 0, 0, 4 << 1, 0, kind, 6 << 1, 0, 0, 0
    )
    header = BatchHeader(
        base_offset=0,
        size_bytes=0,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    return assembled(header, record)


def marker_type(key: Buffer | None) -> int | None:
    """ABORT or COMMIT, of the key of a control batch's record; None if it is no marker's."""
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    kind: int = _MARKER_KEY.unpack_from(key)[1]
    return kind


# Records. Their numbers are zigzag varints: here in plain Python, in `kernels` compiled.
# numba keeps compiled code until `kernels.py` itself changes: change that, too, with one of these.

VARINT_BYTES, VARLONG_BYTES = 5, 10
SMALLEST_BODY_BYTES = 6
"""Of a record: attributes, two deltas, two lengths, a header count."""
SMALLEST_RECORD_BYTES = 1 + SMALLEST_BODY_BYTES
MOST_ATTRIBUTES = 127
MOST_HEADERS = 2**20
"""Of one record: each takes 2 bytes of input, but 40 of Arrow, which must not grow without end."""
_MAX_I64 = 2**63 - 1


def encode_zigzag(value: int) -> bytes:
    """A signed number as a varint: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return encode_varint((value << 1) ^ (value >> 63))


def read_zigzag(
    data: bytes | memoryview, at: int, most_bytes: int = VARINT_BYTES
) -> tuple[int, int]:
    """The number at byte `at` and the position behind it. Raises `IndexError`."""
    bits = data[at]
    if bits < 128:
        return (bits >> 1) ^ -(bits & 1), at + 1
    byte = data[at + 1]
    if byte < 128:
        bits = bits & 127 | byte << 7
        return (bits >> 1) ^ -(bits & 1), at + 2
    bits &= 127
    for nth in range(1, most_bytes):
        byte = data[at + nth]
        bits |= (byte & 127) << 7 * nth
        if byte < 128:
            if bits >> 64:
                break
            return (bits >> 1) ^ -(bits & 1), at + nth + 1
    raise IndexError("a number is too long")


def record_deltas(records: memoryview, count: int) -> Iterator[tuple[int, int]]:
    """Offset delta and timestamp delta of each record. Raises `IndexError` past the end."""
    at = 0
    for _ in range(count):
        size, at = read_zigzag(records, at, VARLONG_BYTES)
        timestamp_delta, inside = read_zigzag(records, at + 1, VARLONG_BYTES)  # behind attributes
        offset_delta, _ = read_zigzag(records, inside, VARLONG_BYTES)
        yield offset_delta, timestamp_delta
        at += max(size, 0)


SOUND, ENDED, TORN, MISNUMBERED, LEFT_OVER = range(5)
_REASONS = {
    ENDED: "The batch promises {count} records, but ends after {index}.",
    TORN: "Record {index} is damaged: its fields do not fill the bytes that its length gives it.",
    MISNUMBERED: "Record {index} does not have the offset delta {index}.",
    LEFT_OVER: "Bytes follow the last of the batch's {count} records.",
}
_OF_ONE_RECORD = (TORN, MISNUMBERED)

Walked: TypeAlias = tuple[int, int, int, int, int]
"""What was found: SOUND or what is wrong first; the index of the record that it is wrong with (of
sound records their number); the largest and the smallest timestamp delta in milliseconds; the index
of the first record without a key, -1 if each has one. The last three count for sound records only.
"""


def blame(fault: int, index: int, count: int) -> tuple[str, list[tuple[int, str]]]:
    """What is wrong, as a sentence, and the records that are to blame for it."""
    reason = _REASONS[fault].format(index=index, count=count)
    return reason, [(index, reason)] if fault in _OF_ONE_RECORD else []


def walk_plainly(records: memoryview, count: int) -> Walked:
    """`walk` in plain Python."""
    data = bytes(records)  # indexed twice as fast as a view
    at, index = 0, 0
    newest, oldest, keyless = ~_MAX_I64, _MAX_I64, -1
    try:
        for index in range(count):
            if at == len(data):
                return ENDED, index, 0, 0, -1
            time_delta, offset_delta, key_bytes, at = _record(data, at)
            if offset_delta != index:
                return MISNUMBERED, index, 0, 0, -1
            if time_delta > newest:
                newest = time_delta
            if time_delta < oldest:
                oldest = time_delta
            if key_bytes < 0 and keyless < 0:
                keyless = index
    except IndexError:
        return TORN, index, 0, 0, -1
    return SOUND if at == len(data) else LEFT_OVER, count, newest, oldest, keyless


def _record(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Its time delta, offset delta, key size and the position behind it. Raises `IndexError`."""
    size, at = read_zigzag(data, at)
    end = at + size
    if size < SMALLEST_BODY_BYTES or end > len(data) or data[at] > MOST_ATTRIBUTES:
        raise IndexError("a record ends past the batch")
    time_delta, at = read_zigzag(data, at + 1, VARLONG_BYTES)  # behind the attributes
    offset_delta, at = read_zigzag(data, at)
    key_bytes, at = _field(data, at)
    _, at = _field(data, at)
    headers, at = read_zigzag(data, at)
    if headers:
        at = _skip_headers(data, at, end, headers)
    if at != end:
        raise IndexError("its fields do not fill it")
    return time_delta, offset_delta, key_bytes, end


def _field(data: bytes, at: int) -> tuple[int, int]:
    """The size of a field (null: -1) and the position behind it. Raises `IndexError`."""
    size, at = read_zigzag(data, at)
    if size < -1:
        raise IndexError("a size is negative")
    return size, at + size if size > 0 else at


def _skip_headers(data: bytes, at: int, stop: int, count: int) -> int:
    """The position behind so many headers. Raises `IndexError`."""
    if not 0 < count <= min(stop - at, MOST_HEADERS):
        raise IndexError("so many headers cannot be")
    for _ in range(count):
        size, at = _field(data, at)
        if size < 0:
            raise IndexError("a header has no key")
        _, at = _field(data, at)
    return at


walk: Callable[[memoryview, int], Walked] = walk_plainly
"""Follow so many records that a read-only view must hold, and nothing else. Raises nothing."""
walk_beside: Callable[[memoryview, int], Walked] = walk_plainly
"""The same in a thread of its own: once compiled, other threads run meanwhile."""


def walk_is_compiled() -> bool:
    """Whether `load_walk` has brought the compiled loop."""
    return walk is not walk_plainly


def load_walk() -> bool:
    """Walk by the compiled loop from now on; False where numba is not installed.

    It takes 6 ns a record instead of 1 to 2 µs, and gives the same answer, which a fuzzer compares.
    Loading takes 0.8 s of CPU and 75 MB, and where nothing is cached several seconds: it is for a
    thread of its own.
    """
    global walk, walk_beside
    try:
        from catchwater.wire import kernels
    except ImportError:
        return False
    kernels.walk_beside(memoryview(b""), 0)
    kernels.walk(memoryview(b""), 0)
    walk, walk_beside = kernels.walk, kernels.walk_beside
    return True
