"""OffsetForLeaderEpoch (23), v2-4: where a leader epoch ended.

No partition has a leader here, so there is one epoch, 0, which ends at the high watermark: no
client ever has to truncate. With several brokers the high watermark is read from the catalog,
because the client may have read further on another broker; without the catalog the answer is
KAFKA_STORAGE_ERROR (retriable). Any other epoch is answered as unknown (-1).
"""

from typing import Any

from catchwater.broker.api.k02_list_offsets import see_now
from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.gate import Each, Operation, the_topic
from catchwater.wire.errors import ErrorCode

_ONLY_EPOCH = 0


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer with the end of the only epoch."""
    asked = [(topic.topic, p.partition) for topic in request.topics for p in topic.partitions]
    in_touch = await see_now(broker, asked)
    error = ErrorCode.NONE if in_touch else ErrorCode.KAFKA_STORAGE_ERROR
    turns, topics = Turns(broker.clock), []
    async for topic in turns.over(request.topics):
        wanted = turns.over(topic.partitions)
        answers = [_partition(broker, topic.topic, each, error) async for each in wanted]
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"topics": topics}


def _partition(broker: Broker, name: str, wanted: Any, error: ErrorCode) -> dict[str, Any]:
    fields = _unknown(wanted, error)
    if error is not ErrorCode.NONE:
        return fields
    topic = broker.find_topic(name)
    if topic is None or not 0 <= wanted.partition < topic.partitions:
        return fields | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if wanted.current_leader_epoch > _ONLY_EPOCH:
        return fields | {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    if wanted.leader_epoch == _ONLY_EPOCH:
        end_offset = broker.log.state((topic.id, wanted.partition)).high_watermark
        fields |= {"leader_epoch": _ONLY_EPOCH, "end_offset": end_offset}
    return fields | {"error_code": ErrorCode.NONE}


def _unknown(wanted: Any, error: ErrorCode) -> dict[str, Any]:
    fields = {"partition": wanted.partition, "leader_epoch": -1, "end_offset": -1}
    return fields | {"error_code": error}


def _refused(topic: Any, error: ErrorCode) -> Fields:
    return {"topic": topic.topic, "partitions": [_unknown(p, error) for p in topic.partitions]}


API = Api(
    23,
    "OffsetForLeaderEpoch",
    range(2, 5),
    handle,
    asks=[Each(Operation.DESCRIBE, the_topic, "topics", "topics", _refused)],
)
