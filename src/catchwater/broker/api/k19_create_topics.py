"""CreateTopics (19), v2-7: new topics, durable when answered.

Version notes: v4 lets -1 mean the broker's default for partitions and replicas (KIP-464), v5 adds
the number of partitions and the settings to the reply (KIP-525), v7 the topic id (KIP-516).

A replication factor up to the number of brokers is accepted, and a manual assignment may name any
of them; neither has an effect. The storage keeps the data safe, every broker serves every
partition, and replies name one replica. Settings: `broker/topic_config.py`.
"""

from collections import Counter
from typing import Any

from catchwater.broker import placement, settings, topic_config
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import ByHandler, Each, Operation, ResourceType, the_topic
from catchwater.broker.topic_config import is_legal_topic_name
from catchwater.catalog.errors import CatalogRetriable, TopicCollides, TopicExists
from catchwater.catalog.rows import Topic
from catchwater.catalog.topics import collision
from catchwater.wire.errors import ErrorCode

_DEFAULT = -1
_DESCRIBE_CONFIGS = ByHandler(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
_SETTING_FIELDS = ("name", "value", "read_only", "config_source", "is_sensitive")


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Create each topic independently; a request may succeed in part."""
    times = Counter(topic.name for topic in request.topics)
    topics = []
    once = {topic.name: topic for topic in request.topics}.values()
    async for topic in Turns(broker.clock).over(once):
        problem = _refusal(broker, topic)
        if times[topic.name] > 1:
            problem = ErrorCode.INVALID_REQUEST, "The request names this topic twice."
        made = await _create(broker, topic, problem, request.validate_only)
        topics.append(made | _settings(broker, call, topic, made["error_code"]))
    return {"topics": topics}


async def _create(
    broker: Broker, wanted: Any, problem: tuple[ErrorCode, str | None], validate_only: bool
) -> dict[str, Any]:
    error, message = problem
    topic_id = None
    partitions = _partitions(broker, wanted)
    if error is ErrorCode.NONE and not validate_only:
        config = {c.name: c.value for c in wanted.configs}
        try:
            topic_id = (await broker.log.create_topic(wanted.name, partitions, config)).id
        except TopicExists as exists:
            error, message = ErrorCode.TOPIC_ALREADY_EXISTS, str(exists)
        except TopicCollides as collides:
            error, message = ErrorCode.INVALID_TOPIC_EXCEPTION, str(collides)
        except CatalogRetriable as reason:
            error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(reason)
    is_good = error is ErrorCode.NONE
    if is_good and validate_only:
        topic_id = broker.clock.uuid().bytes  # some id, as in a real reply
    return {
        "name": wanted.name,
        "topic_id": topic_id,
        **error_fields(error, message),
        "num_partitions": partitions if is_good else -1,
        "replication_factor": 1 if is_good else -1,
    }


def _settings(broker: Broker, call: Call, wanted: Any, error: ErrorCode) -> dict[str, Any]:
    """The settings the topic has or would have; null if the caller may not see them."""
    if error is not ErrorCode.NONE:
        return {"configs": []}
    if not call.allows(_DESCRIBE_CONFIGS, wanted.name):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return {"configs": None, "topic_config_error_code": denied}
    own = {config.name: config.value for config in wanted.configs}
    configs = settings.of_topic(broker.config, Topic(b"", wanted.name, 1, own))
    return {"configs": [{name: config[name] for name in _SETTING_FIELDS} for config in configs]}


def _partitions(broker: Broker, wanted: Any) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    if wanted.num_partitions == _DEFAULT:
        return broker.config.num_partitions
    return int(wanted.num_partitions)


def _refused_name(broker: Broker, name: str) -> tuple[ErrorCode, str] | None:
    if not is_legal_topic_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, (
            "A topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is "
            "not '.' or '..'."
        )
    if broker.log.topics.get(name) is not None:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name} already exists."
    other = broker.log.topics.colliding(name)
    if other is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, collision(name, other)
    return None


def _refusal(broker: Broker, wanted: Any) -> tuple[ErrorCode, str | None]:
    refused = _refused_name(broker, wanted.name)
    if refused is not None:
        return refused
    if not 1 <= _partitions(broker, wanted) <= placement.MAX_PARTITIONS:
        most = placement.MAX_PARTITIONS
        return ErrorCode.INVALID_PARTITIONS, f"A topic has from 1 to {most} partitions."
    if wanted.assignments:
        refused = _refused_places(broker, wanted)
        if refused is not None:
            return refused
    elif wanted.replication_factor != _DEFAULT:
        reason = placement.refused_factor(broker, wanted.replication_factor)
        if reason is not None:
            return ErrorCode.INVALID_REPLICATION_FACTOR, reason
    for config in wanted.configs:
        reason = topic_config.refusal(config.name, config.value, broker.config)
        if reason is not None:
            return ErrorCode.INVALID_CONFIG, reason
    return ErrorCode.NONE, None


def _refused_places(broker: Broker, wanted: Any) -> tuple[ErrorCode, str] | None:
    if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
        return ErrorCode.INVALID_REQUEST, (
            "With an assignment, the numbers of partitions and replicas are -1."
        )
    indexes = sorted(a.partition_index for a in wanted.assignments)
    reason = placement.refused_assignments(broker, [a.broker_ids for a in wanted.assignments])
    if indexes != list(range(len(indexes))):
        reason = "Partitions are numbered from 0, without a gap."
    return (ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason) if reason else None


def _refused(wanted: Any, error: ErrorCode) -> Fields:
    return {
        "name": wanted.name,
        "topic_id": None,
        **error_fields(error),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


API = Api(
    19,
    "CreateTopics",
    range(2, 8),
    handle,
    asks=[
        Each(Operation.CREATE, the_topic, "topics", "topics", _refused, or_cluster=True),
        _DESCRIBE_CONFIGS,
    ],
)
