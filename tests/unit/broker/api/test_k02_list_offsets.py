"""ListOffsets: the ends of a partition, the newest record, and timestamps that are none."""

import asyncio
from datetime import timedelta
from importlib import import_module
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kio.static.primitive import i32Timedelta

from catchwater.log.write.writer import Submission
from catchwater.wire.batch import read_single


def asked(version: int, *timestamps: int, index: int = 0, **changes: Any) -> Any:
    v = import_module(f"kio.schema.list_offsets.v{version}.request")
    partitions = tuple(
        v.ListOffsetsPartition(partition_index=index + n, timestamp=timestamp)
        for n, timestamp in enumerate(timestamps)
    )
    topic = v.ListOffsetsTopic(name="t", partitions=partitions)
    if version >= 2:
        changes = {"isolation_level": 0} | changes
    if version >= 10:
        changes = {"timeout": i32Timedelta.parse(timedelta(0))} | changes
    return v.ListOffsetsRequest(replica_id=-1, topics=(topic,), **changes)


def answers(reply: Any) -> list[tuple[str, int]]:
    return [(p.error_code.name, p.offset) for p in reply.topics[0].partitions]


@pytest.fixture(autouse=True)
async def topic(client, batch):
    topic = await client.log.create_topic("t", 3)
    for _ in range(2):
        view = memoryview(batch(5))
        client.log.submit([Submission((topic.id, 0), read_single(view), view)])
    client.log.keeping.log_starts[topic.id, 0] = 4
    return topic


@pytest.mark.parametrize("version", range(1, 12))
async def test_each_version_knows_its_timestamps(client, version, monkeypatch) -> None:
    async def newest(key: Any) -> tuple[int, int]:
        return 7, 1_234

    monkeypatch.setattr(client.log, "newest", newest)
    since = {-1: (1, 10), -2: (1, 4), -3: (7, 7), -4: (8, 4), -5: (9, -1), -6: (11, -1)}
    for timestamp in range(-8, 0):
        (found,) = answers(await client.send(asked(version, timestamp)))
        first, offset = since.get(timestamp, (99, -1))
        assert found == (("none", offset) if version >= first else ("unsupported_version", -1))


async def test_the_newest_record_is_told_with_its_time_unless_it_is_not_there_yet(
    client, monkeypatch
) -> None:
    for at, expected in ((9, (9, 1_234, 0)), (10, (-1, -1, -1)), (3, (4, 1_234, 0))):
        newest = AsyncMock(return_value=(at, 1_234))
        monkeypatch.setattr(client.log, "newest", newest)
        (found,) = (await client.send(asked(7, -3))).topics[0].partitions
        assert (found.offset, found.timestamp, found.leader_epoch) == expected


async def test_an_empty_partition_has_no_newest_record(client) -> None:
    assert answers(await client.send(asked(11, -3, 2**63 - 1, index=1))) == [("none", -1)] * 2
    (gone,) = answers(await client.send(asked(11, -1, index=5)))
    assert gone == ("unknown_topic_or_partition", -1)


async def test_who_waits_no_longer_is_told_so(client, monkeypatch) -> None:
    async def never(key: Any, timestamp_ms: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client.log, "offset_for_timestamp", never)
    soon = i32Timedelta.parse(timedelta(milliseconds=5))
    reply = await client.send(asked(10, 5, -1, timeout=soon))
    assert answers(reply) == [("request_timed_out", -1), ("none", 0)]


async def test_a_partition_is_asked_for_once(client) -> None:
    twice = asked(6, -1)
    (topic,) = twice.topics
    other = type(topic.partitions[0])(partition_index=2, timestamp=-2)
    topic = type(topic)(name="t", partitions=(*topic.partitions * 2, other))
    reply = await client.send(type(twice)(replica_id=-1, isolation_level=0, topics=(topic,)))
    assert answers(reply) == [("invalid_request", -1), ("none", 0)]
