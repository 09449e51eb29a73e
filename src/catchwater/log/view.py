"""What a broker among many knows of topics and partitions: a view that only moves forward.

The catalog is the truth; the states in memory follow it, by what this broker commits itself and by
the notices of the catalog about all others. Where notices may have been missed, or name a topic
that is unknown here, everything is loaded again. High watermarks and log starts never move back.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import Notice, PartitionKey, Snapshot
from catchwater.catalog.shared import SharedCatalog
from catchwater.log.cluster import Cluster
from catchwater.log.core import Core

_LOG = logging.getLogger(__name__)

_LOAD_AGAIN_S = 0.25


class View:
    """Keeps the topics and states of a `Core` up to date. Used on the event loop."""

    def __init__(self, core: Core, catalog: SharedCatalog, cluster: Cluster) -> None:
        self._core = core
        self._catalog = catalog
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        # Loads are numbered as they are asked for; all up to `_loaded` have been answered.
        self._asked = self._loaded = 0
        self._loading = asyncio.Lock()
        self._stale = asyncio.Event()
        # Partitions of a chunk that is being committed, and what notices said of them meanwhile.
        self._held: set[PartitionKey] = set()
        self._later: list[tuple[bytes, int, int, int]] = []
        self._following = asyncio.ensure_future(self._follow())

    def notify(self, notice: Notice) -> None:
        """Take a notice, from any thread."""
        self._loop.call_soon_threadsafe(self._noticed, notice)

    @contextmanager
    def hold(self, keys: Iterable[PartitionKey]) -> Iterator[None]:
        """Believe no notice about these partitions before what is going on has come to its end.

        The notice of a commit may be here before its answer; readers who woke by it would not
        find the bytes in memory yet.
        """
        self._held = set(keys)
        try:
            yield
        finally:
            self._held = set()
            later, self._later = self._later, []
            self._move(later)

    async def load(self) -> None:
        """See everything as it is now, or later. Raises `CatalogUnavailable`."""
        self._asked += 1
        mine = self._asked
        async with self._loading:
            if self._loaded >= mine:
                return
            loaded, known = self._asked, {topic.id for topic in self._core.topics}
            snapshot = await asyncio.to_thread(self._catalog.load)
            self._take(snapshot, known)
            self._loaded = loaded

    async def refresh(self, keys: Iterable[PartitionKey]) -> None:
        """See these partitions as they are now, or later. Raises `CatalogUnavailable`."""
        self._core.show(await asyncio.to_thread(self._catalog.partitions, list(keys)))

    async def close(self) -> None:
        """Follow no longer."""
        self._following.cancel()
        await asyncio.wait([self._following])

    def _noticed(self, notice: Notice) -> None:
        if notice.kind == "partitions":
            self._move(notice.partitions)
        if notice.kind in ("topics", "resync"):
            self._stale.set()
        if notice.kind in ("brokers", "resync"):
            self._cluster.look_soon()

    def _move(self, rows: Iterable[tuple[bytes, int, int, int]]) -> None:
        moved = []
        for topic_id, partition, log_start, high_watermark in rows:
            key = (topic_id, partition)
            state = self._core.states.get(key)
            if state is None:
                self._stale.set()
            elif key in self._held:
                self._later.append((topic_id, partition, log_start, high_watermark))
            else:
                state.log_start = max(state.log_start, log_start)
                if high_watermark > state.high_watermark:
                    state.high_watermark = high_watermark
                    moved.append(key)
        self._core.intake.wake(moved)

    async def _follow(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self.load()
            except CatalogRetriable as error:
                _LOG.warning("Topics are not up to date: %s", error)
                self._stale.set()
                await self._core.clock.sleep(_LOAD_AGAIN_S)

    def _take(self, snapshot: Snapshot, known: set[bytes]) -> None:
        """`known` are the topics when the load began: what is not among them is younger."""
        core = self._core
        there = {topic.id for topic in snapshot.topics}
        for topic in list(core.topics):
            if topic.id in known and topic.id not in there:
                core.forget_topic(topic)
        for topic in snapshot.topics:
            if topic.id not in known or core.topics.by_id(topic.id) is not None:
                core.learn_topic(topic)
        core.show(snapshot.partitions)
