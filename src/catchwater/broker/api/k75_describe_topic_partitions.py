"""DescribeTopicPartitions (75), v0: topics and their partitions, a page at a time (KIP-966).

Topics are in the order of their names; a request without names means all. A page has as many
partitions as the request allows, 2,000 at most; `next_cursor` then says where to continue. Leaders
and replicas are as in Metadata; no partition has other eligible leaders.

A bad cursor is answered with INVALID_REQUEST for each topic, because the reply has no error field.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.broker.topic_config import is_legal_topic_name
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import Topic
from catchwater.wire.errors import ErrorCode

MOST_PARTITIONS = 2_000
"""Bound of one reply, as Kafka's `max.request.partition.size.limit`."""


_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe the topics asked for, from the cursor on."""
    asked = sorted({topic.name for topic in request.topics})
    cursor = request.cursor
    if cursor is not None and (
        cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
    ):
        return {"topics": [_error(name, ErrorCode.INVALID_REQUEST) for name in asked]}
    first = cursor.topic_name if cursor is not None else ""

    may = partial(call.allows, _DESCRIBE)
    try:
        await broker.log.look_up([name for name in asked if may(name)])
    except CatalogRetriable:
        pass  # the reply has what this broker knows; a topic made just now may be missing
    names = asked or [topic.name for topic in broker.log.topics]
    denied = [name for name in asked if not call.may(_DESCRIBE, name)]
    page = [name for name in names if name >= first and may(name)]
    limit = max(1, min(MOST_PARTITIONS, request.response_partition_limit))
    skipped = cursor.partition_index if cursor is not None else 0
    topics, following = _page(broker, call, page, {first: skipped}, limit)
    topics += [_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied]
    return {"topics": topics, "next_cursor": following}


def _page(
    broker: Broker, call: Call, names: Sequence[str], starts: dict[str, int], limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Up to `limit` partitions of these topics, and the cursor if some are left."""
    topics: list[dict[str, Any]] = []
    for name in names:
        if limit == 0:
            return topics, {"topic_name": name, "partition_index": 0}
        topic = broker.find_topic(name)
        if topic is None:
            is_legal = is_legal_topic_name(name)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            error = unknown if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION
            operations = call.operations(ResourceType.TOPIC, name)
            topics.append(_error(name, error) | {"topic_authorized_operations": operations})
            continue
        start = starts.get(name, 0)
        end = min(topic.partitions, start + limit)
        topics.append(_topic(broker, call, topic, range(start, end)))
        if end < topic.partitions:
            return topics, {"topic_name": name, "partition_index": end}
        limit -= max(0, end - start)
    return topics, None


def _topic(broker: Broker, call: Call, topic: Topic, indexes: range) -> dict[str, Any]:
    leader_of = placement.leaders(broker, call)
    leaders = {index: leader_of((topic.id, index)) for index in indexes}
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": 0,
                "replica_nodes": [leader],
                "isr_nodes": [leader],
                "eligible_leader_replicas": [],
                "last_known_elr": [],
            }
            for index, leader in leaders.items()
        ],
        "topic_authorized_operations": call.operations(ResourceType.TOPIC, topic.name),
    }


def _error(name: str, error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": None}


API = Api(75, "DescribeTopicPartitions", range(0, 1), handle, asks=[_DESCRIBE])
