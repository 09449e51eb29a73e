"""CreateTopics: what is made, and every reason not to."""

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.create_topics.v7 import request as v7

from catchwater.catalog.rows import BrokerRow
from catchwater.log.topic_settings import Policy

PLACED = {"partitions": -1, "replicas": -1}


def create(*topics: dict[str, Any], validate_only: bool = False) -> v7.CreateTopicsRequest:
    return v7.CreateTopicsRequest(
        topics=tuple(
            v7.CreatableTopic(
                name=t.get("name", "t"),
                num_partitions=t.get("partitions", 1),
                replication_factor=t.get("replicas", 1),
                assignments=tuple(
                    v7.CreatableReplicaAssignment(partition_index=i, broker_ids=ids)
                    for i, ids in t.get("assignments", ())
                ),
                configs=tuple(
                    v7.CreatableTopicConfig(name=n, value=v) for n, v in t.get("configs", ())
                ),
            )
            for t in topics
        ),
        validate_only=validate_only,
    )


def errors(reply) -> list[str]:
    return [t.error_code.name for t in reply.topics]


async def test_a_topic_is_made_as_asked(client) -> None:
    reply = await client.send(create({"partitions": 3, "configs": [("retention.ms", "5")]}))
    (made,) = reply.topics
    assert (made.error_code.name, made.num_partitions, made.replication_factor) == ("none", 3, 1)
    topic = client.log.topics.get("t")
    assert made.topic_id.bytes == topic.id
    assert (topic.partitions, topic.config) == (3, {"retention.ms": "5"})


async def test_minus_one_means_the_brokers_default(client) -> None:
    await client.send(create({"partitions": -1, "replicas": -1}))
    assert client.log.topics.get("t").partitions == 2


async def test_a_manual_assignment_to_this_broker_is_taken(client) -> None:
    wanted = {"partitions": -1, "replicas": -1, "assignments": [(0, (1,)), (1, (1,))]}
    assert errors(await client.send(create(wanted))) == ["none"]
    assert client.log.topics.get("t").partitions == 2


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"name": "a/b"}, "invalid_topic_exception"),
        ({"name": ".."}, "invalid_topic_exception"),
        ({"partitions": 0}, "invalid_partitions"),
        ({"partitions": -2}, "invalid_partitions"),
        ({"partitions": 1_000_000}, "invalid_partitions"),
        ({"replicas": 99}, "invalid_replication_factor"),
        (PLACED | {"assignments": [(1, (1,))]}, "invalid_replica_assignment"),
        (PLACED | {"assignments": [(0, (1, 2))]}, "invalid_replica_assignment"),
        (PLACED | {"assignments": [(0, (1, 1))]}, "invalid_replica_assignment"),
        (PLACED | {"assignments": [(0, ())]}, "invalid_replica_assignment"),
        ({"assignments": [(0, (1,))]}, "invalid_request"),
        ({"replicas": 0}, "invalid_replication_factor"),
        ({"replicas": 2}, "invalid_replication_factor"),
        ({"configs": [("min.insync.replicas", "2")]}, "invalid_config"),
        ({"configs": [("remote.storage.enable", "true")]}, "invalid_config"),
        ({"configs": [("leader.replication.throttled.replicas", "1:2,3")]}, "invalid_config"),
        ({"configs": [("preallocate", "yes")]}, "invalid_config"),
        ({"configs": [("flush.messages", "0")]}, "invalid_config"),
        ({"configs": [("retention.ms", "1" * 100_000)]}, "invalid_config"),
        ({"configs": [("retention.msx", "1")]}, "invalid_config"),
        ({"configs": [("retention.ms", "soon")]}, "invalid_config"),
        ({"configs": [("retention.ms", None)]}, "invalid_config"),
        ({"configs": [("retention.ms", "-2")]}, "invalid_config"),
        ({"configs": [("retention.ms", "9" * 30)]}, "invalid_config"),
        ({"configs": [("cleanup.policy", "compress")]}, "invalid_config"),
        ({"configs": [("cleanup.policy", "compact,compact")]}, "invalid_config"),
        ({"configs": [("cleanup.policy", "compact,")]}, "invalid_config"),
        ({"configs": [("min.cleanable.dirty.ratio", "1.1")]}, "invalid_config"),
        ({"configs": [("min.cleanable.dirty.ratio", "nan")]}, "invalid_config"),
        ({"configs": [("delete.retention.ms", "-1")]}, "invalid_config"),
    ],
)
async def test_what_cannot_be_is_refused_and_not_made(client, wanted, error) -> None:
    (refused,) = (await client.send(create(wanted))).topics
    assert refused.error_code.name == error
    assert 0 < len(refused.error_message) < 500
    assert len(client.log.topics) == 0


