"""What Kafka's transaction requests have in common: their errors, and which are counted.

The transactions themselves are the log's (`log/transactions.py`); any broker may serve any
transactional id, because the catalog decides.
"""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from catchwater.broker.broker import Broker
from catchwater.broker.coordination.held import MOVED
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import TxnState
from catchwater.log.write.txn import TxnRefused
from catchwater.wire.errors import ErrorCode

T = TypeVar("T")

STATE_NAMES: Mapping[TxnState, str] = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare_commit": "PrepareCommit",
    "prepare_abort": "PrepareAbort",
    "complete_commit": "CompleteCommit",
    "complete_abort": "CompleteAbort",
}
"""As Kafka spells them in replies."""


async def answered(broker: Broker, work: Awaitable[T]) -> tuple[ErrorCode, T | None]:
    """What a transaction request came to: NONE and its outcome, or the error it is answered."""
    try:
        return ErrorCode.NONE, await work
    except TxnRefused as refused:
        error = refused.code
    except MOVED:
        error = ErrorCode.NOT_COORDINATOR
    except CatalogRetriable:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.metrics.txn_errors.labels(error.name).inc()
    return error, None


def as_known_to(version: int, since: int, error: ErrorCode) -> ErrorCode:
    """PRODUCER_FENCED by its older name, for versions before the one that introduced it."""
    if error is ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
