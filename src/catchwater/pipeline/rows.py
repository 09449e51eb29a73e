"""The rows that travel between the source, the stages of a chain and the driver.

Spark pays per row, so a row carries a whole batch. It says where it goes: the stage, or the driver,
and the shard. Its *label* is a number by which Spark's hash partitioning spreads shards evenly over
tasks. A shard's rows of an epoch are put in order by their sequence: the head, then
batches of tables, then batches of events in the order of the log. Pure; no Spark.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from catchwater.recovery.ledger import ShardEpoch
from catchwater.sinks.base import Staged
from catchwater.state.roll import EMPTY, Position

SPARK_SCHEMA = "label int, stage int, shard int, sequence long, blob binary"
_ARROW = pa.schema(
    [
        ("label", pa.int32()),
        ("stage", pa.int32()),
        ("shard", pa.int32()),
        ("sequence", pa.int64()),
        ("blob", pa.binary()),
    ]
)

_U32 = 0xFFFFFFFF
_EVEN_OVER = 64

DRIVER = -1
"""The stage of a manifest."""
HEAD = -1
"""The sequence of a shard's first row of an epoch."""
TABLES = 0
"""Sequences from here on are batches of tables."""
EVENTS = 2**62
"""Sequences from here on are batches of events."""
PER_PART = 2**32
"""Sequences that one task, or one shard of the stage before, may use."""


class Row(NamedTuple):
    """One row."""

    label: int
    stage: int
    shard: int
    sequence: int
    blob: bytes


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The times of an epoch, and where a shard's state stands before it."""

    epoch: int
    watermark_ms: int
    clock_ms: int
    base: Position = EMPTY
    """Where its state stands before the epoch, by the ledger."""
    keys: int = 0
    """Keys it has a record of before the epoch."""


class Manifest(msgspec.Struct, frozen=True):
    """What one shard did in an epoch, and what it staged for each sink."""

    shard: ShardEpoch
    staged: dict[str, Staged]


def to_arrow(rows: Iterable[Row]) -> pa.RecordBatch:
    """The rows as Spark takes them."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def from_arrow(batch: pa.RecordBatch) -> list[Row]:
    """The rows that Spark hands over."""
    columns = [batch.column(field.name).to_pylist() for field in _ARROW]
    return list(map(Row, *columns))


def by_shard(rows: Iterable[Row]) -> dict[int, Sequence[Row]]:
    """Each shard's rows in order, the shards in order."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.shard].append(row)
    return {shard: sorted(found[shard], key=lambda row: row.sequence) for shard in sorted(found)}


def head_of(rows: Sequence[Row]) -> Head:
    """What the first of a shard's rows says."""
    assert rows[0].sequence == HEAD, f"shard {rows[0].shard} got rows without a head"
    return msgspec.msgpack.decode(rows[0].blob, type=Head)


def shard_labels(shards: int) -> list[int]:
    """Labels of shards 0..n-1 that Spark spreads evenly over 64 partitions or a divisor of 64.

    Shard i gets the next number whose Murmur3 (Spark's, seed 42) is i modulo 64.
    """
    labels: list[int] = []
    used = 0
    for residues in range(0, shards, _EVEN_OVER):
        wanted = set(range(min(_EVEN_OVER, shards - residues)))
        found: dict[int, int] = {}
        while wanted:
            residue = spark_hash(used) % _EVEN_OVER
            if residue in wanted:
                wanted.remove(residue)
                found[residue] = used
            used += 1
        labels += [found[residue] for residue in sorted(found)]
    return labels


def spark_hash(label: int) -> int:
    """Spark's `hash(int)`: Murmur3 x86 32-bit of four bytes with seed 42, as a signed number."""
    k = _rotate(label * 0xCC9E2D51 & _U32, 15) * 0x1B873593 & _U32
    h = (_rotate(42 ^ k, 13) * 5 + 0xE6546B64) & _U32
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _U32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _U32
