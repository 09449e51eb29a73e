"""What a topic asks for that lies inside of a batch: keys, times, and another compression. Pure.

The only place on the write path where records are unfolded, for topics that ask for it; never more
than `MAX_OPENED_BYTES` of them. Producer, sequence, transaction and timestamps stay as they are,
so a batch that was compressed anew is to the sequencer and to readers the one that was sent.
"""

from collections.abc import Sequence

from catchwater.log.format.records import Record, Unopened, open_records
from catchwater.log.write.rules import EARLIEST_MS, Rules
from catchwater.objects.base import Buffer
from catchwater.wire.batch import HEADER_BYTES, BatchError, BatchHeader, assembled
from catchwater.wire.codecs import CodecError, compress, decompress
from catchwater.wire.errors import ErrorCode

MAX_OPENED_BYTES = 32 * 1024 * 1024
"""How large the records of a batch may be when unfolded."""

_MOST_NAMED = 100
_CODEC_BITS = 0x07


def prepared(
    header: BatchHeader, data: memoryview, rules: Rules, now_ms: int
) -> tuple[BatchHeader, Buffer]:
    """The batch as it is to be stored, checked from outside before. Raises `BatchError`.

    INVALID_RECORD for a record without a key and for what cannot be opened, INVALID_TIMESTAMP for
    one that is too old, MESSAGE_TOO_LARGE for what has become so.
    """
    if rules.needs_keys or rules.before_ms != EARLIEST_MS:
        try:
            records = open_records(header, data, max_bytes=MAX_OPENED_BYTES)
        except Unopened as reason:
            raise BatchError(ErrorCode.INVALID_RECORD, str(reason)) from reason
        _check(header, records, rules, now_ms)
    if rules.codec in (None, header.compression):
        return header, data
    return _compressed(header, data, rules.codec or 0, rules.max_bytes)


def _check(header: BatchHeader, records: Sequence[Record], rules: Rules, now_ms: int) -> None:
    if rules.needs_keys:
        keyless = [index for index, record in enumerate(records) if record.key is None]
        reason = "The topic is compacted, so every record needs a key."
        _refuse(ErrorCode.INVALID_RECORD, reason, keyless)
    earliest_ms = now_ms - rules.before_ms - header.base_timestamp
    old = [index for index, record in enumerate(records) if record.timestamp_delta < earliest_ms]
    reason = f"The topic takes no record that is older than {rules.before_ms} ms."
    _refuse(ErrorCode.INVALID_TIMESTAMP, reason, old)


def _refuse(code: ErrorCode, reason: str, blamed: Sequence[int]) -> None:
    if blamed:
        raise BatchError(code, reason, [(index, reason) for index in blamed[:_MOST_NAMED]])


def _compressed(
    header: BatchHeader, data: memoryview, codec: int, max_bytes: int
) -> tuple[BatchHeader, Buffer]:
    try:
        records = decompress(header.compression, data[HEADER_BYTES:], max_bytes=MAX_OPENED_BYTES)
    except CodecError as reason:
        raise BatchError(ErrorCode.INVALID_RECORD, str(reason)) from reason
    attributes = header.attributes & ~_CODEC_BITS | codec
    stored = assembled(header._replace(attributes=attributes), compress(codec, records))
    if stored[0].size_bytes > max_bytes:
        raise BatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {stored[0].size_bytes} bytes as the topic compresses it; it takes up "
            f"to {max_bytes}.",
        )
    return stored
