"""The compiled loops of `arrow` and `batch`: they read and write varints, and copy bytes in blocks.

Five loops read: `parse` finds every field of every record, and `parse_headers` those of record
headers; `gather` copies fields into Arrow's layout; `bundle` packs the position of a record into
one long; `walk` only checks that a batch is sound. One loop writes: `write_records`. They are plain
loops over NumPy arrays (`walk` over a memoryview), which numba compiles on first use. The machine
code is cached beside this file, in HOME or in a private temporary folder; where none of them can be
written, each process compiles it again.

Bytes are read by address: numba counts the references of an array that is passed from loop to loop,
which took three quarters of `parse`. The caller provides arrays that are large enough and stay
alive. No byte outside the given range is read, even where the data is damaged: every position is
checked before it is used, and `gather` follows only positions that `parse` has checked. Nothing
here knows compression or Arrow.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from catchwater.wire.batch import (
    ENDED,
    LEFT_OVER,
    MISNUMBERED,
    MOST_ATTRIBUTES,
    MOST_HEADERS,
    SMALLEST_BODY_BYTES,
    SOUND,
    TORN,
    VARINT_BYTES,
    VARLONG_BYTES,
)
from catchwater.wire.bundle import (
    BUNDLE_BYTES,
    FAR_TIMES,
    GAP_BITS,
    GAP_SHIFT,
    HOLES,
    KEY_SHIFT,
    LONG,
    NO_KEY,
    NO_VALUE,
    TIME_BITS,
    TIME_SHIFT,
    VALUE_SHIFT,
)

# Columns of the table that describes the batches of a group to `parse`.
(
    START,
    END,
    COUNT,
    BASE_OFFSET,
    LAST_DELTA,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    LOG_APPEND_TIME,
    PREVIOUS_DELTA,
) = range(9)
# Rows of the table of fields that `parse` fills: where each begins, and its length (null: -1).
KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADER_COUNT = range(6)

# A varint of 64 bits takes at most ten bytes; a record's length, two deltas, three counts.
_MOST_VARINT_BYTES = 10
MOST_RECORD_OVERHEAD_BYTES = 6 * _MOST_VARINT_BYTES + 1


def _private_cache_folder() -> Path | None:
    """A folder under the temporary one that only this user can write, or None.

    Compiled code is loaded from it, so a folder that someone else made is never used.
    """
    folder = Path(tempfile.gettempdir()) / f"catchwater-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_ours = status.st_uid == os.getuid() and status.st_mode & 0o77777 == 0o40700
    return folder if is_ours and os.access(folder, os.W_OK) else None


def _compiled(function: Callable[..., Any], *, nogil: bool = True) -> Any:
    """`function` under numba, its machine code cached in the first place that can be written.

    `nogil` lets other threads run meanwhile. A loop of a microsecond keeps the lock instead: if it
    let go, it might wait for another thread to give the lock back.
    """
    try:
        return numba.njit(cache=True, nogil=nogil)(function)
    except RuntimeError:  # neither the package's folder nor HOME is writable
        folder = _private_cache_folder()
    if folder is None:
        return numba.njit(nogil=nogil)(function)
    numba.config.CACHE_DIR = str(folder)
    return numba.njit(cache=True, nogil=nogil)(function)


@intrinsic  # type: ignore[untyped-decorator]
def _copy(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """memcpy between two addresses: 4 GB/s where a loop over bytes makes 0.7."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_address, source_address, count = arguments
        pointer = cgutils.voidptr_t
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(to_address, pointer),
            builder.inttoptr(source_address, pointer),
            count,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _byte(typing_context: Any, address: Any) -> Any:
    """The byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        return builder.zext(builder.load(pointer), cgutils.intp_t)

    return types.intp(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _address(typing_context: Any, view: Any) -> Any:
    """Where the bytes of a memoryview lie."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(array.data, cgutils.intp_t)

    return types.intp(view), generate


@_compiled
def _varint(origin, at, end):  # type: ignore[no-untyped-def]
    """`batch.read_zigzag`, compiled; the position behind is -1 if it does not end before `end`.

    Positions count from the address `origin`. A position of -1 handed in comes out again, so a
    chain of reads is checked once, at its end.
    """
    if 0 <= at < end:  # nearly all take one byte or two
        low = _byte(origin + at)
        if low < 128:
            return (low >> 1) ^ -(low & 1), at + 1
        if at + 1 < end:
            high = _byte(origin + at + 1)
            if high < 128:
                both = (low & 127) | (high << 7)
                return (both >> 1) ^ -(both & 1), at + 2
    return _long_varint(origin, at, end)


