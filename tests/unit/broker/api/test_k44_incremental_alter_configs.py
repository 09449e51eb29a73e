"""IncrementalAlterConfigs: single settings change, and who and what may not is told."""

import pytest
from kio.schema.incremental_alter_configs.v1 import request as v1

from catchwater.catalog.errors import CatalogUnavailable

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(
    kind: int, name: str, *changes: tuple[int, str, str | None]
) -> v1.AlterConfigsResource:
    return v1.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            v1.AlterableConfig(config_operation=operation, name=key, value=value)
            for operation, key, value in changes
        ),
    )


def ask(
    *resources: v1.AlterConfigsResource, validate_only: bool = False
) -> v1.IncrementalAlterConfigsRequest:
    return v1.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


async def errors(client, *resources: v1.AlterConfigsResource) -> list[str]:
    return [r.error_code.name for r in (await client.send(ask(*resources))).responses]


async def test_single_settings_are_set_and_deleted(client) -> None:
    await client.log.create_topic("t", 1, {"retention.ms": "5", "segment.ms": "6"})
    changes = [(SET, "flush.ms", "1"), (DELETE, "segment.ms", None), (DELETE, "flush.messages", "")]
    assert await errors(client, resource(TOPIC, "t", *changes)) == ["none"]
    assert client.log.topics.get("t").config == {"retention.ms": "5", "flush.ms": "1"}


@pytest.mark.parametrize(
    ("had", "operation", "value", "has"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "delete,compact", "compact,delete"),
        ("compact, delete", SUBTRACT, "compact", "delete"),
        ("delete", SUBTRACT, "compact", "delete"),
        (None, SUBTRACT, "delete", ""),
    ],
)
async def test_lists_grow_and_shrink_and_the_same_again_changes_nothing(
    client, had, operation, value, has
) -> None:
    await client.log.create_topic("t", 1, {"cleanup.policy": had} if had else {})
    change = resource(TOPIC, "t", (operation, "cleanup.policy", value))
    for _ in range(2):
        assert await errors(client, change) == ["none"]
        assert client.log.topics.get("t").config == {"cleanup.policy": has}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((SET, "retention.ms", "soon"), "invalid_config"),
        ((SET, "retention.ms", "1" * 1_000_000), "invalid_config"),
        ((SET, "k" * 30_000, "1"), "invalid_config"),
        ((SET, "retention.ms", None), "invalid_request"),
        ((APPEND, "retention.ms", "1"), "invalid_config"),
        ((APPEND, "no.such", "1"), "invalid_config"),
        ((APPEND, "cleanup.policy", "x"), "invalid_config"),
        ((DELETE, "no.such", None), "invalid_config"),
        ((9, "retention.ms", "1"), "invalid_request"),
    ],
)
async def test_one_refused_change_leaves_all_as_it_was(client, change, error) -> None:
    await client.log.create_topic("t", 1, {"flush.ms": "1"})
    wanted = resource(TOPIC, "t", (SET, "segment.ms", "7"), change)
    (answer,) = (await client.send(ask(wanted))).responses
    assert answer.error_code.name == error
    assert 0 < len(answer.error_message) < 1_200
    assert client.log.topics.get("t").config == {"flush.ms": "1"}


async def test_resources_and_settings_are_named_once(client) -> None:
    await client.log.create_topic("t", 1)
    twice = resource(TOPIC, "t", (SET, "flush.ms", "1"))
    assert await errors(client, twice, twice) == ["invalid_request"] * 2
    both = resource(TOPIC, "t", (SET, "flush.ms", "1"), (DELETE, "flush.ms", None))
    assert await errors(client, both) == ["invalid_request"]
    assert client.log.topics.get("t").config == {}


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "x", "unknown_topic_or_partition"),
        (BROKER, "1", "invalid_request"),
        (BROKER, "", "invalid_request"),
        (BROKER, "7", "invalid_request"),
        (LOGGER, "1", "invalid_request"),
        (METRICS, "m", "invalid_request"),
        (GROUP, "g", "invalid_config"),
        (99, "", "invalid_request"),
    ],
)
async def test_what_is_no_topic_is_refused_by_name(client, kind, name, error) -> None:
    wanted = resource(kind, name, (SET, "num.partitions", "3"))
    if kind == TOPIC:
        wanted = resource(kind, name, (SET, "flush.ms", "3"))
    (answer,) = (await client.send(ask(wanted))).responses
    assert (answer.error_code.name, bool(answer.error_message)) == (error, True)


async def test_no_change_of_this_broker_is_done(client) -> None:
    assert await errors(client, resource(BROKER, "1")) == ["none"]
    nothing_to_delete = (DELETE, "leader.replication.throttled.rate", None)
    assert await errors(client, resource(BROKER, "1", nothing_to_delete)) == ["none"]
    assert await errors(client, resource(BROKER, "2", nothing_to_delete)) == ["invalid_request"]


async def test_who_may_not_is_told_and_nothing_is_changed(client, deny) -> None:
    await client.log.create_topic("t", 1)
    deny(*(("ALTER_CONFIGS", name) for name in ("t", "x", "g", "kafka-cluster")))
    change = (SET, "flush.ms", "1")
    wanted = [(TOPIC, "t"), (TOPIC, "x"), (GROUP, "g"), (BROKER, "1")]
    assert await errors(client, *(resource(kind, name, change) for kind, name in wanted)) == [
        "topic_authorization_failed",
        "topic_authorization_failed",
        "group_authorization_failed",
        "cluster_authorization_failed",
    ]
    assert client.log.topics.get("t").config == {}


async def test_a_catalog_out_of_reach_makes_a_client_ask_again(client, monkeypatch) -> None:
    await client.log.create_topic("t", 1)

    async def away(name: str, alter: object) -> None:
        raise CatalogUnavailable("It is away.")

    monkeypatch.setattr(client.log, "alter_topic_config", away)
    wanted = resource(TOPIC, "t", (SET, "flush.ms", "1"))
    assert await errors(client, wanted) == ["kafka_storage_error"]
