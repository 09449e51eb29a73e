"""DescribeTopicPartitions: page by page, nothing twice and nothing left out."""

from typing import Any

import pytest
from kio.schema.describe_topic_partitions.v0 import request as v0


@pytest.fixture(autouse=True)
async def topics(client) -> None:
    for name, partitions in (("b", 3), ("a", 4), ("c", 1)):
        await client.log.create_topic(name, partitions)


def ask(
    *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> v0.DescribeTopicPartitionsRequest:
    at = v0.Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None
    return v0.DescribeTopicPartitionsRequest(
        topics=tuple(v0.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=at,
    )


async def pages(client, *names: str, limit: int) -> list[list[tuple[str, int]]]:
    """(topic, partition) of each page until there is no next."""
    found, cursor = [], None
    while True:
        reply = await client.send(ask(*names, limit=limit, cursor=cursor))
        found.append([(t.name, p.partition_index) for t in reply.topics for p in t.partitions])
        if reply.next_cursor is None:
            return found
        cursor = (reply.next_cursor.topic_name, reply.next_cursor.partition_index)


def errors(reply: Any) -> list[tuple[str, str]]:
    return [(topic.name, topic.error_code.name) for topic in reply.topics]


EVERYTHING = [("a", i) for i in range(4)] + [("b", i) for i in range(3)] + [("c", 0)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 2_000, 0, -5])
async def test_pages_put_together_are_everything(client, limit) -> None:
    found = await pages(client, limit=limit)
    assert [place for page in found for place in page] == EVERYTHING
    assert max(len(page) for page in found) == min(max(limit, 1), 8)
    named = await pages(client, "c", "a", limit=limit)
    wanted = [place for place in EVERYTHING if place[0] != "b"]
    assert [place for page in named for place in page] == wanted


async def test_a_partition_is_told_as_metadata_does(client) -> None:
    (topic,) = (await client.send(ask("c"))).topics
    (partition,) = topic.partitions
    assert topic.topic_id.bytes == client.log.topics.get("c").id
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert partition.replica_nodes == partition.isr_nodes == (1,)
    assert partition.eligible_leader_replicas == ()
    bits = [bit for bit in range(32) if topic.topic_authorized_operations >> bit & 1]
    assert bits == [3, 4, 5, 6, 7, 8, 10, 11]


async def test_what_is_not_there_and_what_may_not_be_seen_are_told(client, deny) -> None:
    deny(("DESCRIBE", "a"), ("DESCRIBE", "y"))
    assert errors(await client.send(ask("a", "x", "y", "c", "!"))) == [
        ("!", "invalid_topic_exception"),
        ("c", "none"),
        ("x", "unknown_topic_or_partition"),
        ("a", "topic_authorization_failed"),
        ("y", "topic_authorization_failed"),
    ]
    assert errors(await client.send(ask())) == [("b", "none"), ("c", "none")]


@pytest.mark.parametrize("cursor", [("a", -1), ("b", 0)])
async def test_a_bad_cursor_is_refused(client, cursor) -> None:
    assert errors(await client.send(ask("a", cursor=cursor))) == [("a", "invalid_request")]


async def test_a_cursor_beyond_the_end_of_a_topic_goes_on_with_the_next(client) -> None:
    reply = await client.send(ask(cursor=("a", 99)))
    assert [(t.name, len(t.partitions)) for t in reply.topics] == [("a", 0), ("b", 3), ("c", 1)]


async def test_what_may_be_done_is_told_of_a_topic_that_does_not_exist_too(client, deny) -> None:
    deny(("WRITE", "no"))
    (missing, there) = (await client.send(ask("no", "c"))).topics[::-1]
    bits = there.topic_authorized_operations ^ missing.topic_authorized_operations
    assert (missing.error_code.name, bits) == ("unknown_topic_or_partition", 1 << 4)
