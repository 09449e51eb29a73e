"""The groups this broker coordinates: by itself, or of several brokers those it holds a claim to.

A claim has an epoch in the catalog: positions are committed and generations recorded under it, so
a coordinator that another one has followed can do neither. It is taken at a group's first request
on the broker that the group's name points to, and given up when the name points elsewhere or the
session has changed. A generation is recorded before its members hear of it, and the next
coordinator goes on above it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from catchwater.catalog.base import (
    CatalogFull,
    CatalogUnavailable,
    CatalogUncertain,
    CoordinatorMoved,
    SessionFenced,
)
from catchwater.catalog.rows import GroupClaim
from catchwater.wire.errors import ErrorCode

MAX_GROUPS = 10_000

MOVED = (CoordinatorMoved, SessionFenced)
UNAVAILABLE = (CatalogFull, CatalogUnavailable, CatalogUncertain)


class Claims(Protocol):
    """What tells several brokers which of them coordinates a group."""

    @property
    def view(self) -> tuple[Hashable, Hashable]:
        """This broker's session, and the brokers there are; whatever `is_mine` depends on."""
        ...

    def is_mine(self, group_id: str) -> bool:
        """Whether the group's name points to this broker."""
        ...

    async def take(self, group_id: str) -> GroupClaim:
        """Become the coordinator. Raises what is in `MOVED` and `UNAVAILABLE`."""
        ...

    async def record(self, group_id: str, claim: GroupClaim) -> None:
        """Remember the generation. Raises as `take` does."""
        ...


class HeldGroups:
    """What is held; `drop` is told of every group that is given up."""

    def __init__(self, claims: Claims | None, drop: Callable[[str], None]) -> None:
        """Without claims this broker coordinates every group."""
        self._claims = claims
        self._drop = drop
        self._view = claims.view if claims else None
        # The groups this broker has claimed, with the last generation that was recorded.
        self._held: dict[str, GroupClaim] = {}
        self._claiming: dict[str, asyncio.Future[ErrorCode]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.is_stopping = False

    @property
    def is_alone(self) -> bool:
        return self._claims is None

    def is_mine(self, group_id: str) -> bool:
        """Whether clients are to look for the group's coordinator here."""
        return self._claims is None or self._claims.is_mine(group_id)

    async def hold(self, group_id: str) -> ErrorCode:
        """Make sure of being the group's coordinator.

        Otherwise NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE when the catalog does not answer.
        """
        if self._claims is None:
            return ErrorCode.NONE
        self.look_around()
        if self.is_stopping or not self._claims.is_mine(group_id):
            return ErrorCode.NOT_COORDINATOR
        if group_id in self._held:
            return ErrorCode.NONE
        claiming = self._claiming.get(group_id)
        if claiming is None:
            claiming = asyncio.ensure_future(self._claim(self._claims, group_id))
            self._claiming[group_id] = claiming
            claiming.add_done_callback(lambda _: self._claiming.pop(group_id))
        return await asyncio.shield(claiming)

    async def _claim(self, claims: Claims, group_id: str) -> ErrorCode:
        try:
            self._held[group_id] = await claims.take(group_id)
        except MOVED:
            return ErrorCode.NOT_COORDINATOR
        except UNAVAILABLE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def epoch(self, group_id: str) -> int | None:
        """The epoch to commit positions under; None where there is one broker.

        Raises `CoordinatorMoved` when the group was given up meanwhile.
        """
        if self._claims is None:
            return None
        held = self._held.get(group_id)
        if held is None:
            raise CoordinatorMoved(f"This broker does not coordinate group {group_id!r} any more.")
        return held.epoch

    def generation(self, group_id: str) -> int:
        """The last generation that was recorded; 0 where there is one broker."""
        held = self._held.get(group_id)
        return held.generation if held else 0

    def is_recorded(self, group_id: str, generation: int) -> bool:
        """Whether members may hear of this generation."""
        held = self._held.get(group_id)
        return self._claims is None or held is None or generation <= held.generation

    async def record(self, group_id: str, generation: int) -> ErrorCode:
        """Make a generation known to the coordinators that follow, before members hear of it."""
        held = self._held.get(group_id)
        if self._claims is None or held is None or generation <= held.generation:
            return ErrorCode.NONE
        claim = GroupClaim(held.epoch, generation)
        try:
            await self._claims.record(group_id, claim)
        except MOVED:
            self.give_up(group_id)
            return ErrorCode.NOT_COORDINATOR
        except UNAVAILABLE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        held = self._held.get(group_id)
        if held is not None and held.epoch == claim.epoch:
            self._held[group_id] = max(held, claim)
        return ErrorCode.NONE

    def give_up(self, group_id: str) -> None:
        """Somebody else coordinates the group."""
        self._held.pop(group_id, None)
        self._drop(group_id)

    def look_around(self) -> None:
        """Give up what is not ours any more, if the session or the brokers have changed."""
        if self._claims is None or self._claims.view == self._view:
            return
        before, self._view = self._view, self._claims.view
        is_other_session = before is None or before[0] != self._view[0]
        for group_id in list(self._held):
            if is_other_session or not self._claims.is_mine(group_id):
                self.give_up(group_id)

    def keep_only(self, group_ids: Iterable[str]) -> None:
        """Forget claims to groups without members, if there are too many to remember."""
        if len(self._held) > MAX_GROUPS:
            self._held = {name: self._held[name] for name in group_ids if name in self._held}

    @asynccontextmanager
    async def in_order(self, group_id: str) -> AsyncGenerator[None]:
        """One at a time for each group: check a member, then change positions.

        A broker alone has one thread that writes, in the order it was asked; a catalog of several
        brokers writes on many connections, where a late commit could pass a newer one.
        """
        if self._claims is None:
            yield
            return
        lock = self._locks.get(group_id)
        if lock is None:
            lock = self._locks[group_id] = asyncio.Lock()
        async with lock:
            yield
