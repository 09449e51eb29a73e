"""Damage under a checksum that fits: the rows that a plain reader finds, or `RecordsDamaged`.

Batches of every codec are mutated and sealed again, so that what is wrong reaches the decoder; they
lie among other bytes, and a reader written plainly in Python says what the decoder must answer.
The compiled loops read by address, so they also run as plain Python in a process of their own,
where each address is checked. MUTATIONS sets how many the long forms try.
"""

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import pack_into
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from catchwater.wire import arrow as records_module
from catchwater.wire import codecs, kernels
from catchwater.wire.arrow import (
    COLUMNS,
    MAX_OFFSET,
    AbortedTransaction,
    PlacedBatch,
    RecordsDamaged,
    decode,
    encode_batch,
    place,
)
from catchwater.wire.batch import HEADER_BYTES, BatchError, check_crc
from catchwater.wire.codecs import Codec, CodecError

MUTATIONS = int(os.environ.get("MUTATIONS", "100000"))
MAX_BYTES = 2**20
LENGTH_AT, CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, BASE_TIME_AT = 8, 17, 21, 23, 27
MAX_TIME_AT, PRODUCER_AT, COUNT_AT = 35, 43, 57
INTERESTING = (0, 1, 2, 3, 5, 6, 7, 8, 60, 126, 127, 128, 129, 254, 255)
EXTREMES = (-(2**31), -2, -1, 0, 1, 2, 3, 255, 2**16, 2**31 - 1)

Row = tuple[Any, ...]


class Damaged(Exception):
    """What the plain reader says of a batch."""


# The plain reader.


def varint(body: memoryview, at: int) -> tuple[int, int]:
    bits = 0
    for count in range(10):
        if at >= len(body):
            raise IndexError
        byte = body[at]
        at += 1
        bits |= (byte & 127) << (7 * count)
        if byte < 128:
            bits %= 2**64
            return (bits >> 1) ^ -(bits & 1), at
    raise IndexError


