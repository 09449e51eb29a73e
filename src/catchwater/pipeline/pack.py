"""Events to one Arrow-IPC blob per batch and shard, and back; keys to shards, shards to labels."""

from typing import NamedTuple

import pyarrow as pa

from catchwater.pipeline.function import FunctionSpec


class Packed(NamedTuple):
    """The events of one batch that belong to one shard."""

    label: int
    blob: bytes


class Unpacked(NamedTuple):
    """A blob opened: side by side in log order; keys are stored keys (hash + key)."""

    origin: str
    keys: list[bytes]
    values: list[bytes]
    offsets: pa.Int64Array


def shard_labels(shards: int) -> list[int]:
    """The Spark int labels of shards 0..n-1, even over 64 partitions and every divisor of 64."""
    ...


def pack(
    spec: FunctionSpec,
    keys: pa.Array | None,
    values: pa.Array,
    offsets: pa.Array,
    *,
    origin: str,
    labels: list[int],
) -> list[Packed]:
    """Split a batch by shard. `keys` = the records' keys where they are the function's key, else
    None: the key's fields are then picked out of the JSON. `origin` ("topic-partition") and
    offsets are for error messages."""
    ...


def unpack(blob: bytes) -> Unpacked:
    """Open one blob."""
    ...


def decode_events(spec: FunctionSpec, unpacked: Unpacked) -> list[object]:
    """The events of a blob; EventUndecodable names topic, partition and offset of a bad one."""
    ...
