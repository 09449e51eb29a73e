"""ListTransactions (66), v0-2: all transactional ids, or those that pass the filters (KIP-664).

Those that the caller may not DESCRIBE are left out. Version notes: v1 filters by how long a
transaction has been open (KIP-994), v2 by a regular expression of RE2 for the whole id (KIP-1152).
"""

from typing import Any

from catchwater.broker.api.k65_describe_transactions import STATE_NAMES
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.catalog.rows import TxnRow
from catchwater.wire.errors import ErrorCode

_NEVER_HERE = ("Dead", "PrepareEpochFence")
"""States of Kafka that no transaction has here; a filter by them is valid and matches none."""


_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List the transactions that pass all filters."""
    duration_ms = getattr(request, "duration_filter", -1)
    now_ms = broker.clock.now_ms()

    def passes(row: TxnRow) -> bool:
        if request.state_filters and STATE_NAMES[row.state] not in request.state_filters:
            return False
        if request.producer_id_filters and row.producer_id not in request.producer_id_filters:
            return False
        if not call.allows(_DESCRIBE, row.transactional_id):
            return False
        return duration_ms < 0 or (row.state == "ongoing" and now_ms - row.started_ms > duration_ms)

    rows = [row for row in await broker.log.txns.rows() if passes(row)]
    try:
        rows = _matching(rows, getattr(request, "transactional_id_pattern", None))
    except ValueError:
        return {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
    known = {*STATE_NAMES.values(), *_NEVER_HERE}
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [s for s in request.state_filters if s not in known],
        "transaction_states": [
            {
                "transactional_id": row.transactional_id,
                "producer_id": row.producer_id,
                "transaction_state": STATE_NAMES[row.state],
            }
            for row in rows
        ],
    }


def _matching(rows: list[TxnRow], pattern: str | None) -> list[TxnRow]:
    """Rows whose id matches; RE2 takes linear time for every pattern."""
    if not pattern:
        return rows
    import pyarrow as pa  # loaded when first needed: brokers do without it otherwise
    import pyarrow.compute as pc

    pc.match_substring_regex(pa.array([""]), pattern=pattern)  # refuses what `a)|(b` would hide
    ids = pa.array([row.transactional_id for row in rows], pa.string())
    matched = pc.match_substring_regex(ids, pattern=rf"\A(?:{pattern})\z").to_pylist()
    return [row for row, is_match in zip(rows, matched, strict=True) if is_match]


API = Api(66, "ListTransactions", range(0, 3), handle, asks=[_DESCRIBE])
