"""OffsetCommit (8), v2-9: a group's positions, durable when answered.

The offsets of one request are stored together, under the epoch of the coordinator's claim where
there are several brokers. v2-4 carry a retention time, which is not used: positions are kept until
their topic goes.

Not implemented: v10 (topic ids).
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.coordinator import MOVED, UNAVAILABLE
from catchwater.broker.names import is_legal_group_id
from catchwater.broker.reply import errors_by_partition
from catchwater.catalog.rows import (
    OffsetCommit,
)
from catchwater.wire.errors import ErrorCode

MAX_METADATA_BYTES = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Store all good positions together, then answer each."""
    instance_id = getattr(request, "group_instance_id", None)
    member = (request.member_id, instance_id, request.generation_id_or_member_epoch)
    refusal = ErrorCode.INVALID_GROUP_ID
    if is_legal_group_id(request.group_id):
        refusal = await broker.groups.check_commit(request.group_id, member)
    errors: dict[tuple[str, int], ErrorCode] = {}
    commits: dict[tuple[str, int], OffsetCommit] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            errors[key] = refusal or check(broker, topic.name, partition)
            if errors[key] is ErrorCode.NONE:
                epoch = getattr(partition, "committed_leader_epoch", -1)
                metadata = partition.committed_metadata or ""
                commits[key] = OffsetCommit(partition.committed_offset, epoch, metadata)
    if commits:
        try:
            epoch = broker.groups.claim_epoch(request.group_id)
            await broker.log.commit_offsets(request.group_id, commits, claim_epoch=epoch)
        except MOVED:
            broker.groups.give_up(request.group_id)
            errors |= dict.fromkeys(commits, ErrorCode.NOT_COORDINATOR)
        except UNAVAILABLE:
            errors |= dict.fromkeys(commits, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return errors_by_partition(request, errors)


def check(broker: Broker, topic_name: str, partition: Any) -> ErrorCode:
    """Whether a position may be stored; `partition` as in OffsetCommit and TxnOffsetCommit."""
    topic = broker.find_topic(topic_name)
    if topic is None or not 0 <= partition.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((partition.committed_metadata or "").encode()) > MAX_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if partition.committed_offset < 0:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


API = Api(8, "OffsetCommit", range(2, 10), handle)
