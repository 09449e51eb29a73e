"""AlterPartitionReassignments (45), v0-1: partitions cannot move, because no broker stores them.

Assigning a partition to the broker that Metadata names succeeds; any other broker is refused by
name, and there is no reassignment to cancel (KIP-455). Version notes: v1 says whether the number of
replicas may change, which it cannot.
"""

from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer each partition independently."""
    turns = Turns(broker.clock)
    return error_fields(ErrorCode.NONE) | {
        "allow_replication_factor_change": getattr(
            request, "allow_replication_factor_change", True
        ),
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": wanted.partition_index}
                    | _answer(broker, call, topic.name, wanted)
                    async for wanted in turns.over(topic.partitions)
                ],
            }
            for topic in request.topics
        ],
    }


def _answer(broker: Broker, call: Call, name: str, wanted: Any) -> dict[str, Any]:
    topic, index = broker.find_topic(name), wanted.partition_index
    if topic is None or not 0 <= index < topic.partitions:
        return error_fields(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if wanted.replicas is None:
        return error_fields(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    leader = placement.leaders(broker, call)((topic.id, index))
    if tuple(wanted.replicas) == (leader,):
        return error_fields(ErrorCode.NONE)
    return error_fields(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"Every broker serves this partition; clients are told broker {leader}, by a rule that "
        "cannot be changed for one.",
    )


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    responses = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, **error_fields(error)}
                for each in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return error_fields(error) | {"responses": responses}


API = Api(
    45,
    "AlterPartitionReassignments",
    range(0, 2),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
