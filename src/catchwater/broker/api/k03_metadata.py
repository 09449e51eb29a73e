"""Metadata (3), v0-13: topics, their partitions, and which broker to use for each.

No broker leads a partition. The reply names one as each partition's leader, of the client's zone if
possible, so that load is spread. All brokers that are not stopping are listed. Rules:
`broker/placement.py`.

A topic asked for by name that does not exist is created if the client allows it (v4), the gate
allows CREATE, and `auto.create.topics.enable` is set.

Version notes: v1 lets null mean all topics (in v0 an empty list does), v8 asks what the caller may
do with topics and, up to v10, the cluster (KIP-430), v10 adds topic ids, v12 lets a topic be asked
for by id alone (KIP-516), v13 a request-level error, which is not used.

Thousands of topics are gathered in turns, so that other requests are not held up.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from catchwater.broker import placement
from catchwater.broker.broker import NO_TOPIC_ID, Api, Broker, Call, Turns
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.broker.topic_config import is_legal_topic_name
from catchwater.catalog.errors import (
    CatalogRetriable,
    TopicCollides,
    TopicExists,
)
from catchwater.catalog.rows import BrokerRow, Topic
from catchwater.wire.errors import ErrorCode
from catchwater.wire.metadata import (
    METADATA_VERSIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataReply,
    MetadataTopic,
    encode_metadata_reply,
)

_BY_ID_ALONE = 12
_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)
_DESCRIBE_CLUSTER = ByHandler(Operation.DESCRIBE, ResourceType.CLUSTER)
_CREATE = ByHandler(Operation.CREATE, ResourceType.TOPIC, or_cluster=True)
# In v10 and v11 a request may lack a name but a reply may not; Kafka refuses it, too.
_NAMELESS = MetadataTopic(ErrorCode.INVALID_REQUEST, "", NO_TOPIC_ID, False, ())


async def handle(broker: Broker, call: Call, request: Any) -> MetadataReply:
    """Gather the reply."""
    turns = Turns(broker.clock)
    listed = placement.candidates(broker.brokers)
    near = placement.candidates(listed, placement.zone_of(call.header.client_id))
    may = partial(call.allows, _DESCRIBE)
    wants_all = request.topics is None or (call.version == 0 and not request.topics)
    if wants_all:
        topics = []
        for topic in list(broker.log.topics):
            if may(topic.name):
                topics.append(_topic(topic, near))
                await turns.after(1 + topic.partitions)
    else:
        names = [wanted.name for wanted in request.topics if wanted.name and may(wanted.name)]
        with suppress(CatalogRetriable):
            await broker.log.look_up(names)
        allows = getattr(request, "allow_auto_topic_creation", True)
        makes = allows and broker.config.auto_create_topics_enable
        may_create = partial(call.allows, _CREATE) if makes else None
        topics = []
        for wanted in request.topics:
            answer = _NAMELESS
            if wanted.name is not None or call.version >= _BY_ID_ALONE:
                answer = await _wanted(broker, wanted, may, may_create, near)
            topics.append(answer)
            if answer.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED and wanted.name is not None:
                # Of the two that it takes to be shown a topic that is not there, the one it lacks.
                if call.may(_DESCRIBE, wanted.name):
                    call.may(_CREATE, wanted.name)
            await turns.after(1 + len(answer.partitions))
    brokers = [MetadataBroker(row.id, *call.place(row), row.zone or None) for row in listed]
    ids = [row.id for row in near]
    mine = broker.config.node_id
    controller = mine if mine in ids else ids[0]
    reply = MetadataReply(brokers, broker.log.cluster_id, controller, topics)
    return _with_operations(broker, call, request, reply)


def _with_operations(
    broker: Broker, call: Call, request: Any, reply: MetadataReply
) -> MetadataReply:
    """The reply with the operations that are allowed, where they were asked for."""
    if getattr(request, "include_topic_authorized_operations", False):
        topics = [
            topic
            if topic.error or topic.name is None
            else topic._replace(operations=call.operations(ResourceType.TOPIC, topic.name))
            for topic in reply.topics
        ]
        reply = reply._replace(topics=topics)
    if getattr(request, "include_cluster_authorized_operations", False):
        may = call.allows(_DESCRIBE_CLUSTER)
        operations = call.operations(ResourceType.CLUSTER) if may else 0
        reply = reply._replace(operations=operations)
    return reply


async def _wanted(
    broker: Broker,
    wanted: Any,
    may: Callable[[str], bool],
    may_create: Callable[[str], bool] | None,
    near: Sequence[BrokerRow],
) -> MetadataTopic:
    name: str | None = wanted.name
    topic_id: UUID | None = getattr(wanted, "topic_id", None)
    topic = broker.find_topic(name, topic_id.bytes if topic_id else NO_TOPIC_ID)
    if topic is not None and may(topic.name):
        return _topic(topic, near)
    if name is None:
        missing = topic_id.bytes if topic_id else NO_TOPIC_ID
        return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, missing, False, ())
    denied = MetadataTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, NO_TOPIC_ID, False, ())
    if not may(name):
        return denied
    if not is_legal_topic_name(name):
        return MetadataTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name, NO_TOPIC_ID, False, ())
    if may_create is not None:
        if not may_create(name):
            return denied
        try:
            return _topic(await broker.log.create_topic(name, broker.config.num_partitions), near)
        except TopicCollides:
            return MetadataTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name, NO_TOPIC_ID, False, ())
        except (TopicExists, CatalogRetriable):
            # Another request just created it, or the catalog is full or away: the client retries.
            return MetadataTopic(ErrorCode.LEADER_NOT_AVAILABLE, name, NO_TOPIC_ID, False, ())
    return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, NO_TOPIC_ID, False, ())


def _topic(topic: Topic, near: Sequence[BrokerRow]) -> MetadataTopic:
    leaders = [placement.leader(near, (topic.id, index)).id for index in range(topic.partitions)]
    partitions = [
        MetadataPartition(index, ErrorCode.NONE, leader, 0, (leader,))
        for index, leader in enumerate(leaders)
    ]
    return MetadataTopic(ErrorCode.NONE, topic.name, topic.id, False, partitions)


API = Api(
    3,
    "Metadata",
    METADATA_VERSIONS,
    handle,
    encode=encode_metadata_reply,
    asks=[_DESCRIBE, _DESCRIBE_CLUSTER, _CREATE],
)
