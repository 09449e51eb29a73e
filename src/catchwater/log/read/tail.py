"""The chunks just written, kept in memory for those who read at the end of the log.

Bounded in bytes, oldest chunk out first, no matter who reads. Filled and read on the event loop
only, so it needs no lock. Bytes here come straight from an append and are trusted.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from catchwater.catalog.rows import (
    PartitionKey,
    RunRow,
)
from catchwater.log.format.batches import Block, place

# What Python keeps beside the bytes: for a broker of tiny requests it is most of the tail.
_CHUNK_OVERHEAD_BYTES = 384
_RUN_OVERHEAD_BYTES = 640


class _Kept:
    """A run in memory. Offsets are written into its bytes when it is first read, not before."""

    __slots__ = ("_bytes", "base_offset", "last_offset")

    def __init__(self, run: RunRow, data: memoryview) -> None:
        self.base_offset = run.base_offset
        self.last_offset = run.last_offset
        self._bytes: memoryview | Block = data

    def block(self) -> Block:
        if isinstance(self._bytes, memoryview):
            self._bytes = place(self._bytes, self.base_offset)
        return self._bytes


class Tail:
    """The newest runs of every partition, with their bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._chunks: deque[tuple[int, list[PartitionKey]]] = deque()
        # Invariant: the runs of a partition, in offset order, are those of the chunks kept. They
        # are consecutive but for epochs of a sink, which come from storage and leave a hole.
        self._runs: dict[PartitionKey, deque[_Kept]] = {}

    def add(self, runs: Sequence[RunRow], start: int, payload: bytearray) -> None:
        """Keep a chunk whose first byte lies at `start` of the file its runs point into.

        The payload now belongs to the tail, which writes the offsets into it.
        """
        view = memoryview(payload)
        keys = []
        for run in runs:
            key = (run.topic_id, run.partition)
            at = run.byte_offset - start
            data = view[at : at + run.byte_size]
            self._runs.setdefault(key, deque()).append(_Kept(run, data))
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

    def _consecutive(self, runs: Sequence[_Kept], first: int) -> Iterator[Block]:
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
