"""TxnOffsetCommit (28), v0-5: offsets that become a group's when the transaction commits.

They are pending in the catalog; with several brokers, under the epoch of the coordinator's claim.
The chunk with the transaction's markers applies or drops them, in the same commit. Until then
OffsetFetch with `require_stable` answers UNSTABLE_OFFSET_COMMIT.

Version notes: v3 adds the group's member and generation, checked as for OffsetCommit (KIP-447);
v4 has TRANSACTION_ABORTABLE for offsets outside of a transaction (KIP-890); v5 is a client of
version 2 (KIP-890), whose offsets begin the transaction by themselves.
"""

from collections.abc import Mapping
from typing import Any

from catchwater.broker.api.k08_offset_commit import check, metadata_of
from catchwater.broker.broker import (
    Api,
    Broker,
    Call,
    Fields,
    Turns,
    answered,
    errors_by_partition,
    refused_by_partition,
)
from catchwater.broker.gate import (
    Each,
    Operation,
    Whole,
    the_group,
    the_topic,
    the_transactional_id,
)
from catchwater.catalog.rows import OffsetCommit
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode

_NO_GENERATION = -1
_ABORTABLE_SINCE = 4
_SECOND_VERSION = 5


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Store all valid offsets together, then answer each."""
    refusal = await _refusal(broker, call, request)
    if refusal is ErrorCode.STALE_MEMBER_EPOCH:
        # Producers only know the error of the classic protocol.
        refusal = ErrorCode.ILLEGAL_GENERATION
    errors: dict[tuple[str, int], ErrorCode] = {}
    commits: dict[tuple[str, int], OffsetCommit] = {}
    now_ms = broker.clock.now_ms()
    turns = Turns(broker.clock)
    async for topic in turns.over(request.topics):
        async for partition in turns.over(topic.partitions):
            key = (topic.name, partition.partition_index)
            errors[key] = refusal or check(broker.find_topic(topic.name), partition)
            if errors[key] is ErrorCode.NONE:
                epoch = getattr(partition, "committed_leader_epoch", -1)
                said = metadata_of(partition)
                commits[key] = OffsetCommit(partition.committed_offset, epoch, said, now_ms)
    if commits:
        error, _ = await answered(broker, _store(broker, call.version, request, commits))
        if error is ErrorCode.NOT_COORDINATOR:
            broker.groups.give_up(request.group_id)
        elif error is ErrorCode.PRODUCER_FENCED:
            # No version of this API has PRODUCER_FENCED.
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        elif error is ErrorCode.INVALID_TXN_STATE and call.version >= _ABORTABLE_SINCE:
            error = ErrorCode.TRANSACTION_ABORTABLE
        errors |= dict.fromkeys(commits, error)
    return errors_by_partition(request, errors)


async def _store(
    broker: Broker, version: int, request: Any, commits: Mapping[tuple[str, int], OffsetCommit]
) -> None:
    await broker.log.txns.commit_offsets(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        request.group_id,
        commits,
        implicit=version >= _SECOND_VERSION,
        claim_epoch=broker.groups.claim_epoch(request.group_id),
    )


async def _refusal(broker: Broker, call: Call, request: Any) -> ErrorCode:
    """What is wrong with the group, its coordinator or its member."""
    if call.version < 3 or (request.generation_id == _NO_GENERATION and not request.member_id):
        return await broker.groups.hold(request.group_id)
    member = (request.member_id, request.group_instance_id, request.generation_id)
    return await broker.groups.check_commit(request.group_id, member)


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"topics": [refused_by_partition(topic, error) for topic in request.topics]}


API = Api(
    28,
    "TxnOffsetCommit",
    range(0, 6),
    handle,
    refuse=_refuse,
    asks=[
        Whole(Operation.WRITE, the_transactional_id),
        Whole(Operation.READ, the_group),
        Each(Operation.READ, the_topic, "topics", "topics", refused_by_partition),
    ],
)
