"""DescribeQuorum: one broker is the quorum, all others watch."""

from dataclasses import replace

import pytest
from kio.schema.describe_quorum.v0.request import DescribeQuorumRequest as AskV0
from kio.schema.describe_quorum.v2 import request as v2

from catchwater.catalog.rows import BrokerRow


def ask(name: str, index: int = 0) -> v2.DescribeQuorumRequest:
    partition = v2.PartitionData(partition_index=index)
    return v2.DescribeQuorumRequest(
        topics=(v2.TopicData(topic_name=name, partitions=(partition,)),)
    )


@pytest.mark.parametrize("asked", [1, 2])
async def test_one_broker_is_the_only_voter_whoever_is_asked(client, asked) -> None:
    client.broker.config = replace(client.broker.config, node_id=asked)
    client.log.rows = [
        BrokerRow(number, 1, "", "h", 9000 + number, "", "object", True, "live", 9)
        for number in (1, 2)
    ]
    reply = await client.send(ask("__cluster_metadata"))
    ((partition,),) = [topic.partitions for topic in reply.topics]
    assert (reply.error_code.name, partition.error_code.name) == ("none", "none")
    assert (partition.leader_id, partition.high_watermark) == (1, 0)
    assert [each.replica_id for each in partition.current_voters] == [1]
    assert [each.replica_id for each in partition.observers] == [2]
    assert [(node.node_id, node.listeners[0].port) for node in reply.nodes] == [(1, 9001)]


async def test_no_other_partition_has_a_quorum(client) -> None:
    for asked in (ask("t"), ask("__cluster_metadata", 1)):
        ((partition,),) = [topic.partitions for topic in (await client.send(asked)).topics]
        assert partition.error_code.name == "unknown_topic_or_partition"
        assert (partition.leader_id, partition.current_voters) == (-1, ())


async def test_who_may_not_is_told(client, deny_cluster) -> None:
    for asked in (ask("__cluster_metadata"), AskV0(topics=())):
        assert (await client.send(asked)).error_code.name == "cluster_authorization_failed"