@_compiled
def _long_varint(origin, at, end):  # type: ignore[no-untyped-def]
    bits = np.uint64(0)
    shift = np.uint64(0)
    while 0 <= at < end and shift < np.uint64(70):
        byte = np.uint64(_byte(origin + at))
        at += 1
        bits |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            value = np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))
            return value, at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@_compiled
def _field(origin, at, end):  # type: ignore[no-untyped-def]
    """A length and its bytes: where they begin, how many there are, and the position behind."""
    size, at = _varint(origin, at, end)
    if at < 0 or size < -1 or size > end - at:
        return np.int64(0), np.int64(-1), np.int64(-1)
    if size < 0:
        return at, np.int64(-1), at
    return at, size, at + size


@_compiled
def _skip_headers(origin, at, end, count):  # type: ignore[no-untyped-def]
    """The position behind `count` record headers, -1 if they do not lie before `end`."""
    if at < 0 or count < 0 or count > min(end - at, MOST_HEADERS):
        return np.int64(-1)
    for _ in range(count):
        _, size, at = _field(origin, at, end)
        if size < 0:  # a header's key may not be null
            return np.int64(-1)
        _, _, at = _field(origin, at, end)
        if at < 0:
            return np.int64(-1)
    return at


@_compiled
def parse(source, batches, first, stop, fields, offsets, times, append_times):  # type: ignore[no-untyped-def]
    """Find the fields of the next records whose offsets are in [first, stop).

    Fills one column of `fields` and one entry of the others a record; returns how many, and the
    index of the first batch whose records do not fill it exactly or are not numbered upwards, or
    -1. Stops early where `fields` is full or MOST_HEADERS is reached, and leaves in `batches`
    what is still to be parsed: a COUNT above 0 says so.
    """
    row = 0
    headers = np.int64(0)
    origin = np.int64(source.ctypes.data)
    for batch in range(batches.shape[0]):
        at, end, left = batches[batch, START], batches[batch, END], batches[batch, COUNT]
        base_offset, last_delta = batches[batch, BASE_OFFSET], batches[batch, LAST_DELTA]
        base_time, max_time = batches[batch, BASE_TIMESTAMP], batches[batch, MAX_TIMESTAMP]
        by_broker = batches[batch, LOG_APPEND_TIME]
        previous_delta = batches[batch, PREVIOUS_DELTA]
        while left > 0 and row < fields.shape[1] and headers < MOST_HEADERS:
            size, at = _varint(origin, at, end)
            if at < 0 or size < SMALLEST_BODY_BYTES or size > end - at:
                at = np.int64(-1)
                break
            record_end = at + size
            time_delta, at = _varint(origin, at + 1, record_end)
            offset_delta, at = _varint(origin, at, record_end)
            key_at, key_size, at = _field(origin, at, record_end)
            value_at, value_size, at = _field(origin, at, record_end)
            header_count, headers_at = _varint(origin, at, record_end)
            behind = headers_at
            if header_count != 0:
                behind = _skip_headers(origin, headers_at, record_end, header_count)
            if behind != record_end or not previous_delta < offset_delta <= last_delta:
                at = np.int64(-1)
                break
            at = record_end  # not `behind`: the next record is fetched while this one is read
            previous_delta = offset_delta
            left -= 1
            offset = base_offset + offset_delta
            if offset < first or offset >= stop:
                continue
            fields[KEY_AT, row], fields[KEY_SIZE, row] = key_at, key_size
            fields[VALUE_AT, row], fields[VALUE_SIZE, row] = value_at, value_size
            fields[HEADERS_AT, row], fields[HEADER_COUNT, row] = headers_at, header_count
            offsets[row] = offset
            append_times[row] = by_broker
            times[row] = max_time if by_broker else base_time + time_delta
            headers += header_count
            row += 1
        if at < 0 or (left == 0 and at != end):
            return row, batch
        batches[batch, START], batches[batch, COUNT] = at, left
        batches[batch, PREVIOUS_DELTA] = previous_delta
    return row, -1


@_compiled
def _short_varint(origin, at, end):  # type: ignore[no-untyped-def]
    """As `_varint`, of 32 bits: it may not have more than VARINT_BYTES."""
    value, behind = _varint(origin, at, end)
    return value, behind if behind - at <= VARINT_BYTES else np.int64(-1)


@_compiled
def _timestamp(origin, at, end):  # type: ignore[no-untyped-def]
    """As `_varint`, of 64 bits at most: Kafka's clients read longer ones differently."""
    value, behind = _varint(origin, at, end)
    if behind - at == VARLONG_BYTES and _byte(origin + behind - 1) > 1:
        return value, np.int64(-1)
    return value, behind


