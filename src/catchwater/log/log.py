"""The log as brokers see it: topics, appends, reads, offsets, pins and sink epochs.

`Log` puts the parts together and keeps the rule that binds them: a change that is not a plain
append is synced in the catalog first and becomes visible in memory after; if it touches topics or
partitions it happens between two chunks, so that a replay of the write-ahead log meets it at the
same place.

Coroutines run on the one event loop that opened the log; what blocks runs in threads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from catchwater.catalog.base import (
    Catalog,
    TopicUnknown,
)
from catchwater.catalog.rows import (
    Changes,
    EpochCommit,
    OffsetCommit,
    PartitionKey,
    Pin,
    StorageRow,
    Topic,
)
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.directory import DataDirectory
from catchwater.log.keep.housekeeping import Housekeeping, KeepConfig
from catchwater.log.read.reader import PlanRange, Reader
from catchwater.log.storage import StagedDamaged, Storage, load_staged
from catchwater.log.write.append import Appended, Appender, States, Submission, replay
from catchwater.log.write.sequence import (
    PartitionState,
    sequence_staged,
    states_of,
)
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wal.base import Position, Recovered
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

_PRODUCER_IDS_A_BLOCK = 1000

T = TypeVar("T")


class RangeMissing(CatchwaterError):
    """Offsets were asked for that the log does not hold; `missing` lists them, end exclusive."""

    def __init__(self, topic: str, missing: Sequence[tuple[int, int, int]]) -> None:
        ranges = ", ".join(f"{start} to {end - 1} of partition {p}" for p, start, end in missing)
        super().__init__(f"Topic {topic} does not hold the offsets {ranges}.")
        self.missing = list(missing)


@dataclass(frozen=True)
class LogConfig(KeepConfig):
    """Sizes in bytes, times in milliseconds; the defaults suit one broker on one machine."""

    wal_segment_bytes: int = 64 * 1024 * 1024
    pending_bytes: int = 64 * 1024 * 1024
    """Appends that wait for the WAL; beyond this they are refused with a retriable error."""
    cache_bytes: int = 256 * 1024 * 1024
    lagging_cache_bytes: int = 64 * 1024 * 1024
    catalog_lag_ms: int = 1000


@dataclass(frozen=True, slots=True)
class Read:
    """Whole batches with their final offsets, as buffers to be sent one after the other."""

    parts: Sequence[Buffer]
    size_bytes: int
    high_watermark: int
    log_start: int
    error: ErrorCode = ErrorCode.NONE


class Log:
    """One broker's log in one data directory, between `open` and `close`."""

    def __init__(
        self,
        directory: DataDirectory,
        states: States,
        sequenced: int,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        """Use `open`, which first brings the states and the catalog up to what the WAL holds."""
        self.cluster_id = directory.snapshot.cluster_id
        self.topics = Topics(directory.snapshot.topics)
        self.objects: ObjectStore = directory.objects
        self.recovered: Recovered = directory.wal.recovered
        self._directory = directory
        self._catalog: Catalog = directory.catalog
        self._states = states
        self._config = config
        self._clock = clock
        self._producer_ids = range(0)
        self.pins_change = asyncio.Lock()
        # Work that goes on when its caller stops waiting, and that `close` waits for.
        self._working: set[asyncio.Future[Any]] = set()
        storage = Storage(directory.wal, directory.objects)
        self._reader = Reader(
            self._catalog,
            storage,
            tail_bytes=config.cache_bytes,
            lagging_bytes=config.lagging_cache_bytes,
        )
        self._appender = Appender(
            directory.wal,
            self._catalog,
            states,
            clock,
            sequenced=sequenced,
            pending_bytes=config.pending_bytes,
            on_appended=self._keep,
        )
        self.keeping = Housekeeping(
            self, self._catalog, storage, config, clock, lambda: self._appender.sequenced
        )

    @classmethod
    async def open(cls, data_dir: Path, config: LogConfig, clock: Clock) -> "Log":
        """Lock the data directory and bring the catalog up to what the WAL holds.

        Raises what `DataDirectory` raises, or `ChunkError`.
        """
        return cls(*await asyncio.to_thread(_open, data_dir, config, clock), config, clock)

    # --- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create an empty topic; the caller has checked name and number. Raises `TopicExists`."""
        topic = Topic(self._clock.uuid().bytes, name, partitions, dict(config or {}))

        async def change() -> None:
            await _done(self._catalog.create_topic(topic))
            for index in range(partitions):
                self._states[topic.id, index] = PartitionState()
            self.topics.add(topic)

        await self._between_chunks(change)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its committed offsets. Raises `TopicUnknown`."""

        async def change() -> None:
            topic = self.topics.find(name)
            await _done(self._catalog.delete_topic(topic.id))
            self.topics.remove(topic)
            keys = [(topic.id, index) for index in range(topic.partitions)]
            for key in keys:
                del self._states[key]
            self._appender.wake(keys)

        await self._between_chunks(change)

    def state(self, key: PartitionKey) -> PartitionState:
        """A partition as it is now, to be looked at only. Raises `KeyError`."""
        return self._states[key]

    # --- records ---------------------------------------------------------------------------------

    def submit(self, batches: Sequence[Submission]) -> asyncio.Future[list[Appended]]:
        """Append checked batches; the answers come in the same order, once they are durable."""
        return self._appender.submit(batches)

    async def read(
        self, key: PartitionKey, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> Read:
        """Whole batches from the one that holds `offset` on; errors are values.

        OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, CORRUPT_MESSAGE for damaged bytes.
        """
        state = self._states.get(key)
        if state is None:
            return Read((), 0, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not state.log_start <= offset <= state.high_watermark:
            out = ErrorCode.OFFSET_OUT_OF_RANGE
            return Read((), 0, state.high_watermark, state.log_start, out)
        if offset == state.high_watermark:
            return Read((), 0, state.high_watermark, state.log_start)
        found = await self._reader.read(key, offset, max_bytes, at_least_one=at_least_one)
        state = self._states.get(key, state)
        return Read(
            found.parts, found.size_bytes, state.high_watermark, state.log_start, found.error
        )

    @property
    def unflushed_bytes(self) -> int:
        """Record bytes submitted and not yet durable."""
        return self._appender.pending_bytes

    @property
    def has_failed(self) -> bool:
        """The WAL or the catalog is broken: nothing is acknowledged until a restart."""
        return self._appender.has_failed

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        """Done at the next append to one of the partitions; cancel it when no longer wanted."""
        return self._appender.wait_for(keys)

    async def offset_for_timestamp(
        self, key: PartitionKey, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older, if there is one."""
        return await self._reader.offset_for_timestamp(key, timestamp_ms)

    async def plan(self, topic: str, ranges: Iterable[tuple[int, int, int]]) -> list[PlanRange]:
        """Where the bytes of (partition, start, end) lie, end exclusive.

        Raises `TopicUnknown`, or `RangeMissing` with every offset that is not there.
        """
        topic_id = self.topics.find(topic).id
        planned: list[PlanRange] = []
        missing: list[tuple[int, int, int]] = []
        for partition, start, end in ranges:
            state = self._states[topic_id, partition]
            below = (start, min(end, state.log_start))
            above = (max(start, state.high_watermark), end)
            missing += [(partition, *gap) for gap in (below, above) if gap[0] < gap[1]]
            first, last = max(start, state.log_start), min(end, state.high_watermark)
            found = await self._reader.plan((topic_id, partition), first, last)
            reached = found[-1].last_offset + 1 if found else first
            if reached < last:
                missing.append((partition, reached, last))
            planned += found
        if missing:
            raise RangeMissing(topic, sorted(missing))
        return planned

    async def storage(self, topic: str) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition. Raises `TopicUnknown`."""
        topic_id = self.topics.find(topic).id
        await _done(self._catalog.flush())
        return await asyncio.to_thread(self._catalog.storage, topic_id)

    def _keep(self, changes: Changes, position: Position, payload: bytearray) -> None:
        """Show a chunk that was just sequenced to readers and to the packer."""
        self._reader.appended(changes.runs, position.offset, payload)
        self.keeping.appended(position.size)

    # --- producers, groups, pins -----------------------------------------------------------------

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody was ever given."""
        while not self._producer_ids:
            first = await _done(self._catalog.allocate_producer_ids(_PRODUCER_IDS_A_BLOCK))
            # Two callers may both have taken a block; the ids of one are then never used.
            self._producer_ids = range(first, first + _PRODUCER_IDS_A_BLOCK)
        producer_id = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], OffsetCommit]
    ) -> None:
        """Keep a group's positions, all or none. Raises `CatalogFull` or `CatalogDead`."""
        await _done(self._catalog.commit_offsets(group, offsets))

    async def committed(
        self, group: str, keys: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions; of these (topic, partition) only, if given."""
        found = await asyncio.to_thread(self._catalog.committed, group)
        return found if keys is None else {key: found[key] for key in keys if key in found}

    async def groups(self) -> list[str]:
        """The groups that have positions."""
        return await asyncio.to_thread(self._catalog.groups)

    async def set_pin(self, pin: Pin) -> None:
        """Set or replace a pin. Raises `TopicUnknown`, or `RangeMissing` if it came too late."""

        async def change() -> None:
            async with self.pins_change:
                for (topic, partition), offset in pin.positions.items():
                    state = self._states.get((self.topics.find(topic).id, partition))
                    log_start = offset + 1 if state is None else state.log_start
                    if offset < log_start:
                        raise RangeMissing(topic, [(partition, offset, log_start)])
                await _done(self._catalog.set_pin(pin))

        await self.to_the_end(change())

    async def release_pin(self, pin_id: str) -> bool:
        """Whether there was such a pin."""
        return await _done(self._catalog.release_pin(pin_id))

    async def pins(self) -> list[Pin]:
        """All pins, also those whose lease has ended."""
        return await asyncio.to_thread(self._catalog.pins)

    # --- sink epochs -----------------------------------------------------------------------------

    async def commit_epoch(
        self, pipeline: str, sink: str, epoch: int, topic: str, staged: Sequence[str], checksum: str
    ) -> EpochCommit:
        """Make staged chunks part of the topic, once: a known epoch answers what it got then.

        Raises `EpochGap`, `TopicUnknown` or `StagedDamaged`; nothing has changed then.
        """
        known = await asyncio.to_thread(self._catalog.epoch, pipeline, sink, epoch)
        if known is not None:
            return known
        found = self.topics.find(topic)
        chunks = await asyncio.to_thread(load_staged, self.objects, found, staged)

        async def change() -> EpochCommit:
            known = await asyncio.to_thread(self._catalog.epoch, pipeline, sink, epoch)
            if known is not None:
                return known
            taken = await asyncio.to_thread(self._catalog.known_objects, staged)
            if taken:
                raise StagedDamaged(f"{min(taken)} belongs to the log already.")
            if self.topics.by_id(found.id) is None:
                raise TopicUnknown(f"Topic {topic} was deleted meanwhile.")
            states, changes = sequence_staged(chunks, self._states)
            offsets = {
                key[1]: (self._states[key].high_watermark, state.high_watermark - 1)
                for key, state in states.items()
            }
            records = sum(run.record_count for run in changes.runs)
            commit = EpochCommit(False, epoch, records, offsets, checksum, topic)
            await _done(self._catalog.commit_epoch(pipeline, sink, commit, changes))
            self._states.update(states)
            self.keeping.appended(sum(row.size_bytes for row in changes.objects))
            self._appender.wake(states)
            return commit

        return await self._between_chunks(change)

    async def last_epoch(self, pipeline: str, sink: str) -> EpochCommit | None:
        """The last epoch that a sink has committed."""
        return await asyncio.to_thread(self._catalog.epoch, pipeline, sink)

    # --- packing and deleting --------------------------------------------------------------------

    async def trim(self, log_starts: Mapping[PartitionKey, int]) -> None:
        """Move log starts up, never down, and drop the runs before them."""

        async def change() -> None:
            wanted = {
                key: log_start
                for key, log_start in log_starts.items()
                if key in self._states and log_start > self._states[key].log_start
            }
            for row in await _done(self._catalog.trim(wanted)):
                state = self._states[row.topic_id, row.partition]
                state.log_start, state.bytes = row.log_start, row.bytes
                state.earliest_timestamp = row.earliest_timestamp

        await self._between_chunks(change)

    async def forget_producers(self, last_ms_below: int) -> None:
        """Drop those that the sequencer would not know any more anyway."""

        async def change() -> None:
            await _done(self._catalog.forget_producers(last_ms_below))
            for state in self._states.values():
                for producer_id, producer in list(state.producers.items()):
                    if producer.last_ms < last_ms_below:
                        del state.producers[producer_id]

        await self._between_chunks(change)

    # --- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer what was submitted, bring the catalog fully up to date, let go of everything.

        Raises `CatalogDead` if the catalog could not be written; the WAL then has the rest.
        """
        await self.keeping.stop()
        if self._working:
            await asyncio.wait(self._working)
        await self._appender.close()
        await self._reader.close()
        await asyncio.to_thread(self._directory.close)

    async def _between_chunks(self, change: Callable[[], Awaitable[T]]) -> T:
        async def held() -> T:
            async with self._appender.between_chunks():
                return await change()

        return await self.to_the_end(held())

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work that a caller who is cancelled leaves to itself, but never undone."""
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)


async def _done(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


def _open(data_dir: Path, config: LogConfig, clock: Clock) -> tuple[DataDirectory, States, int]:
    directory = DataDirectory(
        data_dir,
        clock,
        catalog_lag_s=config.catalog_lag_ms / 1000,
        wal_segment_bytes=config.wal_segment_bytes,
    )
    with ExitStack() as undo:
        undo.callback(directory.close)
        for finding in directory.wal.recovered.findings():
            _LOG.warning("%s", finding)
        states = states_of(directory.snapshot)
        applied = directory.snapshot.applied_sequence
        sequenced = replay(directory.wal, directory.catalog, states, applied)
        undo.pop_all()
    return directory, states, sequenced
