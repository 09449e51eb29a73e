"""The groups this broker coordinates: all of them, or among several brokers those it has claimed.

A claim has an epoch in the catalog. Offsets are committed and groups are changed under that epoch,
so a coordinator that was replaced can do neither. A broker claims the groups whose names hash to
it, and gives a claim up when the name points to another broker or when its session has changed.

A claim returns the group's saved state. It is loaded at the group's first request; after a start
or a change among the brokers every group with members is loaded, so that sessions of members
expire even if nobody sends a request. A change is saved before any member is answered from it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from catchwater.broker.coordination.members import is_legal_group_id
from catchwater.broker.placement import coordinator
from catchwater.catalog.errors import (
    CatalogFailure,
    CatalogRefused,
    CoordinatorMoved,
    SessionFenced,
)
from catchwater.catalog.rows import BrokerRow, GroupChanges, GroupRow
from catchwater.log.log import Log
from catchwater.wire.errors import ErrorCode

MAX_GROUPS = 10_000

MOVED = (CoordinatorMoved, SessionFenced)


class Claims(Protocol):
    """Where groups are stored, and which of several brokers coordinates which group."""

    @property
    def is_alone(self) -> bool:
        """Whether no other broker can share this catalog."""
        ...

    @property
    def view(self) -> tuple[Hashable, Hashable]:
        """This broker's session and the live brokers: all that `is_mine` depends on."""
        ...

    def is_mine(self, group_id: str) -> bool:
        """Whether the group's name hashes to this broker."""
        ...

    async def take(self, group_id: str) -> GroupRow:
        """Become the group's coordinator. Raises one of `MOVED`, or `CatalogFailure`."""
        ...

    async def save(self, group_id: str, epoch: int | None, changes: GroupChanges) -> None:
        """Store changes for later coordinators; no epoch on a lone broker. Raises as `take`."""
        ...

    async def groups_with_members(self) -> list[str]:
        """The stored groups that have members. Raises `CatalogUnavailable`."""
        ...


class LogClaims:
    """Groups in the catalog, and the claims to them if several brokers share it.

    Brokers that agree on which brokers are alive agree on a group's coordinator (`placement`).
    Where they disagree, the catalog lets only the newest claim commit anything.
    """

    def __init__(self, log: Log, broker_id: int, unreachable: AbstractSet[int]) -> None:
        """`unreachable` are brokers that get no groups; see `peers`."""
        self._log = log
        self._broker_id = broker_id
        self._unreachable = unreachable

    @property
    def is_alone(self) -> bool:
        return not self._log.is_shared

    @property
    def view(self) -> tuple[Hashable, Hashable]:
        brokers = tuple((row.id, row.epoch, row.state) for row in self._brokers())
        return self._log.session, brokers

    def is_mine(self, group_id: str) -> bool:
        if self.is_alone:
            return True
        brokers = self._brokers()
        return bool(brokers) and coordinator(brokers, group_id).id == self._broker_id

    async def take(self, group_id: str) -> GroupRow:
        return await self._log.take_group(group_id)

    async def save(self, group_id: str, epoch: int | None, changes: GroupChanges) -> None:
        await self._log.keep_group(group_id, changes, epoch)

    async def groups_with_members(self) -> list[str]:
        return await self._log.groups_with_members()

    def _brokers(self) -> list[BrokerRow]:
        return [row for row in self._log.brokers() if row.id not in self._unreachable]


class SavedGroup(Protocol):
    """A group of either protocol, as far as saving its changes goes."""

    @property
    def id(self) -> str: ...

    @property
    def is_unsaved(self) -> bool: ...

    def take_unsaved(self) -> GroupChanges | None: ...

    def put_back(self, changes: GroupChanges) -> None: ...


@dataclass
class _Claim:
    """A group that this broker has claimed."""

    epoch: int
    generation: int
    """The last generation that was saved."""
    saving: asyncio.Future[ErrorCode] | None = None
    """The write to the catalog that is under way; there is one at a time."""
    changes: GroupChanges | None = None
    """What is being written."""


