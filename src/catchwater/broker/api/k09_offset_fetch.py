"""OffsetFetch (9), v1-9: a group's committed positions; -1 where there is none.

Version notes: v2 lets null topics mean all, v8 (KIP-709) asks for several groups at once, v9
(KIP-848) adds the member, which the classic protocol leaves empty. With `require_stable` (v7,
KIP-447) a position that an open transaction is about to move is UNSTABLE_OFFSET_COMMIT: ask again.

Not implemented: v10 (topic ids).
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.coordinator import UNAVAILABLE
from catchwater.catalog.rows import (
    OffsetCommit,
)
from catchwater.wire.errors import ErrorCode

_NONE = OffsetCommit(offset=-1)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Read the groups' positions from the catalog."""
    stable = getattr(request, "require_stable", False)
    if call.version < 8:
        return await _group(broker, request, stable)
    return {"groups": [await _group(broker, group, stable) for group in request.groups]}


async def _group(broker: Broker, group: Any, require_stable: bool) -> dict[str, Any]:
    """One group's part; `group` has `group_id` and `topics`, in every version."""
    try:
        unstable = await broker.log.txns.unstable(group.group_id) if require_stable else set()
        committed = await broker.log.committed(group.group_id)
    except UNAVAILABLE:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return {"group_id": group.group_id, "error_code": error, "topics": []}
    if group.topics is None:
        wanted: dict[str, list[int]] = {}
        for topic, partition in sorted(committed):
            wanted.setdefault(topic, []).append(partition)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in group.topics}
    return {
        "group_id": group.group_id,
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "name": name,
                "partitions": [
                    _partition(
                        index,
                        _NONE if (name, index) in unstable else committed.get((name, index), _NONE),
                        (name, index) in unstable,
                    )
                    for index in indexes
                ],
            }
            for name, indexes in wanted.items()
        ],
    }


def _partition(index: int, commit: OffsetCommit, is_unstable: bool) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
    }


API = Api(9, "OffsetFetch", range(1, 10), handle)
