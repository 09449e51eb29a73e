"""DescribeTransactions (65), v0: where transactional ids stand, what they have open (KIP-664).

Of the topics that are open those are told that the caller may DESCRIBE.
"""

from datetime import UTC, datetime
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.transactions import STATE_NAMES
from catchwater.broker.gate import Operation, Resource, ResourceType
from catchwater.catalog.rows import TxnRow
from catchwater.wire.errors import ErrorCode

_NO_TIME_MS = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer every id for itself."""
    rows = {row.transactional_id: row for row in await broker.log.txns.rows()}
    return {
        "transaction_states": [
            await _state(broker, call, transactional_id, rows.get(transactional_id))
            for transactional_id in request.transactional_ids
        ]
    }


async def _state(
    broker: Broker, call: Call, transactional_id: str, row: TxnRow | None
) -> dict[str, Any]:
    resource = Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
    may = broker.gate.may(call.principal, Operation.DESCRIBE, resource)
    if row is None or not may:
        row = TxnRow(transactional_id, -1, -1, "empty", 0, _NO_TIME_MS, 0, -1, -1, ())
        error, opened = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, []
        if not may:
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not transactional_id:
            error = ErrorCode.INVALID_REQUEST
    else:
        error, opened = ErrorCode.NONE, await broker.log.txns.open_on(row.producer_id)
    topics: dict[str, list[int]] = {}
    for at in opened:
        topic = broker.log.topics.by_id(at.topic_id)
        if topic is not None and broker.may(call.principal, Operation.DESCRIBE, topic.name):
            topics.setdefault(topic.name, []).append(at.partition)
    started_ms = row.started_ms if opened else _NO_TIME_MS
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "" if error else STATE_NAMES[row.state],
        "transaction_timeout": row.timeout_ms,
        "transaction_start_time": datetime.fromtimestamp(started_ms / 1000, UTC),
        "producer_id": row.producer_id,
        "producer_epoch": row.epoch,
        "topics": [{"topic": name, "partitions": found} for name, found in topics.items()],
    }


API = Api(65, "DescribeTransactions", range(0, 1), handle)
