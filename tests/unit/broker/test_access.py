"""Users and rules: the verdicts of Kafka's StandardAuthorizer, and the file that has them."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from catchwater.broker import access
from catchwater.broker.access import (
    AccessFileBad,
    Guard,
    Rule,
    Rules,
    change,
    read,
    with_rule,
    with_user,
    without_rules,
)
from catchwater.broker.gate import Operation, Resource, ResourceType
from catchwater.wire.security.verifiers import NotProved, verifiers

TOPIC = ResourceType.TOPIC
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALICE = "User:alice"


def may(rules: list[Rule], operation: Operation, name: str, host: str = "10.0.0.1") -> bool:
    return Rules(rules).may(ALICE, host, operation, Resource(TOPIC, name))


@pytest.mark.parametrize(
    ("rules", "operation", "name", "expected"),
    [
        ([], READ, "t", False),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "t")], READ, "t", True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "t")], WRITE, "t", False),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "t")], READ, "t2", False),
        ([Rule(ALICE, "ALLOW", "READ", ResourceType.GROUP, "t")], READ, "t", False),
        ([Rule("User:bob", "ALLOW", "READ", TOPIC, "t")], READ, "t", False),
        ([Rule("User:*", "ALLOW", "READ", TOPIC, "t")], READ, "t", True),
        ([Rule(ALICE, "ALLOW", "ALL", TOPIC, "t")], WRITE, "t", True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "*")], READ, "any", True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "pay-", "PREFIXED")], READ, "pay-ments", True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "pay-", "PREFIXED")], READ, "pay", False),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "", "PREFIXED")], READ, "pay", True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "*", "PREFIXED")], READ, "pay", False),
        # Implied, where it is allowed.
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "t")], DESCRIBE, "t", True),
        ([Rule(ALICE, "ALLOW", "CREATE", TOPIC, "t")], DESCRIBE, "t", False),
        ([Rule(ALICE, "ALLOW", "ALTER_CONFIGS", TOPIC, "t")],
         Operation.DESCRIBE_CONFIGS, "t", True),
        ([Rule(ALICE, "ALLOW", "DESCRIBE", TOPIC, "t"), Rule(ALICE, "DENY", "READ", TOPIC, "t")],
         DESCRIBE, "t", True),
    ],
)  # fmt: skip
def test_a_rule_that_fits_has_to_allow_it(
    rules: list[Rule], operation: Operation, name: str, expected: bool
) -> None:
    assert may(rules, operation, name) == expected


@pytest.mark.parametrize(
    "denies",
    [
        Rule(ALICE, "DENY", "READ", TOPIC, "t"),
        Rule("User:*", "DENY", "ALL", TOPIC, "t", "PREFIXED"),
        Rule(ALICE, "DENY", "READ", TOPIC, "*"),
        Rule(ALICE, "DENY", "READ", TOPIC, "t", host="10.0.0.1"),
    ],
)
def test_a_rule_that_denies_wins_in_any_order(denies: Rule) -> None:
    allows = Rule(ALICE, "ALLOW", "ALL", TOPIC, "t")
    assert not may([allows, denies], READ, "t")
    assert not may([denies, allows], READ, "t")
    assert may([denies, allows], READ, "t", host="10.0.0.2") == (denies.host != "*")


def test_a_host_counts() -> None:
    rules = [Rule(ALICE, "ALLOW", "READ", TOPIC, "t", host="10.0.0.7")]
    assert may(rules, READ, "t", host="10.0.0.7")
    assert not may(rules, READ, "t", host="10.0.0.8")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "not-there-yet")], True),
        ([Rule(ALICE, "ALLOW", "READ", TOPIC, "t")], False),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "t", host="10.0.0.9")], False),
        ([Rule(ALICE, "ALLOW", "ALL", TOPIC, "pay-", "PREFIXED")], True),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "t"), Rule(ALICE, "DENY", "WRITE", TOPIC, "t")],
         False),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "t"),
          Rule(ALICE, "DENY", "WRITE", TOPIC, "t", "PREFIXED")], False),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "pay-ments"),
          Rule(ALICE, "DENY", "ALL", TOPIC, "pay", "PREFIXED")], False),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "*"), Rule(ALICE, "DENY", "WRITE", TOPIC, "t")],
         True),
        ([Rule(ALICE, "ALLOW", "WRITE", TOPIC, "t"), Rule(ALICE, "DENY", "WRITE", TOPIC, "*")],
         False),
        ([Rule("User:*", "ALLOW", "WRITE", TOPIC, "t")], True),
    ],
)  # fmt: skip
def test_what_may_be_done_with_any_topic_there_or_not(rules: list[Rule], expected: bool) -> None:
    """Kafka's `authorizeByResourceType`, on which a producer's id depends."""
    assert Rules(rules).may_with_any(ALICE, "10.0.0.1", WRITE, TOPIC) == expected


def test_the_file_keeps_users_and_rules_and_no_password(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    rule = Rule(ALICE, "DENY", "READ", TOPIC, "t", "PREFIXED", "10.0.0.1")
    kept = verifiers("a secret")
    change(path, lambda now: with_rule(with_user(now, "alice", kept), rule))
    assert read(path).users == {"alice": kept}
    assert read(path).rules.all == (rule,)
    assert b"a secret" not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    change(path, lambda now: with_user(without_rules(now, lambda r: r == rule), "alice", None))
    assert (read(path).users, read(path).rules.all) == ({}, ())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"users": {"a": {"S": {}}}}', '{"rules": [{"type": "X"}]}']
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "access.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AccessFileBad):
        read(path)


def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    change(path, lambda now: now)
    path.chmod(0o604)
    with pytest.raises(AccessFileBad, match="by everybody"):
        Guard(path, ["User:admin"])


async def test_one_address_that_guesses_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its passwords are checked one by one, in threads that nothing else waits for."""
    goes_on, under_way = threading.Event(), []

    def slow(users: Any, user: str, password: str) -> None:
        assert threading.current_thread().name.startswith("passwords")
        under_way.append(user)
        if user == "guess":
            assert goes_on.wait(60)
            raise NotProved("wrong")

    monkeypatch.setattr(access, "check_password", slow)
    guard = Guard(None, ["User:admin"])
    guesses = [
        asyncio.ensure_future(guard.check_password("guess", str(number), "10.0.0.1"))
        for number in range(100)
    ]
    await asyncio.to_thread(lambda: None)  # of the threads that all else waits for
    await asyncio.wait_for(guard.check_password("alice", "right", "10.0.0.2"), 60)
    assert sorted(under_way) == ["alice", "guess"]
    goes_on.set()
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(each) for each in outcomes} == {NotProved}
    gc.collect()
    assert not guard._by_host, "no address is remembered"


