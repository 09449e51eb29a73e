"""Which of the brokers that share a log does a job: the one that holds its lease.

A lease keeps brokers from doing the same work twice; it does not keep anything safe. A broker that
goes on after its lease has ended does no harm, because every commit checks what it replaces. Only
setting a pin and deleting past pins must not overlap, and those hold theirs for moments.

A broker alone is granted every lease.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from zlib import crc32

from catchwater.catalog.errors import (
    CatalogRetriable,
    CatalogUnavailable,
    SessionFenced,
)
from catchwater.catalog.rows import PartitionKey
from catchwater.log.core import Core

BUCKETS = 16
"""Among several brokers the partitions are dealt out to so many leases of each job."""

TTL_MS = 30_000

PINS = "pins"
_PINS_TTL_MS = 10_000
_TRIES = 200
_BETWEEN_TRIES_S = 0.1


def bucket_of(key: PartitionKey, buckets: int) -> int:
    """Which of so many leases a partition belongs to; the same on every broker."""
    topic_id, partition = key
    return crc32(topic_id + partition.to_bytes(4, "big")) % buckets


class Lease:
    """A lease that was asked for; call it to know whether it is (still) ours."""

    def __init__(self, is_held: bool) -> None:
        self.is_held = is_held

    def __call__(self) -> bool:
        return self.is_held


class Leases:
    """The leases of one broker's jobs. Used on the log's event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def buckets(self) -> int:
        """How many leases the partitions are dealt out to: a broker alone has one."""
        return 1 if self._core.committer.in_memory else BUCKETS

    async def take(self, name: str, ttl_ms: int = TTL_MS) -> bool:
        """Take or renew a lease; False while another broker holds it. Raises `SessionFenced`."""
        return await self._core.committer.take_lease(name, ttl_ms)

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[Lease]:
        """The lease, renewed while it is needed and given up after. Raises `SessionFenced`."""
        lease = Lease(await self.take(name))
        if self._core.committer.in_memory or not lease():
            yield lease
            return
        renewing = asyncio.ensure_future(self._renew(name, lease))
        try:
            yield lease
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            await self._give_up(name)

    async def _renew(self, name: str, lease: Lease) -> None:
        while lease():
            await self._core.clock.sleep(TTL_MS / 3000)
            try:
                lease.is_held = await self.take(name)
            except (CatalogRetriable, SessionFenced):
                lease.is_held = False

    async def _give_up(self, name: str) -> None:
        with suppress(CatalogRetriable, SessionFenced):  # it then ends by itself
            await self.take(name, ttl_ms=0)

    @asynccontextmanager
    async def pins(self) -> AsyncIterator[None]:
        """Meanwhile no other broker sets a pin, or deletes or compacts past one.

        Raises `CatalogUnavailable` if others hold the lease for too long, or `SessionFenced`.
        """
        async with self._core.pins_change:
            for _ in range(_TRIES):
                if await self.take(PINS, _PINS_TTL_MS):
                    break
                await self._core.clock.sleep(_BETWEEN_TRIES_S)
            else:
                raise CatalogUnavailable(
                    f"Other brokers have held the lease {PINS!r} for {_TRIES * _BETWEEN_TRIES_S:g}"
                    " seconds; no pin was set and nothing was deleted.",
                    hint="Try again.",
                )
            try:
                yield
            finally:
                await self._give_up(PINS)
