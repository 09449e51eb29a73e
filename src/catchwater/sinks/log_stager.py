"""The task's half of the log sink: records as a staged chunk, or straight into the topic.

Exactly once, a task encodes its shard's records as record batches, by partition of the output
topic, into one chunk (`log.chunk`) and puts it into the log's object store under `staged/`, where
nobody reads it. The bytes depend only on the records: timestamps are the epoch's clock, no
producer id is used. At least once, the task produces the batches itself; each record then carries
its identity in a header.

Records of one key go to one partition, chosen as Kafka's Java client does, and keep their order
within a shard. A copy of the records is kept beside the checkpoint at the same time.
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
from catchwater.sinks.staged import StagedFile, store_at
from catchwater.wire.batch import BatchHeader, read_header
from catchwater.wire.client import Client
from catchwater.wire.security.settings import UNSECURED, Security

if TYPE_CHECKING:
    from catchwater.wire.arrow import Record

BATCH_BYTES = 512 * 1024
"""Keys and values of one record batch; well below any broker's `message.max.bytes`."""

Addressed = tuple[int, "Record"]
"""A record and its partition."""

_MASK = 0xFFFFFFFF


class StoreUnsupported(CatchwaterError):
    """The log's objects lie where this sink cannot put any."""


@dataclass(frozen=True, slots=True)
class LogStager:
    """Exactly once: one chunk per shard and epoch, and its copy."""

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
        """Put the records into one staged chunk; nothing is put where there are none."""
        if not records:
            return Staged(shard, "", 0, 0, 0)
        if self.copy is None:
            key, size = self.put_chunk(self._placed(records), clock)
            return Staged(shard, key, len(records), size, checksum_of(records))
        # Both are synced to storage; side by side that takes the time of one.
        kept = copies().submit(self.copy.stage, epoch, shard, records)
        key, size = self.put_chunk(self._placed(records), clock)
        return Staged(
            shard, key, len(records), size, kept.result().checksum, kept.result().location
        )

    def put_chunk(self, records: Iterable[Addressed], clock: Clock) -> tuple[str, int]:
        """Put these records, at least one, into a chunk; its key and size in bytes."""
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
    """At least once: the records at once in the topic, and their copy."""

    bootstrap: str
    topic: str
    partitions: int
    sink: str
    """`<pipeline>/<sink>`, for the header."""
    copy: StagedFile
    security: Security = UNSECURED
    """With the text of its files, for tasks may run on other machines."""

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """Append the records; their copy says what was appended."""
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
    """A record's identity, where its place in the topic does not give it."""
    return ((ROW_HEADER, str(row).encode()), (SINK_HEADER, sink.encode()))


def batches_of(records: Iterable[Addressed]) -> list[tuple[int, bytes]]:
    """Record batches with their partitions, those of one partition side by side and in order."""
    # The driver has this module, too, and seldom encodes: loading the encoder takes a second.
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
    """One thread that writes beside the checkpoint while another writes to the log."""
    return _copies(os.getpid())


@cache
def _copies(process: int) -> ThreadPoolExecutor:
    """A fork has this module's memory, and none of its threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="catchwater-copy")


def _log_store(url: str) -> ObjectStore:
    """The log's object store."""
    if url.startswith("memory:"):
        raise StoreUnsupported("The log's objects lie in its broker's memory; nobody can stage.")
    return store_at(url)


def _groups(records: "Sequence[Record]") -> "Iterable[list[Record]]":
    """The records in runs of about BATCH_BYTES."""
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
