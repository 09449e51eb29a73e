"""InitProducerId (22), v0-5: a producer id for an idempotent producer.

Every call gets a new id with epoch 0; ids are never given twice, also not after a crash. A
producer that brings its old id (v3, KIP-360) gets a new one too, which resets its sequences just
as a raised epoch would.

Not implemented: transactions. A transactional id is refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the one answer that every client takes as final.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.catalog.base import (
    CatalogFull,
)
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Give the next id."""
    if request.transactional_id is not None:
        return {
            "error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    try:
        producer_id = await broker.log.allocate_producer_id()
    except CatalogFull:
        # Retriable: the client asks again until there is space.
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}


API = Api(22, "InitProducerId", range(0, 6), handle, notes="no transactional ids")
