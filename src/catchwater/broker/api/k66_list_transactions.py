"""ListTransactions (66), v0-1: all transactional ids, or those that pass the filters (KIP-664).

Version notes: v1 asks for transactions that have been open for so long (KIP-994).
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.transactions import STATE_NAMES
from catchwater.catalog.rows import TxnRow
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List what passes every filter that is given."""
    duration_ms = getattr(request, "duration_filter", -1)
    now_ms = broker.clock.now_ms()

    def passes(row: TxnRow) -> bool:
        if request.state_filters and STATE_NAMES[row.state] not in request.state_filters:
            return False
        if request.producer_id_filters and row.producer_id not in request.producer_id_filters:
            return False
        return duration_ms < 0 or (row.state == "ongoing" and now_ms - row.started_ms > duration_ms)

    known = set(STATE_NAMES.values())
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [s for s in request.state_filters if s not in known],
        "transaction_states": [
            {
                "transactional_id": row.transactional_id,
                "producer_id": row.producer_id,
                "transaction_state": STATE_NAMES[row.state],
            }
            for row in await broker.log.txns.rows()
            if passes(row)
        ],
    }


API = Api(66, "ListTransactions", range(0, 2), handle)
