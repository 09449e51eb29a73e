"""Outputs back into our own log, exactly once: staged chunks, one catalog commit per epoch.

A task encodes its shard's records as record batches, by partition of the output topic, into one
chunk (`log.chunk`) and puts it into the log's object store under `staged/`. The driver commits an
epoch's chunks through the control API in one catalog transaction that also writes the mark.

Promises what `base` asks. The bytes of an epoch depend only on its records: timestamps are the
epoch's clock, no producer id is used. Records of one key go to one partition, chosen as Kafka's
Java client does, and keep their order within a shard.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from catchwater.catalog.rows import (
    PartitionKey,
)
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.log.format import chunk
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.objects.open import open_store
from catchwater.recovery.ledger import SinkEpoch
from catchwater.replay.control import Control
from catchwater.sinks.base import EpochDiffers, OutputRecord, Staged, checksum_of, epoch_checksum
from catchwater.wire.batch import BatchHeader, read_header

if TYPE_CHECKING:
    from catchwater.wire.records import Record

BATCH_BYTES = 512 * 1024
"""Keys and values of one record batch; well below any broker's `message.max.bytes`."""

_MASK = 0xFFFFFFFF


class StoreUnsupported(CatchwaterError):
    """The log's objects lie where this sink cannot put any."""


@dataclass(frozen=True, slots=True)
class LogStager:
    """The task's half: one chunk per shard and epoch."""

    objects: str
    """The object store's own URL, as `open_store` takes it."""
    folder: str
    """`staged/<pipeline>/<sink>`."""
    topic_id: bytes
    partitions: int

    def stage(
        self, epoch: int, shard: int, records: Sequence[OutputRecord], clock: Clock = SYSTEM
    ) -> Staged:
        """Put the records into one staged chunk; nothing is put where there are none."""
        checksum = checksum_of(records)
        if not records:
            return Staged(shard, "", 0, 0, 0)
        parts, _ = chunk.encode(self._batches(records), records[0].timestamp_ms)
        key = f"{self.folder}/{clock.token()}.chunk"
        size = _store(self.objects).put(key, parts)
        return Staged(shard, key, len(records), size, checksum)

    def _batches(
        self, records: Sequence[OutputRecord]
    ) -> list[tuple[PartitionKey, BatchHeader, Buffer]]:
        """Record batches of the output partitions, those of one partition side by side."""
        # The driver has this class, too, and never encodes: loading the encoder takes a second.
        from catchwater.wire.records import encode_batch

        by_partition: dict[int, list[Record]] = {}
        for record in records:
            partition = partition_of(record.key, self.partitions)
            by_partition.setdefault(partition, []).append(record)
        batches: list[tuple[PartitionKey, BatchHeader, Buffer]] = []
        for partition in sorted(by_partition):
            for group in _groups(by_partition[partition]):
                data = encode_batch(group)
                batches.append(((self.topic_id, partition), read_header(memoryview(data)), data))
        return batches


class LogSink:
    """The driver's half."""

    def __init__(
        self, control: Control, *, pipeline: str, name: str, topic: str, stager: LogStager
    ) -> None:
        self.name = name
        self._control = control
        self._pipeline = pipeline
        self._topic = topic
        self._stager = stager

    def stager(self) -> LogStager:
        """What the tasks stage with."""
        return self._stager

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Make the epoch's chunks part of the topic, once. Raises `EpochDiffers`."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        checksum = epoch_checksum(pieces)
        answer = self._control.commit_epoch(
            self._pipeline,
            self.name,
            epoch,
            topic=self._topic,
            staged=[piece.location for piece in pieces if piece.location],
            checksum=checksum,
        )
        if answer["checksum"] != checksum:
            raise EpochDiffers(
                f"The sink {self.name!r} has epoch {epoch} of {self._pipeline!r} with checksum "
                f"{answer['checksum']}; this run of the epoch gave {checksum}.",
                hint="The function is not deterministic, or the checkpoint is not the one this "
                "sink was written from. Give the pipeline another name to write anew.",
            )
        return SinkEpoch(
            self._topic,
            int(answer["records"]),
            checksum,
            {str(p): (int(first), int(last)) for p, (first, last) in answer["offsets"].items()},
        )

    def last_epoch(self) -> int | None:
        """The newest epoch of the pipeline that the topic holds."""
        answer = self._control.last_epoch(self._pipeline, self.name)
        return None if answer is None else int(answer["epoch"])


@cache
def _store(url: str) -> ObjectStore:
    """The log's object store; one set of connections a process."""
    if url.startswith("memory:"):
        raise StoreUnsupported("The log's objects lie in its broker's memory; nobody can stage.")
    return open_store(url, SYSTEM)


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
