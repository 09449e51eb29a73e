"""The reply to Metadata by hand; every client asks for it again and again.

The request is decoded by `messages`, as other requests are. kio is the oracle in the tests. Does
not know which topics exist, or what a client may see of them.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from catchwater.wire.fields import (
    NO_TAGGED_FIELDS,
    Buffer,
    encode_size,
    encode_text,
    pack_i8,
    pack_i16,
    pack_i32,
)

METADATA_VERSIONS = range(0, 14)
_FLEXIBLE_SINCE = 9  # lengths are compact and structs end with tagged fields (KIP-482)

# In the place of the operations that a client may do, where it did not ask for them (KIP-430).
OPERATIONS_NOT_ASKED = -(2**31)


class MetadataBroker(NamedTuple):
    """Where a client reaches a broker; `rack` is its zone."""

    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataPartition(NamedTuple):
    """Storage is shared, so each of `replicas` is in sync and none is offline."""

    partition: int
    error: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]


class MetadataTopic(NamedTuple):
    """`name` may be None from version 12, for an id that no topic has."""

    error: int
    name: str | None
    id: bytes
    is_internal: bool
    partitions: Sequence[MetadataPartition]
    operations: int = OPERATIONS_NOT_ASKED


class MetadataReply(NamedTuple):
    """The cluster as one client is to see it; each version takes the fields it has."""

    brokers: Sequence[MetadataBroker]
    cluster_id: str
    controller_id: int
    topics: Sequence[MetadataTopic]
    throttle_ms: int = 0
    operations: int = OPERATIONS_NOT_ASKED


_METADATA_PARTITION = Struct(">hii")
_NO_ERROR = pack_i16(0)


def encode_metadata_reply(correlation_id: int, version: int, reply: MetadataReply) -> list[Buffer]:
    """The reply to a Metadata request of this version."""
    assert version in METADATA_VERSIONS, version
    flexible = version >= _FLEXIBLE_SINCE
    end = NO_TAGGED_FIELDS if flexible else b""
    out = [pack_i32(correlation_id), end]
    if version >= 3:
        out.append(pack_i32(reply.throttle_ms))
    out.append(encode_size(len(reply.brokers), flexible))
    for broker in reply.brokers:
        out += (pack_i32(broker.node_id), encode_text(broker.host, flexible), pack_i32(broker.port))
        if version >= 1:
            out.append(encode_text(broker.rack, flexible))
        out.append(end)
    if version >= 2:
        out.append(encode_text(reply.cluster_id, flexible))
    if version >= 1:
        out.append(pack_i32(reply.controller_id))
    out.append(encode_size(len(reply.topics), flexible))
    for topic in reply.topics:
        _add_metadata_topic(out, version, flexible, topic)
    if 8 <= version <= 10:
        out.append(pack_i32(reply.operations))
    if version >= 13:
        out.append(_NO_ERROR)
    out.append(end)
    return [b"".join(out)]


def _add_metadata_topic(
    out: list[bytes], version: int, flexible: bool, topic: MetadataTopic
) -> None:
    out += (pack_i16(topic.error), encode_text(topic.name, flexible))
    if version >= 10:
        out.append(topic.id)
    if version >= 1:
        out.append(pack_i8(topic.is_internal))
    out.append(encode_size(len(topic.partitions), flexible))
    # Most partitions of a topic have the same replicas, which are most of their bytes.
    ends: dict[tuple[int, ...], bytes] = {}
    for index, error, leader_id, leader_epoch, replicas in topic.partitions:
        if replicas not in ends:
            ends[replicas] = _metadata_partition_end(version, flexible, replicas)
        out.append(_METADATA_PARTITION.pack(error, index, leader_id))
        if version >= 7:
            out.append(pack_i32(leader_epoch))
        out.append(ends[replicas])
    if version >= 8:
        out.append(pack_i32(topic.operations))
    out.append(NO_TAGGED_FIELDS if flexible else b"")


def _metadata_partition_end(version: int, flexible: bool, replicas: tuple[int, ...]) -> bytes:
    nodes = encode_size(len(replicas), flexible) + b"".join(map(pack_i32, replicas))
    offline = encode_size(0, flexible) if version >= 5 else b""
    return nodes + nodes + offline + (NO_TAGGED_FIELDS if flexible else b"")
