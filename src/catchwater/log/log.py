"""The log as brokers see it: topics, appends, reads, offsets, pins and sink epochs.

`Log` puts the parts together (write-ahead log, catalog, object store, appender, reader, packer,
retention) and keeps the rule that binds them: a change that is not a plain append happens between
two chunks, is synced in the catalog first, and only then becomes visible in memory.

All coroutines run on the one event loop that opened the log; what blocks runs in threads.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from catchwater.catalog.base import EpochCommit, OffsetCommit, PartitionKey, Pin, StorageRow, Topic
from catchwater.clock import Clock
from catchwater.log.append import Appended, Submission
from catchwater.log.read import PlanRange
from catchwater.log.sequence import PartitionState
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wire.errors import ErrorCode


@dataclass(frozen=True)
class LogConfig:
    """Sizes in bytes, times in milliseconds; the defaults suit one broker on one machine."""

    wal_segment_bytes: int = 64 * 1024 * 1024
    pending_bytes: int = 64 * 1024 * 1024
    """Appends waiting for the WAL; beyond this `submit` answers a retriable error."""
    cache_bytes: int = 256 * 1024 * 1024
    lagging_cache_bytes: int = 64 * 1024 * 1024
    catalog_lag_ms: int = 1000
    pack_interval_ms: int = 5000
    pack_min_bytes: int = 1024 * 1024
    retention_interval_ms: int = 60_000
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = -1
    delete_grace_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Read:
    """Whole batches with their final offsets, as buffers to be sent one after the other."""

    parts: Sequence[Buffer]
    size_bytes: int
    high_watermark: int
    log_start: int
    error: ErrorCode = ErrorCode.NONE


class Topics:
    """The topics there are, by name and by id; iterates in name order."""

    def get(self, name: str) -> Topic | None: ...
    def by_id(self, topic_id: bytes) -> Topic | None: ...
    def __iter__(self): ...
    def __len__(self) -> int: ...


class Log:
    cluster_id: str
    topics: Topics
    objects: ObjectStore

    @classmethod
    async def open(cls, data_dir: Path, config: LogConfig, clock: Clock) -> "Log": ...

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Raises TopicExists."""

    async def delete_topic(self, name: str) -> None:
        """Raises TopicUnknown."""

    def state(self, key: PartitionKey) -> PartitionState:
        """KeyError if unknown."""

    def submit(self, batches: Sequence[Submission]) -> asyncio.Future[list[Appended]]: ...

    async def read(
        self, key: PartitionKey, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> Read: ...

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        """Resolves at the next append to any of them; cancel it when no longer wanted."""

    async def offset_for_timestamp(
        self, key: PartitionKey, timestamp_ms: int
    ) -> tuple[int, int] | None: ...

    async def allocate_producer_id(self) -> int: ...

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], OffsetCommit]
    ) -> None: ...

    async def committed(
        self, group: str, keys: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], OffsetCommit]: ...

    async def plan(
        self, topic: str, ranges: Iterable[tuple[int, int, int]]
    ) -> list[PlanRange]:
        """Raises RangeMissing(missing=[(partition, start, end)]), TopicUnknown."""

    async def set_pin(self, pin: Pin) -> None: ...
    async def release_pin(self, pin_id: str) -> bool: ...
    async def pins(self) -> list[Pin]: ...

    async def commit_epoch(
        self, pipeline: str, sink: str, epoch: int, topic: str, staged: Sequence[str], checksum: str
    ) -> EpochCommit:
        """Raises EpochGap, TopicUnknown, StagedDamaged."""

    async def last_epoch(self, pipeline: str, sink: str) -> EpochCommit | None: ...
    async def storage(self, topic: str) -> list[StorageRow]: ...
    async def trim(self, log_starts: Mapping[PartitionKey, int]) -> None:
        """Retention's: move log starts up (never down), drop the runs before them."""

    async def close(self) -> None: ...
