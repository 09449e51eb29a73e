"""The groups' shell: it gives the pure state machines their time and turns answers into futures.

Relies on one event loop. Promises that every join and sync is answered once, at the latest when
the rebalance timeout has passed. Groups without members are forgotten; their offsets are in the
log's catalog.
"""

import asyncio

from catchwater.broker.coordination.groups import Answers, Group, GroupLimits, Join, Joined, Synced
from catchwater.clock import Clock
from catchwater.wire.errors import ErrorCode

TICK_S = 0.1
MAX_GROUPS = 10_000


class Coordinator:
    """All groups of this broker."""

    def __init__(self, limits: GroupLimits, clock: Clock) -> None:
        self.groups: dict[str, Group] = {}
        self._limits = limits
        self._clock = clock

    async def join(self, group_id: str, request: Join) -> Joined:
        """Wait until the group's next generation begins, or for the refusal."""
        group = self.groups.get(group_id)
        if group is None:
            if request.member_id:
                return Joined(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self.groups) >= MAX_GROUPS:
                return Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            group = self.groups[group_id] = Group(group_id, self._limits)
        waiter: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        self._answer(group.join(request, waiter, self._clock.now_ms()))
        return await waiter

    async def sync(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        protocol: tuple[str | None, str | None],
        assignments: dict[str, bytes],
    ) -> Synced:
        """Wait for the leader's assignment; `member` is (member id, instance id, generation)."""
        group = self.groups.get(group_id)
        if group is None:
            return Synced(ErrorCode.UNKNOWN_MEMBER_ID)
        waiter: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        now_ms = self._clock.now_ms()
        self._answer(group.sync(*member, protocol, assignments, waiter, now_ms))
        return await waiter

    def heartbeat(self, group_id: str, member: tuple[str, str | None, int]) -> ErrorCode:
        """What the member is to know; `member` as for `sync`."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(*member, self._clock.now_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Take a member out of its group."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, answers = group.leave(member_id, instance_id, self._clock.now_ms())
        self._answer(answers)
        return error

    def check_commit(self, group_id: str, member: tuple[str, str | None, int]) -> ErrorCode:
        """Whether the member may commit; anybody may where there are no members."""
        group = self.groups.get(group_id)
        if group is None:
            is_member = member[2] >= 0
            return ErrorCode.UNKNOWN_MEMBER_ID if is_member else ErrorCode.NONE
        return group.check_commit(*member, self._clock.now_ms())

    async def run(self) -> None:
        """Let time pass in all groups, until cancelled."""
        while True:
            await self._clock.sleep(TICK_S)
            now_ms = self._clock.now_ms()
            for group in list(self.groups.values()):
                self._answer(group.tick(now_ms))
                if group.is_idle:
                    del self.groups[group.id]

    def stop(self) -> None:
        """Answer everybody who waits: the coordinator is going away, look for it again."""
        for group in self.groups.values():
            self._answer(group.abandon())

    @staticmethod
    def _answer(answers: Answers) -> None:
        for waiter, reply in answers:
            # A waiter is done already when its connection has gone away.
            if not waiter.done():
                waiter.set_result(reply)
