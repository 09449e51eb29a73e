"""What is served and what is not, over every API and version of the table."""

from pathlib import Path

import pytest
from kio.index import load_request_schema
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest

from catchwater.broker import router
from catchwater.broker.api import k18_api_versions
from catchwater.broker.broker import Broker
from catchwater.broker.router import APIS, NotServed, coverage_table, start
from catchwater.broker.topic_config import settings_table
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.messages import decode_reply, encode_request

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"

SERVED = [(key, version) for key, api in sorted(APIS.items()) for version in api.versions]


def test_every_api_is_served_in_one_way() -> None:
    for api in APIS.values():
        assert (api.handle is None) != (api.start is None)
        assert load_request_schema(api.key, api.versions[0])
        assert load_request_schema(api.key, api.versions[-1])


def test_the_page_on_the_protocol_is_current() -> None:
    assert coverage_table() in PAGE.read_text()
    assert settings_table() in PAGE.read_text()


async def test_an_unknown_version_of_api_versions_is_answered_in_v0(client) -> None:
    data = await client.send_bytes(b"\x00\x12\x00\x63\x00\x00\x00\x07\x00\x01c\x00rest")
    correlation_id, reply = decode_reply(18, 0, memoryview(data))
    assert correlation_id == 7
    assert isinstance(reply, ApiVersionsResponse)
    assert reply.error_code.name == "unsupported_version"
    assert {a.api_key for a in reply.api_keys} == set(APIS) - k18_api_versions.UNANNOUNCED


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (0, 2), (1, 99), (27, 0), (4, 0)])
async def test_what_is_not_in_the_table_is_refused(client, broker: Broker, key, version) -> None:
    frame = client.frame(
        key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(6)
    )
    with pytest.raises(NotServed):
        start(broker, frame, "h")


@pytest.mark.parametrize(("key", "version"), SERVED)
async def test_a_request_cut_short_anywhere_is_malformed_or_complete(
    client, broker: Broker, key, version
) -> None:
    """Arrays announced with nothing behind them, headers cut in half: never another exception."""
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\x00\x01c"
    for body in (b"", b"\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f" * 3, b"\x01" * 64):
        data = head + body
        for size in range(1, len(data) + 1):
            try:
                later = start(broker, client.frame(data[:size]), "h")
            except MalformedMessage:
                continue
            later.cancel()


def many_groups(count: int) -> bytes:
    request = DescribeGroupsRequest(groups=("g",) * count, include_authorized_operations=False)
    return b"".join(encode_request(7, "c", request))


async def test_a_large_request_is_decoded_and_its_reply_encoded_beside_the_loop(
    client, is_on_loop
) -> None:
    seen = is_on_loop((router, "decode_request"), (router, "encode_reply"))
    for count in (10, 40_000):
        _, reply = decode_reply(15, 5, memoryview(await client.send_bytes(many_groups(count))))
        assert len(reply.groups) == count
    assert seen == [True, True, False, False]


async def test_a_large_reply_to_a_small_request_is_encoded_beside_the_loop(
    client, broker: Broker, is_on_loop
) -> None:
    for number in range(200):
        await broker.log.create_topic(f"t{number}", 1)
    wanted = tuple(
        describe_configs.DescribeConfigsResource(
            resource_type=2, resource_name=f"t{number}", configuration_keys=None
        )
        for number in range(200)
    )
    seen = is_on_loop((router, "encode_reply"))
    for resources in (wanted[:1], wanted):
        reply = await client.send(describe_configs.DescribeConfigsRequest(resources=resources))
        assert len(reply.results) == len(resources)
    assert seen == [True, False]


async def test_a_large_request_that_is_malformed_gives_its_memory_back(client) -> None:
    frame = client.frame(many_groups(40_000)[:-1])
    later = start(client.broker, frame, "10.0.0.1")
    with pytest.raises(MalformedMessage):
        await client.reply(later)
    assert frame.arena.holders == 0


@pytest.mark.parametrize(
    "values", [{"protocol_typ": ""}, {"members": [{"member_id": "m", "metadta": b""}]}]
)
def test_a_misspelt_field_of_a_reply_is_an_error(values) -> None:
    known = {
        "error_code": 0,
        "generation_id": 1,
        "protocol_name": "",
        "leader": "",
        "member_id": "",
    }
    assert router.reply(11, 0, known | {"protocol_type": "consumer"})  # only later versions have it
    with pytest.raises(AssertionError, match="has no"):
        router.reply(11, 0, known | values)
