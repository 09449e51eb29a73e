"""ElectLeaders (43), v0-2: no partition has a leader, so no election is ever needed.

That is the answer for every partition that is there, and where all are asked for none is named, as
in Kafka. Version notes: v1 adds the election's type (KIP-460), v2 is flexible.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation
from catchwater.wire.errors import ErrorCode

_TYPES = (0, 1)
"""Preferred and unclean."""


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer each partition for itself."""
    asked = request.topic_partitions or ()
    refused = ErrorCode.NONE
    if not broker.may_administer(call.principal, Operation.ALTER):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif getattr(request, "election_type", 0) not in _TYPES:
        refused = ErrorCode.INVALID_REQUEST
    return {
        "error_code": refused,
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [
                    {"partition_id": index} | _answer(broker, topic.topic, index, refused)
                    for index in topic.partitions
                ],
            }
            for topic in asked
        ],
    }


def _answer(broker: Broker, name: str, index: int, refused: ErrorCode) -> dict[str, Any]:
    topic = broker.find_topic(name)
    if refused is not ErrorCode.NONE:
        return error_fields(refused)
    if topic is None or not 0 <= index < topic.partitions:
        return error_fields(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return error_fields(ErrorCode.ELECTION_NOT_NEEDED, "Every broker serves this partition.")


API = Api(43, "ElectLeaders", range(0, 3), handle)
