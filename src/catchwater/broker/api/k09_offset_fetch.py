"""OffsetFetch (9), v1-10: a group's committed offsets; -1 where there is none.

Version notes: v2 lets null topics mean all, v8 (KIP-709) asks for several groups at once, v9
(KIP-848) adds the member, which a group of the consumer protocol must know, v10 names topics by id
alone. With `require_stable` (v7, KIP-447) an offset that an open transaction may replace is
UNSTABLE_OFFSET_COMMIT (retriable).
"""

from collections.abc import Iterable
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.coordination.members import may_be_asked_about
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import (
    OffsetCommit,
)
from catchwater.wire.errors import ErrorCode

_NONE = OffsetCommit(offset=-1)
_BY_ID_SINCE = 10
_DESCRIBE_GROUP = ByHandler(Operation.DESCRIBE, ResourceType.GROUP)
_DESCRIBE_TOPIC = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Read the groups' offsets from the catalog."""
    stable = getattr(request, "require_stable", False)
    turns = Turns(broker.clock)
    if call.version < 8:
        return await _group(broker, call, request, stable, turns)
    groups = [
        {"group_id": group.group_id, **await _group(broker, call, group, stable, turns)}
        async for group in turns.over(request.groups)
    ]
    return {"groups": groups}


async def _group(
    broker: Broker, call: Call, group: Any, require_stable: bool, turns: Turns
) -> dict[str, Any]:
    """The reply for one group; `group` has `group_id` and `topics`, in every version."""
    error = await _refusal(broker, call, group)
    if error is not ErrorCode.NONE:
        return _nothing(call.version, group, error)
    try:
        unstable = await broker.log.txns.unstable(group.group_id) if require_stable else set()
        committed = await broker.log.committed(group.group_id)
    except CatalogRetriable:
        return _nothing(call.version, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def position(name: str, index: int) -> dict[str, Any]:
        if (name, index) in unstable:
            return _partition(index, _NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _partition(index, committed.get((name, index), _NONE))

    if group.topics is None:
        topics = _all(broker, call, committed)
    else:
        topics = [_asked(broker, call, topic) async for topic in turns.over(group.topics)]
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                **_named(call.version, name, topic_id),
                "partitions": [
                    _partition(index, _NONE, denied) if denied else position(name, index)
                    async for index in turns.over(indexes)
                ],
            }
            async for name, topic_id, indexes, denied in turns.over(topics)
        ],
    }


async def _refusal(broker: Broker, call: Call, group: Any) -> ErrorCode:
    if not call.may(_DESCRIBE_GROUP, group.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not may_be_asked_about(group.group_id):
        return ErrorCode.INVALID_GROUP_ID
    member_id, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    return await broker.groups.check_fetch(group.group_id, member_id or "", epoch)


_Topic = tuple[str, Any, Iterable[int], ErrorCode]
"""Name, id, partition indexes, and the error if the caller may not see them."""


def _all(broker: Broker, call: Call, committed: Iterable[tuple[str, int]]) -> list[_Topic]:
    """All topics with a committed offset that the caller may DESCRIBE."""
    indexes: dict[str, list[int]] = {}
    for name, index in sorted(committed):
        indexes.setdefault(name, []).append(index)
    topics: list[_Topic] = []
    for name, found in indexes.items():
        topic = broker.find_topic(name)
        # From v10 on topics are named by id, and a deleted topic has none.
        if call.allows(_DESCRIBE_TOPIC, name) and (topic or call.version < _BY_ID_SINCE):
            topics.append((name, topic.id if topic else None, found, ErrorCode.NONE))
    return topics


def _asked(broker: Broker, call: Call, wanted: Any) -> _Topic:
    topic_id = getattr(wanted, "topic_id", None)
    topic = broker.find_named(wanted)
    name = topic.name if topic else getattr(wanted, "name", None)
    if name is None:
        return "", topic_id, wanted.partition_indexes, ErrorCode.UNKNOWN_TOPIC_ID
    may = call.may(_DESCRIBE_TOPIC, name)
    denied = ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return name, topic_id, wanted.partition_indexes, denied


def _nothing(version: int, group: Any, error: ErrorCode) -> dict[str, Any]:
    """An error of the whole group; v1 has no other place for it than the partitions."""
    if version > 1:
        return {"error_code": error, "topics": ()}
    topics = [
        {
            **_named(version, getattr(topic, "name", None), getattr(topic, "topic_id", None)),
            "partitions": [_partition(index, _NONE, error) for index in topic.partition_indexes],
        }
        for topic in group.topics or ()
    ]
    return {"error_code": error, "topics": topics}


def _named(version: int, name: str | None, topic_id: Any) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= _BY_ID_SINCE else {"name": name}


def _partition(
    index: int, commit: OffsetCommit, error: ErrorCode = ErrorCode.NONE
) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": error,
    }


API = Api(9, "OffsetFetch", range(1, 11), handle, asks=[_DESCRIBE_GROUP, _DESCRIBE_TOPIC])
