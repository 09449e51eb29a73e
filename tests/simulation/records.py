"""Record batches as clients write and read them, by an implementation of the tests' own.

Uncompressed v2 batches only. `committed` is the filter of a consumer at read_committed, as
Kafka's clients have it: aborted transactions are told by the broker, ended by their markers.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

_HEADER = Struct(">qiibIhiqqqhii")
_COVERED = Struct(">hiqqqhii")
_CONTROL_KEY = Struct(">hh")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class Record(NamedTuple):
    """One record with its final offset."""

    offset: int
    key: str | None
    value: str | None


class Batch(NamedTuple):
    """One batch; a marker has no records."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    marker: str | None
    """`commit` or `abort`."""
    records: list[Record]


def build(
    records: Sequence[tuple[str | None, str | None]],
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch of (key, value) as a producer sends it."""
    body = bytearray()
    for delta, (key, value) in enumerate(records):
        record = b"\0\0" + _varint(delta) + _text(key) + _text(value) + b"\0"
        body += _varint(len(record)) + record
    count = len(records)
    attributes = _TRANSACTIONAL if transactional else 0
    head = (attributes, count - 1, timestamp_ms, timestamp_ms)
    covered = _COVERED.pack(*head, producer_id, producer_epoch, base_sequence, count) + body
    before = Struct(">qiibI").pack(0, 9 + len(covered), -1, 2, crc32c(covered))
    return before + covered


def parse(data: bytes | memoryview) -> list[Batch]:
    """Every batch in these bytes; asserts what holds for all that a broker sends."""
    view = memoryview(data)
    batches = []
    at = 0
    while at < len(view):
        fields = _HEADER.unpack_from(view, at)
        base, length, _, magic, crc, attributes, last_delta = fields[:7]
        producer_id, epoch, sequence, count = fields[9:]
        end = at + 12 + length
        assert magic == 2 and end <= len(view), "a broker sends whole batches"
        assert crc32c(bytes(view[at + 21 : end])) == crc, f"damaged bytes at offset {base}"
        body = bytes(view[at + _HEADER.size : end])
        marker = None
        records: list[Record] = []
        if attributes & _CONTROL:
            marker = "commit" if _marker(body) == 1 else "abort"
        else:
            records = _records(body, base, count)
        is_transactional = bool(attributes & _TRANSACTIONAL)
        batches.append(
            Batch(
                base, base + last_delta, producer_id, epoch, sequence, is_transactional, marker,
                records,
            )
        )  # fmt: skip
        at = end
    return batches


def committed(batches: Iterable[Batch], aborted: Iterable[tuple[int, int]]) -> list[Batch]:
    """The batches without those of aborted transactions: (producer id, first offset) each."""
    waiting = sorted(aborted, key=lambda each: each[1])
    gone: set[int] = set()
    kept = []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            gone.add(waiting.pop(0)[0])
        if batch.marker is not None:
            if batch.marker == "abort":
                gone.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in gone):
            kept.append(batch)
    return kept


def _records(body: bytes, base: int, count: int) -> list[Record]:
    at = 0
    records = []
    for _ in range(count):
        _, at = _read_varint(body, at)
        _, at = _read_varint(body, at + 1)  # after the attributes: the timestamp's delta
        delta, at = _read_varint(body, at)
        key, at = _read_text(body, at)
        value, at = _read_text(body, at)
        headers, at = _read_varint(body, at)
        assert headers == 0
        records.append(Record(base + delta, key, value))
    return records


def _marker(body: bytes) -> int:
    _, at = _read_varint(body, 0)
    _, at = _read_varint(body, at + 1)
    _, at = _read_varint(body, at)
    _, at = _read_varint(body, at)
    return int(_CONTROL_KEY.unpack_from(body, at)[1])


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = body[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def _text(text: str | None) -> bytes:
    if text is None:
        return _varint(-1)
    data = text.encode()
    return _varint(len(data)) + data


def _read_text(body: bytes, at: int) -> tuple[str | None, int]:
    size, at = _read_varint(body, at)
    if size < 0:
        return None, at
    return body[at : at + size].decode(), at + size
