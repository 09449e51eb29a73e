"""CreateAcls, DescribeAcls, DeleteAcls and the APIs of SCRAM credentials, over the catalog."""

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.alter_user_scram_credentials import v0 as alter_users
from kio.schema.create_acls import v3 as create
from kio.schema.delete_acls import v3 as delete
from kio.schema.describe_acls import v3 as describe
from kio.schema.describe_user_scram_credentials import v0 as describe_users

from catchwater.broker.access import Guard, Rule, change, with_rule, with_user
from catchwater.broker.acls import OPERATIONS, PATTERNS, PERMISSIONS, TYPES
from catchwater.broker.gate import Operation, Resource, ResourceType
from catchwater.broker_config import LogConfig
from catchwater.log.log import Log
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.security.verifiers import check_password, verifiers

TOPIC = ResourceType.TOPIC
OF_FILE = Rule("User:old", "ALLOW", "READ", TOPIC, "filed")


@pytest.fixture
async def log(tmp_path: Path, client: Any) -> AsyncGenerator[Log]:
    path = tmp_path / "access.json"
    change(path, lambda now: with_rule(with_user(now, "filed", verifiers("x")), OF_FILE))
    broker = client.broker
    broker.log = log = await Log.open(tmp_path, LogConfig(background=False), broker.clock)
    broker.guard = Guard(path, ["User:admin"], log)
    yield log
    await log.close()


def creation(
    kind: str = "TOPIC", name: str = "t", pattern: str = "LITERAL", principal: str = "User:a",
    host: str = "*", operation: str = "READ", permission: str = "ALLOW",
) -> create.request.AclCreation:  # fmt: skip
    return create.request.AclCreation(
        resource_type=TYPES.index(kind),
        resource_name=name,
        resource_pattern_type=PATTERNS.index(pattern),
        principal=principal,
        host=host,
        operation=OPERATIONS.index(operation),
        permission_type=PERMISSIONS.index(permission),
    )


def filtering(
    kind: str = "ANY", name: str | None = None, pattern: str = "ANY", principal: str | None = None,
    host: str | None = None, operation: str = "ANY", permission: str = "ANY",
) -> dict[str, Any]:  # fmt: skip
    return {
        "resource_type_filter": TYPES.index(kind),
        "resource_name_filter": name,
        "pattern_type_filter": PATTERNS.index(pattern),
        "principal_filter": principal,
        "host_filter": host,
        "operation": OPERATIONS.index(operation),
        "permission_type": PERMISSIONS.index(permission),
    }


async def created(client: Any, *creations: create.request.AclCreation) -> list[str]:
    reply = await client.send(create.request.CreateAclsRequest(creations=creations))
    return [each.error_code.name for each in reply.results]


async def described(client: Any, **given: Any) -> list[tuple[str, str, str]]:
    reply = await client.send(describe.request.DescribeAclsRequest(**filtering(**given)))
    assert reply.error_code.name == "none"
    return [
        (
            found.resource_name,
            PATTERNS[found.pattern_type],
            f"{acl.principal} {OPERATIONS[acl.operation]}",
        )
        for found in reply.resources
        for acl in found.acls
    ]


async def test_a_rule_is_made_shown_in_force_and_removed(client: Any, log: Log) -> None:
    guard = client.broker.guard
    gate = guard.gate("User:a", "10.0.0.1")
    asked = ("User:a", Operation.READ, Resource(TOPIC, "t"))
    assert not gate.may(*asked)
    assert await created(client, creation(), creation()) == ["none", "none"]
    assert gate.may(*asked), "in force when answered"
    assert await described(client, name="t") == [("t", "LITERAL", "User:a READ")]
    chosen = delete.request.DeleteAclsFilter(**filtering(principal="User:a"))
    reply = await client.send(delete.request.DeleteAclsRequest(filters=(chosen, chosen)))
    assert [len(each.matching_acls) for each in reply.filter_results] == [1, 1]
    assert not gate.may(*asked)
    assert await described(client, name="t") == []


async def test_another_broker_sees_the_change(client: Any, log: Log) -> None:
    other = Guard(None, ["User:admin"], log)
    gate = other.gate("User:a", "h")
    await created(client, creation(pattern="PREFIXED"))
    other.refresh()
    assert gate.may("User:a", Operation.READ, Resource(TOPIC, "toast"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"filed", "pay", "pay-ments", "*"}),
        ({"name": "pay-ments"}, {"pay-ments"}),
        ({"name": "pay-ments", "pattern": "LITERAL"}, {"pay-ments"}),
        ({"name": "pay-ments", "pattern": "PREFIXED"}, set()),
        ({"name": "pay-ments", "pattern": "MATCH"}, {"pay", "pay-ments", "*"}),
        ({"name": "pay", "pattern": "MATCH"}, {"pay", "*"}),
        ({"pattern": "PREFIXED"}, {"pay"}),
        ({"pattern": "MATCH"}, {"filed", "pay", "pay-ments", "*"}),
        ({"kind": "GROUP"}, set()),
        ({"principal": "User:old"}, {"filed"}),
        ({"host": "1.2.3.4"}, {"*"}),
        ({"operation": "WRITE"}, {"*"}),
        ({"operation": "ALL"}, set()),
        ({"permission": "DENY"}, {"*"}),
    ],
)  # fmt: skip
async def test_a_filter_chooses_as_kafkas(
    client: Any, log: Log, given: dict[str, Any], expected: set[str]
) -> None:
    await created(
        client,
        creation(name="pay", pattern="PREFIXED"),
        creation(name="pay-ments"),
        creation(name="*", host="1.2.3.4", operation="WRITE", permission="DENY"),
    )
    assert {name for name, _, _ in await described(client, **given)} == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "ANY"}, {"pattern": "ANY"}, {"pattern": "MATCH"}, {"operation": "ANY"},
        {"permission": "ANY"}, {"name": ""}, {"kind": "CLUSTER"}, {"principal": "alice"},
        {"principal": "User:a\0"}, {"name": "x" * 2_000},
    ],
)  # fmt: skip
async def test_a_rule_that_cannot_be_is_refused_alone(
    client: Any, log: Log, bad: dict[str, str]
) -> None:
    assert await created(client, creation(**bad), creation()) == ["invalid_request", "none"]


