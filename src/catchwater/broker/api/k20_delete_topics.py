"""DeleteTopics (20), v1-6: deletes topics and their committed offsets; objects are swept later.

A pin does not prevent it, because clients expect a deletion to succeed: the pin becomes `lost`,
with a warning in the broker's log.

A caller that may not DELETE a topic is refused by the topic's name; an id whose topic it may not
DESCRIBE is answered as unknown. Version notes: v4 is flexible, v5 adds a message, v6 (KIP-516)
takes topic ids as well as names.
"""

from collections import Counter
from typing import Any
from uuid import UUID

from catchwater.broker.broker import NO_TOPIC_ID, Api, Broker, Call, Fields, Turns, error_fields
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.catalog.errors import CatalogRetriable, TopicUnknown
from catchwater.wire.errors import ErrorCode

_DELETE = ByHandler(Operation.DELETE, ResourceType.TOPIC)
_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Delete each topic independently; a request may succeed in part."""
    if call.version >= 6:
        wanted = [(t.name, t.topic_id) for t in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    times = Counter(wanted)
    responses = []
    async for name, topic_id in Turns(broker.clock).over(times):
        if times[name, topic_id] > 1 or (name is None) == (topic_id is None):
            what = "Name each topic once, by its name or by its id."
            refused = error_fields(ErrorCode.INVALID_REQUEST, what)
            responses.append({"name": name, "topic_id": topic_id, **refused})
        else:
            responses.append(await _delete(broker, call, name, topic_id))
    return {"responses": responses}


async def _delete(
    broker: Broker, call: Call, name: str | None, topic_id: UUID | None
) -> dict[str, Any]:
    topic = broker.find_topic(name, topic_id.bytes if topic_id else NO_TOPIC_ID)
    known = name or (topic.name if topic else "")
    if known and not call.may(_DELETE, known):
        if name or call.allows(_DESCRIBE, known):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return {"name": known, "topic_id": topic_id, **error_fields(error)}
        topic = None
    if topic is None:
        by_id = topic_id is not None
        error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {"name": name, "topic_id": topic_id, **error_fields(error)}
    fields = {"name": topic.name, "topic_id": topic.id}
    try:
        await broker.log.delete_topic(topic.name)
        await broker.log.keeping.lose_pins(topic.name)
    except TopicUnknown:
        return fields | error_fields(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except CatalogRetriable as reason:
        return fields | error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(reason))
    return fields | error_fields(ErrorCode.NONE)


API = Api(20, "DeleteTopics", range(1, 7), handle, asks=[_DELETE, _DESCRIBE])
