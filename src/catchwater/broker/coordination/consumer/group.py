"""A group of the consumer protocol as a pure state machine: heartbeats in, answers out (KIP-848).

Rules:
- Whatever changes who is meant to have what (members, subscriptions, topics, a preferred assignor)
  raises the group's epoch. The next heartbeat makes a *target* for that epoch: all assigned anew.
- Each member is led to its target by its own heartbeats, see `reconcile`; it has the target's
  epoch once nothing is left to give up. Nobody waits for anybody but for partitions.
- A member that is silent for the session timeout, or does not give up a partition within its own
  rebalance timeout, is removed; what it held is free.
- A static member that pauses (epoch -2) keeps its partitions for whoever comes back with its
  instance id within the session timeout.
- All but sessions outlives the coordinator: an answer may be given once `take_unsaved` has been
  stored, and the next coordinator goes on there, with sessions that begin anew.

Every method takes `now_ms`; topics are told with each heartbeat. Nothing here waits, stores or
opens anything. Left out: members of the classic protocol in the same group (KIP-848's migration,
as with Kafka's `group.consumer.migration.policy=disabled`), assignment by racks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from catchwater.broker.coordination.consumer.assign import ASSIGNORS, Subscriber
from catchwater.broker.coordination.consumer.member import (
    JOINS,
    LEAVES,
    NOTHING,
    PAUSES,
    Beat,
    Beaten,
    ConsumerLimits,
    KeptGroup,
    KeptMember,
    Member,
    Partitions,
    Standing,
    from_indexes,
    reconcile,
)
from catchwater.catalog.rows import GroupChanges, PartitionKey
from catchwater.wire.errors import ErrorCode

WORK_PER_MS = 200
"""Members and partitions a target may have for a millisecond until the next one is made, so that
ten thousand members that join one by one do not each have everything assigned anew."""


class GroupState(Enum):
    """The states by the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class TopicsSeen(NamedTuple):
    """What there is to subscribe to."""

    find: Callable[[str], tuple[bytes, int] | None]
    """A topic's id and number of partitions by name; None where there is no such topic."""
    matching: Callable[[str], frozenset[str]]
    """The names a pattern means, of those that the member at hand may know of."""