async def test_unknown_elements_end_the_connection(client: Any, log: Log) -> None:
    with pytest.raises(MalformedMessage, match="UNKNOWN"):
        await created(client, creation(operation="UNKNOWN"))
    with pytest.raises(MalformedMessage, match="UNKNOWN"):
        chosen = delete.request.DeleteAclsFilter(**filtering(pattern="UNKNOWN"))
        await client.send(delete.request.DeleteAclsRequest(filters=(chosen,)))


async def test_a_flood_of_rules_is_refused(
    client: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.broker.acls.MOST_RULES", 3)
    many = [creation(name=f"t{number}") for number in range(4)]
    assert await created(client, *many) == ["policy_violation"] * 4
    assert await created(client, *many[:3]) == ["none"] * 3


async def test_a_rule_of_the_file_stays_and_says_so(client: Any, log: Log) -> None:
    chosen = delete.request.DeleteAclsFilter(**filtering())
    reply = await client.send(delete.request.DeleteAclsRequest(filters=(chosen,)))
    [matching] = reply.filter_results[0].matching_acls
    assert (matching.error_code.name, matching.resource_name) == ("invalid_request", "filed")
    assert [name for name, _, _ in await described(client)] == ["filed"]


async def test_without_super_users_there_are_no_rules(client: Any, log: Log) -> None:
    client.broker.guard = None
    assert await created(client, creation()) == ["security_disabled"]
    assert log.access().rules == []


def upsertion(name: str, password: str, **more: Any) -> Any:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    given = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted} | more
    return alter_users.request.ScramCredentialUpsertion(name=name, **given)


async def altered(client: Any, upsertions: Any = (), deletions: Any = ()) -> dict[str, str]:
    gone = [alter_users.request.ScramCredentialDeletion(name=n, mechanism=m) for n, m in deletions]
    reply = await client.send(
        alter_users.request.AlterUserScramCredentialsRequest(
            deletions=tuple(gone), upsertions=tuple(upsertions)
        )
    )
    return {each.user: each.error_code.name for each in reply.results}


async def shown(client: Any, *names: str) -> dict[str, tuple[str, list[tuple[int, int]]]]:
    users = tuple(describe_users.request.UserName(name=name) for name in names)
    reply = await client.send(
        describe_users.request.DescribeUserScramCredentialsRequest(users=users or None)
    )
    return {
        each.user: (
            each.error_code.name,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in reply.results
    }


async def test_a_user_is_made_shown_and_removed(client: Any, log: Log) -> None:
    guard = client.broker.guard
    assert await altered(client, [upsertion("ann", "pw")]) == {"ann": "none"}
    check_password(guard.access.users, "ann", "pw")
    assert await shown(client, "ann", "bob") == {
        "ann": ("none", [(1, 4096)]), "bob": ("resource_not_found", []),
    }  # fmt: skip
    assert set(await shown(client)) == {"ann", "filed"}
    assert await altered(client, deletions=[("ann", 1)]) == {"ann": "none"}
    assert "ann" not in guard.access.users


@pytest.mark.parametrize(
    ("name", "more", "error"),
    [
        ("", {}, "unacceptable_credential"),
        ("ann", {"mechanism": 9}, "unsupported_sasl_mechanism"),
        ("ann", {"iterations": 4095}, "unacceptable_credential"),
        ("ann", {"iterations": 16385}, "unacceptable_credential"),
        ("ann", {"salt": b""}, "unacceptable_credential"),
        ("ann", {"salted_password": b"x"}, "unacceptable_credential"),
        ("filed", {}, "unacceptable_credential"),
    ],
)
async def test_a_password_that_cannot_be_is_refused_alone(
    client: Any, log: Log, name: str, more: dict[str, Any], error: str
) -> None:
    bad = upsertion(name, "pw", **more)
    assert await altered(client, [bad, upsertion("bob", "pw")]) == {name: error, "bob": "none"}
    assert {row.name for row in log.access().verifiers} == {"bob"}


async def test_a_user_is_altered_once_a_request(client: Any, log: Log) -> None:
    twice = [upsertion("ann", "pw"), upsertion("ann", "other")]
    assert await altered(client, twice) == {"ann": "duplicate_resource"}
    assert await altered(client, deletions=[("ann", 1)]) == {"ann": "resource_not_found"}
    assert (await shown(client, "ann", "ann"))["ann"][0] == "duplicate_resource"
