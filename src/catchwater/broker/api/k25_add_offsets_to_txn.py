"""AddOffsetsToTxn (25), v0-4: a group whose offsets a transaction of version 1 will commit.

It begins the transaction. The group is not stored, because TxnOffsetCommit names it again.

Version notes: v2 PRODUCER_FENCED (KIP-588), v4 TRANSACTION_ABORTABLE (KIP-890), never answered.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, answered, as_known_to
from catchwater.broker.coordination.members import is_legal_group_id
from catchwater.broker.gate import Operation, Whole, the_group, the_transactional_id
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Begin the transaction if it is not open yet."""
    if not request.transactional_id:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    if not is_legal_group_id(request.group_id):
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    producer = Producer(request.producer_id, request.producer_epoch)
    adding = broker.log.txns.add_partitions(request.transactional_id, producer, ())
    error, _ = await answered(broker, adding)
    return {"error_code": as_known_to(call.version, 2, error)}


API = Api(
    25,
    "AddOffsetsToTxn",
    range(0, 5),
    handle,
    asks=[Whole(Operation.WRITE, the_transactional_id), Whole(Operation.READ, the_group)],
)
