"""The end of a transaction on one partition, as a record batch that brokers write (KIP-98).

One control record: key (version, type), value (version, coordinator epoch). Consumers read the
type; the log reads the index of the chunk the batch came in, which says the same in a bit of its
own. Its timestamp is the time the transaction began, so that the marker names its transaction.
"""

from struct import Struct

from crc32c import crc32c

from catchwater.log.format.chunk import COMMIT, CONTROL, TRANSACTIONAL
from catchwater.wire.batch import BatchHeader, read_single

_BATCH = Struct(">qiibIhiqqqhii")
_CRC_COVERS_FROM = 21
_CRC = Struct(">I")
_CRC_AT = 17
_LENGTH_FIELD_END = 12
_NO_SEQUENCE = -1
# Length, attributes, timestamp delta, offset delta, key length, key (version 0, type), value
# length, value (version 0, coordinator epoch 0), header count; lengths are zig-zag varints.
_RECORD = Struct(">bbbbbhhbhib")
_ABORT_TYPE, _COMMIT_TYPE = 0, 1


def marker(
    producer_id: int, epoch: int, *, committed: bool, started_ms: int
) -> tuple[BatchHeader, memoryview]:
    """The control batch, and its header as the chunk's index takes it."""
    kind = _COMMIT_TYPE if committed else _ABORT_TYPE
    record = _RECORD.pack((_RECORD.size - 1) << 1, 0, 0, 0, 4 << 1, 0, kind, 6 << 1, 0, 0, 0)
    attributes = TRANSACTIONAL | CONTROL
    batch = bytearray(
        _BATCH.pack(
            0,
            _BATCH.size + len(record) - _LENGTH_FIELD_END,
            0,
            2,
            0,
            attributes,
            0,
            started_ms,
            started_ms,
            producer_id,
            epoch,
            _NO_SEQUENCE,
            1,
        )
    )
    batch += record
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_COVERS_FROM:]))
    view = memoryview(batch).toreadonly()
    header = read_single(view)
    return header._replace(attributes=attributes | (COMMIT if committed else 0)), view
