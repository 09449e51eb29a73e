"""The shell of the group state machines: it passes them the time and turns answers into futures.

Relies on one event loop. Promises that every join and sync is answered once, at the latest when
the rebalance timeout has passed, and that no answer contains what the next coordinator would not
know: a changed group is saved first, see `held`. A group id is of one protocol at a time: a group
with classic members takes no member of the consumer protocol, and the other way round; an empty
group takes the protocol of its next member. Empty classic groups are forgotten; so are the oldest
empty consumer groups where there are too many.

With many brokers the broker that holds a group's claim coordinates it; others answer
NOT_COORDINATOR, and the client asks again for the coordinator. The next coordinator, or this one
after a restart, continues with the same members, generation and assignments.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from catchwater.broker.coordination import members as classic
from catchwater.broker.coordination.consumer import member as consumer
from catchwater.broker.coordination.consumer.group import ConsumerGroup, TopicLookup, refused
from catchwater.broker.coordination.consumer.member import (
    JOINS,
    ConsumerLimits,
    Heartbeat,
    HeartbeatReply,
)
from catchwater.broker.coordination.groups import Group
from catchwater.broker.coordination.held import MAX_GROUPS, Claims, HeldGroups
from catchwater.broker.coordination.members import (
    Answers,
    GroupLimits,
    Join,
    JoinReply,
    SyncReply,
    may_be_asked_about,
    size_bytes,
)
from catchwater.broker.coordination.patterns import Patterns
from catchwater.catalog.rows import GroupRow
from catchwater.clock import Clock
from catchwater.wire.errors import ErrorCode

TICK_S = 0.1

MAX_BYTES = 256 * 1024 * 1024
"""Bound on what members of all groups send: metadata, topic names, assignments from leaders."""
LITTLE_BYTES = 16 * 1024
"""A request with no more than this is accepted beyond the bound too, so that small groups work."""

MemberKey = tuple[str, str | None, int]
"""(member id, instance id, generation or member epoch), as a member names itself."""

NO_LIMITS = ConsumerLimits()


class Coordinator:
    """All groups of this broker."""

    def __init__(
        self,
        limits: GroupLimits,
        clock: Clock,
        claims: Claims | None = None,
        consumer_limits: ConsumerLimits = NO_LIMITS,
    ) -> None:
        """Without claims this broker coordinates every group."""
        self.groups: dict[str, Group] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.consumer_limits = consumer_limits
        self.patterns = Patterns(clock)
        self._limits = limits
        self._clock = clock
        self._held = HeldGroups(claims, self._load, self._drop)
        self._answering: set[asyncio.Future[None]] = set()
        self._bytes = 0
        """What members have sent: counted at the last tick, plus every request since."""

    # --- members of the classic protocol -----------------------------------------------------

    async def join(self, group_id: str, request: Join) -> JoinReply:
        """Wait until the group's next generation begins, or until the join is refused."""
        error = await self.hold(group_id)
        if error is ErrorCode.NONE and not self._has_room_for(size_bytes(request.protocols)):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE:
            return JoinReply(error, request.member_id)
        group = self.groups.get(group_id)
        if group is None:
            error = self._classic_refusal(group_id, request)
            if error is not ErrorCode.NONE:
                return JoinReply(error, request.member_id)
            other = self.consumer_groups.pop(group_id, None)
            generation = other.epoch if other else self._held.generation(group_id)
            group = Group(group_id, self._limits, generation=generation)
            self.groups[group_id] = group
        waiter: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        self._answer(group, group.join(request, waiter, self._now_ms()))
        return await waiter

    def _has_room_for(self, size_bytes: int) -> bool:
        """Whether members may send so many bytes more; up to `LITTLE_BYTES` they always may."""
        if size_bytes > LITTLE_BYTES and self._bytes + size_bytes > MAX_BYTES:
            return False
        self._bytes += size_bytes
        return True

    def _classic_refusal(self, group_id: str, request: Join) -> ErrorCode:
        """Why this request cannot begin a classic group, or NONE."""
        other = self.consumer_groups.get(group_id)
        if other is not None and other.members:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_full = other is None and not self._has_room()
        return ErrorCode.GROUP_MAX_SIZE_REACHED if is_full else ErrorCode.NONE

    async def sync(
        self,
        group_id: str,
        member: MemberKey,
        protocol: tuple[str | None, str | None],
        assignments: dict[str, bytes],
    ) -> SyncReply:
        """Wait for the leader's assignment."""
        error, group = await self._find(group_id)
        if group is None:
            return SyncReply(error)
        if not self._has_room_for(sum(map(len, assignments.values()))):
            return SyncReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        waiter: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        now_ms = self._now_ms()
        self._answer(group, group.sync(*member, protocol, assignments, waiter, now_ms))
        return await waiter

    async def heartbeat(self, group_id: str, member: MemberKey) -> ErrorCode:
        """NONE, or what the member must do, such as REBALANCE_IN_PROGRESS: join again."""
        error, group = await self._find(group_id)
        return group.heartbeat(*member, self._now_ms()) if group else error

    async def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Take a member out of its group."""
        error, group = await self._find(group_id)
        if group is None:
            return error
        error, answers = group.leave(member_id, instance_id, self._now_ms())
        self._answer(group, answers)
        return error

    async def _find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        """The group, or None and the error to answer."""
        error = await self.hold(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self.groups.get(group_id)

    # --- members of the consumer protocol ----------------------------------------------------

    async def consumer_heartbeat(
        self, group_id: str, beat: Heartbeat, topics: TopicLookup
    ) -> HeartbeatReply:
        """Answer a heartbeat, once its changes to the member are saved."""
        error = await self.hold(group_id)
        if error is not ErrorCode.NONE:
            return HeartbeatReply(error)
        if not self._has_room_for(sum(map(len, beat.names or ()))):
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, "All groups have too many topics.")
        group = self._consumer_group(group_id, beat)
        if isinstance(group, HeartbeatReply):
            return group
        reply = group.heartbeat(beat, topics, self._now_ms())
        is_saved = not group.has_unsaved(beat.member_id)
        if is_saved and not self._held.is_saving(group_id, beat.member_id):
            return reply
        error = await self._held.save(group)
        return reply if error is ErrorCode.NONE else HeartbeatReply(error)

    def _consumer_group(self, group_id: str, beat: Heartbeat) -> ConsumerGroup | HeartbeatReply:
        """The group, a new one where the first member joins; or the refusal."""
        group = self.consumer_groups.get(group_id)
        if group is not None:
            return group
        if beat.epoch != JOINS:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id} is no member.")
        classic = self.groups.get(group_id)
        if classic is not None and not classic.is_idle:
            message = f"Group {group_id} has members of the classic protocol."
            return refused(ErrorCode.GROUP_ID_NOT_FOUND, message)
        if classic is None and not self._has_room():
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, "There are too many groups.")
        self.groups.pop(group_id, None)
        epoch = classic.generation if classic else self._held.generation(group_id)
        group = ConsumerGroup(group_id, self.consumer_limits, epoch, epoch)
        self.consumer_groups[group_id] = group
        return group

    def _has_room(self) -> bool:
        """Whether there may be another group; an empty one gives way."""
        if len(self.groups) + len(self.consumer_groups) < MAX_GROUPS:
            return True
        empty = next((g.id for g in self.consumer_groups.values() if not g.members), None)
        return empty is not None and self.consumer_groups.pop(empty) is not None

    # --- positions ---------------------------------------------------------------------------

    async def check_commit(self, group_id: str, member: MemberKey) -> ErrorCode:
        """Whether the member may commit offsets; in a group without members anybody may."""
        error, group = await self._find(group_id)
        if group is not None:
            return group.check_commit(*member, self._now_ms())
        consumers = self.consumer_groups.get(group_id)
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            if consumers is not None and consumers.members:
                return consumers.check(member[0], member[2])
            if member[2] < 0:
                return ErrorCode.NONE
        return error

    async def check_fetch(self, group_id: str, member_id: str, epoch: int) -> ErrorCode:
        """Whether a request that names a member may read the group's offsets.

        A classic group is read with any member id and epoch, without a check (KIP-848).
        """
        error = await self.hold(group_id)
        if error is not ErrorCode.NONE:
            return error
        group, consumers = self.groups.get(group_id), self.consumer_groups.get(group_id)
        if consumers is None or (group and not group.is_idle):
            return ErrorCode.NONE
        return consumers.check(member_id, epoch)

    def in_order(self, group_id: str) -> AbstractAsyncContextManager[None]:
        """See `HeldGroups.in_order`."""
        return self._held.in_order(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members, or ids promised to members that are about to join."""
        group, consumers = self.groups.get(group_id), self.consumer_groups.get(group_id)
        return bool((group and not group.is_idle) or (consumers and consumers.members))

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Whether a member of the group reads this topic."""
        group, consumers = self.groups.get(group_id), self.consumer_groups.get(group_id)
        members = consumers.members.values() if consumers else ()
        return any(topic in m.topics for m in members) or bool(group and group.is_subscribed(topic))

    def may_read(self, group_id: str, topic: str) -> bool:
        """Whether a member reads this topic, or may: while the group rebalances nobody knows."""
        group = self.groups.get(group_id)
        if group is not None and not group.is_idle:
            if not group.is_of_consumers or group.state is not classic.GroupState.STABLE:
                return True
        return self.is_subscribed(group_id, topic)

    def is_saved(self, group_id: str) -> bool:
        """Whether all changes of the group are saved."""
        group = self.groups.get(group_id) or self.consumer_groups.get(group_id)
        return group is None or self._held.is_saved(group)

    def forget(self, group_id: str) -> bool:
        """Drop a deleted group and its claim; whether it was known here."""
        was_known = group_id in self.groups or group_id in self.consumer_groups
        self._held.give_up(group_id)
        return was_known

    # --- which groups this broker coordinates ------------------------------------------------

    def _load(self, group_id: str, row: GroupRow) -> None:
        """Continue with a group as it was saved, if it has members."""
        if not (row.state and row.members):
            return
        kept = msgspec.json.decode(row.state, type=classic.GroupSnapshot | consumer.GroupSnapshot)
        now_ms = self._now_ms()
        if isinstance(kept, classic.GroupSnapshot):
            members = _decoded(row, classic.MemberSnapshot)
            group = Group.restored(group_id, self._limits, row.generation, kept, members, now_ms)
            self.groups[group_id] = group
            return
        limits, consumers = self.consumer_limits, _decoded(row, consumer.MemberSnapshot)
        self.consumer_groups[group_id] = ConsumerGroup.restored(
            group_id, limits, row.generation, kept, consumers, now_ms
        )

    async def check_described(self, group_id: str) -> ErrorCode:
        """Whether this broker can describe the group; loads it first if it is to be taken over."""
        if not may_be_asked_about(group_id):
            return ErrorCode.INVALID_GROUP_ID
        if self._held.is_adopting:
            await self._held.hold(group_id)
        return ErrorCode.NONE if self._held.is_mine(group_id) else ErrorCode.NOT_COORDINATOR

    def is_mine(self, group_id: str) -> bool:
        """See `HeldGroups.is_mine`."""
        return self._held.is_mine(group_id)

    async def hold(self, group_id: str) -> ErrorCode:
        """See `HeldGroups.hold`."""
        return await self._held.hold(group_id)

    def claim_epoch(self, group_id: str) -> int | None:
        """See `HeldGroups.epoch`."""
        return self._held.epoch(group_id)

    def give_up(self, group_id: str) -> None:
        """See `HeldGroups.give_up`; members that wait are sent to find the coordinator."""
        self._held.give_up(group_id)

    def _drop(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            self._deliver(group.abandon(ErrorCode.NOT_COORDINATOR))
        self.consumer_groups.pop(group_id, None)

    # --- time and answers --------------------------------------------------------------------

    async def run(self) -> None:
        """Every `TICK_S`: expire sessions and rebalances, claim groups; until cancelled."""
        while True:
            await self._clock.sleep(TICK_S)
            self._held.check_ownership()
            self._held.adopt_soon()
            now_ms = self._now_ms()
            for group in list(self.groups.values()):
                self._answer(group, group.tick(now_ms))
                if group.is_idle and self._held.is_saved(group):
                    self.groups.pop(group.id, None)
            for consumers in self.consumer_groups.values():
                consumers.tick(now_ms)
                if consumers.is_unsaved:
                    self._answer(consumers, [])
            self._bytes = sum(group.size_bytes for group in self.groups.values()) + sum(
                group.size_bytes for group in self.consumer_groups.values()
            )
            self._held.keep_only([*self.groups, *self.consumer_groups])

    def stop(self) -> None:
        """Answer all waiting requests: this coordinator stops, the client must find another."""
        self._held.is_stopping = True
        alone = self._held.is_alone
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if alone else ErrorCode.NOT_COORDINATOR
        for group in self.groups.values():
            self._deliver(group.abandon(error))

    def _answer(self, group: Group | ConsumerGroup, answers: Answers) -> None:
        """Deliver the answers, after the group has been saved."""
        if self._held.is_saved(group):
            self._deliver(answers)
        elif answers or not self._held.is_busy(group.id):
            answering = asyncio.ensure_future(self._save_and_deliver(group, answers))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    async def _save_and_deliver(self, group: Group | ConsumerGroup, answers: Answers) -> None:
        error = await self._held.save(group)
        self._deliver(answers if error is ErrorCode.NONE else _refused(answers, error))

    def _now_ms(self) -> int:
        """The monotonic clock, so that no step of the wall clock expires all sessions."""
        return int(self._clock.monotonic_s() * 1000)

    @staticmethod
    def _deliver(answers: Answers) -> None:
        for waiter, reply in answers:
            # A waiter is cancelled when its connection was closed.
            if not waiter.done():
                waiter.set_result(reply)


_M = TypeVar("_M")


def _decoded(row: GroupRow, kind: type[_M]) -> dict[str, _M]:
    return {name: msgspec.json.decode(state, type=kind) for name, state in row.members.items()}


def _refused(answers: Answers, error: ErrorCode) -> Answers:
    return [
        (
            waiter,
            JoinReply(error, reply.member_id) if isinstance(reply, JoinReply) else SyncReply(error),
        )
        for waiter, reply in answers
    ]
