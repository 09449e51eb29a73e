"""What the log does for itself: packing, Parquet, compaction, retention, sweeping; one at a time.

`Housekeeping` owns the jobs and the loop that calls them when they are due; a job called by hand
waits for its turn, so that no two of one broker ever overlap. Among several brokers the one
that holds a job's lease does it (`leases.py`). The jobs block in threads, and everything else
happens on the event loop that opened the log. A job that is under way when its caller stops
waiting goes on to its end.

A job that finds the disk full is tried once more on the reserve. One that fails for want of
storage or space is logged and tried again when it is next due.
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import (
    CatalogFailure,
    SessionFenced,
)
from catchwater.catalog.rows import ObjectRow, PartitionKey, Pin, RunRow, Topic
from catchwater.clock import ClockJumps
from catchwater.config import CatchwaterError
from catchwater.log.core import Core
from catchwater.log.keep.compact import Compactor
from catchwater.log.keep.leases import PINS, Lease, Leases, bucket_of
from catchwater.log.keep.pack import Backlog, Packer
from catchwater.log.keep.parquet import ParquetWriter, wants_parquet
from catchwater.log.keep.pins import in_force, lowest, sentence, with_states
from catchwater.log.keep.retain import Retention
from catchwater.log.keep.sweep import Sweeper
from catchwater.log.keep.tables import PIN, TableKeeper
from catchwater.log.repair.backup import Backups
from catchwater.log.topic_settings import Policy
from catchwater.log.write.sequence import PRODUCER_EXPIRY_MS
from catchwater.objects.base import StoreError, StoreFull

_LOG = logging.getLogger(__name__)

_ORPHAN_GRACE_MS = 6 * 60 * 60 * 1000
_LONGEST_TICK_MS = 1000
_PARQUET_TURN_S = 5.0
"""After so long the other jobs have their turn; what is left of the segments comes after."""


T = TypeVar("T")


class Housekeeping:
    """The jobs of one log. Used on the log's event loop."""

    def __init__(self, core: Core, config: LogConfig) -> None:
        self._core = core
        self._config = config
        self._turn = asyncio.Lock()
        self._stopping = False
        self._leases = Leases(core)
        self._jumps = ClockJumps(core.clock)
        self.tables = TableKeeper(core, config, self._leases)
        self._packer = Packer(
            core.catalog, core.storage, core.clock, config, core.topics.name_of,
            self.tables.writer.packed,
        )  # fmt: skip
        self._backlog = Backlog(config, core.writer.appends, core.clock.monotonic_s())
        self._parquet = ParquetWriter(core, config)
        self._compactor = Compactor(core, config)
        self._policy = Policy(config.retention_ms, config.retention_bytes)
        self._retention = Retention(core, self._policy, self._leases.pins)
        self._backups = Backups(core.catalog, core.storage.objects, core.clock)
        self._backed_up: list[Topic] = []
        self._sweeper = Sweeper(
            core,
            grace_ms=config.delete_grace_ms,
            orphan_grace_ms=_ORPHAN_GRACE_MS,
            back_up_to=self._backups.cover,
        )
        self._loop = asyncio.ensure_future(self._run()) if config.background else None

    def pins_steady(self) -> AbstractAsyncContextManager[None]:
        """Inside, a pin may be set: nothing is deleted or compacted past one meanwhile.

        Raises `CatalogUnavailable` or `SessionFenced`.
        """
        return self._leases.pins()

    # --- the jobs --------------------------------------------------------------------------------

    async def pack(self) -> int:
        """Pack what lies in chunks; returns the number of segments written."""
        return await self._in_turn(self._pack)

    async def write_parquet(self) -> bool:
        """Write the Parquet that topics ask for, as far as one turn goes; whether more is left."""
        return await self._in_turn(self._write_parquet)

    async def write_tables(self) -> bool:
        """Bring the tables up to the log whose turn it is; whether more is left to be written."""
        return await self._in_turn(self._write_tables)

    async def rewind_table(
        self, topic: Topic, offsets: Mapping[int, int] | None, *, dry_run: bool
    ) -> dict[str, Any]:
        """As `TableKeeper.rewind`."""
        return await self._in_turn(lambda: self.tables.rewind(topic, offsets, dry_run=dry_run))

    async def compact(self) -> int:
        """Clean the compacted topics where it is worth it; returns the segments written."""
        return await self._in_turn(self._compact)

    async def retain(self) -> None:
        """Apply the topics' retention, forget producers, delete what nobody needs any more."""
        await self._in_turn(self._retain)

    async def sweep_orphans(self) -> int:
        """Delete old objects that no row of the catalog knows; returns how many."""

        async def sweep() -> int:
            async with self._leases.held("sweep") as lease:
                return await asyncio.to_thread(
                    self._sweeper.sweep_orphans, lambda: lease() and not self._stopping
                )

        return await self._in_turn(sweep)

    async def back_up(self) -> None:
        """Write the catalog's small state into the object store, if it has changed."""

        async def write() -> None:
            topics = list(self._core.topics)
            async with self._leases.held("backup") as lease:
                if lease():
                    await asyncio.to_thread(self._backups.back_up)
            self._backed_up = topics

        await self._in_turn(write)

    async def lose_pins(self, topic: str) -> None:
        """Mark what pins a topic that was just deleted as lost, and say so loudly."""
        pins = await asyncio.to_thread(self._core.catalog.pins)
        gone = [pin for pin in pins if any(name == topic for name, _ in pin.positions)]
        for pin in [pin for pin in gone if pin.id.startswith(PIN)]:
            await wrap_future(self._core.catalog.release_pin(pin.id))
            gone.remove(pin)
        changed = with_states(gone, {pin.id: "lost" for pin in gone})
        await wrap_future(self._core.catalog.set_pin_states({pin.id: pin.state for pin in changed}))
        for pin in changed:
            there = {place: at for place, at in pin.positions.items() if place[0] != topic}
            _LOG.error("%s", sentence(pin, there, 0))

    async def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, Pin]:
        """Move log starts up to these offsets; returns the pins that stand in the way of some.

        The partitions exist, and their high watermarks are at or above the offsets.
        """

        async def delete() -> dict[PartitionKey, Pin]:
            async with self._leases.pins():
                now_ms = self._core.clock.now_ms()
                pins = in_force(await asyncio.to_thread(self._core.catalog.pins), now_ms)
                held = {}
                for key, offset in offsets.items():
                    place = (self._core.topics.name_of(key[0]) or "", key[1])
                    for pin in pins:
                        if pin.positions.get(place, offset) < offset:
                            held[key] = pin
                free = {key: offset for key, offset in offsets.items() if key not in held}
                await self._core.trim(free, PINS)
                return held

        return await self._core.writer.to_the_end(delete())

    async def wal_age_s(self) -> float:
        """For how long the oldest bytes wait to be packed; 0: none do. Raises `CatalogUnavailable`.

        A broker alone counts from its start; among several it is that of all brokers' chunks.
        """
        core = self._core
        if core.cluster is None:
            return self._backlog.age_s(core.clock.monotonic_s())
        oldest_ms = await asyncio.to_thread(core.catalog.oldest_chunk_ms)
        return 0.0 if oldest_ms is None else max(0, core.clock.now_ms() - oldest_ms) / 1000

    async def stop(self) -> None:
        """End the loop. A job under way makes an end soon; the log waits for it."""
        self._stopping = True
        self._packer.stop()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
            if not self._loop.cancelled():
                self._loop.result()
        self.tables.close()

    async def _pack(self, *, makes_way: bool = False) -> int:
        """Pack until all is packed, or with `makes_way` until producers are busy again."""
        backlog, clock = self._backlog, self._core.clock

        def go_on(lease: Lease) -> bool:
            return lease() and backlog.goes_on(clock.monotonic_s())

        written = packed_bytes = 0
        backlog.begin(clock.monotonic_s(), makes_way=makes_way)
        try:
            for bucket in range(self._leases.buckets):
                async with self._leases.held(f"pack/{bucket}") as lease:
                    if go_on(lease):
                        wanted, lent = partial(self._is_in, bucket), partial(go_on, lease)
                        written += await asyncio.to_thread(self._packer.pack, wanted, lent)
                        packed_bytes += self._packer.packed_bytes
        except CatchwaterError:
            backlog.end(packed_bytes, has_failed=True)
            raise
        backlog.end(packed_bytes)
        if self._core.cluster is not None:
            # Others append too, and may not live to pack it.
            self._core.writer.appends.add(1, clock.monotonic_s())
        return written

    def _is_in(self, bucket: int, key: PartitionKey) -> bool:
        return bucket_of(key, self._leases.buckets) == bucket

    def _pack_lease(self, topic: Topic, partition: int) -> AbstractAsyncContextManager[Lease]:
        bucket = bucket_of((topic.id, partition), self._leases.buckets)
        return self._leases.held(f"pack/{bucket}")

    async def _write_parquet(self) -> bool:
        until_s = self._core.clock.monotonic_s() + _PARQUET_TURN_S
        asking = [topic for topic in self._core.topics if wants_parquet(topic)]
        if not asking or not self._parquet.can_write():
            return False
        for topic in asking:
            for partition in range(topic.partitions):
                if not await self._write_parquet_of(topic, partition, until_s):
                    return not self._stopping
        return False

    async def _write_parquet_of(self, topic: Topic, partition: int, until_s: float) -> bool:
        """Whether there was time for all of a partition's segments that others do not write."""
        find = partial(self._parquet.next_segment, topic, partition)
        if await asyncio.to_thread(find) is None:
            return True  # most often, and without a lease
        async with self._pack_lease(topic, partition) as lease:
            while lease() and (run := await asyncio.to_thread(find)) is not None:
                if self._stopping or self._core.clock.monotonic_s() > until_s:
                    return False
                await asyncio.to_thread(
                    self._parquet.write, run, topic, lambda: lease() and not self._stopping
                )
        return True

    async def _write_tables(self) -> bool:
        is_done = True
        await self.tables.see_pins()
        for topic in self.tables.due(self._core.clock.monotonic_s()):
            if self._stopping:
                return False
            is_done &= await self.tables.write(topic, self._pack_topic, lambda: not self._stopping)
        return not is_done

    async def _pack_topic(self, topic: Topic) -> None:
        """Pack what lies in chunks of a topic, as far as no other broker does."""
        buckets = {
            bucket_of((topic.id, partition), self._leases.buckets)
            for partition in range(topic.partitions)
        }
        for bucket in sorted(buckets):

            def is_wanted(key: PartitionKey, bucket: int = bucket) -> bool:
                return key[0] == topic.id and self._is_in(bucket, key)

            async with self._leases.held(f"pack/{bucket}") as lease:
                if lease():
                    await asyncio.to_thread(self._packer.pack, is_wanted, lease)

    async def _compact(self) -> int:
        written = 0
        for topic in list(self._core.topics):
            policy = self._policy.of(topic)
            for partition in range(topic.partitions if policy.compacts else 0):
                if self._stopping:
                    return written
                async with self._pack_lease(topic, partition) as lease:
                    if lease():
                        written += await self._compactor.compact(
                            topic,
                            partition,
                            policy,
                            await self._pinned(topic.name, partition),
                            self._replace,
                        )
        return written

    async def _pinned(self, topic: str, partition: int) -> int | None:
        pins = await asyncio.to_thread(self._core.catalog.pins)
        return lowest(in_force(pins, self._core.clock.now_ms())).get((topic, partition))

    async def _replace(self, old: Sequence[RunRow], run: RunRow, row: ObjectRow) -> bool:
        """Commit a cleaned segment, unless a pin was set meanwhile that it reaches."""
        async with self._leases.pins():
            topic = self._core.topics.name_of(run.topic_id)
            pinned = await self._pinned(topic or "", run.partition)
            if topic is None or (pinned is not None and run.last_offset >= pinned):
                return False

            async def change() -> None:
                await wrap_future(
                    self._core.catalog.replace_runs(old, [run], [row], self._core.held(PINS))
                )
                state = self._core.states.get(run[:2])
                if state is not None:
                    state.bytes += run.byte_size - sum(each.byte_size for each in old)

            await self._core.writer.between_chunks(change)
            return True

    async def _retain(self) -> None:
        async with self._leases.held("retain") as lease:
            if lease():
                await self.tables.release()
                await self._retention.apply()
                now_ms = self._core.clock.now_ms()
                await self._core.forget_producers(now_ms - PRODUCER_EXPIRY_MS)
                await self._core.forget_txns(now_ms - self._config.transactional_id_expiry_ms)
        async with self._leases.held("sweep") as lease:
            await asyncio.to_thread(self._sweeper.sweep, lambda: lease() and not self._stopping)

    async def _in_turn(self, job: Callable[[], Awaitable[T]]) -> T:
        async def alone() -> T:
            async with self._turn:
                try:
                    return await job()
                except StoreFull:  # packing and backing up lead to deletions
                    if not self._core.reserve.give_up():
                        raise
                    return await job()

        return await self._core.writer.to_the_end(alone())

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        config, clock = self._config, self._core.clock
        tick_ms = min(config.pack_interval_ms, config.retention_interval_ms, _LONGEST_TICK_MS)
        parquet_s = retained_s = orphans_s = backed_up_s = clock.monotonic_s()
        while True:
            await clock.sleep(tick_ms / 1000)
            now_s = clock.monotonic_s()
            if self._backlog.is_due(now_s):
                await self._attempt(self._in_turn(partial(self._pack, makes_way=True)))
            if now_s - parquet_s >= config.pack_interval_ms / 1000:
                # What is left comes in the next round, after what else is due.
                parquet_s = parquet_s if await self._attempt(self.write_parquet()) else now_s
            if self.tables.due(now_s):
                await self._attempt(self.write_tables())
            if now_s - retained_s >= config.retention_interval_ms / 1000:
                retained_s = now_s
                await self._keep_to_policy()
            is_old = now_s - backed_up_s >= 1 and list(self._core.topics) != self._backed_up
            if is_old or now_s - backed_up_s >= config.backup_interval_ms / 1000:
                backed_up_s = now_s
                await self._attempt(self.back_up())
            if now_s - orphans_s >= _ORPHAN_GRACE_MS / 1000:
                orphans_s = now_s
                await self._attempt(self.sweep_orphans())

    async def _attempt(self, job: Awaitable[T]) -> T | None:
        """A job that fails for want of storage is logged, and holds none of the others up."""
        try:
            return await job
        except (StoreError, CatalogFailure, SessionFenced) as error:
            _LOG.error("Packing or deleting has to wait: %s", error)
            return None

    async def _keep_to_policy(self) -> None:
        """Compaction and retention, which go by the time of day: not when it has just jumped."""
        jump_ms = self._jumps.since_last()
        if jump_ms:
            _LOG.warning(
                "The wall clock has jumped by %d ms; nothing is deleted or compacted before it "
                "has been right for %d ms.", jump_ms, self._config.retention_interval_ms,
            )  # fmt: skip
            return
        await self._attempt(self.compact())
        await self._attempt(self.retain())