@dataclass
class ConsumerGroup:
    """One group. `epoch` and `assignment_epoch`, the target's, never go back."""

    id: str
    limits: ConsumerLimits
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = next(iter(ASSIGNORS))
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    _statics: dict[str, str] = field(default_factory=dict)
    """Member id by instance id."""
    _holders: dict[PartitionKey, str] = field(default_factory=dict)
    """Who holds a partition: it is in the `held` of that member's standing."""
    _subscribed: dict[str, int] = field(default_factory=dict)
    """How many members subscribe to a topic, by name."""
    size_bytes: int = 0
    """The characters of those names, of all members."""
    _seen: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """What those topics were when the epoch was last raised for them."""
    _no_target_before_ms: int = 0
    _unsaved: set[str] = field(default_factory=set)
    """Ids of members that are not as they were last stored, or not there any more."""
    _is_unsaved: bool = False
    """Whether epochs, the assignor or what was seen of topics are not as last stored."""
    _is_new: bool = True
    """Whether nothing of this group was stored yet; of an earlier one with its name, perhaps."""

    # --- from one coordinator to the next ------------------------------------------------

    @classmethod
    def restored(
        cls,
        group_id: str,
        limits: ConsumerLimits,
        epoch: int,
        kept: KeptGroup,
        members: Mapping[str, KeptMember],
        now_ms: int,
    ) -> "ConsumerGroup":
        """The group as the last coordinator has left it."""
        seen = {name: (bytes.fromhex(topic_id), n) for name, (topic_id, n) in kept.seen.items()}
        assignor = kept.assignor if kept.assignor in ASSIGNORS else next(iter(ASSIGNORS))
        group = cls(group_id, limits, epoch, kept.assignment_epoch, assignor, _seen=seen)
        for member_id, state in members.items():
            member = Member.restored(member_id, state, now_ms)
            group.members[member_id] = member
            group.target[member_id] = from_indexes(state.target)
            if member.instance_id is not None:
                group._statics[member.instance_id] = member_id
            group._count(member.topics, 1)
            assigned, revoking = from_indexes(state.assigned), from_indexes(state.revoking)
            epochs = (state.epoch, state.previous_epoch)
            group._stand(member, Standing(*epochs, assigned, revoking, state.is_waiting))
        group._unsaved.clear()
        group._is_new = False
        return group

    @property
    def is_unsaved(self) -> bool:
        """Whether there is something for the next coordinator to know."""
        return self._is_unsaved or bool(self._unsaved)

    def has_unsaved(self, member_id: str) -> bool:
        """Whether there is something of this member."""
        return member_id in self._unsaved

    def take_unsaved(self) -> GroupChanges | None:
        """What the next coordinator does not know yet; the caller stores it or puts it back."""
        if not self.is_unsaved:
            return None
        ids = {*self.members} if self._is_new else self._unsaved
        members = {
            member_id: member.kept(self.target.get(member_id, NOTHING)) if member else None
            for member_id in sorted(ids)
            for member in [self.members.get(member_id)]
        }
        state = None
        if self._is_unsaved:
            seen = {name: (topic_id.hex(), n) for name, (topic_id, n) in self._seen.items()}
            state = KeptGroup(self.assignment_epoch, self.assignor, seen)
        changes = GroupChanges(self.epoch, state, members, self._is_new, not self.members)
        self._unsaved, self._is_unsaved, self._is_new = set(), False, False
        return changes

    def put_back(self, changes: GroupChanges) -> None:
        """They could not be stored."""
        self._unsaved |= changes.members.keys()
        self._is_unsaved |= changes.state is not None
        self._is_new |= changes.is_whole

    # --- heartbeats ----------------------------------------------------------------------

    def heartbeat(self, beat: Beat, topics: TopicsSeen, now_ms: int) -> Beaten:
        """What the member is to know; it may join, go on or leave with it."""
        member = self._find(beat)
        if isinstance(member, Beaten):
            return member
        if beat.epoch in (LEAVES, PAUSES):
            return self._leave(member, beat.epoch, now_ms)
        before = member.standing
        self._hear(member, beat, topics, now_ms)
        self._notice(topics)
        if self.epoch > self.assignment_epoch and now_ms >= self._no_target_before_ms:
            self._aim(now_ms)
        # Who is behind is told again what it missed, and goes on from there with the next one.
        is_behind = beat.epoch != before.epoch
        if not is_behind:
            self._reconcile(member, beat.owned, now_ms)
        after = member.standing
        is_news = is_behind or beat.is_full or before.assigned != after.assigned
        return Beaten(
            ErrorCode.NONE, None, member.id, after.epoch, after.assigned if is_news else None
        )

    def _find(self, beat: Beat) -> Member | Beaten:
        """The member that speaks, perhaps a new one; or its refusal."""
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            static = self.members.get(self._statics.get(beat.instance_id, ""))
            if static is not None and static is not member:
                return self._find_static(static, beat)
            if static is None and beat.epoch != JOINS:
                return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.instance_id} is no member.")
        if member is None:
            return self._new(beat)
        if beat.epoch in (JOINS, LEAVES, PAUSES):
            # To join again is never refused: the member has lost what it was told (KAFKA-19233).
            if member.has_paused:
                member.has_paused = False
                self._unsaved.add(member.id)
            return member
        error = self._epoch_error(member, beat)
        return member if error is None else refused(ErrorCode.FENCED_MEMBER_EPOCH, error)

    def _find_static(self, static: Member, beat: Beat) -> Member | Beaten:
        """The instance id is another member's: it can be taken over only if that one paused."""
        if beat.epoch != JOINS:
            return refused(ErrorCode.FENCED_INSTANCE_ID, f"{static.id} is {static.instance_id}.")
        if not static.has_paused:
            return refused(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"{static.instance_id} is in use by {static.id}."
            )
        heir = replace(static, id=beat.member_id, has_paused=False, standing=Standing())
        kept = Standing(assigned=static.standing.assigned)
        self._stand(static, Standing())
        self._stand(heir, kept)
        # Nobody else is concerned: the target is the same, and so is the group's epoch.
        self.target[heir.id] = self.target.pop(static.id, NOTHING)
        del self.members[static.id]
        self.members[heir.id] = heir
        self._unsaved |= {static.id, heir.id}
        self._statics[beat.instance_id or ""] = heir.id
        return heir

    def _new(self, beat: Beat) -> Member | Beaten:
        if beat.epoch != JOINS:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id} is no member.")
        if len(self.members) >= self.limits.max_members:
            most = f"The group may have {self.limits.max_members} members."
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, most)
        member = Member(beat.member_id, beat.instance_id, beat.client_id, beat.client_host, 0)
        self.members[member.id] = member
        self._unsaved.add(member.id)
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.id
        self._raise()
        return member

    @staticmethod
    def _epoch_error(member: Member, beat: Beat) -> str | None:
        """What is wrong with the epoch; the one before is right where an answer went missing."""
        standing = member.standing
        if beat.epoch == standing.epoch and not member.has_paused:
            return None
        may_have_missed = beat.epoch == standing.previous_epoch and not member.has_paused
        if may_have_missed and beat.owned is not None and beat.owned <= standing.assigned:
            return None
        return f"{member.id} has epoch {standing.epoch}, not {beat.epoch}: join again."

    def _leave(self, member: Member, how: int, now_ms: int) -> Beaten:
        if how == PAUSES and member.instance_id is not None:
            member.has_paused, member.last_seen_ms, member.revoke_by_ms = True, now_ms, None
            self._stand(member, member.standing._replace(revoking=NOTHING))
            self._unsaved.add(member.id)
        else:
            self._remove(member)
        return Beaten(ErrorCode.NONE, None, member.id, how)

    # --- targets -------------------------------------------------------------------------

    def _hear(self, member: Member, beat: Beat, topics: TopicsSeen, now_ms: int) -> None:
        """Let the member take over what it says, and count what is subscribed to."""
        before, said = member.topics, member.said
        pattern = member.pattern if beat.pattern is None else beat.pattern
        matched = topics.matching(pattern) if pattern else frozenset()
        if member.hear(beat, matched, now_ms):
            self._count(member.topics - before, 1)
            self._count(before - member.topics, -1)
            self._raise()
        if member.said != said:
            self._unsaved.add(member.id)

    def _count(self, names: Iterable[str], change: int) -> None:
        for name in names:
            self.size_bytes += change * len(name)
            self._subscribed[name] = self._subscribed.get(name, 0) + change
            if not self._subscribed[name]:
                del self._subscribed[name]
                self._seen.pop(name, None)

    def _notice(self, topics: TopicsSeen) -> None:
        """Raise the epoch if a topic that somebody subscribes to has changed."""
        found = {name: topics.find(name) for name in self._subscribed}
        seen = {name: topic for name, topic in found.items() if topic is not None}
        if seen != self._seen:
            self._seen = seen
            self._is_unsaved = True
            self._raise()

    def _raise(self) -> None:
        """The target does not hold any more; several changes may pass until the next is made."""
        self._is_unsaved = True
        if self.epoch == self.assignment_epoch:
            self.epoch += 1

    def _aim(self, now_ms: int) -> None:
        """Make the target of the group's epoch."""
        ids = {name: topic_id for name, (topic_id, _) in self._seen.items()}
        subscribers = {
            member.id: Subscriber(
                frozenset(ids[name] for name in member.topics if name in ids),
                self.target.get(member.id, NOTHING),
                member.instance_id,
            )
            for member in self.members.values()
        }
        self.assignor = self._vote()
        partitions: Mapping[bytes, int] = dict(self._seen.values())
        before, self.target = self.target, ASSIGNORS[self.assignor](subscribers, partitions)
        self.assignment_epoch = self.epoch
        self._is_unsaved = True
        self._unsaved |= {m for m, given in self.target.items() if before.get(m) != given}
        work = len(self.members) + sum(partitions.values())
        self._no_target_before_ms = now_ms + work // WORK_PER_MS

    def _vote(self) -> str:
        """The assignor most members ask for; the first of ours where nobody does."""
        votes = dict.fromkeys(ASSIGNORS, 0)
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] += 1
        return max(votes, key=lambda name: votes[name])

    def _reconcile(self, member: Member, owned: Partitions | None, now_ms: int) -> None:
        before = member.standing
        target = self.target.get(member.id, NOTHING)
        after = reconcile(
            before,
            self.assignment_epoch,
            target,
            owned,
            lambda key: self._holders.get(key, member.id) == member.id,
        )
        self._stand(member, after)
        if not after.revoking:
            member.revoke_by_ms = None
        elif after.revoking != before.revoking:
            member.revoke_by_ms = now_ms + member.rebalance_timeout_ms

    def _stand(self, member: Member, standing: Standing) -> None:
        """Change a member's standing, and who holds what with it."""
        if standing == member.standing:
            return
        self._unsaved.add(member.id)
        for key in member.standing.held - standing.held:
            self._holders.pop(key, None)
        for key in standing.held:
            self._holders[key] = member.id
        member.standing = standing

    # --- leaving, time -------------------------------------------------------------------

    def _remove(self, member: Member) -> None:
        self._stand(member, Standing())
        del self.members[member.id]
        self._unsaved.add(member.id)
        self.target.pop(member.id, None)
        if member.instance_id is not None and self._statics.get(member.instance_id) == member.id:
            del self._statics[member.instance_id]
        self._count(member.topics, -1)
        self._raise()

    def tick(self, now_ms: int) -> None:
        """Time has passed: who is silent, or holds on to what is another's, is removed."""
        for member in list(self.members.values()):
            is_silent = now_ms >= member.last_seen_ms + self.limits.session_timeout_ms
            if is_silent or (member.revoke_by_ms is not None and now_ms >= member.revoke_by_ms):
                self._remove(member)

    # --- questions -----------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        for member in self.members.values():
            standing = member.standing
            if standing.epoch != self.assignment_epoch or standing.is_waiting or standing.revoking:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def check(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether the member may read and commit positions; anybody may where there are none."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch != member.standing.epoch or member.has_paused:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE


def refused(error: ErrorCode, message: str) -> Beaten:
    """An answer that says no more than this."""
    return Beaten(error, message)
