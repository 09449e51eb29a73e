"""Offset to run to bytes: tail reads from memory, lagging reads from storage, never mixed up.

`Reader` keeps two bounded caches. The *tail* holds the chunks just written, with their runs, and
is filled and read on the event loop; it also bridges the second by which the catalog trails. The
*lagging* cache holds pieces read back from WAL files and segments, in a worker pool of its own.
"""

from dataclasses import dataclass, field

from catchwater.catalog.base import Catalog, PartitionKey, RunRow
from catchwater.clock import Clock
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wal.base import Wal
from catchwater.wire.errors import ErrorCode


@dataclass(slots=True)
class Found:
    """Whole batches with final offsets, as parts to be sent one after the other."""

    parts: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PlanRange:
    """Bytes that hold the batches of `base_offset` to `last_offset` of one partition.

    In a `segment` the batches carry their final offsets; in a `chunk` they carry base offset 0
    and take consecutive offsets from `base_offset` on.
    """

    partition: int
    kind: str
    url: str
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class Reader:
    """Everything the log reads for its clients. One per `Log`; created and used on its loop."""

    def __init__(
        self,
        catalog: Catalog,
        wal: Wal,
        objects: ObjectStore,
        *,
        tail_bytes: int,
        lagging_bytes: int,
    ) -> None: ...

    def appended(self, sequence: int, runs: Sequence[RunRow], start: int, payload: Buffer) -> None:
        """Take a chunk that was just sequenced: its runs, and its bytes for the tail.

        `start` is where the payload lies in the WAL file; the runs' byte offsets count from the
        beginning of that file. The payload is kept as it is, not copied.
        """

    def cataloged(self, sequence: int) -> None:
        """The catalog now holds the runs of all chunks up to this one."""

    def forget(self, key: PartitionKey, log_start: int) -> None:
        """Runs of the partition that end before this offset are gone (retention, deletion)."""

    async def read(
        self, key: PartitionKey, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> Found:
        """Whole batches from the one that holds `offset` on, about `max_bytes` of them.

        The caller has checked that the offset lies in [log start, high watermark).
        """

    async def offset_for_timestamp(
        self, key: PartitionKey, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older than `timestamp_ms`."""

    async def plan(self, key: PartitionKey, start: int, end: int) -> list[PlanRange]:
        """Where the bytes of the offsets [start, end) lie, in offset order."""

    async def close(self) -> None:
        """Wait for the reads under way and stop the worker threads."""
