"""Metadata: all topics, some topics, new topics."""

import uuid

import pytest
from kio.schema.metadata.v0 import request as v0
from kio.schema.metadata.v10 import request as v10
from kio.schema.metadata.v12 import request as v12

from catchwater.broker import router
from catchwater.broker_config import BrokerConfig
from catchwater.catalog.rows import BrokerRow, BrokerState


def ask(*names, create=True):
    return v12.MetadataRequest(
        topics=tuple(v12.MetadataRequestTopic(name=n, topic_id=None) for n in names),
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
    )


async def test_null_means_all_topics_and_an_empty_list_none(client) -> None:
    await client.log.create_topic("b", 1)
    await client.log.create_topic("a", 2)
    everything = v12.MetadataRequest(topics=None, include_topic_authorized_operations=False)
    reply = await client.send(everything)
    assert [(t.name, len(t.partitions)) for t in reply.topics] == [("a", 2), ("b", 1)]
    assert (await client.send(ask())).topics == ()
    assert len((await client.send(v0.MetadataRequest(topics=()))).topics) == 2


async def test_this_broker_is_the_cluster(client) -> None:
    await client.log.create_topic("a", 1)
    reply = await client.send(ask("a"))
    ((broker,), (topic,)) = (reply.brokers, reply.topics)
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
    assert (reply.controller_id, reply.cluster_id) == (1, "memory")
    (partition,) = topic.partitions
    assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (1, 0, (1,))


async def test_a_missing_topic_is_created_when_both_sides_allow_it(client) -> None:
    (topic,) = (await client.send(ask("new"))).topics
    assert (topic.error_code.name, len(topic.partitions)) == ("none", 2)
    (topic,) = (await client.send(ask("other", create=False))).topics
    assert topic.error_code.name == "unknown_topic_or_partition"
    client.broker.config = BrokerConfig(auto_create_topics_enable=False)
    (topic,) = (await client.send(ask("other"))).topics
    assert topic.error_code.name == "unknown_topic_or_partition"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\x00", "x" * 250])
async def test_an_illegal_name_is_never_created(client, name) -> None:
    (topic,) = (await client.send(ask(name))).topics
    assert topic.error_code.name in ("invalid_topic_exception",)
    assert len(client.log.topics) == 0


async def test_a_name_that_collides_is_never_created(client) -> None:
    await client.log.create_topic("q_1", 1)
    (topic,) = (await client.send(ask("q.1"))).topics
    assert topic.error_code.name == "invalid_topic_exception"
    assert client.log.topics.get("q.1") is None


async def test_topics_are_found_by_id(client) -> None:
    topic = await client.log.create_topic("a", 1)
    for topic_id, name, error in (
        (topic.id, "a", "none"),
        (b"\x09" * 16, None, "unknown_topic_id"),
    ):
        wanted = v12.MetadataRequestTopic(name=None, topic_id=uuid.UUID(bytes=topic_id))
        request = v12.MetadataRequest(topics=(wanted,), include_topic_authorized_operations=False)
        (found,) = (await client.send(request)).topics
        assert (found.name, found.error_code.name) == (name, error)


def row(broker_id: int, zone: str, state: BrokerState = "live") -> BrokerRow:
    return BrokerRow(broker_id, 1, zone, f"host{broker_id}", 9092, "", "object", True, state, 0)


async def test_partitions_are_spread_over_the_brokers_that_stay(client) -> None:
    client.log.rows = [row(1, "a"), row(2, "b"), row(3, "c", "draining")]
    await client.log.create_topic("t", 50)
    reply = await client.send(ask("t"))
    assert [(b.node_id, b.host, b.rack) for b in reply.brokers] == [
        (1, "host1", "a"),
        (2, "host2", "b"),
    ]
    assert {p.leader_id for p in reply.topics[0].partitions} == {1, 2}
    assert reply.controller_id == 1
    client.broker.draining.set()
    reply = await client.send(ask("t"))
    assert {p.leader_id for p in reply.topics[0].partitions} == {2}
    assert reply.controller_id == 2


async def test_a_client_that_names_its_zone_is_kept_there(client) -> None:
    client.log.rows = [row(1, "a"), row(2, "b"), row(3, "b")]
    await client.log.create_topic("t", 50)
    reply = await client.send(ask("t"), client_id="zone=b")
    assert {p.leader_id for p in reply.topics[0].partitions} == {2, 3}
    assert len(reply.brokers) == 3
    assert reply.controller_id in (2, 3)
    client.log.rows = client.log.rows[:1]
    reply = await client.send(ask("t"), client_id="zone=b")
    assert {p.leader_id for p in reply.topics[0].partitions} == {1}


async def test_a_topic_without_a_name_is_refused_where_the_reply_needs_one(client) -> None:
    topic = await client.log.create_topic("a", 1)
    request = v10.MetadataRequest(
        topics=(v10.MetadataRequestTopic(name=None, topic_id=uuid.UUID(bytes=topic.id)),),
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    (answer,) = (await client.send(request)).topics
    assert (answer.name, answer.error_code.name) == ("", "invalid_request")


async def test_who_asks_is_told_what_it_may_do(client, deny) -> None:
    await client.log.create_topic("a", 1)
    deny(("WRITE", "a"), ("ALTER", "kafka-cluster"))
    request = v10.MetadataRequest(
        topics=(v10.MetadataRequestTopic(name="a", topic_id=None),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    reply = await client.send(request)
    sets = (reply.topics[0].topic_authorized_operations, reply.cluster_authorized_operations)
    assert [[bit for bit in range(32) if each >> bit & 1] for each in sets] == [
        [3, 5, 6, 7, 8, 10, 11],
        [5, 8, 10, 11],
    ]
    (topic,) = (await client.send(ask("a"))).topics
    assert topic.topic_authorized_operations == -(2**31)


async def test_no_topic_is_made_for_who_may_not_create_it(client, deny) -> None:
    deny(("CREATE", "a"), ("CREATE", "kafka-cluster"))
    errors = [topic.error_code.name for topic in (await client.send(ask("a", "b"))).topics]
    assert errors == ["topic_authorization_failed", "none"]
    assert [topic.name for topic in client.log.topics] == ["b"]


async def test_thousands_of_topics_are_read_and_written_beside_the_loop(client, is_on_loop) -> None:
    seen = is_on_loop((router, "decode_request"), (router, "_encode"))
    for count in (10, 6_000):
        asked = ask(*(f"name-of-a-topic-{number}" for number in range(count)), create=False)
        assert len((await client.send(asked)).topics) == count
    assert seen == [True, True, False, False]
