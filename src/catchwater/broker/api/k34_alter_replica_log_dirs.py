"""AlterReplicaLogDirs (34), v1-2: there is one log directory, and every partition is in it.

A request to move a partition there succeeds; any other directory is LOG_DIR_NOT_FOUND. A topic that
is named under several directories is answered once, with all its partitions. Version notes: v2 is
flexible.
"""

from collections.abc import Callable
from typing import Any

from catchwater.broker.api.k35_describe_log_dirs import log_dir
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Answer each partition independently."""
    here = log_dir(broker)
    return _each(request, lambda place, name, index: _moved(broker, name, index, place == here))


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return _each(request, lambda place, name, index: error)


def _each(request: Any, answer: Callable[[str, str, int], ErrorCode]) -> Fields:
    results: dict[str, list[Fields]] = {}
    for place in request.dirs:
        for topic in place.topics:
            results.setdefault(topic.name, []).extend(
                {"partition_index": index, "error_code": answer(place.path, topic.name, index)}
                for index in topic.partitions
            )
    return {
        "results": [
            {"topic_name": name, "partitions": partitions} for name, partitions in results.items()
        ]
    }


def _moved(broker: Broker, name: str, index: int, is_here: bool) -> ErrorCode:
    if not is_here:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = broker.find_topic(name)
    if topic is None or not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


API = Api(
    34,
    "AlterReplicaLogDirs",
    range(1, 3),
    handle,
    notes="one directory only",
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
