"""Decoding record batches to Arrow on one core, beside aiokafka's compiled decoder.

The same batches of about 1 MB, of 200-byte values and short keys, are read by both in turns: ours
to Arrow, as replay does; aiokafka's `MemoryRecords` (its C extension) to its own record objects,
and to the same columns as Arrow, which is what is compared. Both check checksums. A figure is the
bytes of the values in a second of processor time.
"""

import random
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

import pyarrow as pa
from aiokafka.record._crecords import MemoryRecords

from benchmarks.measure import Row, alternate, publish, row
from catchwater.wire.arrow import COLUMNS as TYPES
from catchwater.wire.arrow import decode, encode_batch, place, warm
from catchwater.wire.codecs import Codec

PER_BATCH = 5_000
VALUE_BYTES = 200
BATCHES = 8
COLUMNS = ("key", "value", "offset", "timestamp")
SECONDS = 0.5
TARGET_GB_S = 3.2
TARGET_RATIO = 13.0


def batches_of(codec: Codec) -> bytes:
    """A few batches side by side; half of each value is the same in all, half is random."""
    chance = random.Random(1)
    return b"".join(
        encode_batch(
            [
                (b"card-%06d" % n, chance.randbytes(VALUE_BYTES // 2) + b"x" * (VALUE_BYTES // 2),
                 1_700_000_000_000 + n, ())
                for n in range(first, first + PER_BATCH)
            ],
            codec=codec, base_offset=first,
        )
        for first in range(0, BATCHES * PER_BATCH, PER_BATCH)
    )  # fmt: skip


def ours(data: bytes, columns: Sequence[str]) -> int:
    return sum(found.num_rows for found in decode(data, place(data), columns=columns))


def aiokafkas(data: bytes, columns: Sequence[str]) -> int:
    """All records of `data`, and the columns of them that are named, as Arrow."""
    batches, count = MemoryRecords(data), 0
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        if not columns:
            for _ in batch:
                count += 1
            continue
        rows = list(map(attrgetter(*columns), batch))
        found = zip(*rows, strict=True) if len(columns) > 1 else [rows]
        arrays = [pa.array(*each) for each in zip(found, map(TYPES.get, columns), strict=True)]
        pa.record_batch(arrays, names=columns)
        count += len(rows)
    return count


def rate(read: Callable[[], int]) -> float:
    """GB of values in a second of this process's processor time, over SECONDS of it."""
    begin, count = time.process_time(), 0
    while (taken := time.process_time() - begin) < SECONDS:
        count += read()
    return count * VALUE_BYTES / taken / 1e9


def rows_of(codec: Codec) -> list[Row]:
    data = batches_of(codec)
    expected = BATCHES * PER_BATCH
    assert ours(data, COLUMNS) == aiokafkas(data, COLUMNS) == aiokafkas(data, ()) == expected
    name = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    rows = []
    for columns in (("value",), COLUMNS):
        for theirs_to_arrow in (columns, ()):
            mine, theirs = alternate(
                lambda columns=columns: rate(lambda: ours(data, columns)),
                lambda wanted=theirs_to_arrow: rate(lambda: aiokafkas(data, wanted)),
            )
            which = "values" if len(columns) == 1 else "all columns"
            peer = "aiokafka to Arrow" if theirs_to_arrow else "aiokafka's records"
            target = TARGET_RATIO if theirs_to_arrow and codec is Codec.NONE else None
            claim = f"decode {VALUE_BYTES} B, {name}, {which}"
            rows.append(row(claim, "GB/s", mine, peer, theirs, target=target))
    return rows


def main() -> None:
    """Uncompressed, lz4 and zstd."""
    warm()
    rows = [each for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD) for each in rows_of(codec)]
    publish("decoder", rows)
    plain = max(each.ours for each in rows if "uncompressed" in each.claim)
    print(f"uncompressed {plain:.2f} GB/s; the target is {TARGET_GB_S} GB/s")


if __name__ == "__main__":
    main()
