"""`kafka-consumer-groups` and `kafka-groups`."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer

from conformance.suites.tools.cases import case, read, records, topic
from conformance.suites.tools.jvm import Said, Tools, Wrong

WAIT_S = 30.0


def _group_that_read(tools: Tools, name: str, count: int = 10, *arguments: str) -> None:
    """A topic with records, and a group of the same name that has read them and is gone."""
    topic(tools, name)
    records(tools, name, count)
    got = read(tools, name, "--from-beginning", "--group", name, "--max-messages", str(count),
               *arguments)  # fmt: skip
    if got != [f"v{n}" for n in range(count)]:
        raise Wrong(f"the group read {got}")


def _describe(tools: Tools, name: str, *arguments: str) -> Said:
    return tools("consumer-groups", "--describe", "--group", name, *arguments)


@case
def groups_list(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    tools("consumer-groups", "--list").tells(f"^{name}$")
    tools("consumer-groups", "--list", "--state").tells(rf"^{name} +Empty *$")
    tools("consumer-groups", "--list", "--state", "stable").tells().lacks(name)
    tools("consumer-groups", "--list", "--type").tells(rf"^{name} +Classic *$")
    tools.bare("groups", "--bootstrap-server", tools.bootstrap, "--list").tells(
        rf"^{name} +Classic +consumer *$"
    )


@case
def groups_describe(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    _describe(tools, name).tells(rf"^{name} +{name} +0 +10 +10 +0 +-", "has no active members")
    _describe(tools, name, "--state").tells(rf"^{name} +127.0.0.1:\d+ +\(1\) +- +Empty +0$")
    _describe(tools, name, "--members").tells("has no active members")
    tools("consumer-groups", "--describe", "--all-groups").tells(rf"^{name} +{name} +0 +10 +10 ")
    _describe(tools, f"{name}-none").complains("GroupIdNotFoundException")


@case
def groups_of_the_new_protocol(tools: Tools, name: str) -> None:
    protocol = ["--command-property", "group.protocol=consumer"]
    _group_that_read(tools, name, 10, *protocol)
    tools("consumer-groups", "--list", "--type", "consumer").tells(rf"^{name} +Consumer *$")
    _describe(tools, name).tells(rf"^{name} +{name} +0 +10 +10 +0 +-")
    _describe(tools, name, "--state", "--verbose").tells(rf"^{name} .*\(1\) .* Empty ")


def _reset(tools: Tools, name: str, *how: str) -> Said:
    reset = ["--reset-offsets", "--group", name, "--topic", name]
    return tools("consumer-groups", *reset, *how, "--execute")


def _moved(tools: Tools, name: str, to: int, *how: str) -> None:
    _reset(tools, name, *how).tells(rf"^{name} +{name} +0 +{to} *$")
    _describe(tools, name).tells(rf"^{name} +{name} +0 +{to} +10 +{10 - to} ")


@case
def groups_reset_to_offsets(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    _moved(tools, name, 0, "--to-earliest")
    _moved(tools, name, 10, "--to-latest")
    _moved(tools, name, 4, "--to-offset", "4")
    _moved(tools, name, 7, "--shift-by", "3")
    _moved(tools, name, 5, "--shift-by", "-2")
    _moved(tools, name, 5, "--to-current")
    _moved(tools, name, 10, "--to-offset", "99")
    again = read(tools, name, "--group", name, within_ms=3000)
    if again:
        raise Wrong(f"the group read {again} from the end")
    _moved(tools, name, 8, "--to-offset", "8")
    again = read(tools, name, "--group", name, "--max-messages", "2")
    if again != ["v8", "v9"]:
        raise Wrong(f"the group read {again} from offset 8")


@case
def groups_reset_to_times(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    _moved(tools, name, 0, "--by-duration", "PT1H")
    later = datetime.now(UTC) + timedelta(days=1)
    _moved(tools, name, 10, "--to-datetime", later.strftime("%Y-%m-%dT%H:%M:%S.000"))
    earlier = later - timedelta(days=2)
    _moved(tools, name, 0, "--to-datetime", earlier.strftime("%Y-%m-%dT%H:%M:%S.000"))


@case
def groups_reset_from_a_file(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    reset = ["consumer-groups", "--reset-offsets", "--group", name, "--all-topics"]
    tools(*reset, "--to-earliest", "--export", "--dry-run").tells(rf'^"?{name}"?,0,0$')
    path = tools.folder / f"{name}.csv"
    path.write_text(f"{name},0,6\n")
    tools(*reset, "--from-file", str(path), "--execute").tells(rf"^{name} +{name} +0 +6 *$")
    _describe(tools, name).tells(rf"^{name} +{name} +0 +6 +10 +4 ")


@case
def groups_reset_only_planned(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    reset = ["--reset-offsets", "--group", name, "--topic", f"{name}:0", "--to-earliest"]
    tools("consumer-groups", *reset, "--dry-run").tells(rf"^{name} +{name} +0 +0 *$")
    _describe(tools, name).tells(rf"^{name} +{name} +0 +10 +10 +0 ")


@case
def groups_delete_offsets(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    other = f"{name}-other"
    topic(tools, other)
    tools("consumer-groups", "--reset-offsets", "--group", name, "--topic", other, "--to-latest",
          "--execute").tells()  # fmt: skip
    delete = ["consumer-groups", "--delete-offsets", "--group", name, "--topic", name]
    tools(*delete).tells("Request succeeded", rf"^{name} +0 +Successful *$")
    _describe(tools, name).tells(rf"^{name} +{other} +0 +0 ").lacks(rf"^{name} +{name} ")


@case
def groups_delete(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    deleted = tools("consumer-groups", "--delete", "--group", name)
    deleted.tells(rf"Deletion of requested consumer groups \('{name}'\) was successful")
    tools("consumer-groups", "--list").tells().lacks(f"^{name}$")
    again = tools("consumer-groups", "--delete", "--group", name)
    again.complains("could not be deleted", "GroupIdNotFoundException")


@case
def groups_without_positions_stay(tools: Tools, name: str) -> None:
    _group_that_read(tools, name)
    delete = ["consumer-groups", "--delete-offsets", "--group", name, "--topic", name]
    tools(*delete).tells("Request succeeded")
    tools("consumer-groups", "--list").tells(f"^{name}$")


@contextlib.contextmanager
def _member(tools: Tools, name: str, protocol: str) -> Iterator[None]:
    """A member that has the one partition of a topic of the group's name. Raises `Wrong`."""
    topic(tools, name)
    records(tools, name, 10)
    settings = {"bootstrap.servers": tools.bootstrap, "group.id": name, "client.id": "one",
                "group.protocol": protocol, "auto.offset.reset": "earliest"}  # fmt: skip
    consumer = Consumer(settings)
    try:
        consumer.subscribe([name])
        deadline = time.monotonic() + WAIT_S
        while consumer.poll(1.0) is None:
            if time.monotonic() > deadline:
                raise Wrong(f"a member of protocol {protocol} read nothing")
        consumer.commit(asynchronous=False)
        yield
    finally:
        consumer.close()


