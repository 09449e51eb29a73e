"""The groups' shell: it gives the pure state machines their time and turns answers into futures.

Relies on one event loop. Promises that every join and sync is answered once, at the latest when
the rebalance timeout has passed. Groups without members are forgotten; their offsets are in the
log's catalog.

With many brokers a group is coordinated by whoever holds its *claim*, which has an epoch in the
catalog: positions are committed and generations recorded under it, so a coordinator that another
one has followed can do neither. A claim is taken at a group's first request on the broker that the
group's name points to, and given up when the name points elsewhere or the session has changed;
members are told NOT_COORDINATOR then and look again. A generation is recorded before its members
hear of it, and the next coordinator goes on above it.
"""

import asyncio
from collections.abc import Hashable
from typing import Protocol

from catchwater.broker.coordination.groups import Answers, Group, GroupLimits, Join, Joined, Synced
from catchwater.catalog.base import (
    CatalogFull,
    CatalogUnavailable,
    CatalogUncertain,
    CoordinatorMoved,
    SessionFenced,
)
from catchwater.catalog.rows import GroupClaim
from catchwater.clock import Clock
from catchwater.wire.errors import ErrorCode

TICK_S = 0.1
MAX_GROUPS = 10_000

MOVED = (CoordinatorMoved, SessionFenced)
UNAVAILABLE = (CatalogFull, CatalogUnavailable, CatalogUncertain)

MemberKey = tuple[str, str | None, int]
"""(member id, instance id, generation), as a member names itself."""


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


