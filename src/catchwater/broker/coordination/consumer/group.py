"""A group of the consumer protocol as a pure state machine: heartbeats in, answers out (KIP-848).

Rules:
- A change of the members, their subscriptions, topics or preferred assignors raises the group's
  epoch. The next heartbeat computes a *target assignment* for that epoch.
- Each member moves to its target by its own heartbeats, see `reconcile`, and gets the target's
  epoch once it has nothing left to revoke. It waits for other members only where they still hold
  its partitions.
- A member that sends nothing for the session timeout, or does not revoke a partition within its
  own rebalance timeout, is removed, and its partitions are free.
- The partitions of a static member that pauses (epoch -2) stay reserved for a member that returns
  with its instance id within the session timeout.
- All state but the sessions is saved: an answer may be given once `take_unsaved` has been stored.
  The next coordinator continues from there, and sessions begin anew.

Every method takes `now_ms`; each heartbeat brings a lookup of topics. Nothing here waits, stores or
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
    ConsumerLimits,
    GroupSnapshot,
    Heartbeat,
    HeartbeatReply,
    Member,
    MemberSnapshot,
    Partitions,
    Standing,
    from_indexes,
    reconcile,
)
from catchwater.catalog.rows import GroupChanges, PartitionKey
from catchwater.wire.errors import ErrorCode

WORK_PER_MS = 200
"""How large a target, in members and partitions, delays the next one by a millisecond. So ten
thousand members that join one by one do not cause ten thousand assignments of everything."""


class GroupState(Enum):
    """The states by the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class TopicLookup(NamedTuple):
    """How a group looks topics up."""

    find: Callable[[str], tuple[bytes, int] | None]
    """A topic's id and number of partitions by name; None where there is no such topic."""
    matching: Callable[[str], frozenset[str]]
    """The topic names that match a pattern, of those that the member may DESCRIBE."""