def field(body: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = varint(body, at)
    if size < -1 or at + size > len(body):
        raise IndexError
    return (None, at) if size < 0 else (bytes(body[at : at + size]), at + size)


def plain_record(body: memoryview, at: int) -> tuple[int, int, Any, Any, Any, int]:
    size, at = varint(body, at)
    end = at + size
    if size < 6 or end > len(body):
        raise IndexError
    record, headers = body[:end], []
    time_delta, at = varint(record, at + 1)
    offset_delta, at = varint(record, at)
    key, at = field(record, at)
    value, at = field(record, at)
    count, at = varint(record, at)
    if not 0 <= count <= end - at:
        raise IndexError
    for _ in range(count):
        name, at = field(record, at)
        content, at = field(record, at)
        if name is None:
            raise IndexError
        headers.append({"key": name.decode(errors="replace"), "value": content})
    if at != end:
        raise IndexError
    return time_delta, offset_delta, key, value, headers or None, at


def plain_rows(data: memoryview, batch: PlacedBatch) -> list[Row]:
    header = batch.header
    rows: list[Row] = []
    at, previous = 0, -1
    try:
        check_crc(data[batch.at : batch.end], header)
        packed = data[batch.at + HEADER_BYTES : batch.end]
        body = codecs.decompress(header.compression, packed, max_bytes=MAX_BYTES)
        if not 0 <= header.record_count * 7 <= len(body):
            raise IndexError
        for _ in range(header.record_count):
            time_delta, delta, key, value, headers, at = plain_record(body, at)
            if not previous < delta <= header.last_offset_delta:
                raise IndexError
            previous = delta
            time = (header.base_timestamp + time_delta + 2**63) % 2**64 - 2**63
            time = header.max_timestamp if header.log_append_time else time
            kind = int(header.log_append_time)
            rows.append((key, value, batch.base_offset + delta, time, kind, headers))
        if at != len(body):
            raise IndexError
    except (BatchError, CodecError, IndexError):
        raise Damaged from None
    return rows


def is_damaged(data: memoryview, batches: Sequence[PlacedBatch], offset: int) -> bool:
    with pytest.raises(Damaged):
        for batch in batches:
            if batch.base_offset == offset:
                plain_rows(data, batch)
    return True


def plain_read(
    data: memoryview,
    batches: Sequence[PlacedBatch],
    first: int,
    stop: int,
    aborted: Sequence[AbortedTransaction],
) -> list[Row]:
    rows: list[Row] = []
    open_producers: set[int] = set()
    pending = list(aborted)
    for batch in batches:
        begun = [each for each in pending if each.first_offset < batch.next_offset]
        open_producers.update(each.producer_id for each in begun)
        pending = [each for each in pending if each not in begun]
        producer_id = batch.header.producer_id
        if batch.header.is_control:
            if producer_id in open_producers:
                key = next((row[0] for row in plain_rows(data, batch)), None)
                if key is not None and len(key) >= 4 and key[2:4] == b"\0\0":
                    open_producers.discard(producer_id)
        elif batch.header.is_transactional and producer_id in open_producers:
            continue
        elif batch.base_offset < stop and batch.next_offset > first:
            rows += [row for row in plain_rows(data, batch) if first <= row[2] < stop]
    return rows


# The mutations.


def body_of(chance: random.Random) -> tuple[bytes, int]:
    """Some records as bytes, and how many."""
    count = chance.choice((1, 1, 2, 3, 10, 30))

    def some(most: int) -> bytes | None:
        size = chance.choice((-1, 0, 1, most // 2, most))
        return (
            None if size < 0 else chance.randbytes(size) if chance.random() < 0.5 else b"a" * size
        )

    records = [
        (
            some(20),
            some(chance.choice((10, 200, 3000))),
            chance.choice((1000 + n, 0, 2**45)),
            [
                (chance.choice(("h", "", "käse")), some(70))
                for _ in range(chance.choice((0, 0, 1, 3)))
            ],
        )
        for n in range(count)
    ]
    return encode_batch(records)[HEADER_BYTES:], count


def packed(chance: random.Random, codec: int, body: bytes) -> bytes:
    if codec == Codec.SNAPPY and chance.random() < 0.5:
        return bytes(cramjam.snappy.compress_raw(body))
    if codec == Codec.ZSTD and chance.random() < 0.5:  # a frame that does not say its size
        compressor = cramjam.zstd.Compressor()
        compressor.compress(body)
        return bytes(compressor.finish())
    return bytes(codecs.compress(codec, body))


def damage(chance: random.Random, data: bytearray, begin: int = 0) -> None:
    """One to eight places of `data` from `begin` on, or its length, changed."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if begin >= len(data):
            return
        at = len(data) - 1 if chance.random() < 0.2 else chance.randrange(begin, len(data))
        match chance.randrange(6):
            case 0 | 1:
                data[at] = chance.choice(INTERESTING)
            case 2:
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at] = chance.randrange(256)
            case 4:
                del data[at : at + chance.choice((1, 1, 2, len(data)))]
            case 5:
                data[at:at] = chance.choice((b"\x80", b"\xff" * 9, b"\0", bytes(data[at : at + 9])))


def damage_header(chance: random.Random, batch: bytearray) -> None:
    wide = chance.choice((*EXTREMES, -(2**63), 2**63 - 1))
    match chance.randrange(6):
        case 0:
            pack_into(">i", batch, COUNT_AT, chance.choice(EXTREMES))
        case 1:
            pack_into(">i", batch, LAST_DELTA_AT, chance.choice(EXTREMES))
        case 2:
            pack_into(">q", batch, chance.choice((BASE_TIME_AT, MAX_TIME_AT)), wide)
        case 3:
            batch[ATTRIBUTES_AT + 1] ^= 1 << chance.randrange(8)
        case 4:
            pack_into(">q", batch, chance.choice((0, PRODUCER_AT)), wide)
        case 5:
            pack_into(">i", batch, LENGTH_AT, chance.choice((*EXTREMES, len(batch) - 11)))


def sealed(body: bytes, count: int, codec: int, attributes: int = 0) -> bytearray:
    batch = bytearray(encode_batch([(None, None, 1000, ())], producer_id=5, producer_epoch=0))
    batch[HEADER_BYTES:] = body
    batch[ATTRIBUTES_AT + 1] = codec | attributes
    pack_into(">i", batch, LENGTH_AT, len(batch) - 12)
    pack_into(">i", batch, LAST_DELTA_AT, count - 1)
    pack_into(">i", batch, COUNT_AT, count)
    return batch


def mutated(chance: random.Random, codec: int) -> bytearray:
    """A batch with damage in its records, its compressed records or its header, or in none."""
    body, count = body_of(chance)
    kind = chance.randrange(8)
    if kind in (0, 1, 2):
        changed = bytearray(body)
        damage(chance, changed)
        body = bytes(changed)
    attributes = chance.choice((0, 0, 0x08, 0x10, 0x30))
    batch = sealed(packed(chance, codec, body), count, codec, attributes)
    if kind in (3, 4):
        damage(chance, batch, HEADER_BYTES)
        pack_into(">i", batch, LENGTH_AT, len(batch) - 12)
    if kind in (5, 6):
        damage_header(chance, batch)
    pack_into(">I", batch, CRC_AT, crc32c(batch[ATTRIBUTES_AT:]))
    return batch


# The comparison.


def surrounded(chance: random.Random, data: bytes) -> tuple[memoryview, int]:
    """`data` in a larger buffer, whose other bytes would be believed if they were read."""
    around = bytes([chance.choice(INTERESTING)]) * 64
    return memoryview(around + data + around)[64 : 64 + len(data)], 64


def decoded_rows(data: memoryview, batches: list[PlacedBatch], **wanted: Any) -> list[Row]:
    rows: list[Row] = []
    for found in decode(data, batches, **wanted):
        found.validate(full=True)
        assert 0 < found.num_rows <= records_module.GROUP_RECORDS
        columns = [
            (found[name].cast(pa.int64()) if name == "timestamp" else found[name]).to_pylist()
            if name in found.schema.names
            else [None] * found.num_rows
            for name in COLUMNS
        ]
        rows += zip(*columns, strict=True)
    return rows


@contextmanager
def unfolded_among_other_bytes(chance: random.Random) -> Iterator[None]:
    """While this holds, what is decompressed lies in a larger buffer, and within a small cap.

    That buffer is now and then the one that batches share, full of what would be believed.
    """
    unfold = codecs.decompress

    def decompress(
        codec: int,
        data: codecs.Buffer,
        *,
        max_bytes: int = MAX_BYTES,
        room: memoryview | None = None,
    ) -> memoryview:
        if room is None or chance.random() < 0.3:
            return surrounded(chance, unfold(codec, data, max_bytes=max_bytes))[0]
        around = room[: max_bytes + 64]
        around[:] = bytes([chance.choice(INTERESTING)]) * len(around)
        return unfold(codec, data, max_bytes=max_bytes, room=room)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "decompress", decompress)
        yield


def compare(chance: random.Random) -> str:
    """One mutation: what the decoder answers is what the plain reader does; says which it was."""
    parts = [mutated(chance, chance.randrange(5)) for _ in range(chance.choice((1, 1, 1, 3)))]
    data, _ = surrounded(chance, b"".join(parts))
    base_offset = chance.choice((None, 0, 1000, MAX_OFFSET - 2**32))
    try:
        batches = place(data, base_offset=base_offset, partial_tail=chance.random() < 0.5)
    except RecordsDamaged:
        return "misplaced"
    begin = batches[0].base_offset if batches else 0
    first = chance.choice((0, begin, begin + 1))
    stop = chance.choice((MAX_OFFSET, begin, begin + 2, begin + 2**31))
    aborted = chance.choice(([], [], [AbortedTransaction(5, begin)], [AbortedTransaction(7, 0)]))
    columns = chance.choice((tuple(COLUMNS), ("value",), ("headers", "offset"), ("key",)))
    try:
        expected = plain_read(data, batches, first, stop, aborted)
    except Damaged:
        with pytest.raises(RecordsDamaged) as caught:
            decoded_rows(data, batches, first=first, stop=stop, aborted=aborted, columns=columns)
        assert is_damaged(data, batches, caught.value.offset)
        return "damaged"
    found = decoded_rows(data, batches, first=first, stop=stop, aborted=aborted, columns=columns)
    keep = [name in columns for name in COLUMNS]
    assert found == [
        tuple(cell if kept else None for cell, kept in zip(row, keep, strict=True))
        for row in expected
    ]
    return "rows" if found else "nothing"


def compare_many(seed: int, count: int) -> dict[str, int]:
    outcomes = {"rows": 0, "nothing": 0, "damaged": 0, "misplaced": 0}
    for index in range(count):
        chance = random.Random(f"{seed} {index}")
        try:
            with unfolded_among_other_bytes(chance):
                outcomes[compare(chance)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, mutation {index}")
            raise
    return outcomes


def test_damage_under_a_right_checksum_is_read_as_a_plain_reader_would() -> None:
    outcomes = compare_many(1, 4000)
    assert min(outcomes.values()) > 100, outcomes


@pytest.mark.slow
def test_much_damage_is_read_as_a_plain_reader_would() -> None:
    outcomes = compare_many(2, MUTATIONS)
    assert min(outcomes.values()) > MUTATIONS / 60, outcomes


# The same with every address checked, in a process that compiles nothing.


class Checked:
    """Stands in for the loops' two accesses by address, and knows what they may touch."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes_at: list[range] = []
        for name in ("parse", "parse_headers", "gather", "write_records"):
            setattr(kernels, name, self.wrap(getattr(kernels, name)))
        kernels._byte, kernels._copy = self.byte, self.copy

    def wrap(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any) -> Any:
            arrays = [each for each in arguments if getattr(each, "dtype", None) == np.uint8]
            self.bytes_at = [
                range(array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays
            ]
            return loop(*arguments)

        return checked

    def byte(self, address: int) -> int:
        assert int(address) in self.bytes_at[0], "a byte out of bounds is read"
        self.reads += 1
        return ctypes.c_ubyte.from_address(int(address)).value

    def copy(self, to: int, source: int, size: int) -> None:
        if size:
            target = self.bytes_at[-1]
            assert int(to) in target and int(to + size - 1) in target
            assert any(
                int(source) in each and int(source + size - 1) in each
                for each in self.bytes_at[:-1]
            )
            ctypes.memmove(int(to), int(source), int(size))


def checked_in_a_process_of_its_own(seed: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__), str(seed), str(count)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > count, "the loops have read by way of what checks them"


def test_no_address_out_of_bounds_is_touched() -> None:
    checked_in_a_process_of_its_own(3, 300)


@pytest.mark.slow
def test_no_address_out_of_bounds_is_touched_for_much_damage() -> None:
    checked_in_a_process_of_its_own(4, MUTATIONS // 10)


if __name__ == "__main__":
    np.seterr(all="ignore")  # compiled integers wrap around in silence, and so do these
    accesses = Checked()
    compare_many(int(sys.argv[1]), int(sys.argv[2]))
    print(accesses.reads)
