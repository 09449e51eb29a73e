"""The packer: runs that lie scattered over chunks become segments of one partition each.

For each group of runs: read them side by side into memory that every group uses anew, verify them
and write their offsets there, write the segment, and only then put it in the place of the runs by
one catalog commit. A crash before the commit leaves an object nobody knows (swept
later) and the runs as they were; after it, chunks nobody needs (see `sweep`). So nothing
is lost and nothing shows twice, wherever it happens.

Small segments are packed again together with what follows them, but only when that is at least as
large: a byte is then rewritten a logarithmic number of times, and few small objects remain. Those
that have Parquet (`parquet.py`) stay as they are.

`Packer` blocks and runs in one thread. It rests as long as it works, so that producers and readers
keep half of the disk and of the processor at the worst. `Backlog` says when its turn is: while
producers are busy it waits, up to a bound in bytes and one in time.
"""

import logging
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from catchwater.broker_config import LogConfig
from catchwater.catalog.base import Catalog
from catchwater.catalog.errors import RunsChanged
from catchwater.catalog.rows import ObjectRow, PartitionKey, RunRow
from catchwater.clock import Clock
from catchwater.log.format.batches import DamagedObject
from catchwater.log.format.segment import (
    HEADER_BYTES,
    AbortedTxn,
    Footer,
    SegmentWriter,
    is_cleaned,
    segment_key,
)
from catchwater.log.storage import SEGMENTS, UNREADABLE, Storage
from catchwater.log.write.writer import Appends

_LOG = logging.getLogger(__name__)
_RUNS_A_PASS = 10_000
_LONGEST_REST_S = 0.5
_LONGEST_READ_S = 5.0
_QUIET_S = 0.5
"""Producers are busy as long as something was appended within this time."""
_READ_BYTES = 8 * 1024 * 1024
"""Read at once: the allocator has room for so much from the time before."""


class Backlog:
    """What waits to be packed, and when its turn is. Times are seconds on a clock that never jumps.

    Packing is due once something has waited for an interval, or `pack_backlog_bytes` wait; it then
    goes on until all is packed. It is due too once `pack_min_bytes` wait and producers are quiet;
    it then stops when they are not.
    """

    def __init__(self, config: LogConfig, appends: Appends, now_s: float) -> None:
        self._config = config
        self._appends = appends
        self._done_bytes = appends.size_bytes - 1  # after a start there may be something
        """How many of the appended bytes no longer wait."""
        self._since_s = now_s
        """What waits has come since then, or was tried in vain."""
        self._oldest_s = self._began_s = now_s
        """Since when the oldest of it waits; when the packing under way began."""
        # Of the packing under way: what waited when it began, and since when; whether it makes way
        # for producers, and has.
        self._begun_bytes, self._begun_at_bytes = 0, appends.size_bytes
        self._begun_since_s = now_s
        self._makes_way = self._has_stopped = False

    @property
    def _waiting_bytes(self) -> int:
        return self._appends.size_bytes - self._done_bytes

    def is_due(self, now_s: float) -> bool:
        """Whether to begin packing; to be asked about once a second."""
        if not self._waiting_bytes:
            self._since_s = self._oldest_s = now_s
        has_much = self._waiting_bytes >= self._config.pack_min_bytes
        return self._is_pressing(now_s) or (has_much and self._is_quiet(now_s))

    def begin(self, now_s: float, *, makes_way: bool) -> None:
        """Packing begins, of all that there is; whether it may stop for producers."""
        self._makes_way = makes_way and not self._is_pressing(now_s)
        self._has_stopped = False
        self._begun_bytes, self._begun_at_bytes = self._waiting_bytes, self._appends.size_bytes
        self._begun_since_s, self._since_s = self._since_s, now_s
        self._began_s = now_s

    def goes_on(self, now_s: float) -> bool:
        """Whether to pack more; once it was said no, that holds. May be asked in any thread."""
        self._has_stopped |= self._makes_way and not self._is_quiet(now_s)
        return not self._has_stopped

    def end(self, packed_bytes: int, *, has_failed: bool = False) -> None:
        """Packing has ended. If it has failed, what is left waits for an interval."""
        left_bytes = int(has_failed)
        if self._has_stopped and not has_failed:
            left_bytes = max(1, self._begun_bytes - packed_bytes)
            self._since_s = self._begun_since_s
        if not left_bytes:
            self._oldest_s = self._began_s
        self._done_bytes = self._begun_at_bytes - left_bytes

    def age_s(self, now_s: float) -> float:
        """For how long the oldest of what waits has done so; 0: nothing waits."""
        return max(0.0, now_s - self._oldest_s) if self._waiting_bytes else 0.0

    def _is_pressing(self, now_s: float) -> bool:
        is_late = (now_s - self._since_s) * 1000 >= self._config.pack_interval_ms
        return self._waiting_bytes >= self._config.pack_backlog_bytes or (
            self._waiting_bytes > 0 and is_late
        )

    def _is_quiet(self, now_s: float) -> bool:
        return now_s - self._appends.last_s >= _QUIET_S


