"""What the log does for itself: packing, retention, sweeping, one job at a time.

`Housekeeping` owns the jobs and the loop that calls them when they are due; whoever calls one by
hand waits for his turn, so that no two ever overlap. The jobs block in threads, and everything
else happens on the event loop that opened the log. A job that is under way when its caller stops
waiting goes on to its end.

A job that fails for want of storage or space is logged and tried again when it is next due.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from catchwater.catalog.base import Catalog, CatalogDead, CatalogFull
from catchwater.catalog.rows import PartitionKey
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.log.keep.pack import PackConfig, Packer
from catchwater.log.keep.retain import Policy, Retention, Sweeper
from catchwater.log.storage import Storage
from catchwater.log.write.producers import PRODUCER_EXPIRY_MS
from catchwater.log.write.sequence import PartitionState
from catchwater.objects.base import StoreError

_LOG = logging.getLogger(__name__)

_ORPHAN_GRACE_MS = 6 * 60 * 60 * 1000
_LONGEST_TICK_MS = 1000

T = TypeVar("T")


@dataclass(frozen=True)
class KeepConfig:
    """When the jobs are due and what they keep; bytes and milliseconds, -1 = without limit."""

    pack_interval_ms: int = 60_000
    pack_min_bytes: int = 32 * 1024 * 1024
    retention_interval_ms: int = 300_000
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = -1
    delete_grace_ms: int = 60_000
    background: bool = True
    """Do the jobs without being asked; off where a test or a simulation asks for them."""


class Kept(Protocol):
    """What the jobs need of the log they are done for."""

    topics: Topics
    pins_change: asyncio.Lock

    def state(self, key: PartitionKey) -> PartitionState:
        """A partition as it is now. Raises `KeyError`."""
        ...

    async def trim(self, log_starts: Mapping[PartitionKey, int]) -> None:
        """Move log starts up, never down, and drop the runs before them."""
        ...

    async def forget_producers(self, last_ms_below: int) -> None:
        """Drop the standing of producers that have been silent since."""
        ...

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work that a caller who is cancelled leaves to itself, but never undone."""
        ...


class Housekeeping:
    """The jobs of one log. Used on the log's event loop."""

    def __init__(
        self,
        log: Kept,
        catalog: Catalog,
        storage: Storage,
        config: KeepConfig,
        clock: Clock,
        applied_sequence: Callable[[], int],
    ) -> None:
        """`applied_sequence` is the last WAL frame whose runs were handed to the catalog."""
        self._log = log
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._turn = asyncio.Lock()
        packing = PackConfig(min_bytes=config.pack_min_bytes, interval_ms=config.pack_interval_ms)
        self._packer = Packer(catalog, storage, clock, packing, log.topics.name_of)
        policy = Policy(config.retention_ms, config.retention_bytes)
        self._retention = Retention(
            catalog, log.topics, log.state, log.trim, log.pins_change, clock, policy
        )
        self._sweeper = Sweeper(
            catalog,
            storage,
            clock,
            grace_ms=config.delete_grace_ms,
            orphan_grace_ms=_ORPHAN_GRACE_MS,
            applied_sequence=applied_sequence,
        )
        self._loop = asyncio.ensure_future(self._run()) if config.background else None

    def appended(self, size_bytes: int) -> None:
        """Take note of bytes that were added in chunks."""
        self._packer.appended(size_bytes)

    async def pack(self) -> int:
        """Pack what lies in chunks; returns the number of segments written."""
        return await self._in_turn(self._packer.pack)

    async def retain(self) -> None:
        """Apply the topics' retention, and delete what nobody needs any more."""
        await self._retention.apply()
        await self._log.forget_producers(self._clock.now_ms() - PRODUCER_EXPIRY_MS)
        await self._in_turn(self._sweeper.sweep)

    async def sweep_orphans(self) -> int:
        """Delete old objects that no row of the catalog knows; returns how many."""
        return await self._in_turn(self._sweeper.sweep_orphans)

    async def stop(self) -> None:
        """End the loop. A job under way makes an end soon; the log waits for it."""
        self._packer.stop()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
            if not self._loop.cancelled():
                self._loop.result()

    async def _in_turn(self, job: Callable[[], T]) -> T:
        async def alone() -> T:
            async with self._turn:
                return await asyncio.to_thread(job)

        return await self._log.to_the_end(alone())

    async def _run(self) -> None:
        config = self._config
        tick_ms = min(config.pack_interval_ms, config.retention_interval_ms, _LONGEST_TICK_MS)
        retained_ms = orphans_ms = self._clock.now_ms()
        while True:
            await self._clock.sleep(tick_ms / 1000)
            now_ms = self._clock.now_ms()
            try:
                if self._packer.is_due():
                    await self.pack()
                if now_ms - retained_ms >= config.retention_interval_ms:
                    retained_ms = now_ms
                    await self.retain()
                if now_ms - orphans_ms >= _ORPHAN_GRACE_MS:
                    orphans_ms = now_ms
                    await self.sweep_orphans()
            except (StoreError, CatalogFull, CatalogDead) as error:
                _LOG.error("Packing or deleting has to wait: %s", error)
