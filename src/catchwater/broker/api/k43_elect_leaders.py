"""ElectLeaders (43), v0-2: no partition has a leader, so no election is ever needed.

Every existing partition is answered ELECTION_NOT_NEEDED; a request for all partitions is answered
with none, as in Kafka. Version notes: v1 adds the election's type (KIP-460), v2 is flexible.
"""

from collections.abc import Callable
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode

_TYPES = (0, 1)
"""Preferred and unclean."""


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer each partition independently."""
    if getattr(request, "election_type", 0) not in _TYPES:
        return _refuse(call, request, ErrorCode.INVALID_REQUEST)
    return _each(request, ErrorCode.NONE, lambda name, index: _answer(broker, name, index))


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return _each(request, error, lambda name, index: error_fields(error))


def _each(request: Any, error: ErrorCode, answer: Callable[[str, int], Fields]) -> Fields:
    return {
        "error_code": error,
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [
                    {"partition_id": index, **answer(topic.topic, index)}
                    for index in topic.partitions
                ],
            }
            for topic in request.topic_partitions or ()
        ],
    }


def _answer(broker: Broker, name: str, index: int) -> dict[str, Any]:
    topic = broker.find_topic(name)
    if topic is None or not 0 <= index < topic.partitions:
        return error_fields(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return error_fields(ErrorCode.ELECTION_NOT_NEEDED, "Every broker serves this partition.")


API = Api(
    43,
    "ElectLeaders",
    range(0, 3),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