class HeldGroups:
    """The claimed groups; calls `load` for each group claimed and `drop` for each given up."""

    def __init__(
        self,
        claims: Claims | None,
        load: Callable[[str, GroupRow], None],
        drop: Callable[[str], None],
    ) -> None:
        """Without claims this broker coordinates every group and stores none."""
        self._claims = claims
        self._load = load
        self._drop = drop
        self._view = claims.view if claims else None
        self._held: dict[str, _Claim] = {}
        self._claiming: dict[str, asyncio.Future[ErrorCode]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._must_adopt = claims is not None
        self._adopting: asyncio.Future[None] | None = None
        self.is_stopping = False

    @property
    def is_alone(self) -> bool:
        return self._claims is None or self._claims.is_alone

    def is_mine(self, group_id: str) -> bool:
        """Whether FindCoordinator names this broker for the group."""
        return self._claims is None or self._claims.is_mine(group_id)

    async def hold(self, group_id: str) -> ErrorCode:
        """Claim the group unless this broker has; NONE if it is the group's coordinator now.

        Otherwise NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE when the catalog does not answer, or
        INVALID_GROUP_ID: an id that the catalog could not store gets no further than this.
        """
        if not is_legal_group_id(group_id):
            return ErrorCode.INVALID_GROUP_ID
        if self._claims is None:
            return ErrorCode.NONE
        self.check_ownership()
        if not self._claims.is_mine(group_id) or (self.is_stopping and not self.is_alone):
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
            row = await claims.take(group_id)
        except MOVED:
            return ErrorCode.NOT_COORDINATOR
        except CatalogFailure:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not claims.is_mine(group_id):
            return ErrorCode.NOT_COORDINATOR
        self._held[group_id] = _Claim(row.epoch, row.generation)
        self._load(group_id, row)
        return ErrorCode.NONE

    # --- taking over -------------------------------------------------------------------------

    @property
    def is_adopting(self) -> bool:
        """Whether there may be groups with members that are ours and not claimed yet."""
        return self._must_adopt or self._adopting is not None

    def adopt_soon(self) -> None:
        """Begin to claim the groups with members that are ours now, unless that is done."""
        if self._claims is not None and self._must_adopt and self._adopting is None:
            self._must_adopt = False
            self._adopting = asyncio.ensure_future(self._adopt(self._claims))

    async def _adopt(self, claims: Claims) -> None:
        try:
            for group_id in await claims.groups_with_members():
                if await self.hold(group_id) is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    self._must_adopt = True
                    break
        except CatalogFailure:
            self._must_adopt = True
        finally:
            self._adopting = None

    # --- saving ------------------------------------------------------------------------------

    def epoch(self, group_id: str) -> int | None:
        """The claim's epoch, to commit offsets under; None on a lone broker.

        Raises `CoordinatorMoved` when the group was given up meanwhile.
        """
        if self.is_alone:
            return None
        held = self._held.get(group_id)
        if held is None:
            raise CoordinatorMoved(f"This broker does not coordinate group {group_id!r} any more.")
        return held.epoch

    def generation(self, group_id: str) -> int:
        """The last generation that was saved; 0 if none was."""
        held = self._held.get(group_id)
        return held.generation if held else 0

    def is_saved(self, group: SavedGroup) -> bool:
        """Whether members may be answered: no change of the group is left to save."""
        held = self._held.get(group.id)
        if self._claims is None or held is None:
            return True
        return not group.is_unsaved and held.saving is None

    def is_busy(self, group_id: str) -> bool:
        """Whether the group is being saved."""
        held = self._held.get(group_id)
        return held is not None and held.saving is not None

    def is_saving(self, group_id: str, member_id: str) -> bool:
        """Whether a change of this member is being saved."""
        held = self._held.get(group_id)
        return held is not None and held.changes is not None and member_id in held.changes.members

    async def save(self, group: SavedGroup) -> ErrorCode:
        """Save the group as it is now, for later coordinators."""
        held = self._held.get(group.id)
        if self._claims is None or held is None:
            return ErrorCode.NONE if self._claims is None else ErrorCode.NOT_COORDINATOR
        if held.saving is not None:  # that write may have begun before our change was made
            error = await asyncio.shield(held.saving)
            if error is not ErrorCode.NONE:
                return error
        if held.saving is None:
            if not group.is_unsaved:
                return ErrorCode.NONE
            held.saving = asyncio.ensure_future(self._save(self._claims, held, group))
        return await asyncio.shield(held.saving)

    async def _save(self, claims: Claims, held: _Claim, group: SavedGroup) -> ErrorCode:
        try:
            held.changes = changes = group.take_unsaved()
            if changes is None:
                return ErrorCode.NONE
            if self._held.get(group.id) is not held:
                return ErrorCode.NOT_COORDINATOR
            epoch = None if self.is_alone else held.epoch
            is_saved = False
            try:
                await claims.save(group.id, epoch, changes)
                is_saved = True
            except (
                *MOVED,
                CatalogRefused,
            ):  # the next claim, ours or another's, loads what was saved
                if self._held.get(group.id) is held:
                    self.give_up(group.id)
                return ErrorCode.NOT_COORDINATOR
            except CatalogFailure:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            finally:
                if (
                    not is_saved
                ):  # for any reason, cancellation too: no member may be answered from it
                    group.put_back(changes)
            held.generation = max(held.generation, changes.generation)
            return ErrorCode.NONE
        finally:
            held.saving = held.changes = None

    # --- giving up ---------------------------------------------------------------------------

    def give_up(self, group_id: str) -> None:
        """Stop coordinating the group: another broker does, or may."""
        self._held.pop(group_id, None)
        self._drop(group_id)

    def check_ownership(self) -> None:
        """Give up groups that are not ours any more, if the session or the brokers have changed."""
        if self._claims is None or self._claims.view == self._view:
            return
        before, self._view = self._view, self._claims.view
        self._must_adopt = True
        is_other_session = before is None or before[0] != self._view[0]
        for group_id in list(self._held):
            if is_other_session or not self._claims.is_mine(group_id):
                self.give_up(group_id)

    def keep_only(self, group_ids: Iterable[str]) -> None:
        """Drop all claims but these, if there are more than `MAX_GROUPS`."""
        if len(self._held) > MAX_GROUPS:
            self._held = {name: self._held[name] for name in group_ids if name in self._held}

    @asynccontextmanager
    async def in_order(self, group_id: str) -> AsyncGenerator[None]:
        """Lets one request of a group at a time check its member and then change offsets.

        A lone broker needs no lock: one thread writes, in the order of the requests. A shared
        catalog is written on many connections, where an older commit could overtake a newer one.
        """
        if self.is_alone:
            yield
            return
        lock = self._locks.get(group_id)
        if lock is None:
            lock = self._locks[group_id] = asyncio.Lock()
        async with lock:
            yield