def _with_a_member(tools: Tools, name: str, protocol: str) -> None:
    """What is told of a group that has a member, and what may not be done to it."""
    with _member(tools, name, protocol):
        _describe(tools, name).tells(rf"^{name} +{name} +0 +1 +10 +9 +\S+ +/?127.0.0.1 +one *$")
        _describe(tools, name, "--state").tells(rf"^{name} .*\(1\) +\S+ +Stable +1$")
        _describe(tools, name, "--members").tells(rf"^{name} +\S+ +/?127.0.0.1 +one +1 *$")
        _describe(tools, name, "--members", "--verbose").tells(rf"^{name} .* one +1 .*{name}")
        tools("consumer-groups", "--list", "--state", "stable").tells(f"^{name} ")
        _reset(tools, name, "--to-earliest").complains(
            "is inactive, but the current state is Stabl"
        )
        delete = ["consumer-groups", "--delete", "--group", name]
        tools(*delete).complains("could not be deleted", "GroupNotEmptyException")
        delete = ["consumer-groups", "--delete-offsets", "--group", name, "--topic", name]
        tools(*delete).complains("GroupSubscribedToTopicException")
        _describe(tools, name).tells(rf"^{name} +{name} +0 +1 +10 +9 ")


@case
def groups_with_a_member(tools: Tools, name: str) -> None:
    _with_a_member(tools, name, "classic")


@case
def groups_with_a_member_of_the_new_protocol(tools: Tools, name: str) -> None:
    _with_a_member(tools, name, "consumer")
