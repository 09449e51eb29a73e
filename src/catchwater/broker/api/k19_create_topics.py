"""CreateTopics (19), v2-7: new topics, durable when answered.

Version notes: v4 lets -1 mean the broker's default for partitions and replicas (KIP-464), v5 adds
what was made to the reply (KIP-525), v7 the topic id (KIP-516).

There is one copy of the data, in shared storage, so a replication factor other than 1 (or -1) is
refused, and a manual assignment must name this broker alone. Settings: `broker/topic_config.py`.
"""

from collections import Counter
from typing import Any

from catchwater.broker import topic_config
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.coordination.coordinator import UNAVAILABLE
from catchwater.broker.names import is_legal_topic_name
from catchwater.catalog.base import (
    TopicExists,
)
from catchwater.wire.errors import ErrorCode

MAX_PARTITIONS = 10_000
"""Of one topic; a request for more is taken for a mistake."""

_DEFAULT = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Create each topic for itself; a request may succeed in part."""
    times = Counter(topic.name for topic in request.topics)
    topics = []
    for topic in request.topics:
        problem = _refusal(broker, topic)
        if times[topic.name] > 1:
            problem = ErrorCode.INVALID_REQUEST, "The request names this topic twice."
        topics.append(await _create(broker, topic, problem, request.validate_only))
    return {"topics": topics}


async def _create(
    broker: Broker, wanted: Any, problem: tuple[ErrorCode, str | None], validate_only: bool
) -> dict[str, Any]:
    error, message = problem
    created = None
    partitions = _partitions(broker, wanted)
    if error is ErrorCode.NONE and not validate_only:
        config = {c.name: c.value for c in wanted.configs}
        try:
            created = await broker.log.create_topic(wanted.name, partitions, config)
        except TopicExists as exists:
            error, message = ErrorCode.TOPIC_ALREADY_EXISTS, str(exists)
        except UNAVAILABLE as reason:
            error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(reason)
    is_good = error is ErrorCode.NONE
    return {
        "name": wanted.name,
        "topic_id": created.id if created else None,
        **error_fields(error, message),
        "num_partitions": partitions if is_good else -1,
        "replication_factor": 1 if is_good else -1,
        "configs": [],
    }


def _partitions(broker: Broker, wanted: Any) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    if wanted.num_partitions == _DEFAULT:
        return broker.config.num_partitions
    return int(wanted.num_partitions)


def _refusal(broker: Broker, wanted: Any) -> tuple[ErrorCode, str | None]:
    if not is_legal_topic_name(wanted.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, (
            "A topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'."
        )
    if broker.log.topics.get(wanted.name) is not None:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {wanted.name} already exists."
    if not 1 <= _partitions(broker, wanted) <= MAX_PARTITIONS:
        return ErrorCode.INVALID_PARTITIONS, f"A topic has from 1 to {MAX_PARTITIONS} partitions."
    if wanted.assignments:
        indexes = sorted(a.partition_index for a in wanted.assignments)
        alone = all(tuple(a.broker_ids) == (broker.config.node_id,) for a in wanted.assignments)
        if indexes != list(range(len(indexes))) or not alone:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
                f"Partitions are numbered from 0 and lie on broker {broker.config.node_id} alone."
            )
    elif wanted.replication_factor not in (1, _DEFAULT):
        return ErrorCode.INVALID_REPLICATION_FACTOR, (
            "The replication factor is 1: the storage keeps the data safe, not copies of it."
        )
    for config in wanted.configs:
        reason = topic_config.refusal(config.name, config.value, broker.config)
        if reason is not None:
            return ErrorCode.INVALID_CONFIG, reason
    return ErrorCode.NONE, None


API = Api(19, "CreateTopics", range(2, 8), handle, notes="replication factor 1")
