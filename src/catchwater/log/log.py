"""The log as brokers see it: topics, appends, reads, offsets, pins and sink epochs.

`Log` puts the parts together: what they share and the rule that binds them is `core.Core`;
transactions, sink epochs and housekeeping are parts of their own, reached as `log.epochs` and so
on.

Coroutines run on the one event loop that opened the log; what blocks runs in threads.
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from catchwater.broker_config import LogConfig
from catchwater.catalog.base import AlterConfig
from catchwater.catalog.errors import CatalogRetriable, TopicExists
from catchwater.catalog.rows import (
    AbortedRow,
    AccessRows,
    BrokerRow,
    GroupChanges,
    GroupRow,
    OffsetCommit,
    PartitionKey,
    Pin,
    Position,
    ProducerRow,
    QuotaRow,
    ReportRow,
    Session,
    StorageRow,
    Topic,
)
from catchwater.catalog.shared import SharedCatalog
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.log.cluster import Cluster
from catchwater.log.core import RangeMissing
from catchwater.log.keep.housekeeping import Housekeeping
from catchwater.log.keep.pins import in_force
from catchwater.log.open import OpenLog, SharedStores, connect, embedded, shared
from catchwater.log.read.planner import Planner
from catchwater.log.read.reader import ReadCounts, Reader
from catchwater.log.read.stable import Stability
from catchwater.log.transactions import Transactions
from catchwater.log.write.epochs import Epochs
from catchwater.log.write.prepare import Preparation
from catchwater.log.write.sequence import PartitionState, Result
from catchwater.log.write.shared import OpenWal
from catchwater.log.write.writer import Appended, Submission, Write, Written
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.wal.base import WalDescription
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

_PRODUCER_IDS_A_BLOCK = 1000
MOST_REPORTS = 1000
REPORTS_KEPT_MS = 7 * 86_400_000
"""Of how many pipelines the last report is kept, and for how long."""


class Read(msgspec.Struct, frozen=True):
    """Whole batches with their final offsets, as buffers to be sent one after the other."""

    parts: Sequence[Buffer]
    size_bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    error: ErrorCode = ErrorCode.NONE
    aborted: Sequence[AbortedRow] = ()
    """For readers of committed records only: the aborted transactions among them."""


class Log:
    """One broker's log in one data directory, between `open` and `close`."""

    def __init__(self, opened: OpenLog, config: LogConfig) -> None:
        """Use `open`, `shared` or `connect`."""
        core = opened.core
        self.cluster_id = opened.cluster_id
        self.topics: Topics = core.topics
        self.objects: ObjectStore = core.storage.objects
        self._core = core
        self._view = opened.view
        self._catalog = core.catalog
        self._close_stores = opened.close
        self._producer_ids = range(0)
        self._reader = Reader(
            core.catalog,
            core.storage,
            tail_bytes=config.cache_bytes,
            lagging_bytes=config.lagging_cache_bytes,
        )
        core.committer.on_committed = self._reader.appended
        self.stability = Stability(core.catalog, core.states, others_write=self.is_shared)
        self.planner = Planner(core.topics, core.states, self._reader, self.stability)
        self.txns = Transactions(core, self.allocate_producer_id)
        self.keeping = Housekeeping(core, config)
        self.epochs = Epochs(core)
        self.preparation = Preparation(core.writer.submit)
        self.append = core.writer.append
        self.plain_topics = core.plain_topics

    @classmethod
    async def open(
        cls, data_dir: Path, config: LogConfig, clock: Clock, objects_url: str = ""
    ) -> "Log":
        """The log of a broker alone. Raises what `open.embedded` raises."""
        return cls(await embedded(data_dir, config, clock, objects_url), config)

    @classmethod
    async def shared(
        cls,
        catalog: SharedCatalog,
        objects: ObjectStore,
        open_wal: OpenWal,
        broker: BrokerRow,
        config: LogConfig,
        clock: Clock,
    ) -> "Log":
        """The log of one broker among many. Raises what `open.shared` raises."""
        return cls(await shared(catalog, objects, open_wal, broker, config, clock), config)

    @classmethod
    async def connect(
        cls, stores: SharedStores, broker: BrokerRow, config: LogConfig, clock: Clock
    ) -> "Log":
        """As `shared`, over stores named by URLs. Raises what `open.connect` raises."""
        return cls(await connect(stores, broker, config, clock), config)

    # --- among other brokers -----------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether there may be other brokers."""
        return self._core.cluster is not None

    @property
    def cluster(self) -> Cluster | None:
        """This broker's place among the others; None: it is alone."""
        return self._core.cluster

    @property
    def session(self) -> Session | None:
        """This broker's session, the newest one; None: it is alone."""
        return self._core.session

    def brokers(self) -> list[BrokerRow]:
        """The live brokers, by id; none where this one is alone."""
        return self._core.cluster.brokers() if self._core.cluster else []

    async def refresh(self, keys: Iterable[PartitionKey]) -> None:
        """See partitions as they are now, also what other brokers have changed.

        Raises `CatalogUnavailable`.
        """
        if self._view is not None:
            await self._view.refresh(keys)

    async def look_up(self, names: Iterable[str]) -> None:
        """See topics of these names if there are any, also those another broker has made.

        Raises `CatalogUnavailable`.
        """
        if self._view is not None and any(self.topics.get(name) is None for name in names):
            await self._view.load()

    # --- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create an empty topic; the caller has checked name and number.

        Raises `TopicExists` or `TopicCollides`.
        """
        topic = Topic(self._core.clock.uuid().bytes, name, partitions, dict(config or {}))

        async def change() -> None:
            await wrap_future(self._catalog.create_topic(topic))
            self._core.learn_topic(topic)

        try:
            await self._core.writer.between_chunks(change)
        except TopicExists:
            await self.look_up([name])  # another broker has made it just now
            raise
        return topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its committed offsets. Raises `TopicUnknown`."""
        await self.look_up([name])

        async def change() -> None:
            topic = self.topics.find(name)
            await wrap_future(self._catalog.delete_topic(topic.id))
            self._core.forget_topic(topic)

        await self._core.writer.between_chunks(change)

    async def alter_topic_config(self, name: str, alter: AlterConfig) -> None:
        """Give a topic the settings that `alter` makes of those it has, in one step.

        They are durable and in force here when this returns, on other brokers soon after. Raises
        `TopicUnknown`, and what `alter` raises.
        """
        await self.look_up([name])
        topic_id = self.topics.find(name).id

        async def change() -> None:
            config = await wrap_future(self._catalog.alter_topic_config(topic_id, alter))
            self._core.learn_topic(replace(self.topics.find(name), config=dict(config)))

        await self._core.writer.between_chunks(change)
        await self._see_again()

    async def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions; never fewer. Raises `TopicUnknown`."""
        await self.look_up([name])
        topic_id = self.topics.find(name).id

        async def change() -> None:
            await wrap_future(self._catalog.add_partitions(topic_id, partitions))
            topic = self.topics.find(name)
            more = max(partitions, topic.partitions)
            self._core.learn_topic(replace(topic, partitions=more))

        await self._core.writer.between_chunks(change)
        await self._see_again()

    async def _see_again(self) -> None:
        """After a change: a load that began before it may have brought back what was."""
        if self._view is not None:
            with suppress(CatalogRetriable):  # the notice of the change has it done later
                await self._view.load()

    def state(self, key: PartitionKey) -> PartitionState:
        """A partition as it is now, to be looked at only. Raises `KeyError`."""
        return self._core.states[key]

    def state_if_there(self, key: PartitionKey) -> PartitionState | None:
        """The same, None where it is deleted; any thread may look."""
        return self._core.states.get(key)

    # --- records ---------------------------------------------------------------------------------

    def submit(self, batches: Sequence[Submission]) -> asyncio.Future[list[Appended]]:
        """Append checked batches; the answers come in the same order, once they are durable."""
        return self._core.writer.submit(batches)

    async def read(
        self,
        key: PartitionKey,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        committed: bool = False,
    ) -> Read:
        """Whole batches from the one that holds `offset` on; errors are values.

        With `committed` nothing from the last stable offset on, and with it what was aborted.
        OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, CORRUPT_MESSAGE for damaged bytes, and
        KAFKA_STORAGE_ERROR (retriable) for a store or a catalog out of reach.
        """
        read = self.read_now(key, offset, max_bytes, at_least_one=at_least_one, committed=committed)
        if read is not None:
            return read
        state = self._core.states[key]
        try:
            return await self._read(key, state, offset, max_bytes, at_least_one, committed)
        except CatalogRetriable:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        except KeyError:  # deleted meanwhile
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Read((), 0, state.high_watermark, state.last_stable_offset, state.log_start, error)

    def read_now(
        self,
        key: PartitionKey,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        committed: bool = False,
    ) -> Read | None:
        """What `read` would answer, if nothing needs to be waited for; None: await `read`."""
        state = self._core.states.get(key)
        if state is None:
            return Read((), 0, -1, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if offset > state.high_watermark and self._view is not None:
            return None
        stable = state.last_stable_offset
        if committed:
            known = self.stability.last_stable_offset_now(key)
            if known is None:
                return None
            stable = known
        end = stable if committed else state.high_watermark
        if not state.log_start <= offset < end:
            return _nothing(state, offset, stable)
        found = self._reader.read_now(key, offset, end, max_bytes, at_least_one=at_least_one)
        if found is None:
            return None
        aborted: Sequence[AbortedRow] | None = ()
        if committed and found.parts:
            aborted = self.stability.aborted_now(key, offset, found.end)
        if aborted is None:
            return None
        return Read(
            found.parts, found.size_bytes, state.high_watermark, stable, state.log_start,
            aborted=aborted,
        )  # fmt: skip

    async def _read(
        self,
        key: PartitionKey,
        state: PartitionState,
        offset: int,
        max_bytes: int,
        at_least_one: bool,
        committed: bool,
    ) -> Read:
        if offset > state.high_watermark:
            await self.refresh([key])  # another broker may be ahead of what we know
        stable = state.last_stable_offset
        if committed:
            stable = await self.stability.last_stable_offset(key)
        end = stable if committed else state.high_watermark
        if not state.log_start <= offset < end:
            return _nothing(state, offset, stable)
        found = await self._reader.read(key, offset, end, max_bytes, at_least_one=at_least_one)
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            # Retention was faster: see where the log begins. Or this broker has not heard of
            # what came behind `end`, and compaction has left nothing of what lies before it.
            await self.refresh([key])
            now = self.state(key)
            if now.log_start <= offset:
                later = now.high_watermark
                if committed:
                    later = await self.stability.last_stable_offset(key)
                if later > end:
                    return await self._read(key, now, offset, max_bytes, at_least_one, committed)
                # No run holds it (a rebuilt catalog names such gaps). Out of range would make a
                # consumer jump to its reset policy's end, and skip what lies behind in silence.
                _LOG.error("Offset %d of partition %d is lost: no run holds it.", offset, key[1])
                found.error = ErrorCode.CORRUPT_MESSAGE
        aborted: Sequence[AbortedRow] = ()
        if committed and found.parts:
            aborted = await self.stability.aborted(key, offset, found.end)
        state = self._core.states.get(key, state)
        return Read(
            found.parts,
            found.size_bytes,
            state.high_watermark,
            stable,
            state.log_start,
            found.error,
            aborted,
        )

    @property
    def unflushed_bytes(self) -> int:
        """Record bytes submitted and not yet durable."""
        return self._core.intake.pending_bytes

    @property
    def has_failed(self) -> bool:
        """The WAL or the catalog is broken: nothing is acknowledged until a restart."""
        return self._core.writer.has_failed

    def observe_wal(self, observe: Callable[[float], None]) -> None:
        """Tell how long every append to the write-ahead log takes, in seconds."""
        self._core.writer.on_wal_append = observe

    def observe_chunks(self, observe: Callable[[Write, Sequence[Result]], None]) -> None:
        """Show every chunk that is committed, just before it is acknowledged."""
        self._core.writer.on_chunk = observe

    def describe_wal(self) -> WalDescription:
        """What the write-ahead log says of itself."""
        return self._core.storage.wal.describe()

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        """Done at the next append to one of the partitions; cancel it when no longer wanted."""
        return self._core.intake.wait_for(keys)

    async def offset_for_timestamp(
        self, key: PartitionKey, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older, if there is one."""
        return await self._reader.offset_for_timestamp(key, timestamp_ms)

    async def newest(self, key: PartitionKey) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp, if there is one."""
        return await self._reader.newest(key)

    def read_object(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes of an object; blocks. Raises `UNREADABLE`, or `StoreError`."""
        return self._core.storage.read(key, offset, size)

    async def storage(self, topic: str) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition. Raises `TopicUnknown`."""
        topic_id = self.topics.find(topic).id
        await wrap_future(self._catalog.flush())
        return await asyncio.to_thread(self._catalog.storage, topic_id)

    # --- producers, groups, pins -----------------------------------------------------------------

    async def producers(self, key: PartitionKey) -> tuple[list[ProducerRow], dict[int, int]]:
        """The producers known on a partition; producer id -> first offset of its open transaction.

        Raises `CatalogUnavailable`.
        """
        await wrap_future(self._catalog.flush())
        rows = await asyncio.to_thread(self._catalog.producers, key)
        opened = await asyncio.to_thread(self._catalog.open_txns_on, key)
        return rows, {txn.producer_id: txn.first_offset for txn in opened}

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out."""
        while not self._producer_ids:
            first = await wrap_future(self._catalog.allocate_producer_ids(_PRODUCER_IDS_A_BLOCK))
            # Two callers may both have taken a block; the ids of one are then never used.
            self._producer_ids = range(first, first + _PRODUCER_IDS_A_BLOCK)
        producer_id = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        claim_epoch: int | None = None,
    ) -> None:
        """Keep a group's positions, all or none, under this epoch of its claim if one is given.

        Raises `CoordinatorMoved`, and what every change of the catalog may raise.
        """
        await wrap_future(self._catalog.commit_offsets(group, offsets, claim_epoch=claim_epoch))

    async def delete_group(self, group: str, claim_epoch: int | None = None) -> bool:
        """Forget a group and its positions; whether it had any. Raises as `commit_offsets`."""
        return await wrap_future(self._catalog.delete_group(group, claim_epoch=claim_epoch))

    async def delete_offsets(
        self, group: str, keys: Collection[tuple[str, int]], claim_epoch: int | None = None
    ) -> None:
        """Forget a group's positions in these (topic, partition). Raises as `commit_offsets`."""
        await wrap_future(self._catalog.delete_offsets(group, keys, claim_epoch=claim_epoch))

    async def expire_offsets(
        self,
        group: str,
        keys: Collection[tuple[str, int]],
        committed_until_ms: int,
        *,
        with_group: bool,
        claim_epoch: int | None = None,
    ) -> list[tuple[str, int]]:
        """Forget those of these positions that were committed then or before; which.

        `with_group`: and the group, if nothing of it is left. Raises as `commit_offsets`.
        """
        change = self._catalog.expire_offsets(
            group, keys, committed_until_ms, with_group=with_group, claim_epoch=claim_epoch
        )
        return await wrap_future(change)

    async def take_group(self, group: str) -> GroupRow:
        """Become a group's coordinator, and see what the last one has left.

        Raises `SessionFenced`, and as every change does.
        """
        return await self._core.committer.take_group(group)

    async def keep_group(
        self, group: str, changes: GroupChanges, claim_epoch: int | None = None
    ) -> None:
        """Leave this to the coordinators that follow. Raises as `commit_offsets`."""
        await wrap_future(self._catalog.keep_group(group, changes, claim_epoch=claim_epoch))

    async def group(self, group: str) -> GroupRow:
        """A group as its coordinator has left it."""
        return await asyncio.to_thread(self._catalog.group, group)

    async def groups_with_members(self) -> list[str]:
        """The groups whose coordinator has left members."""
        return await asyncio.to_thread(self._catalog.groups_with_members)

    async def groups_to_expire(self, committed_until_ms: int) -> list[str]:
        """The groups with a position that was committed then or before, or with nothing at all."""
        return await asyncio.to_thread(self._catalog.groups_to_expire, committed_until_ms)

    async def committed(
        self, group: str, keys: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions; of these (topic, partition) only, if given."""
        found = await asyncio.to_thread(self._catalog.committed, group)
        return found if keys is None else {key: found[key] for key in keys if key in found}

    async def positions(self, most: int) -> tuple[list[Position], int]:
        """The positions of all groups, up to so many, and how many were left out."""
        return await asyncio.to_thread(self._catalog.positions, most)

    @property
    def reads(self) -> ReadCounts:
        """How many reads were answered from memory, and how many from storage."""
        return self._reader.counts

    @property
    def written(self) -> Written:
        """Bytes of batches that were acknowledged, and bytes of the write-ahead log for them."""
        return self._core.writer.written

    async def groups(self) -> list[str]:
        """The groups that have positions."""
        return await asyncio.to_thread(self._catalog.groups)

    async def set_pin(self, pin: Pin) -> None:
        """Set or replace a pin. Raises `TopicUnknown`, or `RangeMissing` if it came too late."""

        async def change() -> None:
            async with self.keeping.pins_steady():
                places = [(self.topics.find(topic).id, index) for topic, index in pin.positions]
                await self.refresh(places)
                for (topic, partition), offset in pin.positions.items():
                    state = self._core.states.get((self.topics.find(topic).id, partition))
                    log_start = offset + 1 if state is None else state.log_start
                    if offset < log_start:
                        raise RangeMissing(topic, [(partition, offset, log_start)])
                await wrap_future(self._catalog.set_pin(pin))

        await self._core.writer.to_the_end(change())

    async def renew_pin(self, pin_id: str, lease_until_ms: int) -> Pin | None:
        """Move the end of a pin's lease; None if there is no such pin, or it promises nothing."""

        async def change() -> Pin | None:
            async with self.keeping.pins_steady():
                held = in_force(await self.pins(), self._core.clock.now_ms())
                found = next((pin for pin in held if pin.id == pin_id), None)
                if found is not None:
                    found = replace(found, lease_until_ms=lease_until_ms)
                    await wrap_future(self._catalog.set_pin(found))
                return found

        return await self._core.writer.to_the_end(change())

    async def release_pin(self, pin_id: str) -> bool:
        """Whether there was such a pin."""
        return await wrap_future(self._catalog.release_pin(pin_id))

    async def pins(self) -> list[Pin]:
        """All pins, also those whose lease has ended."""
        return await asyncio.to_thread(self._catalog.pins)

    # --- reports of pipelines --------------------------------------------------------------------

    async def keep_report(self, row: ReportRow) -> None:
        """Keep what a pipeline says of itself; durable. Raises `TooManyReports`."""
        oldest_ms = self._core.clock.now_ms() - REPORTS_KEPT_MS
        await wrap_future(self._catalog.keep_report(row, oldest_ms, MOST_REPORTS))

    async def reports(self) -> list[ReportRow]:
        """The last report of every pipeline, by name."""
        return await asyncio.to_thread(self._catalog.reports)

    # --- users and rules -------------------------------------------------------------------------

    def access_version(self) -> int:
        """Of users and rules; blocks. Raises `CatalogUnavailable`."""
        return self._catalog.access_version()

    def access(self) -> AccessRows:
        """Users and rules; blocks. Raises `CatalogUnavailable`."""
        return self._catalog.access()

    async def client_quotas(self) -> list[QuotaRow]:
        """What clients may take in a second. Raises `CatalogUnavailable`."""
        return await asyncio.to_thread(self._catalog.client_quotas)

    async def change_client_quotas(self, rows: Sequence[QuotaRow]) -> None:
        """Set these, and remove those without a value; durable when this returns."""
        await wrap_future(self._catalog.change_client_quotas(rows))

    async def change_access(self, decide: Callable[[AccessRows], AccessRows]) -> None:
        """Replace users and rules by what `decide` makes of them; raises what that raises."""
        await wrap_future(self._catalog.change_access(decide))

    # --- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer what was submitted, bring the catalog fully up to date, let go of everything.

        Raises `CatalogDead` if the catalog could not be written; the WAL then has the rest.
        """
        await self.keeping.stop()
        if self._core.writer.working:
            await asyncio.wait(self._core.writer.working)
        await self.preparation.close()
        await self._core.writer.close()
        await self._reader.close()
        await self._close_stores()


def _nothing(state: PartitionState, offset: int, stable: int) -> Read:
    """The answer for an offset that is not there, or not there yet."""
    is_there = state.log_start <= offset <= state.high_watermark
    error = ErrorCode.NONE if is_there else ErrorCode.OFFSET_OUT_OF_RANGE
    return Read((), 0, state.high_watermark, stable, state.log_start, error)
