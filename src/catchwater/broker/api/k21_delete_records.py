"""DeleteRecords (21), v0-2: raises the log start of a partition (KIP-107, KIP-204).

Offset -1 means the high watermark. The bytes are deleted when the segments that hold them are
swept; an offset below the log start changes nothing. Version notes: v2 is flexible.

POLICY_VIOLATION is the answer for offsets that a pin holds, and for topics whose only policy is
compaction (as in Kafka).
"""

import logging
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Each, Operation, the_topic
from catchwater.catalog.errors import CatalogRetriable, SessionFenced
from catchwater.catalog.rows import PartitionKey, Pin
from catchwater.log.topic_settings import DELETE, cleanup_policies
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

_HIGH_WATERMARK = -1
_NO_OFFSET = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Raise every log start that may be raised; each partition has its own answer."""
    asked = [(topic.name, wanted) for topic in request.topics for wanted in topic.partitions]
    wanted_starts: dict[PartitionKey, int] = {}
    errors: dict[tuple[str, int], ErrorCode] = {}
    held: dict[PartitionKey, Pin] = {}
    keys = {key for name, wanted in asked if (key := _key(broker, name, wanted))}
    try:
        await broker.log.refresh(keys)
        for name, wanted in asked:
            errors[name, wanted.partition_index] = _take(broker, name, wanted, wanted_starts)
        held = await broker.log.keeping.delete_records(wanted_starts)
    except (CatalogRetriable, SessionFenced) as reason:
        _LOG.warning("Records are not deleted for now: %s", reason)
        retry = ErrorCode.KAFKA_STORAGE_ERROR
        errors |= {(name, wanted.partition_index): retry for name, wanted in asked}
    for name, wanted in asked:
        key = _key(broker, name, wanted)
        if key in held:
            errors[name, wanted.partition_index] = ErrorCode.POLICY_VIOLATION
            _LOG.warning(
                "Records of %s-%d up to offset %d are not deleted: the pin %s of %s holds them.",
                *(name, key[1], wanted_starts[key], held[key].id, held[key].owner),
            )
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _answer(broker, topic.name, wanted, errors) for wanted in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _key(broker: Broker, name: str, wanted: Any) -> PartitionKey | None:
    topic = broker.find_topic(name)
    if topic is None or not 0 <= wanted.partition_index < topic.partitions:
        return None
    return topic.id, wanted.partition_index


def _take(broker: Broker, name: str, wanted: Any, log_starts: dict[PartitionKey, int]) -> ErrorCode:
    """Add a partition's new log start to `log_starts`, or give the error that prevents it."""
    topic, key = broker.find_topic(name), _key(broker, name, wanted)
    if topic is None or key is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if DELETE not in cleanup_policies(topic):
        return ErrorCode.POLICY_VIOLATION
    high_watermark = broker.log.state(key).high_watermark
    offset = high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    log_starts[key] = max(offset, log_starts.get(key, 0))
    return ErrorCode.NONE


def _answer(
    broker: Broker, name: str, wanted: Any, errors: dict[tuple[str, int], ErrorCode]
) -> dict[str, Any]:
    error = errors[name, wanted.partition_index]
    key = _key(broker, name, wanted)
    is_done = error is ErrorCode.NONE and key is not None
    return {
        "partition_index": wanted.partition_index,
        "low_watermark": broker.log.state(key).log_start if is_done and key else _NO_OFFSET,
        "error_code": error,
    }


def _refused(topic: Any, error: ErrorCode) -> Fields:
    partitions = [
        {
            "partition_index": wanted.partition_index,
            "low_watermark": _NO_OFFSET,
            "error_code": error,
        }
        for wanted in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}


API = Api(
    21,
    "DeleteRecords",
    range(0, 3),
    handle,
    asks=[Each(Operation.DELETE, the_topic, "topics", "topics", _refused)],
)
