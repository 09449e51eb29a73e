"""What lies inside of a producer's batch: whether its records are sound, and what its topic asks.

Every batch is unfolded and its records are walked (`batch.walk`) before it is appended: what stops
a reader is never acknowledged. The walk also finds what topics ask about keys and times; where one
asks for another compression, the batch is compressed anew. Producer, sequence, transaction and
timestamps stay as they are, so such a batch is to the sequencer and to readers the one that was
sent. Only a largest timestamp in the header that is not the records' is put right, as Kafka does.

Pure. Never holds more than `MAX_OPENED_BYTES` of unfolded records.
"""

from collections.abc import Iterable

from catchwater.log.format.chunk import KAFKAS_ATTRIBUTES
from catchwater.log.format.records import Unopened, open_records
from catchwater.log.topic_settings import EARLIEST_MS, Rules
from catchwater.objects.base import Buffer
from catchwater.wire import batch
from catchwater.wire.batch import COMPRESSION_BITS, HEADER_BYTES, BatchError, BatchHeader, assembled
from catchwater.wire.codecs import CodecError, DecompressionBomb, compress, decompress_checked
from catchwater.wire.errors import ErrorCode

MAX_OPENED_BYTES = 32 * 1024 * 1024
"""How large the records of a batch may be when unfolded."""

QUICK_EFFORT = 16 * 1024
"""What may be looked into at once, on the event loop: about 0.1 ms, at most 2 ms."""
PLAIN_FACTOR = 16
_COMPRESSED_EFFORT = 256
"""Of any compressed batch, however small; 1 for each of its bytes comes on top."""
_QUICK_GROWTH, _QUICK_OPENED_BYTES = 16, (16 * 1024, 64 * 1024)
_QUICK_BLAME = 1000

_MOST_NAMED = 100


class NotQuick(Exception):
    """It takes more than was foreseen: to be done in a thread."""


def effort(header: BatchHeader, rules: Rules) -> int:
    """What it takes to look into a batch, in compiled steps (of some 6 ns)."""
    steps = header.record_count * (1 if batch.walk_is_compiled() else PLAIN_FACTOR)
    compression = header.attributes & COMPRESSION_BITS
    if rules.codec is not None and rules.codec != compression:
        return steps + QUICK_EFFORT
    return steps + header.size_bytes + _COMPRESSED_EFFORT if compression else steps


def prepared(
    header: BatchHeader,
    data: memoryview,
    rules: Rules,
    now_ms: int,
    *,
    at_once: bool = False,
    room: memoryview | None = None,
) -> tuple[BatchHeader, memoryview]:
    """The batch as it is to be stored, checked from outside before. Raises `BatchError`.

    INVALID_RECORD for records that are not sound, also when compressed, and for one without a key;
    INVALID_TIMESTAMP for times that the topic does not take; MESSAGE_TOO_LARGE for what unfolds to
    too much or has become too large. `at_once` gives up with `NotQuick` where it takes long.
    Records are unfolded in `room` where they fit.
    """
    count, records = header.record_count, data[HEADER_BYTES:]
    codec = header.attributes & COMPRESSION_BITS
    if codec:
        records = _unfolded(codec, records, at_once, room)
    follow = batch.walk if at_once else batch.walk_beside
    fault, index, newest_delta, oldest_delta, keyless = follow(records.toreadonly(), count)
    if fault:
        raise BatchError(ErrorCode.INVALID_RECORD, *batch.blame(fault, index, count))
    newest_ms = header.base_timestamp + newest_delta
    if (
        newest_ms != header.max_timestamp
        or oldest_delta < 0
        or rules.before_ms != EARLIEST_MS
        or (keyless >= 0 and rules.needs_keys)
    ):
        oldest_ms = header.base_timestamp + oldest_delta
        is_keyless = keyless >= 0 and rules.needs_keys
        if is_keyless or not rules.takes(oldest_ms, newest_ms, now_ms):
            if at_once and count > _QUICK_BLAME:
                raise NotQuick
            _blame(header, data, rules, now_ms)
        if newest_ms != header.max_timestamp and not rules.stamps:
            header, data = _assembled(header._replace(max_timestamp=newest_ms), data[HEADER_BYTES:])
    if rules.codec is not None and rules.codec != codec:
        return _compressed(header, records, rules.codec, rules.max_bytes)
    return header, data


def _unfolded(codec: int, packed: memoryview, at_once: bool, room: memoryview | None) -> memoryview:
    max_bytes = MAX_OPENED_BYTES
    if at_once:
        least, most = _QUICK_OPENED_BYTES
        max_bytes = min(max(_QUICK_GROWTH * len(packed), least), most)
    try:
        return decompress_checked(codec, packed, max_bytes=max_bytes, room=room)
    except DecompressionBomb as reason:
        if at_once:
            raise NotQuick from reason
        # Java's producer sends the records again in smaller batches when it is told this.
        raise BatchError(ErrorCode.MESSAGE_TOO_LARGE, str(reason)) from reason
    except CodecError as reason:
        raise BatchError(ErrorCode.INVALID_RECORD, str(reason)) from reason


def _blame(header: BatchHeader, data: memoryview, rules: Rules, now_ms: int) -> None:
    """Refuse the batch for some of its records, and name them."""
    try:
        records = open_records(header, data, max_bytes=MAX_OPENED_BYTES)
    except Unopened as error:
        raise BatchError(ErrorCode.INVALID_RECORD, str(error)) from error
    if rules.needs_keys:
        keyless = (index for index, record in enumerate(records) if record.key is None)
        reason = "The topic is compacted, so every record needs a key."
        _refuse(ErrorCode.INVALID_RECORD, reason, keyless)
    times = [header.base_timestamp + record.timestamp_delta for record in records]
    wrong = (index for index, ms in enumerate(times) if not rules.takes(ms, ms, now_ms))
    reason = (
        f"The topic takes no record that is older than {rules.before_ms} ms or lies more than "
        f"{rules.after_ms} ms ahead."
    )
    _refuse(ErrorCode.INVALID_TIMESTAMP, reason, wrong)


def _refuse(code: ErrorCode, reason: str, blamed: Iterable[int]) -> None:
    named = [(index, reason) for index, _ in zip(blamed, range(_MOST_NAMED), strict=False)]
    if named:
        raise BatchError(code, reason, named)


def _assembled(header: BatchHeader, records: Buffer) -> tuple[BatchHeader, memoryview]:
    """A batch with this header, whose attributes may bear the index's bits, which stay in it."""
    shown = header.attributes & KAFKAS_ATTRIBUTES
    new, data = assembled(header._replace(attributes=shown), records)
    return new._replace(attributes=header.attributes), memoryview(data)


def _compressed(
    header: BatchHeader, records: memoryview, codec: int, max_bytes: int
) -> tuple[BatchHeader, memoryview]:
    attributes = header.attributes & ~COMPRESSION_BITS | codec
    stored = _assembled(header._replace(attributes=attributes), compress(codec, records))
    if stored[0].size_bytes > max_bytes:
        raise BatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {stored[0].size_bytes} bytes as the topic compresses it; it takes up "
            f"to {max_bytes}.",
        )
    return stored
