"""A member of a consumer group: what it says in heartbeats, and how it gets its partitions."""

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
"""What a heartbeat may say in place of a member's epoch; a static member that pauses comes back."""


@dataclass(frozen=True)
class ConsumerLimits:
    """What holds for every member; times in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_members: int = 10_000


class Beat(NamedTuple):
    """A heartbeat. None stands for what has not changed since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    names: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression of topic names; the empty one takes back an earlier one."""
    assignor: str | None = None
    owned: Partitions | None = None

    @property
    def is_full(self) -> bool:
        """Whether everything was said, as when joining and after an answer that went missing."""
        said = (self.rebalance_timeout_ms, self.owned)
        subscribed = self.names is not None or self.pattern is not None
        return self.epoch == JOINS or (None not in said and subscribed)


class Beaten(NamedTuple):
    """The answer to a `Beat`; `assigned` is None where nothing new is to be told."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Partitions | None = None


class Standing(NamedTuple):
    """Where a member stands between two assignments.

    Invariant: what is in `assigned` or in `revoking` of one member is in neither of another.
    """

    epoch: int = JOINS
    previous_epoch: int = JOINS
    assigned: Partitions = NOTHING
    """What it may use, and may believe to have."""
    revoking: Partitions = NOTHING
    """What it was told to give up, and has not yet said that it did."""
    is_waiting: bool = False
    """Whether others still hold a part of its target."""

    @property
    def held(self) -> Partitions:
        """What nobody else may get."""
        return self.assigned | self.revoking


NOWHERE = Standing()


Indexes = Mapping[str, tuple[int, ...]]
"""Partitions as they are kept: a topic's id in hexadecimal, and indexes."""


class KeptMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a member outlives its coordinator."""

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


class KeptGroup(msgspec.Struct, frozen=True, tag="consumer"):
    """What of a group outlives its coordinator, besides its members; its epoch is the claim's."""

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
    """The topics that the pattern means, as of the last heartbeat."""
    assignor: str | None = None
    standing: Standing = NOWHERE
    revoke_by_ms: int | None = None
    """Until when it must have given up what it is to revoke."""
    has_paused: bool = False
    """A static member that has left for a moment; its partitions stay reserved."""

    @property
    def topics(self) -> frozenset[str]:
        """The names it is subscribed to, by name or by pattern."""
        return self.names | self.matched

    def kept(self, target: Partitions) -> KeptMember:
        """What the next coordinator is to know; `target` is what it is meant to have."""
        standing = self.standing
        return KeptMember(
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
    def restored(cls, member_id: str, kept: KeptMember, now_ms: int) -> "Member":
        """A member as the last coordinator has left it, just heard of; it stands nowhere yet."""
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
    def said(self) -> tuple[object, ...]:
        """All that it says of itself and that is kept."""
        client = (self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms)
        return *client, self.names, self.pattern, self.matched, self.assignor, self.has_paused

    def hear(self, beat: Beat, matched: frozenset[str], now_ms: int) -> bool:
        """Take over what a heartbeat says; whether the subscription is another one now."""
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
    """The next standing towards `target`; `owned` is what the member says it has, if it did.

    `is_free` says of a partition that the member does not hold whether nobody else does.

    A member first gives up what is not its own any more, and says so; then it gets what is its own
    now, as far as nobody else still holds it (KIP-848, "Member state machine"). While it gives up
    it keeps its epoch; that it did is believed only from a heartbeat with the current epoch that
    came after it was asked to, so no late or repeated one of an earlier epoch can free a partition
    that is in use. Kafka also believes a member that never reported a partition; that would save a
    heartbeat when assignments follow each other quickly.

    One gap is Kafka's too. A member that has not begun with what it was given, misses the answer
    that takes it away and only then begins is fenced by its next heartbeat; until then its commits
    are refused, for its epoch is over.
    """
    epoch = now.epoch
    if now.revoking:
        if owned is None or owned & now.revoking:
            return now
        # On the way it counts epochs of its own, so that what was said before is known as old.
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
    # The epoch before is the last one that the member was told of.
    previous_epoch = now.previous_epoch if epoch == now.epoch else now.epoch
    return Standing(epoch, previous_epoch, assigned, revoking, is_waiting)
