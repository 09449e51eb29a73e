"""ListConfigResources: what has settings."""

from kio.schema.list_config_resources.v0.request import ListConfigResourcesRequest as AskV0
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest as AskV1

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def listed(client, *kinds: int) -> list[tuple[int, str]]:
    reply = await client.send(AskV1(resource_types=kinds))
    assert reply.error_code.name == "none"
    return [(each.resource_type, each.resource_name) for each in reply.config_resources]


async def test_topics_and_brokers_are_listed(client) -> None:
    await client.log.create_topic("t", 1)
    assert await listed(client) == [(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1")]
    assert await listed(client, TOPIC, METRICS) == [(TOPIC, "t")]
    assert await listed(client, METRICS, GROUP) == []


async def test_the_first_version_asks_for_client_metrics_alone(client) -> None:
    await client.log.create_topic("t", 1)
    reply = await client.send(AskV0())
    assert (reply.error_code.name, reply.config_resources) == ("none", ())


async def test_an_unknown_kind_and_who_may_not_are_told(client, deny_cluster) -> None:
    denied = await client.send(AskV1(resource_types=()))
    assert denied.error_code.name == "cluster_authorization_failed"
    client.broker.gate = type("All", (), {"may": lambda *asked: True})()
    assert (await client.send(AskV1(resource_types=(3,)))).error_code.name == "unsupported_version"