class Coordinator:
    """All groups of this broker."""

    def __init__(self, limits: GroupLimits, clock: Clock, claims: Claims | None = None) -> None:
        """Without claims this broker coordinates every group."""
        self.groups: dict[str, Group] = {}
        self._limits = limits
        self._clock = clock
        self._claims = claims
        self._view = claims.view if claims else None
        # The groups this broker has claimed, with the last generation that was recorded.
        self._held: dict[str, GroupClaim] = {}
        self._claiming: dict[str, asyncio.Future[ErrorCode]] = {}
        self._recording: set[asyncio.Future[None]] = set()
        self._is_stopping = False

    # --- requests of members -----------------------------------------------------------------

    async def join(self, group_id: str, request: Join) -> Joined:
        """Wait until the group's next generation begins, or for the refusal."""
        error = await self.hold(group_id)
        if error is not ErrorCode.NONE:
            return Joined(error, request.member_id)
        group = self.groups.get(group_id)
        if group is None:
            if request.member_id:
                return Joined(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self.groups) >= MAX_GROUPS:
                return Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            held = self._held.get(group_id)
            generation = held.generation if held else 0
            group = Group(group_id, self._limits, generation=generation)
            self.groups[group_id] = group
        waiter: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        self._answer(group, group.join(request, waiter, self._clock.now_ms()))
        return await waiter

    async def sync(
        self,
        group_id: str,
        member: MemberKey,
        protocol: tuple[str | None, str | None],
        assignments: dict[str, bytes],
    ) -> Synced:
        """Wait for the leader's assignment."""
        error, group = await self._find(group_id)
        if group is None:
            return Synced(error)
        waiter: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        now_ms = self._clock.now_ms()
        self._answer(group, group.sync(*member, protocol, assignments, waiter, now_ms))
        return await waiter

    async def heartbeat(self, group_id: str, member: MemberKey) -> ErrorCode:
        """What the member is to know."""
        error, group = await self._find(group_id)
        return group.heartbeat(*member, self._clock.now_ms()) if group else error

    async def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Take a member out of its group."""
        error, group = await self._find(group_id)
        if group is None:
            return error
        error, answers = group.leave(member_id, instance_id, self._clock.now_ms())
        self._answer(group, answers)
        return error

    async def check_commit(self, group_id: str, member: MemberKey) -> ErrorCode:
        """Whether the member may commit; anybody may where there are no members."""
        error, group = await self._find(group_id)
        if group is not None:
            return group.check_commit(*member, self._clock.now_ms())
        is_member = member[2] >= 0
        return ErrorCode.NONE if error is ErrorCode.UNKNOWN_MEMBER_ID and not is_member else error

    async def _find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        """The group; or None, and why not."""
        error = await self.hold(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self.groups.get(group_id)

    # --- claims ------------------------------------------------------------------------------

    def is_mine(self, group_id: str) -> bool:
        """Whether clients are to look for the group's coordinator here."""
        return self._claims is None or self._claims.is_mine(group_id)

    async def hold(self, group_id: str) -> ErrorCode:
        """Make sure of being the group's coordinator.

        Otherwise NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE when the catalog does not answer.
        """
        if self._claims is None:
            return ErrorCode.NONE
        self._look_around()
        if self._is_stopping or not self._claims.is_mine(group_id):
            return ErrorCode.NOT_COORDINATOR
        if group_id in self._held:
            return ErrorCode.NONE
        claiming = self._claiming.get(group_id)
        if claiming is None:
            claiming = asyncio.ensure_future(self._claim(self._claims, group_id))
            self._claiming[group_id] = claiming
            claiming.add_done_callback(lambda _: self._claiming.pop(group_id))
        return await asyncio.shield(claiming)

    def claim_epoch(self, group_id: str) -> int | None:
        """The epoch to commit positions under; None where there is one broker.

        Raises `CoordinatorMoved` when the group was given up meanwhile.
        """
        if self._claims is None:
            return None
        held = self._held.get(group_id)
        if held is None:
            raise CoordinatorMoved(f"This broker does not coordinate group {group_id!r} any more.")
        return held.epoch

    def give_up(self, group_id: str) -> None:
        """Somebody else coordinates the group: send its members there."""
        self._held.pop(group_id, None)
        group = self.groups.pop(group_id, None)
        if group is not None:
            self._deliver(group.abandon(ErrorCode.NOT_COORDINATOR))

    async def _claim(self, claims: Claims, group_id: str) -> ErrorCode:
        try:
            self._held[group_id] = await claims.take(group_id)
        except MOVED:
            return ErrorCode.NOT_COORDINATOR
        except UNAVAILABLE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _look_around(self) -> None:
        """Give up what is not ours any more, if the session or the brokers have changed."""
        if self._claims is None or self._claims.view == self._view:
            return
        before, self._view = self._view, self._claims.view
        is_other_session = before is None or before[0] != self._view[0]
        for group_id in list(self._held):
            if is_other_session or not self._claims.is_mine(group_id):
                self.give_up(group_id)

    # --- time and answers --------------------------------------------------------------------

    async def run(self) -> None:
        """Let time pass in all groups, until cancelled."""
        while True:
            await self._clock.sleep(TICK_S)
            self._look_around()
            now_ms = self._clock.now_ms()
            for group in list(self.groups.values()):
                self._answer(group, group.tick(now_ms))
                if group.is_idle:
                    self.groups.pop(group.id, None)
            if len(self._held) > MAX_GROUPS:
                self._held = {name: self._held[name] for name in self.groups if name in self._held}

    def stop(self) -> None:
        """Answer everybody who waits: the coordinator is going away, look for it again."""
        self._is_stopping = True
        alone = self._claims is None
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if alone else ErrorCode.NOT_COORDINATOR
        for group in self.groups.values():
            self._deliver(group.abandon(error))

    def _answer(self, group: Group, answers: Answers) -> None:
        """Deliver, but a new generation only when it is recorded."""
        held = self._held.get(group.id)
        if self._claims is None or held is None or not answers:
            self._deliver(answers)
        elif group.generation == held.generation:
            self._deliver(answers)
        else:
            claim = GroupClaim(held.epoch, group.generation)
            recording = asyncio.ensure_future(self._record(self._claims, group, claim, answers))
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)

    async def _record(
        self, claims: Claims, group: Group, claim: GroupClaim, answers: Answers
    ) -> None:
        try:
            await claims.record(group.id, claim)
        except MOVED:
            self._deliver(_refused(answers, ErrorCode.NOT_COORDINATOR))
            self.give_up(group.id)
        except UNAVAILABLE:
            self._deliver(_refused(answers, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            held = self._held.get(group.id)
            if held is not None and held.epoch == claim.epoch:
                self._held[group.id] = max(held, claim)
            self._deliver(answers)

    @staticmethod
    def _deliver(answers: Answers) -> None:
        for waiter, reply in answers:
            # A waiter is done already when its connection has gone away.
            if not waiter.done():
                waiter.set_result(reply)


def _refused(answers: Answers, error: ErrorCode) -> Answers:
    return [
        (waiter, Joined(error, reply.member_id) if isinstance(reply, Joined) else Synced(error))
        for waiter, reply in answers
    ]
