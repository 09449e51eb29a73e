"""ConsumerGroupHeartbeat (68), v0-1: the only request of a consumer protocol's member (KIP-848).

Rules: `broker/coordination/consumer/group.py`. A pattern does not match topics that the member may
not DESCRIBE; a name that it may not DESCRIBE is refused.

Version notes: v1 adds the regular expression, in RE2's syntax as in Kafka, and lets the member make
its own id (KIP-1082); in v0 a member without an id is given one.

Not implemented: assignment by racks, which are only shown; members of both protocols in one group.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.consumer.assign import ASSIGNORS
from catchwater.broker.coordination.consumer.group import TopicLookup, refused
from catchwater.broker.coordination.consumer.member import (
    JOINS,
    PAUSES,
    Heartbeat,
    HeartbeatReply,
    Partitions,
)
from catchwater.broker.coordination.members import is_legal_group_id, is_legal_member_name
from catchwater.broker.gate import ByHandler, Operation, Resource, ResourceType, Whole, the_group
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode

MAX_NAMES_CHARACTERS = 1024 * 1024
_LONGEST_CLIENT_ID = 64
_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.TOPIC)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Pass the heartbeat to its group, or refuse it."""
    heartbeat = _heartbeat(broker, call, request)
    reply = _refusal(request.group_id, heartbeat) or await _bad_pattern(broker, heartbeat)
    if reply is None:
        await _look_up(broker, heartbeat)
        topics = TopicLookup(partial(_find, broker), partial(_matching, broker, call))
        reply = await broker.groups.consumer_heartbeat(request.group_id, heartbeat, topics)
    return _fields(reply, broker.groups.consumer_limits.heartbeat_interval_ms)


def _fields(reply: HeartbeatReply, interval_ms: int) -> Fields:
    return {
        "error_code": reply.error,
        "error_message": reply.message,
        "member_id": reply.member_id,
        "member_epoch": reply.epoch,
        "heartbeat_interval": 0 if reply.error or reply.epoch < 0 else interval_ms,
        "assignment": None if reply.assigned is None else assignment(reply.assigned),
    }


def assignment(partitions: Partitions) -> dict[str, Any]:
    """Partitions by topic, as in the message."""
    indexes: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        indexes.setdefault(topic_id, []).append(index)
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": tuple(found)}
            for topic_id, found in indexes.items()
        ]
    }


def _heartbeat(broker: Broker, call: Call, request: Any) -> Heartbeat:
    timeout_ms: int = request.rebalance_timeout // timedelta(milliseconds=1)
    names, owned = request.subscribed_topic_names, request.topic_partitions
    must_be_given_id = call.version == 0 and request.member_epoch == JOINS
    return Heartbeat(
        member_id=request.member_id or (str(broker.clock.uuid()) if must_be_given_id else ""),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=(call.header.client_id or "")[:_LONGEST_CLIENT_ID],
        client_host=call.client_host,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else None,
        names=None if names is None else frozenset(names),
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset(
            (topic.topic_id.bytes, index)
            for topic in owned
            if topic.topic_id is not None
            for index in topic.partitions
        ),
    )


def _refusal(group_id: str, heartbeat: Heartbeat) -> HeartbeatReply | None:
    """What is wrong with the heartbeat, before its group is asked."""
    if not is_legal_group_id(group_id):
        return refused(ErrorCode.INVALID_REQUEST, "A group's id is 1 to 255 printable characters.")
    named = {
        "member id": heartbeat.member_id,
        "instance id": heartbeat.instance_id,
        "rack": heartbeat.rack_id,
    }
    for what, name in named.items():
        if name is not None and not is_legal_member_name(name):
            message = f"The {what} is not 1 to 255 printable characters."
            return refused(ErrorCode.INVALID_REQUEST, message)
    if sum(map(len, heartbeat.names or ())) > MAX_NAMES_CHARACTERS:
        return refused(ErrorCode.INVALID_REQUEST, "The names of the topics are too long.")
    if heartbeat.assignor is not None and heartbeat.assignor not in ASSIGNORS:
        message = f"There is no assignor {heartbeat.assignor!r}, but {', '.join(ASSIGNORS)}."
        return refused(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    wrong = _wrong_epoch(heartbeat)
    return refused(ErrorCode.INVALID_REQUEST, wrong) if wrong else None


def _wrong_epoch(heartbeat: Heartbeat) -> str | None:
    """Which fields do not fit the epoch, by Kafka's rules."""
    if heartbeat.epoch < PAUSES:
        return f"There is no member epoch {heartbeat.epoch}."
    if heartbeat.epoch == PAUSES and heartbeat.instance_id is None:
        return "Only a static member, with an instance id, leaves for a while."
    if heartbeat.epoch != JOINS:
        return None
    if heartbeat.rebalance_timeout_ms is None:
        return "Who joins says its rebalance timeout."
    if heartbeat.owned is None or heartbeat.owned:
        return "Who joins owns no partitions, and says so."
    if heartbeat.names is None and heartbeat.pattern is None:
        return "Who joins subscribes to topics by name or by a regular expression."
    return None


def _topics(broker: Broker, request: Any) -> Iterable[Resource]:
    names = request.subscribed_topic_names or ()
    return (Resource(ResourceType.TOPIC, name) for name in names)


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    denied = f"{call.principal} may not READ group {request.group_id}."
    if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        denied = f"{call.principal} may not DESCRIBE all of these topics."
    return _fields(refused(error, denied), 0)


async def _bad_pattern(broker: Broker, heartbeat: Heartbeat) -> HeartbeatReply | None:
    wrong = await broker.groups.patterns.refusal(heartbeat.pattern) if heartbeat.pattern else None
    return refused(ErrorCode.INVALID_REGULAR_EXPRESSION, wrong) if wrong else None


async def _look_up(broker: Broker, heartbeat: Heartbeat) -> None:
    """Read topics from the catalog that another broker may just have created."""
    unknown = [name for name in heartbeat.names or () if broker.find_topic(name) is None]
    if unknown:
        with suppress(CatalogRetriable):
            await broker.log.look_up(unknown)


def _find(broker: Broker, name: str) -> tuple[bytes, int] | None:
    topic = broker.find_topic(name)
    return None if topic is None else (topic.id, topic.partitions)


def _matching(broker: Broker, call: Call, pattern: str) -> frozenset[str]:
    names = broker.groups.patterns.matching(pattern, broker.log.topics)
    return frozenset(name for name in names if call.allows(_DESCRIBE, name))


API = Api(
    68,
    "ConsumerGroupHeartbeat",
    range(0, 2),
    handle,
    notes="no rack awareness",
    refuse=_refuse,
    asks=[Whole(Operation.READ, the_group), Whole(Operation.DESCRIBE, _topics), _DESCRIBE],
)
