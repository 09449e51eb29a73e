"""`make differences ARGS="--security"`: who may do what, at Apache Kafka and at our broker.

Users under different rules send every API, in every version that both serve, a request with
something in every field. Where nothing allows what it asks for, all error codes of the replies have
to be equal, and how much the replies list, whether the topic is there or not; elsewhere those of
their errors that are refusals.
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from benchmarks.kafka_peer import apache_kafka
from benchmarks.our_broker import catchwater_broker
from kio.index import load_request_schema
from kio.static.primitive import i32Timedelta
from tests.ports import free_port
from tests.samples import errors, sample, values

from catchwater.broker import acls
from catchwater.broker.access import change, with_user
from catchwater.wire.arrow import encode_batch
from catchwater.wire.connection import Connection, ask
from catchwater.wire.security.verifiers import verifiers
from conformance.differ.requests import request
from conformance.differ.talk import Broker, Talk
from conformance.targets import KAFKA_WITH_ACLS

SASL_HANDSHAKE, SASL_AUTHENTICATE, CREATE_ACLS, DELETE_TOPICS = 17, 36, 30, 20
PRODUCE, METADATA, CREATE_TOPICS = 0, 3, 19
LOGINS = {SASL_HANDSHAKE, SASL_AUTHENTICATE}
PASSWORD = "secret"
SUPER = "super"
NAMED = "sec-"
ABSENT = "-absent"
"""Of a user who may do nothing: asked again about a topic that is not there."""
KINDS = ("TOPIC", "GROUP", "TRANSACTIONAL_ID")
LITERAL, PREFIXED = "LITERAL", "PREFIXED"
Given = tuple[str, str, str, str, str, str]
"""A rule: permission, operation, type, name, pattern, host."""


def _on(permission: str, operation: str, name: str, pattern: str, host: str = "*") -> list[Given]:
    return [(permission, operation, kind, name, pattern, host) for kind in KINDS]


DENIED: dict[str, list[Given]] = {
    "nothing": [],
    "other": _on("ALLOW", "ALL", "other", LITERAL),
    "denied": _on("ALLOW", "ALL", "*", LITERAL) + _on("DENY", "ALL", NAMED, PREFIXED),
    "elsewhere": _on("ALLOW", "ALL", "*", LITERAL, "10.9.9.9"),
}
"""By user; these may do nothing with what they name."""
ALLOWED: dict[str, list[Given]] = {
    "prefix": _on("ALLOW", "ALL", NAMED, PREFIXED),
    "here": _on("ALLOW", "ALL", "*", LITERAL, "127.0.0.1"),
    "reader": _on("ALLOW", "READ", NAMED, PREFIXED),
    "writer": _on("ALLOW", "WRITE", NAMED, PREFIXED),
    "describer": _on("ALLOW", "DESCRIBE", NAMED, PREFIXED),
    "unread": _on("ALLOW", "ALL", NAMED, PREFIXED) + _on("DENY", "READ", "*", LITERAL),
    "cluster": [("ALLOW", "ALL", "CLUSTER", "kafka-cluster", LITERAL, "*")],
}
USERS = DENIED | ALLOWED
REFUSALS = {
    "topic_authorization_failed", "group_authorization_failed", "cluster_authorization_failed",
    "transactional_id_authorization_failed", "security_disabled", "illegal_sasl_state",
}  # fmt: skip
EXPECTED = {
    "ListPartitionReassignments": "Kafka repeats the topics that were asked about beside a refusal",
    "DeleteTopics cluster": "DELETE of the cluster deletes no topic here, nor the audit trail",
    "OffsetForLeaderEpoch cluster": "CLUSTER_ACTION is for brokers among themselves, of which "
    "there is none here",
}
"""By API, or API and user, why the replies differ."""


_OF_BROKERS = {"api_keys", "brokers", "supported_features", "finalized_features", "nodes"}
"""What replies list of the brokers themselves."""


class _User(Broker):
    """A broker as one user asks it."""

    def __init__(self, bootstrap: str, user: str) -> None:
        super().__init__(bootstrap)
        self._user = user

    def _connected(self) -> Connection:
        connection = super()._connected()
        login = f"\0{self._user}\0{PASSWORD}".encode()
        for key, version, given in (
            (SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
            (SASL_AUTHENTICATE, 2, {"auth_bytes": login}),
        ):
            reply = ask(connection, "differ", request(key, version, given))
            assert int(reply.error_code) == 0, reply
        return connection


class Guarded(NamedTuple):
    """A broker with two listeners: one whose clients may do everything, one for users."""

    plain: str
    clients: str


def _settings(port: int) -> dict[str, str]:
    return KAFKA_WITH_ACLS | {
        "listeners": f"PLAINTEXT://127.0.0.1:{{port}},CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "num.partitions": "1",
    }


@contextlib.contextmanager
def _kafka() -> Iterator[Guarded]:
    port = free_port()
    settings = _settings(port)
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings["listeners"] += ",CONTROLLER://127.0.0.1:{controller}"
    settings["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{{port}},CLIENTS://127.0.0.1:{port}"
    settings["listener.name.clients.plain.sasl.jaas.config"] = f"{module} required {users};"
    with apache_kafka(settings) as (bootstrap, _):
        yield Guarded(bootstrap, f"127.0.0.1:{port}")


@contextlib.contextmanager
def _ours() -> Iterator[Guarded]:
    port = free_port()
    settings = {
        key: value.replace("{port}", str(free_port())) for key, value in _settings(port).items()
    }
    kept = verifiers(PASSWORD)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "access.json"
        for user in USERS:
            change(path, lambda now, user=user: with_user(now, user, kept))
        settings["catchwater.access.file"] = str(path)
        keys = {key.replace(".", "_"): value for key, value in settings.items()}
        with catchwater_broker(**keys) as broker:
            yield Guarded(broker.bootstrap, f"127.0.0.1:{port}")


def compare(pattern: str) -> int:
    """Ask both, print what differs without a reason; 1 if something does."""
    from conformance.differ.__main__ import agree_on_versions, api_name

    with contextlib.ExitStack() as stack:
        both = stack.enter_context(_kafka()), stack.enter_context(_ours())
        plain = [Broker(each.plain) for each in both]
        for each in plain:
            stack.callback(each.close)
        agree_on_versions(*plain)
        work = [
            (key, version)
            for key, versions in plain[0].versions.items()
            for version in versions
            if key not in LOGINS and fnmatch(api_name(key), pattern)
        ]
        with ThreadPoolExecutor(2) as pool:
            heard = list(pool.map(lambda at: _answers(both[at], plain[at], work), (0, 1)))
    wrong: Counter[str] = Counter()
    for what, theirs in heard[0].items():
        user, key, version = what
        mine = heard[1][what]
        name = api_name(key)
        if theirs == mine:
            continue
        reason = EXPECTED.get(name) or EXPECTED.get(f"{name} {user}")
        if reason:
            wrong[f"expected: {reason}"] += 1
        else:
            wrong["not explained"] += 1
            print(f"{name} v{version} {user}: Kafka {theirs}, Catchwater {mine}")
    print(f"{len(work)} APIs and versions, {len(USERS) + 1} users: {len(heard[0])} replies each")
    for text, count in sorted(wrong.items()):
        print(f"{count} {text}")
    return 1 if wrong["not explained"] else 0


def _answers(broker: Guarded, plain: Broker, work: list[tuple[int, int]]) -> dict[Any, Any]:
    rules = [(f"User:{user}", *rule) for user, given in USERS.items() for rule in given]
    creations = [
        {
            "principal": principal,
            "permission_type": acls.PERMISSIONS.index(permission),
            "operation": acls.OPERATIONS.index(operation),
            "resource_type": acls.TYPES.index(kind),
            "resource_name": name,
            "resource_pattern_type": acls.PATTERNS.index(pattern),
            "host": host,
        }
        for principal, permission, operation, kind, name, pattern, host in rules
    ]
    made = plain.ask(CREATE_ACLS, plain.versions[CREATE_ACLS][-1], {"creations": creations})
    assert {int(each.error_code) for each in made.results} == {0}, made
    heard: dict[Any, Any] = {}
    for user in (*USERS, SUPER):
        asking = plain if user == SUPER else _User(broker.clients, user)
        asking.versions = plain.versions
        topic = _topic(plain, f"{NAMED}{user}")
        for key, version in work:
            if key == DELETE_TOPICS:
                topic = _topic(plain, f"{NAMED}{user}-{version}")
            own = f"{NAMED}{user}-{key}-{version}"
            message = _message(key, version, topic.name, topic.id or UUID(int=1), own)
            heard[user, key, version] = _seen(user, asking.send(message))
            if key == DELETE_TOPICS:
                topic = _topic(plain, f"{NAMED}{user}-{version}-again")
            elif user in DENIED:
                message = _message(key, version, f"{NAMED}{user}{ABSENT}", UUID(int=2), own)
                heard[f"{user}{ABSENT}", key, version] = _seen(user, asking.send(message))
        if asking is not plain:
            asking.close()
    return heard


def _message(key: int, version: int, topic: str, topic_id: UUID, own: str) -> Any:
    """The request, with something in every field."""
    data = encode_batch([(b"k", b"v", 1_700_000_000_000, ())])
    said = values(
        topic_id.bytes, 4_000, 0, data, topic=topic, group=own, transactional_id=own
    )  # fmt: skip
    said["timeout"] = i32Timedelta.parse(timedelta(seconds=10))
    message = sample(_class_name(key), load_request_schema(key, version), said)
    return _sensible(key, message, own)


def _sensible(key: int, message: Any, own: str) -> Any:
    """The request without what both brokers refuse, or do, for other reasons than rules."""
    if key == PRODUCE:  # the batch is of no transaction, and Kafka asks for the id of one alone
        return replace(message, transactional_id=None)
    if key == CREATE_TOPICS:
        return replace(message, topics=tuple(replace(each, name=own) for each in message.topics))
    if key == METADATA and hasattr(message.topics[0], "topic_id"):
        return replace(
            message, topics=tuple(replace(each, topic_id=None) for each in message.topics)
        )
    return message


def _class_name(key: int) -> str:
    from conformance.differ.__main__ import api_name

    return api_name(key)


def _topic(plain: Broker, name: str) -> Any:
    talk = Talk(plain, "", 3, 0)
    talk._prefix = ""
    return talk.topic(name)


def _seen(user: str, reply: Any) -> Any:
    if isinstance(reply, str):
        return reply
    found = [error for error in errors(reply) if error != "none"]
    if user in DENIED:
        return sorted(Counter(found).items()), dict(_sizes(reply))
    return sorted(set(found) & REFUSALS)


def _sizes(reply: Any) -> Iterator[tuple[str, int]]:
    """How many things a reply lists."""
    for field in fields(reply):
        inside = getattr(reply, field.name)
        if isinstance(inside, tuple) and inside and is_dataclass(inside[0]):
            if field.name not in _OF_BROKERS:
                yield field.name, len(inside)
