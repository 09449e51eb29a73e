"""DescribeProducers (61), v0: the idempotent producers of a partition (KIP-664).

A reply has the state that the log keeps of a producer: the epoch, the last sequence number, the
time of its last batch, and the first offset of its open transaction on this partition. Times are
the broker's.

The coordinator's epoch is always -1, none: a transaction ends in one commit, which no coordinator
owns.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import Each, Operation, the_topic
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode

_NONE = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each partition independently; a repeated one is looked up once."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    turns = Turns(broker.clock)
    async for topic in turns.over(request.topics):
        async for index in turns.over(set(topic.partition_indexes)):
            if (topic.name, index) not in found:
                found[topic.name, index] = await _partition(broker, topic.name, index)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index} | found[topic.name, index]
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    }


async def _partition(broker: Broker, name: str, index: int) -> dict[str, Any]:
    topic = broker.find_topic(name)
    if topic is None or not 0 <= index < topic.partitions:
        return error_fields(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        rows, opened = await broker.log.producers((topic.id, index))
    except CatalogRetriable as reason:
        return error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(reason))
    return error_fields(ErrorCode.NONE) | {
        "active_producers": [
            {
                "producer_id": row.producer_id,
                "producer_epoch": row.epoch,
                "last_sequence": row.batches[-1][1] if row.batches else _NONE,
                "last_timestamp": row.last_ms,
                "coordinator_epoch": _NONE,
                "current_txn_start_offset": opened.get(row.producer_id, _NONE),
            }
            for row in rows
        ]
    }


def _refused(topic: Any, error: ErrorCode) -> Fields:
    partitions = [
        {"partition_index": index, **error_fields(error)} for index in topic.partition_indexes
    ]
    return {"name": topic.name, "partitions": partitions}


API = Api(
    61,
    "DescribeProducers",
    range(0, 1),
    handle,
    asks=[Each(Operation.READ, the_topic, "topics", "topics", _refused)],
)
