"""ApiVersions: the ranges, the client's name, and what old clients cannot read."""

import pytest
from kio.schema.api_versions.v2.request import ApiVersionsRequest as V2
from kio.schema.api_versions.v3.request import ApiVersionsRequest as V3
from kio.schema.api_versions.v4.request import ApiVersionsRequest as V4

from catchwater.broker.api.k18_api_versions import UNANNOUNCED


def named(name: str = "apache-kafka-java", version: str = "4.2.0", of: type = V4):
    return of(client_software_name=name, client_software_version=version)


@pytest.mark.parametrize("request_type", [V2, V3, V4])
async def test_the_table_is_told_in_every_version(client, request_type) -> None:
    request = V2() if request_type is V2 else named(of=request_type)
    reply = await client.send(request)
    told = {k.api_key: (k.min_version, k.max_version) for k in reply.api_keys}
    apis = client.broker.apis.items()
    served = {k: (a.versions[0], a.versions[-1]) for k, a in apis if k not in UNANNOUNCED}
    assert told == served | {0: (0, served[0][1])}


@pytest.mark.parametrize(
    "bad", ["", "-java", "java-", "ja va", "java\n", "ü", "a/b", "x" * 9 + "_"]
)
async def test_a_client_says_its_name_in_plain_letters(client, bad) -> None:
    for request in (named(name=bad), named(version=bad), named(name=bad, of=V3)):
        reply = await client.send(request)
        assert (reply.error_code.name, reply.api_keys) == ("invalid_request", ())
    assert (await client.send(named("x", "1"))).error_code.name == "none"


async def test_levels_that_begin_at_0_are_told_only_to_who_can_read_them(client) -> None:
    old, new = await client.send(named(of=V3)), await client.send(named())
    assert old.supported_features == ()
    assert {f.name: f.max_version for f in new.supported_features}["transaction.version"] == 2
    for reply in (old, new):
        final = {f.name: f.max_version_level for f in reply.finalized_features}
        assert final["transaction.version"] == 2
