"""AlterConfigs: a topic has exactly the settings that are named."""

from kio.schema.alter_configs.v2 import request as v2


def alter(
    kind: int, name: str, *configs: tuple[str, str | None], validate_only: bool = False
) -> v2.AlterConfigsRequest:
    resource = v2.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(v2.AlterableConfig(name=n, value=v) for n, v in configs),
    )
    return v2.AlterConfigsRequest(resources=(resource,), validate_only=validate_only)


async def test_what_is_not_named_goes_back_to_its_default(client) -> None:
    await client.log.create_topic("t", 1, {"retention.ms": "5", "segment.ms": "6"})
    reply = await client.send(alter(2, "t", ("segment.ms", "7"), ("flush.ms", "8")))
    (answer,) = reply.responses
    assert (answer.error_code.name, answer.resource_type, answer.resource_name) == ("none", 2, "t")
    assert client.log.topics.get("t").config == {"segment.ms": "7", "flush.ms": "8"}


async def test_one_refused_setting_leaves_all_as_they_were(client) -> None:
    await client.log.create_topic("t", 1, {"retention.ms": "5"})
    for name, value, error in (
        ("retention.ms", "soon", "invalid_config"),
        ("retention.ms", None, "invalid_request"),
        ("no.such", "1", "invalid_config"),
    ):
        (answer,) = (await client.send(alter(2, "t", ("flush.ms", "8"), (name, value)))).responses
        assert (answer.error_code.name, name in answer.error_message) == (error, True)
    assert client.log.topics.get("t").config == {"retention.ms": "5"}


async def test_validation_alone_changes_nothing(client) -> None:
    await client.log.create_topic("t", 1, {"retention.ms": "5"})
    good = alter(2, "t", ("flush.ms", "8"), validate_only=True)
    bad = alter(2, "t", ("flush.ms", "x"), validate_only=True)
    errors = [(await client.send(ask)).responses[0].error_code.name for ask in (good, bad)]
    assert errors == ["none", "invalid_config"]
    assert client.log.topics.get("t").config == {"retention.ms": "5"}
