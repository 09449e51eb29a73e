"""Reads by offset: of what was just written from memory, of all else from storage.

`Reader` has two bounded caches that cannot push each other's content out. The tail holds the
chunks just written and is filled and read on the event loop. Everything else comes from WAL files
and segments, in a small worker pool of its own: storage never blocks the loop, and a crowd of
lagging readers waits for itself.

Relies on the catalog showing a chunk's runs before the chunk is handed to `appended`. A damaged
or lost object is an error in the reply and a line in the operator's log.
"""

import asyncio
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from catchwater.catalog.base import Catalog
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import (
    PartitionKey,
    RunRow,
)
from catchwater.config import CatchwaterError
from catchwater.log.format.batches import Block, DamagedObject, place, placed_block
from catchwater.log.format.segment import SegmentTooNew
from catchwater.log.read.history import History, LostBytes, PlanRange
from catchwater.log.storage import Readable
from catchwater.objects.base import Buffer, StoreError
from catchwater.wire.errors import ErrorCode

__all__ = ["Batches", "PlanRange", "Reader", "Unreadable"]

_LOG = logging.getLogger(__name__)
_WORKERS = 2
_LOOKUPS = 3

# What Python keeps beside the bytes: for a broker of tiny requests it is most of the tail.
_CHUNK_OVERHEAD_BYTES = 384
_RUN_OVERHEAD_BYTES = 640
_FEW_BATCHES = 8
"""Up to this number every read walks the batches again."""

T = TypeVar("T")


class Unreadable(CatchwaterError):
    """Offsets whose bytes are damaged, lost or out of reach; `code` is what a reply says."""

    def __init__(self, key: PartitionKey, code: ErrorCode, reason: CatchwaterError) -> None:
        super().__init__(f"Partition {key[1]} cannot be read: {reason}", hint=reason.hint)
        self.code = code


