"""EndTxn (26), v0-5: commit or abort a transaction.

Once answered without an error the outcome is durable; usually its markers are written too, so that
the next transaction can begin at once.

Version notes: v2 PRODUCER_FENCED (KIP-588), v4 TRANSACTION_ABORTABLE, never answered; v5 is a
client of version 2 (KIP-890): every end raises the epoch, which the reply has, and the request may
be repeated with the epoch before.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, answered, as_known_to
from catchwater.broker.gate import Operation, Whole, the_transactional_id
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode

_SECOND_VERSION = 5


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """End the transaction; the reply has the epoch to continue with."""
    if not request.transactional_id:
        return _refuse(call, request, ErrorCode.INVALID_REQUEST)
    error, producer = await answered(
        broker,
        broker.log.txns.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            committed=request.committed,
            version=2 if call.version >= _SECOND_VERSION else 1,
        ),
    )
    given = producer or Producer(-1, -1)
    return {
        "error_code": as_known_to(call.version, 2, error),
        "producer_id": given.id,
        "producer_epoch": given.epoch,
    }


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}


API = Api(
    26,
    "EndTxn",
    range(0, 6),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.WRITE, the_transactional_id)],
)