@_compiled
def _short_field(origin, at, end):  # type: ignore[no-untyped-def]
    """The size of a field (null: -1) and the position behind it."""
    size, at = _short_varint(origin, at, end)
    if at < 0 or size < -1 or size > end - at:
        return np.int64(-1), np.int64(-1)
    return size, at + max(size, 0)


@_compiled
def _walk_headers(origin, at, end, count):  # type: ignore[no-untyped-def]
    """The position behind `count` record headers, -1 if they do not lie before `end`."""
    if at < 0 or count < 0 or count > min(end - at, MOST_HEADERS):
        return np.int64(-1)
    for _ in range(count):
        size, at = _short_field(origin, at, end)
        if size < 0:  # a header's key may not be null
            return np.int64(-1)
        _, at = _short_field(origin, at, end)
        if at < 0:
            return np.int64(-1)
    return at


@partial(_compiled, nogil=False)
def walk(records, count):  # type: ignore[no-untyped-def]
    """What `catchwater.wire.batch.walk_plainly` does. `records` is a read-only memoryview."""
    origin = _address(records)
    end = np.int64(records.shape[0])
    at = np.int64(0)
    newest, oldest = np.int64(-(2**63)), np.int64(2**63 - 1)
    keyless = np.int64(-1)
    for index in range(count):
        if at == end:
            return ENDED, index, np.int64(0), np.int64(0), np.int64(-1)
        size, at = _short_varint(origin, at, end)
        if at < 0 or size < SMALLEST_BODY_BYTES or size > end - at:
            return TORN, index, np.int64(0), np.int64(0), np.int64(-1)
        stop = at + size
        if _byte(origin + at) > MOST_ATTRIBUTES:
            return TORN, index, np.int64(0), np.int64(0), np.int64(-1)
        time_delta, at = _timestamp(origin, at + 1, stop)
        offset_delta, at = _short_varint(origin, at, stop)
        key_size, at = _short_field(origin, at, stop)
        _, at = _short_field(origin, at, stop)
        headers, at = _short_varint(origin, at, stop)
        if headers != 0:
            at = _walk_headers(origin, at, stop, headers)
        if at != stop:
            return TORN, index, np.int64(0), np.int64(0), np.int64(-1)
        if offset_delta != index:
            return MISNUMBERED, index, np.int64(0), np.int64(0), np.int64(-1)
        newest, oldest = max(newest, time_delta), min(oldest, time_delta)
        if key_size < 0 and keyless < 0:
            keyless = np.int64(index)
        at = stop  # not where the fields ended: the next record is fetched while this one is read
    return SOUND if at == end else LEFT_OVER, count, newest, oldest, keyless


@_compiled
def walk_beside(records, count):  # type: ignore[no-untyped-def]
    """`walk` without the interpreter's lock, for large batches, which take milliseconds."""
    return walk(records, count)


@_compiled
def parse_headers(source, headers_at, counts, fields):  # type: ignore[no-untyped-def]
    """Find key and value of every record header; `parse` has checked that all are there."""
    header = 0
    origin = np.int64(source.ctypes.data)
    end = source.shape[0]
    for row in range(counts.shape[0]):
        at = np.int64(headers_at[row])
        for _ in range(counts[row]):
            key_at, key_size, at = _field(origin, at, end)
            value_at, value_size, at = _field(origin, at, end)
            fields[KEY_AT, header] = key_at
            fields[KEY_SIZE, header] = key_size
            fields[VALUE_AT, header] = value_at
            fields[VALUE_SIZE, header] = value_size
            header += 1


@_compiled
def gather(source, starts, sizes, ends, target):  # type: ignore[no-untyped-def]
    """Copy the fields one after the other into `target`, and their ends into `ends`, after a 0.

    Returns how many fields are null.
    """
    at = np.int64(0)
    nulls = 0
    ends[0] = 0
    from_address = source.ctypes.data
    to_address = target.ctypes.data
    for row in range(starts.shape[0]):
        size = np.int64(sizes[row])
        if size > 0:
            _copy(to_address + at, from_address + np.int64(starts[row]), size)
            at += size
        elif size < 0:
            nulls += 1
        ends[row + 1] = at
    return nulls


