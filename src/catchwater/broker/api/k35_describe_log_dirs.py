"""DescribeLogDirs (35), v1-5: the bytes of each partition, in the only log directory.

A broker lists the partitions whose leader it is in Metadata's replies, so that over all brokers
every byte is counted once. Bytes are those of the record batches as written, as far as retention
has not deleted them.

Version notes: v3 adds a request-level error, v4 the volume's size and free space (KIP-827), known
only for objects in a directory of this machine; v5 whether the directory is cordoned, which it
never is.
"""

import asyncio
import shutil
from collections.abc import Iterable
from typing import Any

from catchwater.broker import placement
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import Topic
from catchwater.wire.errors import ErrorCode

_UNKNOWN_BYTES = -1


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List all partitions, or those asked for; unknown ones are left out."""
    asked = _asked(broker, call, request)
    keys = [(topic.id, index) for topic, indexes in asked for index in indexes]
    error = ErrorCode.NONE
    try:
        await broker.log.refresh(keys)
        total_bytes, usable_bytes = await asyncio.to_thread(_volume, broker)
    except (CatalogRetriable, OSError):
        error, asked = ErrorCode.KAFKA_STORAGE_ERROR, []
        total_bytes = usable_bytes = _UNKNOWN_BYTES
    return {
        "error_code": ErrorCode.NONE,
        "results": [
            {
                "error_code": error,
                "log_dir": log_dir(broker),
                "topics": [_topic(broker, topic, indexes) for topic, indexes in asked],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
                "is_cordoned": False,
            }
        ],
    }


def _asked(broker: Broker, call: Call, request: Any) -> list[tuple[Topic, list[int]]]:
    """The topics and partitions asked for that this broker lists."""
    wanted: Iterable[tuple[Topic | None, Iterable[int]]]
    if request.topics is None:
        wanted = [(topic, range(topic.partitions)) for topic in broker.log.topics]
    else:
        wanted = [(broker.find_topic(each.topic), each.partitions) for each in request.topics]
    mine, leader_of = broker.config.node_id, placement.leaders(broker, call)
    found = []
    for topic, indexes in wanted:
        if topic is not None:
            there = sorted({i for i in indexes if 0 <= i < topic.partitions})
            indexes_here = [index for index in there if leader_of((topic.id, index)) == mine]
            if indexes_here:
                found.append((topic, indexes_here))
    return found


def _topic(broker: Broker, topic: Topic, indexes: Iterable[int]) -> dict[str, Any]:
    partitions = []
    for index in indexes:
        key = (topic.id, index)
        if broker.find_topic(topic.name) is not None:  # else deleted meanwhile
            size_bytes = broker.log.state(key).bytes
            partitions.append(
                {
                    "partition_index": index,
                    "partition_size": size_bytes,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    return {"name": topic.name, "partitions": partitions}


def log_dir(broker: Broker) -> str:
    """The directory of the objects, or their URL without a password."""
    url = broker.config.catchwater_objects
    if not url:
        return str(broker.config.log_dirs.absolute())
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _volume(broker: Broker) -> tuple[int, int]:
    url = broker.config.catchwater_objects
    if url and not url.startswith("file://"):
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    usage = shutil.disk_usage(url.removeprefix("file://") or broker.config.log_dirs)
    return usage.total, usage.free


API = Api(35, "DescribeLogDirs", range(1, 6), handle, asks=[Whole(Operation.DESCRIBE, the_cluster)])
