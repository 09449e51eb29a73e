"""The records of a batch, walked: whether they are what its header promises.

A reader finds the next record by the length of the one before, so one wrong number stops every
reader at this batch. `walk` follows all of them as a reader would: each record's fields fill it
exactly, its offset delta is its index, and the records fill the batch. What it accepts, Kafka's
clients and our own decoder (`arrow`) read to the end; that is why it is stricter than some of
them: varints of 32 bits have at most 5 bytes, no length is below -1, no record has more than
MOST_HEADERS headers, and the attributes, which mean nothing yet, are below 128, since two clients
in Python read them as a varint. Keys, values and header keys may be any bytes.

The loop is plain Python until `load` has brought the compiled one (`kernels.walk`), which needs
numba: 0.8 s of CPU and 75 MB once, and then 6 ns a record instead of 1 to 2 µs. Both give the same
answer, which a fuzzer compares. Relies on the caller to have unfolded the records.
"""

from collections.abc import Callable
from typing import TypeAlias

# numba keeps compiled code until `kernels.py` itself changes: change that, too, with one of these.
MOST_HEADERS = 2**20
"""Of one record: each takes 2 bytes of input, but 40 of Arrow, which must not grow without end."""

SOUND, ENDED, TORN, MISNUMBERED, LEFT_OVER = range(5)
_REASONS = {
    ENDED: "The batch promises {count} records, but ends after {index}.",
    TORN: "Record {index} is damaged: its fields do not fill the bytes that its length gives it.",
    MISNUMBERED: "Record {index} does not have the offset delta {index}.",
    LEFT_OVER: "Bytes follow the last of the batch's {count} records.",
}
_OF_ONE_RECORD = (TORN, MISNUMBERED)

# A record's body has at least attributes, two deltas, two lengths and a header count.
SMALLEST_BODY_BYTES = 6
MOST_ATTRIBUTES = 127
VARINT_BYTES, VARLONG_BYTES = 5, 10
_MAX_I64 = 2**63 - 1


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
    size, at = _varint(data, at)
    end = at + size
    if size < SMALLEST_BODY_BYTES or end > len(data) or data[at] > MOST_ATTRIBUTES:
        raise IndexError("a record ends past the batch")
    time_delta, at = _varint(data, at + 1, VARLONG_BYTES)  # behind the attributes
    offset_delta, at = _varint(data, at)
    key_bytes, at = _field(data, at)
    _, at = _field(data, at)
    headers, at = _varint(data, at)
    if headers:
        at = _skip_headers(data, at, end, headers)
    if at != end:
        raise IndexError("its fields do not fill it")
    return time_delta, offset_delta, key_bytes, end


def _varint(data: bytes, at: int, most_bytes: int = VARINT_BYTES) -> tuple[int, int]:
    """A zigzag varint and the position behind it. Raises `IndexError`."""
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


def _field(data: bytes, at: int) -> tuple[int, int]:
    """The size of a field (null: -1) and the position behind it. Raises `IndexError`."""
    size, at = _varint(data, at)
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


def is_compiled() -> bool:
    """Whether `load` has brought the compiled loop."""
    return walk is not walk_plainly


def load() -> bool:
    """Walk by the compiled loop from now on; False where numba is not installed.

    Takes half a second, and where nothing is cached several: for a thread of its own.
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