@_compiled
def _place(at, gap, value_size, key_size):  # type: ignore[no-untyped-def]
    """The long of a record (see `bundle`) without its time, and LONG if a part does not fit."""
    if at >= BUNDLE_BYTES or gap >= 2**GAP_BITS or value_size >= NO_VALUE or key_size >= NO_KEY:
        return np.int64((NO_VALUE << VALUE_SHIFT) | (NO_KEY << KEY_SHIFT)), np.int64(LONG)
    value, key = (value_size & NO_VALUE) << VALUE_SHIFT, (key_size & NO_KEY) << KEY_SHIFT
    return np.int64(at | (gap << GAP_SHIFT) | value | key), np.int64(0)


@_compiled
def bundle(fields, offsets, times, append_times, first, with_keys, places):  # type: ignore[no-untyped-def]
    """Fill `places` with the records from `first` on, as many as one bundle holds.

    Returns the index of the record behind them, the first byte and the one behind the last, the
    oldest time, and flags: HOLES (the offsets are not consecutive), FAR_TIMES, LONG (a key or value
    is too long; then `places` says null for both).
    """
    begin = np.int64(fields[KEY_AT if with_keys else VALUE_AT, first])
    end = begin
    oldest = newest = times[first]
    form = np.int64(0)
    row = first
    while row < offsets.shape[0] and append_times[row] == append_times[first]:
        value_at, value_size = fields[VALUE_AT, row], fields[VALUE_SIZE, row]
        behind = value_at + max(value_size, 0)
        if row > first and behind - begin > BUNDLE_BYTES:
            break
        end = behind
        key_at, key_size = value_at, -1
        if with_keys:
            key_at, key_size = fields[KEY_AT, row], fields[KEY_SIZE, row]
        gap = value_at - key_at - max(key_size, 0)
        places[row], misfit = _place(value_at - begin, gap, value_size, key_size)
        form |= misfit
        if offsets[row] - offsets[first] != row - first:
            form |= HOLES
        oldest, newest = min(oldest, times[row]), max(newest, times[row])
        row += 1
    far = not 0 <= newest - oldest < 2**TIME_BITS
    for index in range(first, row):
        if form & LONG:
            places[index], _ = _place(np.int64(0), np.int64(0), np.int64(-1), np.int64(-1))
        if not far:
            places[index] |= (times[index] - oldest) << TIME_SHIFT
    return row, begin, end, oldest, form | (FAR_TIMES if far else 0)


@_compiled
def _put_varint(target, at, value):  # type: ignore[no-untyped-def]
    bits = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while bits >= np.uint64(128):
        target[at] = (bits & np.uint64(127)) | np.uint64(128)
        bits >>= np.uint64(7)
        at += 1
    target[at] = bits
    return at + 1


@_compiled
def _varint_size(value):  # type: ignore[no-untyped-def]
    bits = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = np.int64(1)
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        size += 1
    return size


@_compiled
def write_records(time_deltas, keys, key_sizes, values, value_sizes, headers, header_sizes, target):  # type: ignore[no-untyped-def]
    """Write records (KIP-98) one after the other into `target`; returns the bytes written.

    Keys, values and encoded headers lie side by side in their arrays; a size of -1 is null.
    """
    at = np.int64(0)
    key_at = np.int64(0)
    value_at = np.int64(0)
    headers_at = np.int64(0)
    for row in range(time_deltas.shape[0]):
        key_size = np.int64(key_sizes[row])
        value_size = np.int64(value_sizes[row])
        key_bytes = key_size if key_size > 0 else np.int64(0)
        value_bytes = value_size if value_size > 0 else np.int64(0)
        header_bytes = np.int64(header_sizes[row])
        delta = np.int64(time_deltas[row])
        size = 1 + _varint_size(delta) + _varint_size(np.int64(row)) + _varint_size(key_size)
        size += key_bytes + _varint_size(value_size) + value_bytes + header_bytes
        at = _put_varint(target, at, size)
        target[at] = 0
        at = _put_varint(target, at + 1, delta)
        at = _put_varint(target, at, np.int64(row))
        at = _put_varint(target, at, key_size)
        _copy(target.ctypes.data + at, keys.ctypes.data + key_at, key_bytes)
        at = _put_varint(target, at + key_bytes, value_size)
        _copy(target.ctypes.data + at, values.ctypes.data + value_at, value_bytes)
        at += value_bytes
        _copy(target.ctypes.data + at, headers.ctypes.data + headers_at, header_bytes)
        at += header_bytes
        key_at += key_bytes
        value_at += value_bytes
        headers_at += header_bytes
    return at


def are_cached() -> bool:
    """Whether an earlier process has left machine code; if not, the first use compiles."""
    folder = parse.stats.cache_path
    return folder is not None and any(Path(folder).glob(f"kernels.{parse.__name__}-*.nbi"))