async def test_a_topic_is_made_once(client) -> None:
    (refused,) = (await client.send(create({}, {}))).topics
    assert (refused.error_code.name, refused.configs) == ("invalid_request", ())
    assert errors(await client.send(create({}))) == ["none"]
    assert errors(await client.send(create({}))) == ["topic_already_exists"]


async def test_validation_alone_makes_nothing(client) -> None:
    (valid,) = (await client.send(create({}, validate_only=True))).topics
    assert (valid.error_code.name, valid.topic_id is None) == ("none", False)
    assert len(client.log.topics) == 0


async def test_a_topic_may_keep_everything(client) -> None:
    assert errors(await client.send(create({"configs": [("cleanup.policy", "")]}))) == ["none"]
    policy = Policy(5, 5).of(client.log.topics.get("t"))
    assert (policy.retention_ms, policy.retention_bytes, policy.compacts) == (-1, -1, False)


async def test_a_topic_may_be_compacted(client) -> None:
    configs = [
        ("cleanup.policy", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("min.compaction.lag.ms", "5"),
        ("delete.retention.ms", "7"),
    ]
    assert errors(await client.send(create({"configs": configs}))) == ["none"]
    assert client.log.topics.get("t").config == dict(configs)


async def test_what_kafkas_own_tools_set_is_taken(client) -> None:
    streams = [("segment.bytes", "52428800"), ("segment.ms", "600000"), ("retention.ms", "-1")]
    connect = [("cleanup.policy", "compact"), ("min.insync.replicas", "1")]
    others = [
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.after.max.ms", str(2**63 - 1)),
        ("unclean.leader.election.enable", "false"),
        ("leader.replication.throttled.replicas", "0:1,1:1"),
        ("follower.replication.throttled.replicas", "*"),
        ("flush.messages", "1"),
    ]
    configs = [*streams, *connect, *others]
    (made,) = (await client.send(create({"configs": configs}))).topics
    assert made.error_code.name == "none"
    told = {c.name: (c.value, c.config_source) for c in made.configs}
    assert told["segment.bytes"] == ("52428800", 1)
    assert told["segment.index.bytes"] == ("10485760", 5)


async def test_a_topic_may_be_served_by_as_many_brokers_as_there_are(client) -> None:
    client.log.rows = [
        BrokerRow(number, 1, "", "h", 9000 + number, "", "object", True, "live", 9)
        for number in (1, 2, 3)
    ]
    client.broker.config = replace(client.broker.config, catchwater_catalog="postgresql://h/d")
    wanted = {"replicas": 3, "configs": [("min.insync.replicas", "2")]}
    placed = PLACED | {"name": "u", "assignments": [(0, (2, 3)), (1, (1,))]}
    assert errors(await client.send(create(wanted, placed))) == ["none", "none"]
    assert errors(await client.send(create({"name": "v", "replicas": 4}))) == [
        "invalid_replication_factor"
    ]


async def test_who_may_not_make_a_topic_is_told_so(client, deny) -> None:
    deny(("CREATE", "secret"), ("CREATE", "kafka-cluster"), ("DESCRIBE_CONFIGS", "open"))
    reply = await client.send(create({"name": "secret"}, {"name": "open"}))
    assert errors(reply) == ["topic_authorization_failed", "none"]
    assert [t.topic_config_error_code for t in reply.topics] == [0, 29]
    assert [topic.name for topic in client.log.topics] == ["open"]


@pytest.mark.parametrize("validate_only", [True, False])
async def test_names_that_differ_in_dots_and_underscores_alone_collide(
    client, validate_only
) -> None:
    await client.send(create({"name": "q_1"}))
    reply = await client.send(create({"name": "q.1"}, validate_only=validate_only))
    assert errors(reply) == ["invalid_topic_exception"]
    assert "q.1 collides with q_1" in reply.topics[0].error_message
    both = create({"name": "a.b"}, {"name": "a_b"})
    assert errors(await client.send(both)) == ["none", "invalid_topic_exception"]
