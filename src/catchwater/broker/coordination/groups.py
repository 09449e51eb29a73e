"""Consumer groups of the classic protocol as a pure state machine, one `Group` per group id.

Rules:
- `EMPTY` has no members. A join moves any state to `PREPARING`: all members must join again.
- `PREPARING` ends when all known members have joined, or when the longest rebalance timeout has
  passed; members that have not joined are then removed. The generation rises by one, the leader
  gets the list of members, and the state is `COMPLETING`.
- `COMPLETING` ends when the leader's assignment arrives: `STABLE`. A member that has not asked for
  its assignment within the rebalance timeout is removed.
- A member that sends nothing for its session timeout is removed, unless it waits for our answer.
- A static member (KIP-345) that returns under a new member id takes over its old place; a stable
  group is then not rebalanced, and a client that still uses the old id is fenced.
- The state that is saved is the last generation whose members got their assignments, and that the
  group became empty. The next coordinator continues from there, and sessions begin anew. Of a
  rebalance that was under way it knows only that its generation was used.

Every method takes `now_ms` and returns the answers that became due, each for a `Waiter`, the
caller's token (the broker uses futures). They may be delivered once `take_unsaved` has been
stored. Nothing here waits, stores or opens anything. The log stores committed offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from catchwater.broker.coordination.members import (
    Answers,
    GroupLimits,
    GroupSnapshot,
    GroupState,
    Join,
    JoinReply,
    Member,
    MemberSnapshot,
    SyncReply,
    Waiter,
    size_bytes,
    subscription,
)
from catchwater.catalog.rows import GroupChanges
from catchwater.wire.errors import ErrorCode

MAX_METADATA_BYTES = 64 * 1024 * 1024
"""Bound on the metadata of all members together, and again on their assignments."""


@dataclass
class Group:
    """One group. `members` keeps the order of joining; the first joined leads."""

    id: str
    limits: GroupLimits
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    """Ids given with MEMBER_ID_REQUIRED, and until when (ms) they may be used."""
    _statics: dict[str, str] = field(default_factory=dict)
    """Member id by instance id."""
    _supporters: dict[str, int] = field(default_factory=dict)
    """How many members support a protocol, by its name."""
    _metadata_bytes: int = 0
    _assigned_bytes: int = 0
    earliest_end_ms: int = 0
    """In PREPARING: the rebalance does not end earlier, so that a starting fleet joins once."""
    deadline_ms: int = 0
    """In PREPARING and COMPLETING: members that have not joined or synced by then are removed."""
    recorded: int = 0
    """The last generation of earlier coordinators; all of ours are higher."""
    _unsaved: GroupChanges | None = None
    _is_saved: bool = False
    """Whether a generation whose members had their assignments was noted to be saved."""

    # --- from one coordinator to the next ------------------------------------------------

    @classmethod
    def restored(
        cls,
        group_id: str,
        limits: GroupLimits,
        recorded: int,
        kept: GroupSnapshot,
        members: Mapping[str, MemberSnapshot],
        now_ms: int,
    ) -> "Group":
        """The group from its snapshot; `recorded` is the last generation that was used."""
        group = cls(
            group_id,
            limits,
            GroupState.STABLE,
            kept.generation,
            kept.protocol_type,
            kept.protocol,
            kept.leader,
            recorded=recorded,
            _is_saved=True,
        )
        for member_id, state in members.items():
            group.members[member_id] = member = Member.restored(member_id, state, now_ms)
            group._count(member, 1)
            group._assigned_bytes += len(member.assignment)
        return group

    @property
    def size_bytes(self) -> int:
        """The bytes of metadata and assignments of all members."""
        return self._metadata_bytes + self._assigned_bytes

    @property
    def is_unsaved(self) -> bool:
        """Whether there are changes to be saved."""
        return self._unsaved is not None

    def take_unsaved(self) -> GroupChanges | None:
        """The changes since the last save; the caller stores them or puts them back."""
        changes, self._unsaved = self._unsaved, None
        return changes

    def put_back(self, changes: GroupChanges) -> None:
        """Return changes that could not be stored."""
        newer = self._unsaved
        self._unsaved = changes.followed_by(newer) if newer else changes

    def _note(self, changes: GroupChanges) -> None:
        older = self._unsaved
        self._unsaved = older.followed_by(changes) if older else changes

    @property
    def _last(self) -> int:
        return max(self.generation, self.recorded)

    def _snapshot(self) -> GroupSnapshot:
        return GroupSnapshot(self.generation, self.protocol_type, self.protocol, self.leader)

    def _note_whole(self) -> None:
        members = {member.id: member.snapshot() for member in self.members.values()}
        self._note(GroupChanges(self._last, self._snapshot(), members, True, not members))
        self._is_saved = True

    # --- joining -------------------------------------------------------------------------

    def join(self, request: Join, waiter: Waiter, now_ms: int) -> Answers:
        """Take a member into the next generation, or refuse it (KIP-62, KIP-345, KIP-394)."""
        error = self._refusal(request)
        if error is not ErrorCode.NONE:
            return [(waiter, JoinReply(error, request.member_id))]
        static = self._static(request.instance_id)
        if request.member_id == "":
            if static is not None:
                return self._replace_static(static, request, waiter, now_ms)
            return self._join_new(request, waiter, now_ms)
        if static is not None and static.id != request.member_id:
            return [(waiter, JoinReply(ErrorCode.FENCED_INSTANCE_ID, request.member_id))]
        if self.promised.pop(request.member_id, None) is not None:
            return self._admit(request.member_id, request, waiter, now_ms)
        member = self.members.get(request.member_id)
        if member is None:
            return [(waiter, JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))]
        return self._join_again(member, request, waiter, now_ms)

    def _refusal(self, request: Join) -> ErrorCode:
        limits = self.limits
        if not (
            limits.min_session_timeout_ms
            <= request.session_timeout_ms
            <= limits.max_session_timeout_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not self._knows_one_of(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        member = self.members.get(request.member_id)
        is_known = member or self._static(request.instance_id)
        if not is_known and len(self.members) + len(self.promised) >= limits.max_members:
            if request.member_id not in self.promised:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        # All of it goes to the leader in one reply.
        more_bytes = size_bytes(request.protocols) - (size_bytes(member.protocols) if member else 0)
        if self._metadata_bytes + more_bytes > MAX_METADATA_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _knows_one_of(self, request: Join) -> bool:
        """Whether all other members support one of the protocols in the request."""
        member = self.members.get(request.member_id)
        others = len(self.members) - (member is not None)
        if not others:
            return True
        own = {name for name, _ in member.protocols} if member else set()
        return request.protocol_type == self.protocol_type and any(
            self._supporters.get(name, 0) - (name in own) == others for name, _ in request.protocols
        )

    def _join_new(self, request: Join, waiter: Waiter, now_ms: int) -> Answers:
        if request.must_return_with_id and request.instance_id is None:
            self.promised[request.fresh_id] = now_ms + request.session_timeout_ms
            return [(waiter, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id))]
        return self._admit(request.fresh_id, request, waiter, now_ms)

    def _admit(self, member_id: str, request: Join, waiter: Waiter, now_ms: int) -> Answers:
        member = Member.joined(member_id, request, now_ms)
        member.joining = waiter
        was_empty = not self.members
        self.members[member_id] = member
        self._count(member, 1)
        self.protocol_type = request.protocol_type
        answers = self._prepare(now_ms)
        if was_empty:
            self.earliest_end_ms = now_ms + self.limits.initial_rebalance_delay_ms
        return answers + self._end_joining_if_all_joined(now_ms)

    def _join_again(self, member: Member, request: Join, waiter: Waiter, now_ms: int) -> Answers:
        answers = self._answer_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        unchanged = member.protocols == request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._count(member, -1)
        member.protocols = request.protocols
        self._count(member, 1)
        member.last_seen_ms = now_ms
        is_retry = self.state is GroupState.COMPLETING or (
            self.state is GroupState.STABLE and member.id != self.leader
        )
        if unchanged and is_retry:
            return [*answers, (waiter, self._joined(member))]
        member.joining = waiter
        answers += self._prepare(now_ms)
        return answers + self._end_joining_if_all_joined(now_ms)

    def _replace_static(self, old: Member, request: Join, waiter: Waiter, now_ms: int) -> Answers:
        answers = self._answer_join(old, ErrorCode.FENCED_INSTANCE_ID)
        answers += self._answer_sync(old, ErrorCode.FENCED_INSTANCE_ID)
        new = Member.joined(request.fresh_id, request, now_ms)
        new.assignment = old.assignment
        self._count(old, -1)
        self._count(new, 1)
        # Rebuilt, so that the new member stands where the old one stood.
        self.members = {
            (new.id if m is old else m.id): (new if m is old else m) for m in self.members.values()
        }
        if self.leader == old.id:
            self.leader = new.id
        same = old.metadata(self.protocol) == new.metadata(self.protocol)
        is_stable = self.state is GroupState.STABLE
        if self._is_saved:  # in a rebalance too: the next coordinator would fence the new id
            heir = {old.id: None, new.id: new.snapshot()}
            state = self._snapshot() if is_stable else None
            self._note(GroupChanges(self._last, state, heir))
        if is_stable and same:
            joined = self._joined(new)._replace(skip_assignment=new.id == self.leader)
            return [*answers, (waiter, joined)]
        new.joining = waiter
        answers += self._prepare(now_ms)
        return answers + self._end_joining_if_all_joined(now_ms)

    def _prepare(self, now_ms: int) -> Answers:
        """Begin a rebalance, unless one has begun: all members must join again."""
        if self.state is GroupState.PREPARING:
            return []
        answers: Answers = []
        for member in self.members.values():
            answers += self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self.state = GroupState.PREPARING
        self.earliest_end_ms = now_ms
        self.deadline_ms = now_ms + self._slowest_rebalance_ms()
        return answers

    def _slowest_rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def _end_joining_if_all_joined(self, now_ms: int) -> Answers:
        if self.state is not GroupState.PREPARING or now_ms < self.earliest_end_ms:
            return []
        if self.promised or any(m.joining is None for m in self.members.values()):
            return []
        return self._end_joining(now_ms)

    def _end_joining(self, now_ms: int) -> Answers:
        """Begin the next generation with the members that have joined."""
        if not self.members:
            self._become_empty()
            return []
        joined = [m for m in self.members.values() if m.joining is not None]
        if not joined:
            # Only absent static members are left: their session timeouts remove them.
            self.deadline_ms = now_ms + self._slowest_rebalance_ms()
            return []
        if self.leader not in {m.id for m in joined}:
            self.leader = joined[0].id
        self._next_generation()
        self.protocol = self._vote()
        self.state = GroupState.COMPLETING
        self.deadline_ms = now_ms + self._slowest_rebalance_ms()
        self._assigned_bytes = 0
        answers: Answers = []
        for member in joined:
            member.assignment = b""
            member.last_seen_ms = now_ms
            answers.append((member.joining, self._joined(member)))
            member.joining = None
        return answers

    def _vote(self) -> str:
        """Each member votes for the first of its protocols that all support; most votes win."""
        known = set.intersection(*({n for n, _ in m.protocols} for m in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in known)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self._next_generation()
        self.protocol = self.leader = None
        self._note_whole()

    def _next_generation(self) -> None:
        """Number a new generation, above those of all earlier coordinators."""
        self.generation = self._last + 1
        self._note(GroupChanges(self.generation))

    def _joined(self, member: Member) -> JoinReply:
        is_leader = member.id == self.leader
        members = self.members.values() if is_leader else ()
        return JoinReply(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            False,
            tuple((m.id, m.instance_id, m.metadata(self.protocol)) for m in members),
        )

    # --- syncing -------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: dict[str, bytes],
        waiter: Waiter,
        now_ms: int,
    ) -> Answers:
        """Answer a member with its assignment; the leader's request brings all of them.

        `protocol` is the (type, name) of the request; None for a part that it leaves out.
        """
        error = self.check_member(member_id, instance_id, generation)
        if error is ErrorCode.NONE and any(
            named not in (None, actual)
            for named, actual in zip(protocol, (self.protocol_type, self.protocol), strict=True)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return [(waiter, SyncReply(error))]
        member = self.members[member_id]
        member.last_seen_ms = now_ms
        answers = self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.syncing = waiter
        if self.state is GroupState.COMPLETING:
            if member_id != self.leader:
                return answers
            assigned_bytes = sum(map(len, assignments.values()))
            if assigned_bytes > MAX_METADATA_BYTES:
                return answers + self._answer_sync(member, ErrorCode.INVALID_REQUEST)
            self._assigned_bytes = assigned_bytes
            self.state = GroupState.STABLE
            for other in self.members.values():
                other.assignment = assignments.get(other.id, b"")
                answers += self._answer_sync(other, ErrorCode.NONE, now_ms)
            self._note_whole()
            return answers
        return answers + self._answer_sync(member, ErrorCode.NONE, now_ms)

    def _answer_sync(self, member: Member, error: ErrorCode, now_ms: int | None = None) -> Answers:
        waiter, member.syncing = member.syncing, None
        if waiter is None:
            return []
        if now_ms is not None:
            member.last_seen_ms = now_ms
        if error is not ErrorCode.NONE:
            return [(waiter, SyncReply(error))]
        return [(waiter, SyncReply(error, member.assignment, self.protocol_type, self.protocol))]

    def _answer_join(self, member: Member, error: ErrorCode) -> Answers:
        waiter, member.joining = member.joining, None
        return [] if waiter is None else [(waiter, JoinReply(error, member.id))]

    # --- staying and leaving -------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Renew a member's session; REBALANCE_IN_PROGRESS if it must join again."""
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self.members[member_id].last_seen_ms = now_ms
        if self.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[ErrorCode, Answers]:
        """Remove a member; a static one may be named by its instance id alone (KIP-345)."""
        if self.promised.pop(member_id, None) is not None:
            return ErrorCode.NONE, self._end_joining_if_all_joined(now_ms)
        static = self._static(instance_id)
        if instance_id is not None and static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        if static is not None and member_id not in ("", static.id):
            return ErrorCode.FENCED_INSTANCE_ID, []
        member = static or self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        return ErrorCode.NONE, self._remove([member], now_ms)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Whether this member may commit offsets; in a group without members anybody may."""
        if generation < 0 and not self.members:
            return ErrorCode.NONE
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.members[member_id].last_seen_ms = now_ms
        return ErrorCode.NONE

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether this is a member of the current generation."""
        static = self._static(instance_id)
        if instance_id is not None and static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if static is not None and static.id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _static(self, instance_id: str | None) -> Member | None:
        return self.members.get(self._statics.get(instance_id or "", ""))

    def _count(self, member: Member, change: int) -> None:
        """Count a member's metadata, protocols and instance id in (1) or out (-1)."""
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] = self._supporters.get(name, 0) + change
            if not self._supporters[name]:
                del self._supporters[name]
        self._metadata_bytes += change * size_bytes(member.protocols)
        if member.instance_id is not None:
            if change > 0:
                self._statics[member.instance_id] = member.id
            else:
                self._statics.pop(member.instance_id, None)

    def _remove(self, gone: list[Member], now_ms: int) -> Answers:
        answers: Answers = []
        for member in gone:
            del self.members[member.id]
            self._count(member, -1)
            answers += self._answer_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
            answers += self._answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        answers += self._prepare(now_ms)
        if not self.members and not self.promised:
            self._become_empty()
            return answers
        return answers + self._end_joining_if_all_joined(now_ms)

    # --- time ----------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Answers:
        """Remove members whose sessions have expired, and end overdue rebalances."""
        self.promised = {i: until for i, until in self.promised.items() if until > now_ms}
        silent = [
            m
            for m in self.members.values()
            if m.session_deadline_ms is not None and m.session_deadline_ms <= now_ms
        ]
        answers = self._remove(silent, now_ms) if silent else []
        if self.state is GroupState.COMPLETING and now_ms >= self.deadline_ms:
            late = [m for m in self.members.values() if m.syncing is None]
            if late:
                answers += self._remove(late, now_ms)
        answers += self._end_joining_if_all_joined(now_ms)
        if self.state is GroupState.PREPARING and now_ms >= self.deadline_ms:
            for member in list(self.members.values()):
                if member.joining is None and member.instance_id is None:
                    del self.members[member.id]
                    self._count(member, -1)
            answers += self._end_joining(now_ms)
        return answers

    def abandon(self, error: ErrorCode) -> Answers:
        """Answer all waiting members with this error: this broker stops coordinating the group."""
        answers: Answers = []
        for member in self.members.values():
            answers += self._answer_join(member, error)
            answers += self._answer_sync(member, error)
        return answers

    @property
    def is_idle(self) -> bool:
        """Whether the group can be forgotten: no members, and none about to join."""
        return not self.members and not self.promised

    @property
    def is_of_consumers(self) -> bool:
        """Whether its members are consumers, whose metadata lists their topics."""
        return self.protocol_type == "consumer"

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to this topic, or has metadata that cannot be parsed."""
        for member in self.members.values():
            topics = subscription(member.metadata(self.protocol or member.protocols[0][0]))
            if topics is None or topic in topics:
                return True
        return False
