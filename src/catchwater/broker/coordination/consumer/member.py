"""Members of consumer groups: their heartbeats, and how they come to their partitions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from catchwater.catalog.rows import PartitionKey
from catchwater.wire.errors import ErrorCode

Partitions = frozenset[PartitionKey]
"""Each a (topic id, index)."""

NOTHING: Partitions = frozenset()

JOINS, LEAVES, PAUSES = 0, -1, -2
"""What a heartbeat may have in place of an epoch; PAUSES is a static member's that will return."""


@dataclass(frozen=True)
class ConsumerLimits:
    """Limits of every group and member; times in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_members: int = 10_000


class Heartbeat(NamedTuple):
    """A heartbeat. None is a field that has not changed since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    names: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression of topic names; the empty one removes the subscription by pattern."""
    assignor: str | None = None
    owned: Partitions | None = None

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as when joining and after a lost answer."""
        required = (self.rebalance_timeout_ms, self.owned)
        subscribed = self.names is not None or self.pattern is not None
        return self.epoch == JOINS or (None not in required and subscribed)


class HeartbeatReply(NamedTuple):
    """The answer to a `Heartbeat`; `assigned` is None if the member knows its partitions."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Partitions | None = None


class Standing(NamedTuple):
    """How far a member is on its way from one assignment to the next.

    Invariant: a partition in `assigned` or `revoking` of one member is in neither of another.
    """

    epoch: int = JOINS
    previous_epoch: int = JOINS
    assigned: Partitions = NOTHING
    """What it may read; the last answer may have been lost."""
    revoking: Partitions = NOTHING
    """What it must give up, and has not yet reported to have given up."""
    is_waiting: bool = False
    """Whether others still hold a part of its target."""

    @property
    def held(self) -> Partitions:
        """The partitions that no other member may get."""
        return self.assigned | self.revoking


NOWHERE = Standing()


Indexes = Mapping[str, tuple[int, ...]]
"""Partitions as they are stored: a topic's id in hexadecimal, and indexes."""


class MemberSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member as it is stored in the catalog."""

    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    epoch: int
    previous_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    names: tuple[str, ...] = ()
    pattern: str = ""
    matched: tuple[str, ...] = ()
    assignor: str | None = None
    assigned: Indexes = {}
    revoking: Indexes = {}
    is_waiting: bool = False
    has_paused: bool = False
    target: Indexes = {}


class GroupSnapshot(msgspec.Struct, frozen=True, tag="consumer"):
    """A group as stored in the catalog, without members; the row's generation is its epoch."""

    assignment_epoch: int
    assignor: str
    seen: Mapping[str, tuple[str, int]]
    """The topics subscribed to: name -> (id in hexadecimal, number of partitions)."""


def to_indexes(partitions: Partitions) -> dict[str, tuple[int, ...]]:
    """Partitions by topic, in order."""
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id.hex(), []).append(index)
    return {topic_id: tuple(those) for topic_id, those in found.items()}


def from_indexes(kept: Indexes) -> Partitions:
    """The inverse of `to_indexes`."""
    return frozenset((bytes.fromhex(t), index) for t, those in kept.items() for index in those)


@dataclass
class Member:
    """One member; changed by its group only."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    last_seen_ms: int
    rack_id: str | None = None
    rebalance_timeout_ms: int = 0
    names: frozenset[str] = frozenset()
    pattern: str = ""
    matched: frozenset[str] = frozenset()
    """The topics that match the pattern, as of the last heartbeat."""
    assignor: str | None = None
    standing: Standing = NOWHERE
    revoke_by_ms: int | None = None
    """The deadline for giving up what is in `revoking`."""
    has_paused: bool = False
    """A static member that will return; its partitions stay reserved."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics it subscribes to, by name or by pattern."""
        return self.names | self.matched

    def snapshot(self, target: Partitions) -> MemberSnapshot:
        """The member as the next coordinator needs it, with its target assignment."""
        standing = self.standing
        return MemberSnapshot(
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            standing.epoch,
            standing.previous_epoch,
            self.instance_id,
            self.rack_id,
            tuple(sorted(self.names)),
            self.pattern,
            tuple(sorted(self.matched)),
            self.assignor,
            to_indexes(standing.assigned),
            to_indexes(standing.revoking),
            standing.is_waiting,
            self.has_paused,
            to_indexes(target),
        )

    @classmethod
    def restored(cls, member_id: str, kept: MemberSnapshot, now_ms: int) -> "Member":
        """The member from its snapshot, without its standing; its session begins anew."""
        return cls(
            member_id,
            kept.instance_id,
            kept.client_id,
            kept.client_host,
            now_ms,
            kept.rack_id,
            kept.rebalance_timeout_ms,
            frozenset(kept.names),
            kept.pattern,
            frozenset(kept.matched),
            kept.assignor,
            revoke_by_ms=now_ms + kept.rebalance_timeout_ms if kept.revoking else None,
            has_paused=kept.has_paused,
        )

    @property
    def reported(self) -> tuple[object, ...]:
        """The fields of its heartbeats that are stored."""
        client = (self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms)
        return *client, self.names, self.pattern, self.matched, self.assignor, self.has_paused

    def update(self, beat: Heartbeat, matched: frozenset[str], now_ms: int) -> bool:
        """Apply a heartbeat's fields; whether its subscription or assignor changed."""
        before = (self.topics, self.assignor)
        self.client_id, self.client_host = beat.client_id, beat.client_host
        self.last_seen_ms = now_ms
        if beat.rack_id is not None:
            self.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms is not None:
            self.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.names is not None:
            self.names = beat.names
        if beat.pattern is not None:
            self.pattern = beat.pattern
        if beat.assignor is not None:
            self.assignor = beat.assignor
        self.matched = matched
        return (self.topics, self.assignor) != before


def reconcile(
    now: Standing,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: Callable[[PartitionKey], bool],
) -> Standing:
    """The next standing on the way to `target`.

    `owned` are the partitions that the heartbeat reports, None if it reports none; `is_free` says
    whether no other member holds a partition.

    A member first revokes what is not in its target and reports that; then it gets what its target
    adds, as far as no other member holds it (KIP-848, "Member state machine"). While it revokes it
    keeps its epoch. A report counts only in a heartbeat of the current epoch, after the member was
    asked to revoke, so that a late or repeated heartbeat cannot free a partition in use. Kafka also
    accepts that a member never reported a partition, which saves a heartbeat when assignments
    follow each other quickly.

    One gap is Kafka's too: a member has not begun to read a partition that it was given, misses the
    answer that takes it away, and begins only then. Its next heartbeat is fenced; until then its
    commits are refused because its epoch is over.
    """
    epoch = now.epoch
    if now.revoking:
        if owned is None or owned & now.revoking:
            return now
        # Each step has its own epoch, so that heartbeats from before it are known to be old.
        epoch += 1
    elif epoch == target_epoch and not now.is_waiting:
        return now
    kept = now.assigned & target
    if now.epoch != JOINS and kept != now.assigned:
        return _moved(now, epoch, kept, revoking=now.assigned - kept)
    missing = target - kept
    given = frozenset(filter(is_free, missing))
    return _moved(now, target_epoch, kept | given, is_waiting=given != missing)


def _moved(
    now: Standing,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions = NOTHING,
    is_waiting: bool = False,
) -> Standing:
    # The previous epoch is the last one that was sent to the member.
    previous_epoch = now.previous_epoch if epoch == now.epoch else now.epoch
    return Standing(epoch, previous_epoch, assigned, revoking, is_waiting)
