"""InitProducerId (22), v0-5: a producer id, or a new epoch for a transactional id.

Without a transactional id every request gets a new producer id with epoch 0; an id is never given
twice, not even after a crash. A producer that sends its old id (v3, KIP-360) gets a new one too,
which resets its sequences just as a raised epoch would.

With a transactional id the epoch rises: earlier producers of that id are fenced, and their open
transaction is aborted before the answer. After the last epoch comes a new producer id. A producer
that lost the reply and asks again with its old epoch (KIP-360) gets the same new one.

Version notes: v3 adds the producer's present id and epoch (KIP-360), v4 PRODUCER_FENCED (KIP-588).

Not implemented: v6 (two-phase commit, KIP-939).
"""

from collections.abc import Iterable
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, answered, as_known_to
from catchwater.broker.gate import THE_CLUSTER, Operation, Resource, Whole, the_transactional_id
from catchwater.log.transactions import Producer
from catchwater.wire.errors import ErrorCode

LONGEST_TIMEOUT_MS = 15 * 60 * 1000
"""Kafka's default of `transaction.max.timeout.ms`."""

_LONGEST_ID = 1_000
_NONE = Producer(-1, -1)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Allocate a producer id, or raise the epoch of a transactional id."""
    error, producer = await _producer(broker, call.version, request)
    given = producer or _NONE
    return {
        "error_code": as_known_to(call.version, 4, error),
        "producer_id": given.id,
        "producer_epoch": given.epoch,
    }


async def _producer(
    broker: Broker, version: int, request: Any
) -> tuple[ErrorCode, Producer | None]:
    if request.transactional_id is None:
        error, producer_id = await answered(broker, broker.log.allocate_producer_id())
        return error, None if producer_id is None else Producer(producer_id, 0)
    if not _is_legal(request.transactional_id):
        return ErrorCode.INVALID_REQUEST, None
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    if not 0 < timeout_ms <= LONGEST_TIMEOUT_MS:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT, None
    expected = Producer(request.producer_id, request.producer_epoch) if version >= 3 else _NONE
    return await answered(
        broker,
        broker.log.txns.init_producer(
            request.transactional_id, timeout_ms, None if expected == _NONE else expected
        ),
    )


def _is_legal(transactional_id: str) -> bool:
    """Like a group id, but longer: frameworks join the names of jobs and tasks."""
    return 0 < len(transactional_id) <= _LONGEST_ID and transactional_id.isprintable()


def _new_producer(broker: Broker, request: Any) -> Iterable[Resource]:
    """The resource that a producer without a transactional id is checked for."""
    return (THE_CLUSTER,) if request.transactional_id is None else ()


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"error_code": error, "producer_id": _NONE.id, "producer_epoch": _NONE.epoch}


API = Api(
    22,
    "InitProducerId",
    range(0, 6),
    handle,
    refuse=_refuse,
    asks=[
        Whole(Operation.WRITE, the_transactional_id),
        Whole(Operation.IDEMPOTENT_WRITE, _new_producer, or_any_topic=Operation.WRITE),
    ],
)
