"""AlterPartitionReassignments and ListPartitionReassignments: nothing moves."""

from datetime import timedelta

from kio.schema.alter_partition_reassignments.v1 import request as v1
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.static.primitive import i32Timedelta

SECOND = i32Timedelta.parse(timedelta(seconds=1))


def move(*wanted: tuple[str, int, tuple[int, ...] | None]) -> v1.AlterPartitionReassignmentsRequest:
    return v1.AlterPartitionReassignmentsRequest(
        timeout=SECOND,
        topics=tuple(
            v1.ReassignableTopic(
                name=name,
                partitions=(v1.ReassignablePartition(partition_index=index, replicas=replicas),),
            )
            for name, index, replicas in wanted
        ),
    )


async def test_a_partition_stays_where_it_is_told_to_be(client) -> None:
    await client.log.create_topic("t", 1)
    reply = await client.send(
        move(("t", 0, (1,)), ("t", 0, (2,)), ("t", 0, None), ("t", 5, (1,)), ("x", 0, (1,)))
    )
    assert reply.error_code.name == "none"
    assert [topic.partitions[0].error_code.name for topic in reply.responses] == [
        "none",
        "invalid_replica_assignment",
        "no_reassignment_in_progress",
        "unknown_topic_or_partition",
        "unknown_topic_or_partition",
    ]
    reply = await client.send(ListPartitionReassignmentsRequest(timeout=SECOND, topics=None))
    assert (reply.error_code.name, reply.topics) == ("none", ())


async def test_who_may_not_is_told(client, deny_cluster) -> None:
    for ask in (move(), ListPartitionReassignmentsRequest(timeout=SECOND, topics=None)):
        assert (await client.send(ask)).error_code.name == "cluster_authorization_failed"