@dataclass
class ConsumerGroup:
    """One group. `epoch` and `assignment_epoch`, the target's, only rise."""

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
    """The member that holds a partition: it is in `held` of that member's standing."""
    _subscribed: dict[str, int] = field(default_factory=dict)
    """How many members subscribe to a topic, by name."""
    size_bytes: int = 0
    """The characters of the topic names of all members."""
    _seen: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Id and number of partitions of those topics, as of the last heartbeat."""
    _no_target_before_ms: int = 0
    _unsaved: set[str] = field(default_factory=set)
    """Ids of members that were changed or removed since they were last saved."""
    _is_unsaved: bool = False
    """Whether epochs, the assignor or `_seen` were changed since they were last saved."""
    _is_new: bool = True
    """Whether this group was never saved; an earlier one of this name may have been."""

    # --- from one coordinator to the next ------------------------------------------------

    @classmethod
    def restored(
        cls,
        group_id: str,
        limits: ConsumerLimits,
        epoch: int,
        kept: GroupSnapshot,
        members: Mapping[str, MemberSnapshot],
        now_ms: int,
    ) -> "ConsumerGroup":
        """The group from its snapshot."""
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
            group._set_standing(member, Standing(*epochs, assigned, revoking, state.is_waiting))
        group._unsaved.clear()
        group._is_new = False
        return group

    @property
    def is_unsaved(self) -> bool:
        """Whether there are changes to be saved."""
        return self._is_unsaved or bool(self._unsaved)

    def has_unsaved(self, member_id: str) -> bool:
        """Whether there are changes of this member to be saved."""
        return member_id in self._unsaved

    def take_unsaved(self) -> GroupChanges | None:
        """The changes since the last save; the caller stores them or puts them back."""
        if not self.is_unsaved:
            return None
        ids = {*self.members} if self._is_new else self._unsaved
        members = {
            member_id: member.snapshot(self.target.get(member_id, NOTHING)) if member else None
            for member_id in sorted(ids)
            for member in [self.members.get(member_id)]
        }
        state = None
        if self._is_unsaved:
            seen = {name: (topic_id.hex(), n) for name, (topic_id, n) in self._seen.items()}
            state = GroupSnapshot(self.assignment_epoch, self.assignor, seen)
        changes = GroupChanges(self.epoch, state, members, self._is_new, not self.members)
        self._unsaved, self._is_unsaved, self._is_new = set(), False, False
        return changes

    def put_back(self, changes: GroupChanges) -> None:
        """Return changes that could not be stored."""
        self._unsaved |= changes.members.keys()
        self._is_unsaved |= changes.state is not None
        self._is_new |= changes.is_whole

    # --- heartbeats ----------------------------------------------------------------------

    def heartbeat(self, beat: Heartbeat, topics: TopicLookup, now_ms: int) -> HeartbeatReply:
        """Let a member join, stay or leave, and answer with its epoch and partitions."""
        member = self._find(beat)
        if isinstance(member, HeartbeatReply):
            return member
        if beat.epoch in (LEAVES, PAUSES):
            return self._leave(member, beat.epoch, now_ms)
        # What the member and the topics are now; a change of either asks for a new target.
        before = member.standing
        self._update(member, beat, topics, now_ms)
        self._note_topics(topics)
        if self.epoch > self.assignment_epoch and now_ms >= self._no_target_before_ms:
            self._make_target(now_ms)
        # A member with an earlier epoch missed an answer: it is repeated before any next step.
        is_behind = beat.epoch != before.epoch
        if not is_behind:
            self._reconcile(member, beat.owned, now_ms)
        after = member.standing
        is_news = is_behind or beat.is_full or before.assigned != after.assigned
        return HeartbeatReply(
            ErrorCode.NONE, None, member.id, after.epoch, after.assigned if is_news else None
        )

    def _find(self, beat: Heartbeat) -> Member | HeartbeatReply:
        """The member that sent this, a new one perhaps; or its refusal."""
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
            # Joining again is never refused: the member has lost its state (KAFKA-19233).
            if member.has_paused:
                member.has_paused = False
                self._unsaved.add(member.id)
            return member
        error = self._epoch_error(member, beat)
        return member if error is None else refused(ErrorCode.FENCED_MEMBER_EPOCH, error)

    def _find_static(self, static: Member, beat: Heartbeat) -> Member | HeartbeatReply:
        """Take over another member's instance id, which is possible only if that one paused."""
        if beat.epoch != JOINS:
            return refused(ErrorCode.FENCED_INSTANCE_ID, f"{static.id} is {static.instance_id}.")
        if not static.has_paused:
            return refused(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"{static.instance_id} is in use by {static.id}."
            )
        heir = replace(static, id=beat.member_id, has_paused=False, standing=Standing())
        kept = Standing(assigned=static.standing.assigned)
        self._set_standing(static, Standing())
        self._set_standing(heir, kept)
        # No other member is affected: the target and the group's epoch stay the same.
        self.target[heir.id] = self.target.pop(static.id, NOTHING)
        del self.members[static.id]
        self.members[heir.id] = heir
        self._unsaved |= {static.id, heir.id}
        self._statics[beat.instance_id or ""] = heir.id
        return heir

    def _new(self, beat: Heartbeat) -> Member | HeartbeatReply:
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
        self._raise_epoch()
        return member

    @staticmethod
    def _epoch_error(member: Member, beat: Heartbeat) -> str | None:
        """Why the epoch is refused; the previous one is accepted where an answer was lost."""
        standing = member.standing
        if beat.epoch == standing.epoch and not member.has_paused:
            return None
        may_have_missed = beat.epoch == standing.previous_epoch and not member.has_paused
        if may_have_missed and beat.owned is not None and beat.owned <= standing.assigned:
            return None
        return f"{member.id} has epoch {standing.epoch}, not {beat.epoch}: join again."

    def _leave(self, member: Member, how: int, now_ms: int) -> HeartbeatReply:
        if how == PAUSES and member.instance_id is not None:
            member.has_paused, member.last_seen_ms, member.revoke_by_ms = True, now_ms, None
            self._set_standing(member, member.standing._replace(revoking=NOTHING))
            self._unsaved.add(member.id)
        else:
            self._remove(member)
        return HeartbeatReply(ErrorCode.NONE, None, member.id, how)

    # --- targets -------------------------------------------------------------------------

    def _update(self, member: Member, beat: Heartbeat, topics: TopicLookup, now_ms: int) -> None:
        """Apply a heartbeat's fields to the member, and count its subscriptions."""
        before, said = member.topics, member.reported
        pattern = member.pattern if beat.pattern is None else beat.pattern
        matched = topics.matching(pattern) if pattern else frozenset()
        if member.update(beat, matched, now_ms):
            self._count(member.topics - before, 1)
            self._count(before - member.topics, -1)
            self._raise_epoch()
        if member.reported != said:
            self._unsaved.add(member.id)

    def _count(self, names: Iterable[str], change: int) -> None:
        for name in names:
            self.size_bytes += change * len(name)
            self._subscribed[name] = self._subscribed.get(name, 0) + change
            if not self._subscribed[name]:
                del self._subscribed[name]
                self._seen.pop(name, None)

    def _note_topics(self, topics: TopicLookup) -> None:
        """Raise the epoch if a topic that members subscribe to has changed."""
        found = {name: topics.find(name) for name in self._subscribed}
        seen = {name: topic for name, topic in found.items() if topic is not None}
        if seen != self._seen:
            self._seen = seen
            self._is_unsaved = True
            self._raise_epoch()

    def _raise_epoch(self) -> None:
        """Ask for a new target; several changes may share one."""
        self._is_unsaved = True
        if self.epoch == self.assignment_epoch:
            self.epoch += 1

    def _make_target(self, now_ms: int) -> None:
        """Compute the target assignment of the group's epoch."""
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
        """The assignor that most members ask for; the first of ours if none does."""
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
        self._set_standing(member, after)
        if not after.revoking:
            member.revoke_by_ms = None
        elif after.revoking != before.revoking:
            member.revoke_by_ms = now_ms + member.rebalance_timeout_ms

    def _set_standing(self, member: Member, standing: Standing) -> None:
        """Change a member's standing, and `_holders` with it."""
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
        self._set_standing(member, Standing())
        del self.members[member.id]
        self._unsaved.add(member.id)
        self.target.pop(member.id, None)
        if member.instance_id is not None and self._statics.get(member.instance_id) == member.id:
            del self._statics[member.instance_id]
        self._count(member.topics, -1)
        self._raise_epoch()

    def tick(self, now_ms: int) -> None:
        """Remove members whose session or time to revoke has expired."""
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
        """Whether the member may read and commit offsets; without members anybody may."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch != member.standing.epoch or member.has_paused:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE


def refused(error: ErrorCode, message: str) -> HeartbeatReply:
    """An answer with this error and no more."""
    return HeartbeatReply(error, message)
