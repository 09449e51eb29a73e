"""DescribeQuorum (55), v0-2: the metadata quorum, in the terms of KRaft (KIP-595).

The catalog holds the metadata, and there is no quorum of brokers. For tools that expect one, every
broker names the live broker with the lowest id as the only voter and all others as observers. None
lags, and offsets are 0 because there is no metadata log. Only `__cluster_metadata` is described.

Version notes: v1 adds times (KIP-836), v2 messages, directory ids and the voters' addresses
(KIP-853).
"""

from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import NO_TOPIC_ID, Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode

_METADATA = ("__cluster_metadata", 0)
_LISTENER = "PLAINTEXT"


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each partition asked for."""
    return error_fields(ErrorCode.NONE) | {
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _partition(broker, topic.topic_name, wanted.partition_index)
                    for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "nodes": [
            {
                "node_id": row.id,
                "listeners": [{"name": _LISTENER, "host": row.host, "port": row.port}],
            }
            for row in broker.brokers
            if row.id == _voter(broker)
        ],
    }


def _voter(broker: Broker) -> int:
    return min(row.id for row in placement.candidates(broker.brokers))


def _partition(broker: Broker, name: str, index: int) -> dict[str, Any]:
    is_known = (name, index) == _METADATA
    error = ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    voter = _voter(broker) if is_known else -1
    replicas = [_replica(row.id, broker.clock.now_ms()) for row in broker.brokers if is_known]
    return error_fields(error) | {
        "partition_index": index,
        "leader_id": voter,
        "leader_epoch": 0,
        "high_watermark": 0 if is_known else -1,
        "current_voters": [each for each in replicas if each["replica_id"] == voter],
        "observers": [each for each in replicas if each["replica_id"] != voter],
    }


def _replica(broker_id: int, now_ms: int) -> dict[str, Any]:
    return {
        "replica_id": broker_id,
        "replica_directory_id": NO_TOPIC_ID,
        "log_end_offset": 0,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }


API = Api(55, "DescribeQuorum", range(0, 3), handle, asks=[Whole(Operation.DESCRIBE, the_cluster)])
