"""The stagers of the log sink: records as a staged chunk, or produced directly into the topic.

With exactly-once, a task encodes its shard's records as record batches, by partition of the output
topic, into one chunk (`log.chunk`) and writes it to the log's object store under `staged/`, where
no reader sees it. The bytes depend only on the records: timestamps are the epoch's clock, and there
is no producer id. With at-least-once, the task produces the batches itself; each record then has
its identity in a header.

Records of one key go to one partition, chosen as by Kafka's Java client, and keep their order
within a shard. A copy of the records is written beside the checkpoint at the same time.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from catchwater.catalog.rows import PartitionKey
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.log.format import chunk
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.sinks.base import (
    ROW_HEADER,
    SINK_HEADER,
    Headers,
    OutputRecord,
    RowId,
    Staged,
    checksum_of,
)
from catchwater.sinks.epochs import StagedFile, store_at
from catchwater.wire.batch import BatchHeader, read_header
from catchwater.wire.client import Client
from catchwater.wire.security.settings import UNSECURED, Security

if TYPE_CHECKING:
    from catchwater.wire.arrow import Record

BATCH_BYTES = 512 * 1024
"""Bound of keys and values in one record batch; well below any broker's `message.max.bytes`."""

Addressed = tuple[int, "Record"]
"""A record and its partition."""

_MASK = 0xFFFFFFFF


class StoreUnsupported(CatchwaterError):
    """Tasks cannot write to the log's object store."""


@dataclass(frozen=True, slots=True)
class LogStager:
    """For exactly-once: one chunk per shard and epoch, and a copy."""

    objects: str
    """The log's object store, as `open_store` takes it."""
    folder: str
    """`staged/<pipeline>/<sink>`."""
    topic_id: bytes
    partitions: int
    copy: StagedFile | None = None

    def stage(
        self, epoch: int, shard: int, records: Sequence[OutputRecord], clock: Clock = SYSTEM
    ) -> Staged:
        """Write the records as one staged chunk; without records none is written."""
        if not records:
            return Staged(shard, "", 0, 0, 0)
        if self.copy is None:
            key, size = self.put_chunk(self._placed(records), clock)
            return Staged(shard, key, len(records), size, checksum_of(records))
        # Both are synced to storage; in parallel that takes the time of one.
        kept = copies().submit(self.copy.stage, epoch, shard, records)
        key, size = self.put_chunk(self._placed(records), clock)
        return Staged(
            shard, key, len(records), size, kept.result().checksum, kept.result().location
        )

    def put_chunk(self, records: Iterable[Addressed], clock: Clock) -> tuple[str, int]:
        """Write at least one record as a chunk; its key and size in bytes."""
        batches: list[tuple[PartitionKey, BatchHeader, Buffer]] = []
        for partition, data in batches_of(records):
            header = read_header(memoryview(data))
            batches.append(((self.topic_id, partition), header, data))
        newest = max(header.max_timestamp for _, header, _ in batches)
        parts, _ = chunk.encode(batches, newest)
        key = f"{self.folder}/{clock.token()}.chunk"
        return key, _log_store(self.objects).put(key, parts)

    def _placed(self, records: Sequence[OutputRecord]) -> Iterable[Addressed]:
        return ((partition_of(record.key, self.partitions), record) for record in records)


@dataclass(frozen=True, slots=True)
class LogAppender:
    """For at-least-once: the records are produced into the topic, and a copy is kept."""

    bootstrap: str
    topic: str
    partitions: int
    sink: str
    """`<pipeline>/<sink>`, for the header."""
    copy: StagedFile
    security: Security = UNSECURED
    """With the contents of its files, because tasks may run on other machines."""

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """Write a copy of the records, then produce them."""
        staged = self.copy.stage(epoch, shard, records)
        if not records:
            return staged
        placed = (
            (
                partition_of(record.key, self.partitions),
                record._replace(
                    headers=(*record.headers, *row_headers(self.sink, RowId(epoch, shard, at)))
                ),
            )
            for at, record in enumerate(records)
        )
        batches = [((self.topic, partition), data) for partition, data in batches_of(placed)]
        with Client(self.bootstrap, security=self.security) as client:
            client.produce(batches)
        return staged


def row_headers(sink: str, row: RowId) -> Headers:
    """A record's identity as headers, for records that an epoch's offsets do not identify."""
    return ((ROW_HEADER, str(row).encode()), (SINK_HEADER, sink.encode()))


def batches_of(records: Iterable[Addressed]) -> list[tuple[int, bytes]]:
    """Record batches by partition, in order within a partition."""
    # The driver imports this module, too, and rarely encodes; the encoder takes a second to load.
    from catchwater.wire.arrow import encode_batch

    by_partition: dict[int, list[Record]] = {}
    for partition, record in records:
        by_partition.setdefault(partition, []).append(record)
    return [
        (partition, encode_batch(group))
        for partition in sorted(by_partition)
        for group in _groups(by_partition[partition])
    ]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, as Kafka's Java client chooses it (murmur2, sign bit off)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), unsigned."""
    m = 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & _MASK
        h = (h * m & _MASK) ^ ((k ^ k >> 24) * m & _MASK)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & _MASK
    h = (h ^ h >> 13) * m & _MASK
    return h ^ h >> 15


def copies() -> ThreadPoolExecutor:
    """A thread that writes the copy while the caller writes to the log."""
    return _copies(os.getpid())


@cache
def _copies(process: int) -> ThreadPoolExecutor:
    """Keyed by process id, because a fork copies this cache but no threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="catchwater-copy")


def _log_store(url: str) -> ObjectStore:
    """The log's object store."""
    if url.startswith("memory:"):
        raise StoreUnsupported("The log's objects lie in its broker's memory; nobody can stage.")
    return store_at(url)


def _groups(records: "Sequence[Record]") -> "Iterable[list[Record]]":
    """The records in groups of about BATCH_BYTES."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record[0] or b"") + len(record[1] or b"")
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
