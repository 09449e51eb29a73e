"""OffsetCommit (8), v2-10: a group's offsets, durable when answered.

The offsets of one request are stored together; with several brokers, under the epoch of the
coordinator's claim. The retention time of v2-4 is not used: offsets expire as
`coordination/expiry.py` says.

Version notes: v9 (KIP-848) is the first for members of the consumer protocol, with a member epoch
in place of a generation; v10 names topics by id alone.
"""

from collections.abc import Mapping
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.coordination.held import MOVED
from catchwater.broker.gate import Each, Operation, Whole, the_group, the_topic
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import (
    OffsetCommit,
    Topic,
)
from catchwater.wire.errors import ErrorCode

MAX_METADATA_BYTES = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""

_CONSUMER_PROTOCOL = 9


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Store all valid offsets together, then answer each."""
    async with broker.groups.in_order(request.group_id):
        refusal = await _refusal(broker, call, request)
        commits: dict[tuple[str, int], OffsetCommit] = {}
        now_ms = broker.clock.now_ms()
        answers, turns = [], Turns(broker.clock)
        async for topic in turns.over(request.topics):
            row = broker.find_named(topic)
            unknown = ErrorCode.NONE
            if row is None and getattr(topic, "name", None) is None:
                unknown = ErrorCode.UNKNOWN_TOPIC_ID
            partitions = []
            async for partition in turns.over(topic.partitions):
                error = refusal or unknown or check(row, partition)
                partitions.append([partition.partition_index, error])
                if error is ErrorCode.NONE and row is not None:
                    epoch = getattr(partition, "committed_leader_epoch", -1)
                    said = metadata_of(partition)
                    commit = OffsetCommit(partition.committed_offset, epoch, said, now_ms)
                    commits[row.name, partition.partition_index] = commit
            answers.append((topic, partitions))
        stored = await store(broker, request.group_id, commits) if commits else ErrorCode.NONE
    return {
        "topics": [
            {
                "name": getattr(topic, "name", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    {"partition_index": index, "error_code": error or stored}
                    for index, error in partitions
                ],
            }
            for topic, partitions in answers
        ]
    }


async def _refusal(broker: Broker, call: Call, request: Any) -> ErrorCode:
    """What is wrong with the group or its member."""
    instance_id = getattr(request, "group_instance_id", None)
    member = (request.member_id, instance_id, request.generation_id_or_member_epoch)
    error = await broker.groups.check_commit(request.group_id, member)
    group = broker.groups.consumer_groups.get(request.group_id)
    is_too_old = call.version < _CONSUMER_PROTOCOL and group is not None and group.members
    if is_too_old and error in (ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH):
        return ErrorCode.UNSUPPORTED_VERSION
    return error


async def store(
    broker: Broker, group_id: str, commits: Mapping[tuple[str, int], OffsetCommit]
) -> ErrorCode:
    """Keep positions of a group of ours, all or none; called `in_order` with the group's others."""
    try:
        epoch = broker.groups.claim_epoch(group_id)
        await broker.log.commit_offsets(group_id, commits, claim_epoch=epoch)
    except MOVED:
        broker.groups.give_up(group_id)
        return ErrorCode.NOT_COORDINATOR
    except CatalogRetriable:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def _refused(topic: Any, error: ErrorCode) -> Fields:
    partitions = [
        {"partition_index": p.partition_index, "error_code": error} for p in topic.partitions
    ]
    named = {name: getattr(topic, name, None) for name in ("name", "topic_id")}
    return {**named, "partitions": partitions}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"topics": [_refused(topic, error) for topic in request.topics]}


def check(topic: Topic | None, partition: Any) -> ErrorCode:
    """Why an offset is refused, or NONE; `partition` as in OffsetCommit and TxnOffsetCommit."""
    if topic is None or not 0 <= partition.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    said = metadata_of(partition)
    if len(said.encode()) > MAX_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    # PostgreSQL cannot store the character 0.
    if partition.committed_offset < 0 or "\0" in said:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def metadata_of(partition: Any) -> str:
    """What is said beside an offset, without the 0 by which confluent-kafka ends it."""
    return (partition.committed_metadata or "").removesuffix("\0")


API = Api(
    8,
    "OffsetCommit",
    range(2, 11),
    handle,
    refuse=_refuse,
    asks=[
        Whole(Operation.READ, the_group),
        Each(Operation.READ, the_topic, "topics", "topics", _refused),
    ],
)