class Packer:
    """Turns chunks into segments."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        clock: Clock,
        config: LogConfig,
        topic_name: Callable[[bytes], str | None],
        on_packed: Callable[[Sequence[RunRow], memoryview], None] = lambda runs, data: None,
    ) -> None:
        """`on_packed` gets the runs of every segment that was committed, and their batches, with
        their offsets, in memory that is used again afterwards; when to rest is its own affair.
        """
        self._on_packed = on_packed
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._config = config
        self._topic_name = topic_name
        self._damaged: set[tuple[str, int]] = set()
        self._stopping = threading.Event()
        # Where the runs of a group are put side by side. New memory costs more than what is done in
        # it, so it is kept from group to group and, while there is much to pack, from pass to pass.
        self._memory = memoryview(b"")
        self.packed_bytes = 0
        """What the last `pack` took out of chunks."""

    def stop(self) -> None:
        """Make a `pack` under way return after the segment it is writing."""
        self._stopping.set()

    def pack(
        self,
        is_wanted: Callable[[PartitionKey], bool] = lambda key: True,
        go_on: Callable[[], bool] = lambda: True,
    ) -> int:
        """Pack what lies in chunks of the wanted partitions; return the segments written.

        Ends early when `go_on`, asked before every segment, says no. Damaged runs stay where they
        are and are logged. Raises `StoreError` (`StoreFull` among them) and what the catalog
        raises; what was committed until then stays packed.
        """
        self.packed_bytes = 0
        try:
            return self._pack(is_wanted, go_on)
        finally:
            if self.packed_bytes < self._config.pack_min_bytes:
                self._memory = memoryview(b"")

    def _pack(self, is_wanted: Callable[[PartitionKey], bool], go_on: Callable[[], bool]) -> int:
        self._catalog.flush().result()  # what was appended just now is packed too
        segments = 0
        while not self._stopping.is_set():
            runs = self._catalog.chunk_runs(limit=_RUNS_A_PASS)
            wanted = (run for run in self._intact(runs) if is_wanted(key_of(run)))
            written = 0
            for group in groups(wanted, self._config):
                if self._stopping.is_set() or not go_on():
                    return segments + written
                written += self._pack_in_turn(group)
            segments += written
            if not written or len(runs) < _RUNS_A_PASS:
                break
        return segments

    def _intact(self, runs: Iterable[RunRow]) -> Iterator[RunRow]:
        return (run for run in runs if (run.object, run.byte_offset) not in self._damaged)

    def _pack_in_turn(self, group: list[RunRow]) -> bool:
        """Pack one group, then rest as long as that took, but never so long that an end waits."""
        began_s = self._clock.monotonic_s()
        packed = self._pack_group(group)
        self._clock.pause(min(self._clock.monotonic_s() - began_s, _LONGEST_REST_S))
        if packed:
            self._on_packed(packed, self._memory[: sum(run.byte_size for run in packed)])
        return bool(packed)

    def _pack_group(self, group: list[RunRow]) -> list[RunRow]:
        """The runs that a segment has replaced; none, where there is nothing to pack (yet)."""
        topic_id, partition = key_of(group[0])
        topic = self._topic_name(topic_id)
        if topic is None:
            return []  # deleted meanwhile
        group = self._with_small_segments_before(group)
        segment = SegmentWriter(topic_id, topic, partition)
        group = self._add_in_time(group, segment)
        if not group:
            return []  # stopped; or the next pass goes around the damaged run
        aborted = aborted_in(self._catalog, group)
        parts, footer = segment.finish(aborted)
        object_key = segment_key(footer, self._clock.token())
        size = self._storage.objects.put_if_absent(object_key, parts)
        row = ObjectRow(object_key, "segment", "live", size, self._clock.now_ms())
        try:
            self._catalog.replace_runs(group, [segment_run(footer, object_key)], [row]).result()
        except RunsChanged:
            self._storage.objects.delete(object_key)  # trimmed or deleted while it was packed
            return []
        self.packed_bytes += sum(r.byte_size for r in group if not r.object.startswith(SEGMENTS))
        return group

    def _add_in_time(self, group: list[RunRow], segment: SegmentWriter) -> list[RunRow]:
        """Add the runs, or as many as can be read in a while: what is far away comes in parts."""
        memory, at = self._memory_of(sum(run.byte_size for run in group)), 0
        until_s = self._clock.monotonic_s() + _LONGEST_READ_S
        for index, run in enumerate(group):
            if self._stopping.is_set():
                return []
            if index and self._clock.monotonic_s() > until_s:
                return group[:index]
            if not self._add(run, segment, memory[at : at + run.byte_size]):
                return []
            at += run.byte_size
        return group

    def _memory_of(self, size_bytes: int) -> memoryview:
        if len(self._memory) < size_bytes:
            mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory = memoryview(mapping)
        return self._memory

    def _with_small_segments_before(self, group: list[RunRow]) -> list[RunRow]:
        """The group, with the segments before it that are no larger than what follows them."""
        size = sum(run.byte_size for run in group)
        while group[0].base_offset > 0:
            before = self._catalog.runs(key_of(group[0]), group[0].base_offset - 1, limit=1)
            intact = list(self._intact(before))
            if not intact or not _is_worth_joining(intact[0], group[0], size, self._config):
                break
            if self._catalog.parquet(key_of(intact[0]), *_span(intact[0])):
                break  # a reader may have a plan that names it
            group = [*intact, *group]
            size += intact[0].byte_size
        return group

    def _add(self, run: RunRow, segment: SegmentWriter, memory: memoryview) -> bool:
        """Read, verify and add a run; False (and a line in the log) if it is damaged or lost."""
        try:
            for at in range(0, run.byte_size, _READ_BYTES):
                piece = memory[at : at + _READ_BYTES]
                self._storage.read_into(run.object, run.byte_offset + at, piece)
            segment.add(
                memory,
                run.base_offset,
                run.last_offset,
                key=run.object,
                position=run.byte_offset,
                placed=run.object.startswith(SEGMENTS),
            )
        except (DamagedObject, *UNREADABLE) as error:
            self._damaged.add((run.object, run.byte_offset))
            _LOG.error(
                "Offsets %d to %d are not packed: %s", run.base_offset, run.last_offset, error
            )
            return False
        return True


def key_of(run: RunRow) -> PartitionKey:
    """The partition a run belongs to."""
    return run.topic_id, run.partition


def groups(runs: Iterable[RunRow], config: LogConfig) -> Iterator[list[RunRow]]:
    """Consecutive runs of one partition that make up one segment each, in order.

    A group keeps to the target size unless a single run is larger.
    """
    for _, of_partition in groupby(runs, key=key_of):
        group: list[RunRow] = []
        size = 0
        for run in of_partition:
            follows = group and run.base_offset == group[-1].last_offset + 1
            if group and (not follows or size + run.byte_size > config.segment_bytes):
                yield group
                group, size = [], 0
            group.append(run)
            size += run.byte_size
        yield group


def aborted_in(catalog: Catalog, group: Sequence[RunRow]) -> list[AbortedTxn]:
    """The aborted transactions with records or marker in these consecutive runs."""
    rows = catalog.aborted(key_of(group[0]), group[0].base_offset, group[-1].last_offset + 1)
    return [AbortedTxn(row.producer_id, row.first_offset, row.last_offset) for row in rows]


def segment_run(footer: Footer, object_key: str) -> RunRow:
    """The run that a whole segment is."""
    return RunRow(
        topic_id=footer.topic_id,
        partition=footer.partition,
        base_offset=footer.base_offset,
        last_offset=footer.last_offset,
        object=object_key,
        byte_offset=HEADER_BYTES,
        byte_size=footer.index_position - HEADER_BYTES,
        max_timestamp=footer.max_timestamp,
        record_count=footer.record_count,
    )


def _span(run: RunRow) -> tuple[int, int]:
    return run.base_offset, run.last_offset + 1


def _is_worth_joining(before: RunRow, first: RunRow, size: int, config: LogConfig) -> bool:
    return (
        before.object.startswith(SEGMENTS)
        and not is_cleaned(before.object)  # the compactor joins those
        and before.last_offset + 1 == first.base_offset
        and before.byte_size <= size
        and before.byte_size + size <= config.segment_bytes
    )
