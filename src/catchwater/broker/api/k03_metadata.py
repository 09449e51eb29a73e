"""Metadata (3), v0-13: topics, their partitions, and the one broker that leads them all.

A topic asked for by name that does not exist is created if the client allows it (v4) and
`auto.create.topics.enable` is set.

Version notes: v1 lets null mean all topics (in v0 an empty list does), v10 adds topic ids, v12
lets a topic be asked for by id alone (KIP-516), v13 a request-level error, which is not used.

Not implemented: authorized operations (v8), which are told as unknown.
"""

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

from catchwater.broker.broker import NO_TOPIC_ID, Api, Broker, Call, Later
from catchwater.broker.names import is_legal_topic_name
from catchwater.catalog.base import (
    CatalogFull,
    TopicExists,
)
from catchwater.catalog.rows import (
    Topic,
)
from catchwater.wire.errors import ErrorCode
from catchwater.wire.hot import (
    METADATA_VERSIONS,
    MetadataBroker,
    MetadataPartition,
    MetadataReply,
    MetadataTopic,
    encode_metadata_reply,
)
from catchwater.wire.messages import decode_request


def start(broker: Broker, call: Call) -> Later:
    """Read the request, let go of its frame, and gather the reply in a task of its own."""
    request = decode_request(call.header, call.frame.data)
    call.frame.release()
    future = asyncio.ensure_future(_gather(broker, call.version, request))
    return Later(future, partial(encode_metadata_reply, call.correlation_id, call.version))


async def _gather(broker: Broker, version: int, request: Any) -> MetadataReply:
    config, address = broker.config, broker.kafka_address
    wants_all = request.topics is None or (version == 0 and not request.topics)
    if wants_all:
        topics = [_topic(broker, topic) for topic in broker.log.topics]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True)
        topics = [
            await _wanted(broker, wanted.name, getattr(wanted, "topic_id", None), may_create)
            for wanted in request.topics
        ]
    return MetadataReply(
        [MetadataBroker(config.node_id, address.host, address.port, None)],
        broker.log.cluster_id,
        config.node_id,
        topics,
    )


async def _wanted(
    broker: Broker, name: str | None, topic_id: UUID | None, may_create: bool
) -> MetadataTopic:
    topic = broker.find_topic(name, topic_id.bytes if topic_id else NO_TOPIC_ID)
    if topic is not None:
        return _topic(broker, topic)
    if name is None:
        missing = topic_id.bytes if topic_id else NO_TOPIC_ID
        return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, missing, False, ())
    if not is_legal_topic_name(name):
        return MetadataTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name, NO_TOPIC_ID, False, ())
    if may_create and broker.config.auto_create_topics_enable:
        try:
            return _topic(broker, await broker.log.create_topic(name, broker.config.num_partitions))
        except (TopicExists, CatalogFull):
            # Just created by another request, or no space: the client asks again.
            return MetadataTopic(ErrorCode.LEADER_NOT_AVAILABLE, name, NO_TOPIC_ID, False, ())
    return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, NO_TOPIC_ID, False, ())


def _topic(broker: Broker, topic: Topic) -> MetadataTopic:
    node_id = broker.config.node_id
    partitions = [
        MetadataPartition(index, ErrorCode.NONE, node_id, 0, (node_id,))
        for index in range(topic.partitions)
    ]
    return MetadataTopic(ErrorCode.NONE, topic.name, topic.id, False, partitions)


API = Api(3, "Metadata", METADATA_VERSIONS, start=start)
