"""DescribeTransactions (65), v0: the states and open partitions of transactional ids (KIP-664).

Topics that the caller may not DESCRIBE are left out.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.gate import ByHandler, Each, Operation, ResourceType, named
from catchwater.catalog.rows import TxnRow, TxnState
from catchwater.wire.errors import ErrorCode

STATE_NAMES: Mapping[TxnState, str] = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare_commit": "PrepareCommit",
    "prepare_abort": "PrepareAbort",
    "complete_commit": "CompleteCommit",
    "complete_abort": "CompleteAbort",
}
"""As Kafka spells them in replies."""
_NO_TIME_MS = -1
_DESCRIBE_TOPIC = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer every id independently."""
    rows = {row.transactional_id: row for row in await broker.log.txns.rows()}
    return {
        "transaction_states": [
            await _state(broker, call, transactional_id, rows.get(transactional_id))
            async for transactional_id in Turns(broker.clock).over(request.transactional_ids)
        ]
    }


async def _state(broker: Broker, call: Call, transactional_id: str, row: TxnRow | None) -> Fields:
    if row is None:
        is_named = bool(transactional_id)
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if is_named else ErrorCode.INVALID_REQUEST
        return _refused(transactional_id, error)
    opened = await broker.log.txns.open_on(row.producer_id)
    topics: dict[str, list[int]] = {}
    for at in opened:
        topic = broker.log.topics.by_id(at.topic_id)
        if topic is not None and call.allows(_DESCRIBE_TOPIC, topic.name):
            topics.setdefault(topic.name, []).append(at.partition)
    started_ms = row.started_ms if opened else _NO_TIME_MS
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": STATE_NAMES[row.state],
        "transaction_timeout": row.timeout_ms,
        "transaction_start_time": _time(started_ms),
        "producer_id": row.producer_id,
        "producer_epoch": row.epoch,
        "topics": [{"topic": name, "partitions": found} for name, found in topics.items()],
    }


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _refused(transactional_id: str, error: ErrorCode) -> Fields:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": _time(_NO_TIME_MS),
        "producer_id": -1,
        "producer_epoch": -1,
        "topics": [],
    }


API = Api(
    65,
    "DescribeTransactions",
    range(0, 1),
    handle,
    asks=[
        Each(
            Operation.DESCRIBE,
            named(ResourceType.TRANSACTIONAL_ID),
            "transactional_ids",
            "transaction_states",
            _refused,
        ),
        _DESCRIBE_TOPIC,
    ],
)
