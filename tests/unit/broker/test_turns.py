"""Requests that name very many things: others have the event loop in between."""

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from tests.samples import sample, values

from catchwater.broker.broker import A_TURN, Turns
from catchwater.broker.router import APIS
from catchwater.catalog.rows import OffsetCommit
from catchwater.clock import ManualClock
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.produce import MOST_NAMED

KEYS = {api.name: key for key, api in APIS.items()}


class Counting(ManualClock):
    """Counts how often others were given a turn."""

    turns = 0

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        await super().sleep(seconds)


def another(item: Any, number: int) -> Any:
    """The item of a request under another name."""
    if isinstance(item, str):
        return f"{item}{number}"
    if isinstance(item, int):
        return number
    for each in fields(item):
        found = getattr(item, each.name)
        if isinstance(found, str):
            return replace(item, **{each.name: f"{found}{number}"})
        if isinstance(found, UUID):
            return replace(item, **{each.name: UUID(int=number + 1)})
        if isinstance(found, int) and each.name in ("partition", "partition_index", "index"):
            return replace(item, **{each.name: number})
    raise AssertionError(f"{item} has no name")


def request(api: str, path: str, count: int) -> Any:
    """A request of the newest version with so many of what the path names."""
    key = KEYS[api]
    whole = sample(
        api, load_request_schema(key, APIS[key].versions[-1]),
        values(bytes(15) + b"\1", 4000, 0, b"", topic="t", group="g"),
    )  # fmt: skip

    def with_many(message: Any, name: str, *inner: str) -> Any:
        first = getattr(message, name)[0]
        if inner:
            return replace(message, **{name: (with_many(first, *inner),)})
        return replace(message, **{name: tuple(another(first, n) for n in range(count))})

    return with_many(whole, *path.split("/"))


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("ListOffsets", "topics"),
        ("ListOffsets", "topics/partitions"),
        ("Metadata", "topics"),
        ("OffsetCommit", "topics"),
        ("OffsetCommit", "topics/partitions"),
        ("OffsetFetch", "groups"),
        ("OffsetFetch", "groups/topics"),
        ("OffsetFetch", "groups/topics/partition_indexes"),
        ("FindCoordinator", "coordinator_keys"),
        ("LeaveGroup", "members"),
        ("DescribeGroups", "groups"),
        ("CreateTopics", "topics"),
        ("DeleteTopics", "topics"),
        ("OffsetForLeaderEpoch", "topics"),
        ("OffsetForLeaderEpoch", "topics/partitions"),
        ("TxnOffsetCommit", "topics"),
        ("AlterConfigs", "resources"),
        ("IncrementalAlterConfigs", "resources"),
        ("CreatePartitions", "topics"),
        ("DeleteGroups", "groups_names"),
        ("OffsetDelete", "topics"),
        ("OffsetDelete", "topics/partitions"),
        ("DescribeProducers", "topics/partition_indexes"),
        ("ConsumerGroupDescribe", "group_ids"),
        ("AlterPartitionReassignments", "topics/partitions"),
    ],
)
async def test_others_have_a_turn_while_a_request_with_many_names_is_answered(
    client: Any, api: str, path: str
) -> None:
    client.broker.clock = clock = Counting()
    await client.log.create_topic("t", 4)
    await client.log.commit_offsets("g", {("t", 0): OffsetCommit(1, 0, "", 0)})
    clock.turns = 0
    await client.send(request(api, path, 4 * A_TURN))
    assert clock.turns >= 4


async def test_a_produce_request_names_only_so_many(client: Any) -> None:
    for path in ("topic_data", "topic_data/partition_data"):
        await client.send(request("Produce", path, MOST_NAMED // 2 - 1))
        with pytest.raises(MalformedMessage, match=f"names {MOST_NAMED} topics and partitions"):
            await client.send(request("Produce", path, MOST_NAMED + 1))


async def test_a_turn_is_so_much_work() -> None:
    clock = Counting()
    turns = Turns(clock)
    for _ in range(A_TURN - 1):
        await turns.after(1)
    assert clock.turns == 0
    await turns.after(1)
    await turns.after(3 * A_TURN)
    await turns.after(A_TURN - 1)
    assert clock.turns == 2
