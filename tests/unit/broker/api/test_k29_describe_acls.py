"""DescribeAcls: what Kafka answers without an authorizer."""

from kio.schema.describe_acls import v1, v3


async def test_acls_are_said_not_to_be_in_use(client) -> None:
    fields = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for version in (v1, v3):
        reply = await client.send(version.request.DescribeAclsRequest(**fields))
        assert (reply.error_code.name, reply.resources) == ("security_disabled", ())
        assert "No authorizer" in reply.error_message
