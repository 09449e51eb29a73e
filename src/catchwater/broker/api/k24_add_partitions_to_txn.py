"""AddPartitionsToTxn (24), v0-3: partitions that a transaction of version 1 will write to.

All or none: where a topic or partition does not exist, the others are OPERATION_NOT_ATTEMPTED.
Clients of version 2 (KIP-890) do not ask; their batches add the partition.

Version notes: v2 PRODUCER_FENCED (KIP-588).

Not implemented: v4 and later, which only Kafka's brokers send to each other.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.transactions import answered, as_known_to
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Announce the partitions; every one of them is answered alike."""
    unknown: set[tuple[str, int]] = set()
    keys = []
    for wanted in request.v3_and_below_topics:
        topic = broker.find_topic(wanted.name)
        for index in wanted.partitions:
            if topic is None or not 0 <= index < topic.partitions:
                unknown.add((wanted.name, index))
            else:
                keys.append((topic.id, index))
    error = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not unknown:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        transactional_id = request.v3_and_below_transactional_id
        adding = broker.log.txns.add_partitions(transactional_id, producer, keys)
        error, _ = await answered(broker, adding)
        error = as_known_to(call.version, 2, error)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": wanted.name,
                "results_by_partition": [
                    {
                        "partition_index": index,
                        "partition_error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        if (wanted.name, index) in unknown
                        else error,
                    }
                    for index in wanted.partitions
                ],
            }
            for wanted in request.v3_and_below_topics
        ]
    }


API = Api(24, "AddPartitionsToTxn", range(0, 4), handle)
