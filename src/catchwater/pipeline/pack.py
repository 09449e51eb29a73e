"""Events to one Arrow-IPC blob per batch and shard, and back.

Spark pays per row, so many events travel as one: the source packs what it reads, by shard, and
the operator unpacks. A blob holds stored keys (hash and key), values as they came, and the offsets
that error messages name. A shard is a range of the key's hash; its *label* is the number by which
Spark's hash partitioning spreads shards evenly over tasks.

Relies on pyarrow. JSON is opened here only for its key fields, and not at all where the record's
key is the function's key.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.state.keys import encode_key, stored_key

_EVEN_OVER = 64
_SCHEMA = (("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()))


class EventUndecodable(CatchwaterError):
    """An event is not what the function's event class says."""


class Packed(NamedTuple):
    """The events of one batch that belong to one shard."""

    label: int
    blob: bytes


class Unpacked(NamedTuple):
    """A blob opened: side by side in log order; keys are stored keys."""

    origin: str
    keys: list[bytes]
    values: list[bytes]
    offsets: pa.Int64Array


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


def pack(
    spec: FunctionSpec,
    keys: pa.Array | None,
    values: pa.Array,
    offsets: pa.Array,
    *,
    origin: str,
    labels: list[int],
) -> list[Packed]:
    """Split a batch by shard, in log order; `labels` are those of all shards.

    `keys` are the records' keys where they are the function's key, else None: the key's fields
    are then picked out of the JSON. `origin` ("topic-partition") and the offsets say where an
    event came from. Raises EventUndecodable, KeyTooLong.
    """
    if keys is None:
        keys = pa.array(_keys_in(spec, values, offsets, origin), pa.binary())
    elif keys.null_count:
        row = keys.is_null().index(True).as_py()
        raise _undecodable(spec, origin, offsets[row], "it has no key")
    distinct = keys.cast(pa.binary()).dictionary_encode()
    stored = [stored_key(key) for key in distinct.dictionary.to_pylist()]
    high = np.frombuffer(b"".join(key[:4] for key in stored), ">u4").astype(np.uint64)
    rows = distinct.indices.to_numpy()
    shards = ((high * np.uint64(len(labels))) >> np.uint64(32)).astype(np.int64)[rows]
    table = pa.record_batch(
        [pa.array(stored, pa.binary()).take(distinct.indices), values.cast(pa.binary()), offsets],
        schema=pa.schema(_SCHEMA, metadata={"origin": origin}),
    )
    return [Packed(labels[shard], _to_ipc(part)) for shard, part in _split(table, shards)]


def unpack(blob: bytes) -> Unpacked:
    """Open one blob."""
    with pa.ipc.open_stream(blob) as reader:
        batch = reader.read_next_batch()
    keys, values = (batch.column(i).to_numpy(zero_copy_only=False).tolist() for i in (0, 1))
    return Unpacked(batch.schema.metadata[b"origin"].decode(), keys, values, batch.column(2))


def decode_events(spec: FunctionSpec, unpacked: Unpacked) -> list[Any]:
    """The events of a blob, in order; EventUndecodable names topic, partition and offset."""
    return _decode_all(spec.decode_event, spec, unpacked.values, unpacked.offsets, unpacked.origin)


def _keys_in(
    spec: FunctionSpec, values: pa.Array, offsets: pa.Array, origin: str
) -> Iterator[bytes]:
    raw = values.to_numpy(zero_copy_only=False).tolist()
    partial = _decode_all(spec.decode_key_fields, spec, raw, offsets, origin)
    return map(encode_key, map(spec.key_of_fields, partial))


def _decode_all(
    decode: Callable[[bytes], Any],
    spec: FunctionSpec,
    values: list[bytes],
    offsets: pa.Array,
    origin: str,
) -> list[Any]:
    decoded: list[Any] = []
    try:
        decoded.extend(map(decode, values))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise _undecodable(spec, origin, offsets[len(decoded)], str(error)) from None
    return decoded


def _undecodable(
    spec: FunctionSpec, origin: str, offset: pa.Scalar, reason: str
) -> EventUndecodable:
    return EventUndecodable(
        f"The event at {origin}, offset {offset.as_py()}, cannot be read as "
        f"{spec.event_type.__name__} of function {spec.name!r}: {reason}.",
        hint="Correct the event class, or start behind this offset.",
    )


def _split(table: pa.RecordBatch, shards: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(shards, kind="stable")
    found, starts = np.unique(shards[order], return_index=True)
    bounds = pairwise([*starts, len(order)])
    for shard, (start, end) in zip(found, bounds, strict=True):
        yield int(shard), table.take(pa.array(order[start:end]))


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


_U32 = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _U32
