"""DescribeTransactions (65), v0: where transactional ids stand, what they have open (KIP-664)."""

from datetime import UTC, datetime
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.transactions import STATE_NAMES
from catchwater.catalog.rows import TxnRow
from catchwater.wire.errors import ErrorCode

_NO_TIME_MS = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer every id for itself."""
    rows = {row.transactional_id: row for row in await broker.log.txns.rows()}
    return {
        "transaction_states": [
            await _state(broker, transactional_id, rows.get(transactional_id))
            for transactional_id in request.transactional_ids
        ]
    }


async def _state(broker: Broker, transactional_id: str, row: TxnRow | None) -> dict[str, Any]:
    if row is None:
        row = TxnRow(transactional_id, -1, -1, "empty", 0, _NO_TIME_MS, 0, -1, -1, ())
        error, opened = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, []
    else:
        error, opened = ErrorCode.NONE, await broker.log.txns.open_on(row.producer_id)
    topics: dict[str, list[int]] = {}
    for at in opened:
        topic = broker.log.topics.by_id(at.topic_id)
        if topic is not None:
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
