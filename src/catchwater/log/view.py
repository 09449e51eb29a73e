"""One of many brokers' view of topics and partitions, which only moves forward.

The catalog is the truth. The states in memory follow it through this broker's own commits and the
catalog's notices of all others. If notices may have been missed, or name a topic that is unknown
here, everything is loaded again. High watermarks and log starts never go back.
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
        # Loads are numbered as they are requested; all up to `_loaded` are done.
        self._asked = self._loaded = 0
        self._loading = asyncio.Lock()
        self._stale = asyncio.Event()
        # Partitions of a chunk that is being committed, and the notices about them meanwhile.
        self._held: set[PartitionKey] = set()
        self._later: list[tuple[bytes, int, int, int]] = []
        self._following = asyncio.ensure_future(self._follow())

    def notify(self, notice: Notice) -> None:
        """Apply a notice; callable from any thread."""
        self._loop.call_soon_threadsafe(self._noticed, notice)

    @contextmanager
    def hold(self, keys: Iterable[PartitionKey]) -> Iterator[None]:
        """Delay notices about these partitions until the commit under way has ended.

        The notice of a commit may arrive before its answer, and readers that it woke would not
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
        """Load everything as it is now, or later. Raises `CatalogUnavailable`."""
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
        """Load these partitions as they are now, or later. Raises `CatalogUnavailable`."""
        self._core.show(await asyncio.to_thread(self._catalog.partitions, list(keys)))

    async def close(self) -> None:
        """Stop following the catalog."""
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
        """`known` are the topics from when the load began; all others are newer than it."""
        core = self._core
        loaded = {topic.id for topic in snapshot.topics}
        for topic in list(core.topics):
            if topic.id in known and topic.id not in loaded:
                core.forget_topic(topic)
        for topic in snapshot.topics:
            if topic.id not in known or core.topics.by_id(topic.id) is not None:
                core.learn_topic(topic)
        core.show(snapshot.partitions)
