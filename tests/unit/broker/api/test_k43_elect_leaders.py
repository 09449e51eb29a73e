"""ElectLeaders: there is never anything to elect."""

from datetime import timedelta

import pytest
from kio.schema.elect_leaders.v0 import request as v0
from kio.schema.elect_leaders.v2 import request as v2
from kio.static.primitive import i32Timedelta

SECOND = i32Timedelta.parse(timedelta(seconds=1))


def elect(*topics: tuple[str, tuple[int, ...]], kind: int = 0) -> v2.ElectLeadersRequest:
    asked = tuple(v2.TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics)
    return v2.ElectLeadersRequest(
        election_type=kind, topic_partitions=asked or None, timeout=SECOND
    )


def answers(reply) -> list[tuple[str, int, str]]:
    return [
        (topic.topic, each.partition_id, each.error_code.name)
        for topic in reply.replica_election_results
        for each in topic.partition_result
    ]


@pytest.mark.parametrize("kind", [0, 1])
async def test_no_election_is_needed(client, kind) -> None:
    await client.log.create_topic("t", 1)
    reply = await client.send(elect(("t", (0, 7)), ("x", (0,)), kind=kind))
    assert reply.error_code.name == "none"
    assert answers(reply) == [
        ("t", 0, "election_not_needed"),
        ("t", 7, "unknown_topic_or_partition"),
        ("x", 0, "unknown_topic_or_partition"),
    ]
    assert answers(await client.send(elect(kind=kind))) == []


async def test_the_first_version_knows_no_kinds(client) -> None:
    await client.log.create_topic("t", 1)
    asked = (v0.TopicPartitions(topic="t", partitions=(0,)),)
    reply = await client.send(v0.ElectLeadersRequest(topic_partitions=asked, timeout=SECOND))
    assert answers(reply) == [("t", 0, "election_not_needed")]


async def test_an_unknown_kind_is_refused(client) -> None:
    assert (await client.send(elect(kind=2))).error_code.name == "invalid_request"


async def test_who_may_not_is_told(client, deny_cluster) -> None:
    reply = await client.send(elect(("t", (0,))))
    assert reply.error_code.name == "cluster_authorization_failed"
    assert answers(reply) == [("t", 0, "cluster_authorization_failed")]
