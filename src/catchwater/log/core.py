"""What the parts of one open log share: its stores, its states, and the rule that binds them.

A change that is not a plain append is synced in the catalog first and becomes visible in memory
after; if it touches topics or partitions it happens between two chunks, so that a replay of the
write-ahead log meets it at the same place. (In a shared catalog the transactions see to that.)

Used on the one event loop that opened the log.
"""

import asyncio
from asyncio import wrap_future
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from catchwater.catalog.base import Catalog
from catchwater.catalog.rows import PartitionKey, PartitionRow, Session, Topic
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.cluster import Cluster
from catchwater.log.storage import Storage
from catchwater.log.write.sequence import PartitionState
from catchwater.log.write.txn import Txns
from catchwater.log.write.writer import Committer, Intake, Writer
from catchwater.room import Reserve

States = dict[PartitionKey, PartitionState]


class RangeMissing(CatchwaterError):
    """Offsets were asked for that the log does not hold; `missing` lists them, end exclusive."""

    def __init__(self, topic: str, missing: Sequence[tuple[int, int, int]]) -> None:
        ranges = ", ".join(f"{start} to {end - 1} of partition {p}" for p, start, end in missing)
        super().__init__(f"Topic {topic} does not hold the offsets {ranges}.")
        self.missing = list(missing)


@dataclass
class Core:
    """The stores and states of one open log."""

    catalog: Catalog
    storage: Storage
    topics: Topics
    states: States
    txns: Txns
    clock: Clock
    intake: Intake
    cluster: Cluster | None = None
    """Only where the catalog is shared."""
    reserve: Reserve = field(default_factory=Reserve)
    """Space on the objects' disk for what frees some; of no size where that is elsewhere."""
    writer: Writer = field(init=False)
    committer: Committer = field(init=False)
    plain_topics: dict[bytes, int] = field(init=False, default_factory=dict)
    """Of topics whose settings ask of appended batches nothing but a size: the largest one. Filled
    by handlers that have looked; a topic that changes is taken out."""
    pins_change: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held from a look at the pins to what follows from it, and while a pin is set."""

    @property
    def session(self) -> Session | None:
        """This broker's session in a shared catalog, the newest one; None: embedded."""
        return self.cluster.session if self.cluster else None

    def held(self, lease: str) -> tuple[str, Session] | None:
        """A lease and the session that must hold it still; None for a broker alone."""
        return (lease, self.session) if self.session else None

    def state(self, key: PartitionKey) -> PartitionState:
        """A partition as it is now, to be looked at only. Raises `KeyError`."""
        return self.states[key]

    async def trim(self, log_starts: Mapping[PartitionKey, int], lease: str | None = None) -> None:
        """Move log starts up, never down, and drop the runs before them.

        Among many brokers only while this one holds the lease, if one is named. Raises
        `SessionFenced`.
        """

        async def change() -> None:
            wanted = {
                key: log_start
                for key, log_start in log_starts.items()
                if key in self.states and log_start > self.states[key].log_start
            }
            moved = await wrap_future(
                self.catalog.trim(wanted, self.held(lease) if lease else None)
            )
            self.show(moved)

        await self.writer.between_chunks(change)

    async def forget_producers(self, last_ms_below: int) -> None:
        """Drop those that the sequencer would not know any more anyway."""

        async def change() -> None:
            await wrap_future(self.catalog.forget_producers(last_ms_below))
            for state in self.states.values():
                for producer_id, producer in list(state.producers.items()):
                    if producer.last_ms < last_ms_below:
                        del state.producers[producer_id]

        await self.writer.between_chunks(change)

    async def forget_txns(self, updated_ms_below: int) -> None:
        """Drop transactional ids that have been silent since, none with something open."""

        async def change() -> None:
            for producer_id in await wrap_future(self.catalog.forget_txns(updated_ms_below)):
                self.txns.pop(producer_id, None)

        await self.writer.between_chunks(change)

    def learn_topic(self, topic: Topic) -> None:
        """A topic is there, or has other settings or more partitions than before."""
        self.topics.add(topic)
        self.plain_topics.pop(topic.id, None)
        for index in range(topic.partitions):
            self.states.setdefault((topic.id, index), PartitionState())

    def forget_topic(self, topic: Topic) -> None:
        """A topic was deleted; one that is not known (any more) is no error."""
        if self.topics.by_id(topic.id) is None:
            return
        self.topics.remove(topic)
        self.plain_topics.pop(topic.id, None)
        keys = [(topic.id, index) for index in range(topic.partitions)]
        for key in keys:
            del self.states[key]
        self.intake.wake(keys)

    def show(self, rows: Iterable[PartitionRow]) -> None:
        """Partitions are at least where these rows say; those of a deleted topic are skipped.

        Rows may come late: nothing moves back.
        """
        moved = []
        for row in rows:
            state = self.states.get((row.topic_id, row.partition))
            if state is None:
                continue
            if row.high_watermark > state.high_watermark:
                moved.append((row.topic_id, row.partition))
            if row.high_watermark >= state.high_watermark and row.log_start >= state.log_start:
                state.bytes, state.earliest_timestamp = row.bytes, row.earliest_timestamp
            state.high_watermark = max(state.high_watermark, row.high_watermark)
            state.log_start = max(state.log_start, row.log_start)
        self.intake.wake(moved)