async def test_a_change_bites_where_a_verdict_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    rule = Rule(ALICE, "ALLOW", "READ", TOPIC, "t")
    change(path, lambda now: with_rule(with_user(now, "alice", verifiers("x")), rule))
    guard = Guard(path, ["User:admin"])
    gate, admin = guard.gate(ALICE, "h"), guard.gate("User:admin", "h")
    asked = (READ, Resource(TOPIC, "t"))
    assert gate.may(ALICE, *asked) and gate.may(ALICE, *asked) and admin.may("User:admin", *asked)
    await guard.check_password("alice", "x", "h")
    change(path, lambda now: with_user(without_rules(now, lambda _: True), "alice", None))
    guard.refresh()
    assert not gate.may(ALICE, *asked) and admin.may("User:admin", *asked)
    with pytest.raises(NotProved):
        await guard.check_password("alice", "x", "h")


def test_a_bad_file_leaves_in_force_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    rule = Rule(ALICE, "ALLOW", "READ", TOPIC, "t")
    change(path, lambda now: with_rule(now, rule))
    guard = Guard(path, ["User:admin"])
    path.write_text("{")
    guard.refresh()
    assert guard.gate(ALICE, "h").may(ALICE, READ, Resource(TOPIC, "t"))
    os.unlink(path)
    guard.refresh()
    assert guard.gate(ALICE, "h").may(ALICE, READ, Resource(TOPIC, "t"))
