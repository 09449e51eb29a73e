"""AddPartitionsToTxn (24), v0-3: partitions that a transaction of version 1 will write to.

All or none: where a topic or partition does not exist, the others are OPERATION_NOT_ATTEMPTED.
Clients of version 2 (KIP-890) do not send it; their batches add the partition.

Version notes: v2 PRODUCER_FENCED (KIP-588).

Not implemented: v4 and later, which only Kafka's brokers send to each other.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, answered, as_known_to
from catchwater.broker.gate import ByHandler, Operation, Resource, ResourceType, Whole
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode

_WRITE = ByHandler(Operation.WRITE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Add the partitions, unless one of them cannot be written to."""
    refused: dict[tuple[str, int], ErrorCode] = {}
    keys = []
    for wanted in request.v3_and_below_topics:
        topic = broker.find_topic(wanted.name)
        may_write = call.may(_WRITE, wanted.name)
        for index in wanted.partitions:
            if not may_write:
                refused[wanted.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= index < topic.partitions:
                refused[wanted.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                keys.append((topic.id, index))
    if refused:
        return _fields(request, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    transactional_id = request.v3_and_below_transactional_id
    adding = broker.log.txns.add_partitions(transactional_id, producer, keys)
    error, _ = await answered(broker, adding)
    return _fields(request, {}, as_known_to(call.version, 2, error))


def _fields(
    request: Any, errors: Mapping[tuple[str, int], ErrorCode], otherwise: ErrorCode
) -> Fields:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": wanted.name,
                "results_by_partition": [
                    {
                        "partition_index": index,
                        "partition_error_code": errors.get((wanted.name, index), otherwise),
                    }
                    for index in wanted.partitions
                ],
            }
            for wanted in request.v3_and_below_topics
        ]
    }


def _transactional_id(broker: Broker, request: Any) -> Iterable[Resource]:
    return (Resource(ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id),)


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return _fields(request, {}, error)


API = Api(
    24,
    "AddPartitionsToTxn",
    range(0, 4),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.WRITE, _transactional_id), _WRITE],
)