@dataclass(slots=True)
class Batches:
    """Whole batches with final offsets, as parts to be sent one after the other."""

    parts: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    error: ErrorCode = ErrorCode.NONE
    end: int = -1
    """The offset behind the last batch."""

    def add(
        self,
        blocks: Iterable[Block],
        offset: int,
        before: int,
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> None:
        """Add the batches from the one that holds `offset` up to `before`, as long as they fit."""
        for block in blocks:
            left = max_bytes - self.size_bytes
            start, end = block.span(offset, left, at_least_one=at_least_one and not self.parts)
            whole = bisect_left(block.last_offsets, before)
            end = min(end, block.ends[whole - 1] if whole else 0)
            if end > start:
                self.parts.append(block.data[start:end])
                self.size_bytes += end - start
                self.end = block.last_offsets[bisect_left(block.ends, end)] + 1
            if end < len(block.data):
                return


class _TailRun(msgspec.Struct, gc=False):
    """A run in memory. Offsets are written into its bytes when it is first read, not before.

    A broker of small requests keeps hundreds of thousands of them, and a collection of Python's
    garbage, which stops the broker, takes as long as there are objects to look through. So the
    collector does not know these, and they hold none that it knows but the chunk they share and,
    where there are many batches to walk, what came of that.
    """

    base_offset: int
    last_offset: int
    chunk: memoryview
    start: int
    end: int
    batches: int = 0
    """0: no offset is written into them yet."""
    walked: Block | None = None

    def block(self) -> Block:
        if self.walked is not None:
            return self.walked
        data = self.chunk[self.start : self.end]
        if self.batches == 1:
            return Block(
                data.toreadonly(), array("q", (self.last_offset,)), array("q", (len(data),))
            )
        block = placed_block(data) if self.batches else place(data, self.base_offset)
        self.batches = len(block.ends)
        if self.batches > _FEW_BATCHES:
            self.walked = block
        return block


class Tail:
    """The chunks just written, in memory for reads at the end of the log.

    Bounded in bytes; the oldest chunk is dropped first, read or not. Filled and read on the event
    loop only, so it needs no lock. Bytes here come straight from an append and are trusted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._chunks: deque[tuple[int, list[PartitionKey]]] = deque()
        # Invariant: the runs of a partition, in offset order, are those of the chunks kept. They
        # are consecutive but for epochs of a sink, which come from storage and leave a hole.
        self._runs: dict[PartitionKey, deque[_TailRun]] = {}

    def add(self, runs: Sequence[RunRow], start: int, payload: bytearray) -> None:
        """Keep a chunk whose first byte lies at `start` of the file its runs point into.

        The payload now belongs to the tail, which writes the offsets into it.
        """
        view = memoryview(payload)
        keys = []
        for run in runs:
            key = (run.topic_id, run.partition)
            at = run.byte_offset - start
            kept = _TailRun(run.base_offset, run.last_offset, view, at, at + run.byte_size)
            self._runs.setdefault(key, deque()).append(kept)
            keys.append(key)
        size = len(view) + _CHUNK_OVERHEAD_BYTES + _RUN_OVERHEAD_BYTES * len(runs)
        self._chunks.append((size, keys))
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._drop_oldest()

    def blocks(self, key: PartitionKey, offset: int) -> Iterator[Block] | None:
        """The blocks from the one that holds `offset` on; None if that one is not kept."""
        runs = self._runs.get(key, ())
        first = bisect_right(runs, offset, key=lambda kept: kept.base_offset) - 1
        if first < 0 or runs[first].last_offset < offset:
            return None
        return self._consecutive(runs, first)

    def _consecutive(self, runs: Sequence[_TailRun], first: int) -> Iterator[Block]:
        expected = runs[first].base_offset
        for index in range(first, len(runs)):
            if runs[index].base_offset != expected:
                return
            yield runs[index].block()
            expected = runs[index].last_offset + 1

    def _drop_oldest(self) -> None:
        size, keys = self._chunks.popleft()
        self._bytes -= size
        for key in keys:
            runs = self._runs[key]
            runs.popleft()
            if not runs:
                del self._runs[key]


@dataclass(slots=True)
class ReadCounts:
    """Reads since the log was opened, by where the bytes came from."""

    tail: int = 0
    storage: int = 0


class Reader:
    """Everything the log reads for its clients. One per `Log`, used on the log's event loop."""

    def __init__(
        self, catalog: Catalog, storage: Readable, *, tail_bytes: int, lagging_bytes: int
    ) -> None:
        self._tail = Tail(tail_bytes)
        self._history = History(catalog, storage, lagging_bytes)
        self.counts = ReadCounts()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="lagging-read")

    def appended(self, runs: Sequence[RunRow], start: int, payload: bytearray) -> None:
        """Take a chunk that was just sequenced and applied to the catalog.

        `start` is where the payload lies in the WAL file; the runs' byte offsets count from the
        beginning of that file. The payload is not copied: it belongs to the reader from now on.
        """
        self._tail.add(runs, start, payload)

    def read_now(
        self, key: PartitionKey, offset: int, before: int, max_bytes: int, *, at_least_one: bool
    ) -> Batches | None:
        """What `read` would answer, if that is in memory; else None."""
        found = Batches()
        if max_bytes > 0 or at_least_one:
            blocks = self._tail.blocks(key, offset)
            if blocks is None:
                return None
            found.add(blocks, offset, before, max_bytes, at_least_one=at_least_one)
            self.counts.tail += 1
        return found

    async def read(
        self, key: PartitionKey, offset: int, before: int, max_bytes: int, *, at_least_one: bool
    ) -> Batches:
        """Whole batches from the one that holds `offset` up to `before`, about `max_bytes` of them.

        The caller has checked that [offset, before) lies in [log start, high watermark). Errors are
        values: OFFSET_OUT_OF_RANGE where retention was faster, CORRUPT_MESSAGE for damaged or
        lost bytes, KAFKA_STORAGE_ERROR for a store or a catalog that does not answer.
        """
        found = self.read_now(key, offset, before, max_bytes, at_least_one=at_least_one)
        if found is not None:
            return found
        self.counts.storage += 1

        def from_history() -> Batches:
            found = Batches()
            try:
                blocks = self._history.blocks(key, offset, max_bytes)
                found.add(blocks, offset, before, max_bytes, at_least_one=at_least_one)
            except (DamagedObject, SegmentTooNew, StoreError, CatalogRetriable):
                # What lies before the damage is served; the next read begins with the damage.
                if not found.parts:
                    raise
            if at_least_one and not found.parts:
                found.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return found

        try:
            return await self._in_worker(key, from_history)
        except Unreadable as error:
            return Batches(error=error.code)

    async def offset_for_timestamp(
        self, key: PartitionKey, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older than `timestamp_ms`.

        None when all are older. The answer is exact to the record, as Kafka's, except in a batch
        that cannot be opened: then it is the batch's first record. Raises `Unreadable`.
        """
        return await self._in_worker(key, lambda: self._history.first_at(key, timestamp_ms))

    async def newest(self, key: PartitionKey) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp, if there is one.

        Raises `Unreadable`.
        """
        return await self._in_worker(key, lambda: self._history.newest(key))

    async def plan(
        self, key: PartitionKey, start: int, end: int, most: int = 2**31
    ) -> list[PlanRange]:
        """Where the bytes of the offsets [start, end) lie, in offset order.

        Whole batches, and up to a piece (1 MiB) of them before `start` and behind `end`.
        Ends early where the catalog holds no consecutive run. Raises `Unreadable`, `PlanTooLarge`.
        """
        return await self._in_worker(key, lambda: self._history.plan(key, start, end, most))

    async def next_stored(self, key: PartitionKey, offset: int) -> int:
        """The first offset from `offset` on that a run holds; 2**63 - 1 if none does."""
        return await self._in_worker(key, lambda: self._history.next_stored(key, offset))

    async def close(self) -> None:
        """Wait for the reads under way and stop the worker threads."""
        await asyncio.to_thread(self._workers.shutdown)

    async def _in_worker(self, key: PartitionKey, work: Callable[[], T]) -> T:
        """Do the work in a thread, with the errors of storage as one error, logged."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, _looked_up, work)
        except (DamagedObject, SegmentTooNew) as error:
            unreadable = Unreadable(key, ErrorCode.CORRUPT_MESSAGE, error)
        except (StoreError, CatalogRetriable) as error:
            unreadable = Unreadable(key, ErrorCode.KAFKA_STORAGE_ERROR, error)
        _LOG.error("%s", unreadable)
        raise unreadable


def _looked_up(work: Callable[[], T]) -> T:
    """Do the work; where an object was packed away between look-up and read, look up again."""
    for _ in range(_LOOKUPS - 1):
        try:
            return work()
        except LostBytes:
            continue
    return work()
