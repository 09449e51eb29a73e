"""DescribeConfigs, DescribeCluster, InitProducerId, FindCoordinator, DeleteTopics."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.delete_topics.v6 import request as delete_v6
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_configs.v4 import request as v4
from kio.schema.find_coordinator.v1.request import FindCoordinatorRequest as FindOne
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest as FindMany
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_v4
from kio.static.primitive import i32Timedelta

from catchwater.broker.api import k32_describe_configs
from catchwater.catalog.errors import CatalogFull, CatalogUnavailable

SECOND = i32Timedelta.parse(timedelta(seconds=1))


def describe(kind: int, name: str, *keys: str) -> v4.DescribeConfigsRequest:
    resource = v4.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    return v4.DescribeConfigsRequest(resources=(resource,))


async def test_the_brokers_settings_lead_to_the_control_api(client) -> None:
    client.broker.control_url = "http://127.0.0.1:1"
    (result,) = (await client.send(describe(4, "1", "catchwater.control.url"))).results
    assert [(c.name, c.value) for c in result.configs] == [
        ("catchwater.control.url", "http://127.0.0.1:1")
    ]
    (result,) = (await client.send(describe(4, "1"))).results
    values = {c.name: c.value for c in result.configs}
    assert values["num.partitions"] == "2"
    assert values["auto.create.topics.enable"] == "true"
    assert values["listeners"] == "PLAINTEXT://127.0.0.1:9092"


async def test_a_topics_settings_show_where_they_come_from(client) -> None:
    await client.log.create_topic("t", 1, {"retention.ms": "5"})
    (result,) = (await client.send(describe(2, "t"))).results
    found = {c.name: (c.value, c.config_source) for c in result.configs}
    assert found["retention.ms"] == ("5", 1)
    assert found["cleanup.policy"] == ("delete", 5)


async def test_the_resources_of_a_request_have_a_bound(client, monkeypatch) -> None:
    monkeypatch.setattr(k32_describe_configs, "MAX_RESOURCES", 2)
    (one,) = describe(4, "1", "num.partitions").resources
    results = (await client.send(v4.DescribeConfigsRequest(resources=(one,) * 3))).results
    assert [r.error_code.name for r in results] == ["none", "none", "invalid_request"]


async def test_synonyms_and_documentation_are_told_to_who_asks(client) -> None:
    client.broker.config = replace(client.broker.config, log_retention_ms=9)
    await client.log.create_topic("t", 1, {"retention.ms": "5"})
    ask = describe(2, "t", "retention.ms", "retention.bytes", "flush.ms")
    (result,) = (await client.send(ask)).results
    assert {(c.synonyms, c.documentation) for c in result.configs} == {((), None)}
    ask = replace(ask, include_synonyms=True, include_documentation=True)
    (result,) = (await client.send(ask)).results
    assert {c.name: [(s.name, s.value, s.source) for s in c.synonyms] for c in result.configs} == {
        "flush.ms": [("flush.ms", str(2**63 - 1), 5)],
        "retention.bytes": [("log.retention.bytes", "-1", 5)],
        "retention.ms": [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "9", 4),
            ("log.retention.ms", "604800000", 5),
        ],
    }
    assert all(c.documentation and not c.read_only for c in result.configs)


async def test_what_may_hold_a_password_is_not_told(client) -> None:
    url = "postgresql://u:hush@h/d"
    client.broker.config = replace(client.broker.config, catchwater_catalog=url)
    ask = replace(describe(4, "1"), include_synonyms=True)
    (result,) = (await client.send(ask)).results
    (catalog,) = [c for c in result.configs if c.name == "catchwater.catalog"]
    assert (catalog.value, catalog.is_sensitive, catalog.config_source) == (None, True, 4)
    assert "hush" not in str(result)


async def test_the_level_of_the_log_is_told(client) -> None:
    (result,) = (await client.send(describe(8, "1"))).results
    (level,) = result.configs
    assert (level.name, level.value, level.config_source) == ("root", "WARNING", 6)
    (result,) = (await client.send(describe(8, "2"))).results
    assert result.error_code.name == "invalid_request"


async def test_groups_and_client_metrics_have_no_settings(client) -> None:
    for kind in (16, 32):
        (result,) = (await client.send(describe(kind, "x"))).results
        assert (result.error_code.name, result.configs) == ("none", ())
        (result,) = (await client.send(describe(kind, ""))).results
        assert result.error_code.name == "invalid_request"


async def test_settings_are_told_to_who_may_know_them(client, deny) -> None:
    await client.log.create_topic("t", 1)
    deny(*(("DESCRIBE_CONFIGS", name) for name in ("t", "x", "g", "kafka-cluster")))
    denied = {2: ("t", "x"), 4: ("1",), 32: ("g",)}
    errors = [
        (await client.send(describe(kind, name))).results[0].error_code.name
        for kind, names in denied.items()
        for name in names
    ]
    assert errors == ["topic_authorization_failed"] * 2 + [
        "cluster_authorization_failed",
        "group_authorization_failed",
    ]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (2, "x", "unknown_topic_or_partition"),
        (2, "", "invalid_topic_exception"),
        (2, "a/b", "invalid_topic_exception"),
        (4, "7", "invalid_request"),
        (99, "", "invalid_request"),
    ],
)
async def test_what_is_not_there_is_not_described(client, kind, name, error) -> None:
    (result,) = (await client.send(describe(kind, name))).results
    assert (result.error_code.name, result.configs) == (error, ())


async def test_the_cluster_is_this_broker(client) -> None:
    ask = DescribeClusterRequest(include_cluster_authorized_operations=False)
    reply = await client.send(ask)
    assert (reply.cluster_id, [b.port for b in reply.brokers]) == ("memory", [9092])
    controllers = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=2
    )
    assert (await client.send(controllers)).error_code.name == "mismatched_endpoint_type"
    reply = await client.send(DescribeClusterRequest(include_cluster_authorized_operations=True))
    bits = [bit for bit in range(32) if reply.cluster_authorized_operations >> bit & 1]
    assert (reply.controller_id, bits) == (1, [5, 7, 8, 10, 11])


async def test_producer_ids_are_given_once(client) -> None:
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout=SECOND)
    first, second = await client.send(ask), await client.send(ask)
    assert (first.error_code.name, first.producer_epoch) == ("none", 0)
    assert first.producer_id != second.producer_id


async def test_a_full_disk_makes_a_producer_ask_again(client, monkeypatch) -> None:
    async def full() -> int:
        raise CatalogFull("No space.")

    monkeypatch.setattr(client.log, "allocate_producer_id", full)
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout=SECOND)
    assert (await client.send(ask)).error_code.name == "coordinator_not_available"


async def test_every_group_and_transactional_id_is_coordinated_here(client) -> None:
    one = await client.send(FindOne(key="g", key_type=0))
    assert (one.node_id, one.port) == (1, 9092)
    many = await client.send(FindMany(key_type=0, coordinator_keys=("a", "b")))
    assert [(c.key, c.node_id) for c in many.coordinators] == [("a", 1), ("b", 1)]
    (txn,) = (await client.send(FindMany(key_type=1, coordinator_keys=("x",)))).coordinators
    assert (txn.error_code.name, txn.node_id) == ("none", 1)
    (share,) = (await client.send(FindMany(key_type=2, coordinator_keys=("x",)))).coordinators
    assert share.error_code.name == "invalid_request"


async def test_topics_are_deleted_by_name_or_id(client) -> None:
    by_id = await client.log.create_topic("b", 1)
    await client.log.create_topic("a", 1)
    wanted = [("a", None), (None, uuid.UUID(bytes=by_id.id)), ("x", None), (None, uuid.UUID(int=9))]
    request = delete_v6.DeleteTopicsRequest(
        topics=tuple(delete_v6.DeleteTopicState(name=n, topic_id=i) for n, i in wanted),
        timeout=SECOND,
    )
    reply = await client.send(request)
    assert [(r.name, r.error_code.name) for r in reply.responses] == [
        ("a", "none"),
        ("b", "none"),
        ("x", "unknown_topic_or_partition"),
        (None, "unknown_topic_id"),
    ]
    assert len(client.log.topics) == 0


async def test_who_may_not_delete_a_topic_learns_of_it_only_by_its_name(client, deny) -> None:
    topic = await client.log.create_topic("a", 1)
    deny(("DELETE", "a"), ("DELETE", "x"))
    wanted = [("a", None), (None, uuid.UUID(bytes=topic.id)), ("x", None), ("y", None), ("y", None)]
    request = delete_v6.DeleteTopicsRequest(
        topics=tuple(delete_v6.DeleteTopicState(name=n, topic_id=i) for n, i in wanted),
        timeout=SECOND,
    )
    found = [(r.name, r.error_code.name) for r in (await client.send(request)).responses]
    assert found == [
        ("a", "topic_authorization_failed"),
        ("a", "topic_authorization_failed"),
        ("x", "topic_authorization_failed"),
        ("y", "invalid_request"),
    ]
    deny(("DELETE", "a"), ("DESCRIBE", "a"))
    hidden = (await client.send(request)).responses[1]
    assert (hidden.name, hidden.error_code.name) == (None, "unknown_topic_id")
    assert len(client.log.topics) == 1


async def test_the_only_leader_epoch_ends_at_the_high_watermark(client) -> None:
    await client.log.create_topic("t", 1)
    partition = epoch_v4.OffsetForLeaderPartition
    request = epoch_v4.OffsetForLeaderEpochRequest(
        topics=(
            epoch_v4.OffsetForLeaderTopic(
                topic="t",
                partitions=(
                    partition(partition=0, leader_epoch=0),
                    partition(partition=0, leader_epoch=3),
                    partition(partition=9, leader_epoch=0),
                ),
            ),
        ),
    )
    (topic,) = (await client.send(request)).topics
    assert [(p.error_code.name, p.leader_epoch, p.end_offset) for p in topic.partitions] == [
        ("none", 0, 0),
        ("none", -1, -1),
        ("unknown_topic_or_partition", -1, -1),
    ]

    async def out_of_reach(_: object) -> None:
        raise CatalogUnavailable("no answer")

    client.log.refresh = out_of_reach  # what this broker knows may be less than the client read
    (topic,) = (await client.send(request)).topics
    assert {p.error_code.name for p in topic.partitions} == {"kafka_storage_error"}
