"""DescribeAcls: what Kafka answers without an authorizer."""

import pytest
from kio.schema.describe_acls import v1, v3

from catchwater.wire.fields import MalformedMessage

ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


async def test_acls_are_said_not_to_be_in_use(client) -> None:
    for version in (v1, v3):
        reply = await client.send(version.request.DescribeAclsRequest(**ANY))
        assert (reply.error_code.name, reply.resources) == ("security_disabled", ())
        assert "No authorizer" in reply.error_message


@pytest.mark.parametrize(
    "field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]
)
async def test_a_filter_of_an_unknown_kind_ends_the_connection(client, field) -> None:
    with pytest.raises(MalformedMessage, match="UNKNOWN"):
        await client.send(v3.request.DescribeAclsRequest(**ANY | {field: 0}))
