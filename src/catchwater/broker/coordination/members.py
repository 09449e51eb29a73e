"""Members of classic groups: their requests, the replies, and their state (KIP-62)."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import I16, Cursor, MalformedMessage

LONGEST_GROUP_ID = 255

Waiter = Any
"""The caller's handle of a request that waits for its answer; opaque to this module."""

NO_GENERATION = -1


class GroupState(Enum):
    """The states by the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True)
class GroupLimits:
    """What a member may ask for; times in milliseconds."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    max_members: int = 10_000


class Join(NamedTuple):
    """A JoinGroup request. `fresh_id` becomes the member's id where it brought none."""

    member_id: str
    fresh_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_return_with_id: bool
    """JoinGroup v4 and later: a new dynamic member gets its id and must join again with it."""


class JoinReply(NamedTuple):
    """The answer to a `Join`; `members` (id, instance id, metadata) is filled for the leader."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class SyncReply(NamedTuple):
    """The answer to a SyncGroup request."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


Answers = list[tuple[Waiter, JoinReply | SyncReply]]


class MemberSnapshot(msgspec.Struct, frozen=True):
    """A member as it is stored in the catalog."""

    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True, tag="classic"):
    """A classic group as it is stored in the catalog, without its members."""

    generation: int
    """The last generation whose members were sent their assignments."""
    protocol_type: str | None
    protocol: str | None
    leader: str | None


@dataclass
class Member:
    """One member. At most one of `joining` and `syncing` is set: the request that waits."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    last_seen_ms: int
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None

    @property
    def session_deadline_ms(self) -> int | None:
        """When the session expires; None while the member waits for our answer."""
        if self.joining is not None or self.syncing is not None:
            return None
        return self.last_seen_ms + self.session_timeout_ms

    @classmethod
    def joined(cls, member_id: str, request: Join, now_ms: int) -> "Member":
        """The member that a JoinGroup request makes."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            now_ms,
        )

    def snapshot(self) -> MemberSnapshot:
        """The member as the next coordinator needs it."""
        return MemberSnapshot(
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
        )

    @classmethod
    def restored(cls, member_id: str, kept: MemberSnapshot, now_ms: int) -> "Member":
        """The member from its snapshot; its session begins anew."""
        return cls(
            member_id,
            kept.instance_id,
            kept.client_id,
            kept.client_host,
            kept.session_timeout_ms,
            kept.rebalance_timeout_ms,
            kept.protocols,
            now_ms,
            kept.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata that the member sent under this protocol name."""
        return dict(self.protocols).get(protocol or "", b"")


def size_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """The size of a member's protocols."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def subscription(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's metadata of any version; None if it cannot be parsed."""
    try:
        cursor = Cursor(memoryview(metadata))
        cursor.number(I16)  # the version; the topics come first in all versions
        return frozenset(cursor.text(False) for _ in range(cursor.count(False)))
    except MalformedMessage:
        return None


def is_legal_group_id(group_id: str) -> bool:
    """Not empty, not huge, and printable, so that it can be shown in logs and tools as it is."""
    return 0 < len(group_id) <= LONGEST_GROUP_ID and group_id.isprintable()


def may_be_asked_about(group_id: str) -> bool:
    """Also true for the empty id: as in Kafka, it may be described and names no group."""
    return group_id == "" or is_legal_group_id(group_id)


def is_legal_member_name(name: str) -> bool:
    """Whether a member id, instance id or rack is legal: the same rule as for groups."""
    return is_legal_group_id(name)
