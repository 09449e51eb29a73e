"""Our own broker with TLS, users and rules, under librdkafka, kafka-python and our own readers."""

import asyncio
import base64
import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import KioIndexError, load_request_schema
from tests.certificates import certificate
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import COMMAND_ITSELF, until
from tests.samples import control_paths, sample, values

from catchwater.audit import AUDIT_TOPIC, lines_of, verify
from catchwater.broker.access import Rule, change, with_rule, with_rules, with_user, without_rules
from catchwater.broker.gate import ResourceType
from catchwater.broker.router import APIS
from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError
from catchwater.replay.control import Control, logged_in
from catchwater.replay.options import parse_options
from catchwater.replay.plan import OffsetRange
from catchwater.replay.source import BatchReader
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client, TopicDenied
from catchwater.wire.connection import ConnectionLost, Connections, ask, parse_bootstrap
from catchwater.wire.security.sasl import LoginFailed
from catchwater.wire.security.verifiers import verifiers

TOPIC = ResourceType.TOPIC
RULES = [
    Rule("User:alice", "ALLOW", "ALL", TOPIC, "alices-", "PREFIXED"),
    Rule("User:alice", "ALLOW", "ALL", ResourceType.GROUP, "alices-", "PREFIXED"),
    Rule("User:alice", "DENY", "READ", TOPIC, "alices-sealed"),
    Rule("User:alice", "ALLOW", "DESCRIBE_CONFIGS", ResourceType.CLUSTER, "kafka-cluster"),
]
USERS = {"admin": "root", "alice": "secret", "bob": "other"}
KEPT = {user: verifiers(password) for user, password in USERS.items()}
"""The same in all tests: another verifier is another password, which ends connections."""


class Secured:
    """A broker that listens with SASL_SSL and https, and its file of users and rules."""

    def __init__(self, make_broker: Callable[..., Any], folder: Path) -> None:
        self.pem, self.ca = certificate(folder)
        self.access = folder / "access.json"
        self.reset()
        self.broker = make_broker(start=False)
        self.broker.settings |= {
            "listeners": f"SASL_SSL://127.0.0.1:{self.broker.settings['listeners'].rpartition(':')[2]}",
            "catchwater.control.listener": "https://127.0.0.1:0",
            "ssl.keystore.location": str(self.pem),
            "catchwater.access.file": str(self.access),
            "super.users": "User:admin",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        }
        self.broker.start(*COMMAND_ITSELF)
        self.bootstrap = self.broker.bootstrap

    def reset(self) -> None:
        def decide(now: Any) -> Any:
            for user, kept in KEPT.items():
                now = with_user(now, user, kept)
            now = without_rules(now, lambda _: True)
            for rule in RULES:
                now = with_rule(now, rule)
            return now

        change(self.access, decide)

    def settings(self, user: str, mechanism: str = "SCRAM-SHA-512", **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": USERS.get(user, "none"),
            "ssl.ca.location": str(self.ca),
        } | more


@pytest.fixture(scope="module")
def secured(make_broker, tmp_path_factory) -> Secured:
    return Secured(make_broker, tmp_path_factory.mktemp("secured"))


@pytest.fixture(autouse=True)
def _as_at_first(secured: Secured) -> Iterator[None]:
    yield
    secured.reset()


def produced(secured: Secured, topic: str, count: int, **settings: str) -> list[int]:
    """The error of each record, 0 if it was taken."""
    errors: list[int] = []
    producer = Producer(settings | {"message.timeout.ms": str(int(DEADLINE_S * 1000))})
    for number in range(count):
        producer.produce(
            topic, b"v%d" % number, on_delivery=lambda e, _: errors.append(e.code() if e else 0)
        )
    assert producer.flush(DEADLINE_S) == 0
    return errors


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_logs_in_and_gets_back_what_it_wrote(secured: Secured, mechanism: str) -> None:
    topic, settings = f"alices-{mechanism.lower()}", secured.settings("alice", mechanism)
    assert produced(secured, topic, 2_000, **settings) == [0] * 2_000
    consumer = Consumer(settings | {"group.id": "alices-g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < 2_000 and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(500, 0.1)]
    consumer.close()
    assert values == [b"v%d" % number for number in range(2_000)]


def test_the_first_request_after_a_login_may_be_a_large_one(secured: Secured) -> None:
    """librdkafka's is a Produce; before a login there are small frames only."""
    settings = secured.settings("alice", **{"message.max.bytes": "2000000"})
    errors: list[Any] = []
    producer = Producer(settings | {"message.timeout.ms": "20000"})
    producer.produce("alices-large", bytes(900_000), on_delivery=lambda e, _: errors.append(e))
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_is_refused(secured: Secured, mechanism: str, user: str) -> None:
    errors: list[KafkaError] = []
    settings = secured.settings(user, mechanism, **{"sasl.password": "wrong"})
    client = AdminClient(settings | {"error_cb": errors.append})  # type: ignore[dict-item]
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    deadline = time.monotonic() + DEADLINE_S
    while KafkaError._AUTHENTICATION not in [each.code() for each in errors]:
        assert time.monotonic() < deadline, errors
        client.poll(0.1)


def test_what_no_rule_allows_is_denied(secured: Secured) -> None:
    assert produced(secured, "others", 1, **secured.settings("alice")) == [
        KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    assert produced(secured, "others", 1, **secured.settings("admin")) == [0]
    assert produced(secured, "alices-sealed", 1, **secured.settings("alice")) == [0]
    consumer = Consumer(secured.settings("alice", **{"group.id": "alices-g"}))
    consumer.assign([TopicPartition("alices-sealed", 0, 0)])
    message = consumer.poll(DEADLINE_S)
    consumer.close()
    assert message is not None and message.error() is not None
    assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    topics = AdminClient(secured.settings("bob")).list_topics(timeout=DEADLINE_S).topics
    assert not topics, "nobody is told of what they may not see"


async def test_aiokafka_logs_in(secured: Secured) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    settings = {
        "bootstrap_servers": secured.bootstrap, "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
        "ssl_context": ssl.create_default_context(cafile=str(secured.ca)),
    }  # fmt: skip
    expected = [b"v%d" % number for number in range(100)]
    async with AIOKafkaProducer(**settings) as producer:
        for value in expected:
            await producer.send("alices-aio", value)
    more = {"group_id": "alices-a", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("alices-aio", **more, **settings) as consumer:
        got = [(await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value for _ in expected]
    assert got == expected


def test_our_reader_asks_for_plans_by_its_user(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.ca))
    assert produced(secured, "alices-ours", 50, **secured.settings("alice")) == [0] * 50

    def read(user: str) -> list[bytes]:
        options = {f"kafka.{key}": value for key, value in secured.settings(user).items()}
        more = {"subscribe": "alices-ours", "catchwater.read": "direct"}
        reader = BatchReader(parse_options(options | more))
        return [
            value
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for value in batch.column("value").to_pylist()
        ]

    assert sorted(read("alice")) == sorted(b"v%d" % number for number in range(50))
    change(secured.access, lambda now: with_rule(
        now, Rule("User:alice", "DENY", "READ", TOPIC, "alices-ours")
    ))  # fmt: skip
    url = logged_in(secured.broker.control_url, "alice", "secret")

    def is_denied() -> bool:
        try:
            Control(url, timeout_s=DEADLINE_S).plan([OffsetRange("alices-ours", 0, 0, 1)])
        except TopicDenied as denied:
            assert "may not READ topic alices-ours" in str(denied)
            return True
        return False

    until(is_denied)


def test_a_rule_and_a_user_that_are_gone_end_what_is_under_way(secured: Secured) -> None:
    assert produced(secured, "alices-live", 1, **secured.settings("alice")) == [0]
    options = {f"kafka.{key}": value for key, value in secured.settings("alice").items()}
    security = parse_options(options | {"subscribe": "t"}).security
    place = ("alices-live", 0)
    with Client(secured.bootstrap, security=security, timeout_s=10.0) as client:

        def ends_with(error: type[Exception]) -> bool:
            try:
                client.fetch({place: 0}, max_wait_ms=100)
            except (TopicDenied, LoginFailed) as met:
                return isinstance(met, error)
            return False

        assert not ends_with(TopicDenied)
        denied = Rule("User:alice", "DENY", "READ", TOPIC, "alices-live")
        change(secured.access, lambda now: with_rule(now, denied))
        until(lambda: ends_with(TopicDenied))
        change(
            secured.access,
            lambda now: with_user(without_rules(now, lambda r: r == denied), "alice", None),
        )
        until(lambda: ends_with(LoginFailed))
        secured.reset()
        until(lambda: not ends_with(LoginFailed))  # the broker has seen it before another test


def at_work(secured: Secured) -> float:
    """How many requests of Kafka clients have begun and have no reply yet."""
    status, found = asked(secured, "admin", "GET", "/metrics")
    assert status == 200
    seconds = {
        "catchwater_request_queue_seconds_count": 0.0,
        "catchwater_request_seconds_count": 0.0,
    }
    for line in found.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if (name := name.partition("{")[0]) in seconds:
            seconds[name] += float(value)
    begun, ended = seconds.values()
    return begun - ended


def test_a_fetch_that_waits_brings_nothing_to_who_is_gone_meanwhile(secured: Secured) -> None:
    """B11, for the longest request there is: its rules would still let it read."""
    bobs = Rule("User:bob", "ALLOW", "ALL", TOPIC, "bobs-", "PREFIXED")
    change(secured.access, lambda now: with_rule(now, bobs))
    place = ("bobs-late", 0)
    until(lambda: produced(secured, place[0], 1, **secured.settings("bob")) == [0])
    met: list[Any] = []

    def wait_for_more() -> None:
        security = _security(secured.settings("bob"))
        with Client(secured.bootstrap, security=security, timeout_s=DEADLINE_S) as client:
            try:
                met.append(client.fetch({place: 1}, max_wait_ms=30_000))
            except CatchwaterError as error:
                met.append(error)

    waiting = threading.Thread(target=wait_for_more)
    waiting.start()
    until(lambda: at_work(secured) > 0)
    change(secured.access, lambda now: with_user(now, "bob", None))

    def is_refused() -> bool:
        try:
            with Client(
                secured.bootstrap, security=_security(secured.settings("bob")), timeout_s=5.0
            ) as client:
                client.metadata()
        except LoginFailed:
            return True
        return False

    until(is_refused)
    assert not met, "it still waits"
    assert produced(secured, place[0], 1, **secured.settings("admin")) == [0]
    waiting.join(DEADLINE_S)
    assert isinstance(met[0], LoginFailed), met


def asked(
    secured: Secured, user: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    """The control API's answer to one request."""
    if user:
        login = f"{user}:{USERS[user]}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(login).decode()
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        secured.broker.control_url + path, data, headers, method=method
    )
    context = ssl.create_default_context(cafile=str(secured.ca))
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_where_a_request_comes_from_is_not_what_it_says(secured: Secured) -> None:
    """Rules for a host, and the audit trail, are about the connection's other end."""
    anybody = ("User:ANONYMOUS", "ALLOW", "DESCRIBE")
    there = Rule(*anybody, ResourceType.CLUSTER, "kafka-cluster", host="10.9.9.9")
    probe = Rule(*anybody, TOPIC, "probe")
    change(secured.access, lambda now: with_rules(now, [there, probe]))
    until(lambda: asked(secured, "", "GET", "/api/v1/topics/probe")[0] == 404)
    told = {"X-Forwarded-For": "10.9.9.9", "X-Real-IP": "10.9.9.9", "Forwarded": "for=10.9.9.9"}
    assert asked(secured, "", "GET", "/api/v1/cluster", **told)[0] == 401
    folder = secured.broker.data_dir / "audit"

    def refused_at() -> set[str]:
        lines = [msgspec.json.decode(data) for _, data in lines_of(folder)]
        return {each["host"] for each in lines if each["resource"] == "/api/v1/cluster"}

    until(refused_at)
    assert refused_at() == {"127.0.0.1"}


class Tenant:
    """What belongs to alice: names that begin with hers, and contents that nobody else may see."""

    NAME, CONTENT = "alices-mk4711", "mk0815"

    def __init__(self, secured: Secured) -> None:
        self.secured = secured
        own = secured.settings("alice", **{"client.id": self.CONTENT})
        lasting = {"transactional.id": self.NAME, "transaction.timeout.ms": "600000"}
        producer = Producer(own | lasting)
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        marked = {"value": self.CONTENT, "key": self.CONTENT, "headers": {"h": self.CONTENT}}
        producer.produce(self.NAME, **marked)
        self.consumer = Consumer(own | {"group.id": self.NAME, "enable.auto.commit": "false"})
        self.consumer.subscribe([self.NAME])
        place = TopicPartition(self.NAME, 0, 1, self.CONTENT)
        until(lambda: self.consumer.poll(0.1) is not None or self.consumer.assignment())
        producer.send_offsets_to_transaction(
            [place], self.consumer.consumer_group_metadata(), DEADLINE_S
        )
        producer.commit_transaction(DEADLINE_S)
        producer.begin_transaction()  # one that stays open
        producer.produce(self.NAME, **marked)
        producer.flush(DEADLINE_S)
        self.producer = producer
        positions = [{"topic": self.NAME, "partition": 0, "offset": 0}]
        pin = {"owner": self.CONTENT, "positions": positions}
        verdict = {"state": "ok", "reason": self.CONTENT, "next": self.CONTENT}
        report = {"name": self.NAME, "correct": verdict, "recoverable": verdict, "fresh": verdict}
        for path, body in (
            (f"/api/v1/pins/{self.NAME}", pin),
            (f"/api/v1/sinks/{self.NAME}/s/epochs/1", {"topic": self.NAME, "staged": []}),
            (f"/api/v1/pipelines/{self.NAME}/report", report),
        ):
            status, text = asked(secured, "alice", "PUT", path, body)
            assert status == 200, (path, text)
        _, text = asked(secured, "alice", "GET", f"/api/v1/topics/{self.NAME}")
        self.topic_id = UUID(json.loads(text)["id"])

    def requests(self) -> Iterator[tuple[str, Any, bool]]:
        """Every API and version, about what is hers by name (True), and about all there is."""
        data = encode_batch([(b"k", b"v", 1_700_000_000_000, ())])
        said = values(
            self.topic_id.bytes, 4_000, 0, data, topic=self.NAME, group=self.NAME,
            transactional_id=self.NAME,
        )  # fmt: skip
        for key, api in APIS.items():
            for version in api.versions if key not in (17, 36) else ():
                try:
                    schema = load_request_schema(key, version)
                except KioIndexError:
                    continue
                message = sample(api.name, schema, said)
                yield f"{api.name} v{version}", message, True
                for field in fields(message):
                    if isinstance(getattr(message, field.name), tuple):
                        for nothing in (None, ()):
                            less = replace(message, **{field.name: nothing})
                            yield (
                                f"{api.name} v{version} {field.name}",
                                less,
                                self.NAME in repr(less),
                            )

    def paths(self) -> Iterator[str]:
        """All paths of the control port, with her names, and those that list."""
        yield from control_paths(self.NAME)
        yield f"/history?plot=lag&of={self.NAME}"
        yield f"/api/v1/groups/{self.NAME}/reset?to=earliest"

    def close(self) -> None:
        self.consumer.close()
        self.producer.commit_transaction(DEADLINE_S)


@pytest.mark.slow
def test_of_two_tenants_neither_finds_what_is_the_other_s(secured: Secured) -> None:
    """Bob may do everything with what begins with his name, and asks for all there is."""
    kinds = (TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    hers = Rule("User:alice", "ALLOW", "ALL", kinds[2], "alices-", "PREFIXED")
    his = [Rule("User:bob", "ALLOW", "ALL", kind, "bobs-", "PREFIXED") for kind in kinds]
    change(secured.access, lambda now: with_rules(now, [hers, *his]))
    until(lambda: produced(secured, "bobs-own", 1, **secured.settings("bob")) == [0])
    alice = Tenant(secured)
    name, content = alice.NAME, alice.CONTENT
    address = parse_bootstrap(secured.bootstrap)[0]
    security = _security(secured.settings("bob"))
    connections = Connections(
        secured.bootstrap, client_id="bob", timeout_s=DEADLINE_S, clock=SYSTEM, security=security
    )
    found: list[str] = []
    asked_for = 0
    for what, message, is_named in alice.requests():
        try:
            told = repr(ask(connections.to(address), "bob", message))
        except ConnectionLost:
            connections.drop(address)
            continue
        except (AttributeError, TypeError, ValueError):  # a field that cannot be empty
            continue
        asked_for += 1
        if content in told or (name in told and not is_named):
            found.append(what)
    connections.close()
    assert asked_for > 300
    for path in alice.paths():
        for method, accept, body in (
            ("GET", "text/html", None), ("GET", "application/json", None),
            ("POST", "*/*", {}), ("PUT", "*/*", {}), ("DELETE", "*/*", None),
        ):  # fmt: skip
            _, text = asked(secured, "bob", method, path, body, Accept=accept)
            told = text.decode()
            if content in told or (name in told and name not in path):
                found.append(f"{method} {path}")
    assert not found
    _, text = asked(secured, "alice", "GET", "/api/v1/pins")
    assert content in text.decode(), "hers is still there, and shown to her"
    assert [p.offset for p in alice.consumer.committed([TopicPartition(name, 0)])] == [1]
    alice.close()
    assert "Traceback" not in secured.broker.log()


def encrypted(secured: Secured) -> ssl.SSLSocket:
    host, _, port = secured.bootstrap.partition(":")
    context = ssl.create_default_context(cafile=str(secured.ca))
    plain = socket.create_connection((host, int(port)), DEADLINE_S)
    return context.wrap_socket(plain, server_hostname=host)


def test_nothing_but_a_login_is_answered_before_one(secured: Secured) -> None:
    """B7: every key; ApiVersions and SaslHandshake are answered, all others end the connection."""
    answered = set()
    for key in range(100):
        with encrypted(secured) as connection:
            head = struct.pack(">hhih", key, 1, 7, -1)
            body = struct.pack(">h", 5) + b"PLAIN" if key == 17 else b""
            connection.sendall(struct.pack(">i", len(head + body)) + head + body)
            try:
                if connection.recv(4):
                    answered.add(key)
            except OSError:
                pass
    assert answered == {17, 18}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kcat_logs_in_with_an_old_librdkafka(secured: Secured, mechanism: str) -> None:
    """Debian's: it wants SaslHandshake v0 to be listed, and repeats its nonce in the last step."""

    def kcat(user: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        settings = secured.settings(user, mechanism)
        del settings["bootstrap.servers"]
        told = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        return subprocess.run(
            ["kcat", "-b", secured.bootstrap, *told, "-t", f"alices-{mechanism}", *arguments],
            input=given, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip

    sent = kcat("alice", "-P", given="hello\n")
    assert sent.returncode == 0, sent.stderr
    got = kcat("alice", "-C", "-o", "beginning", "-e", "-q")
    assert (got.returncode, got.stdout) == (0, "hello\n"), got.stderr
    USERS["alice"], right = "wrong", USERS["alice"]
    try:
        assert "wrong" in kcat("alice", "-P", given="no\n").stderr
    finally:
        USERS["alice"] = right


def refused_after_s(secured: Secured, mechanism: str, user: str) -> float:
    """How long a login with a wrong password takes."""
    options = secured.settings(user, mechanism, **{"sasl.password": "wrong"})
    security = parse_options({f"kafka.{k}": v for k, v in options.items()} | {"subscribe": "t"})
    began_s = time.perf_counter()
    client = Client(secured.bootstrap, security=security.security, timeout_s=DEADLINE_S)
    with client, pytest.raises(LoginFailed):
        client.metadata(["t"])
    return time.perf_counter() - began_s


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_is_not_there_is_refused_as_late_as_a_wrong_password(
    secured: Secured, mechanism: str
) -> None:
    """B8: medians within 5 %, in pairs, so that a busy machine is as slow for both."""
    ratios: list[float] = []
    for _ in range(3):
        took = [
            [refused_after_s(secured, mechanism, user) for user in ("alice", f"nobody-{number}")]
            for number in range(25)
        ]
        known_s, unknown_s = (median(column) for column in zip(*took, strict=True))
        ratios.append(unknown_s / known_s)
        if abs(ratios[-1] - 1) <= 0.05:
            break
    print(f"{mechanism}: not there / wrong password {ratios}")
    assert abs(ratios[-1] - 1) <= 0.05


def test_silent_handshakes_keep_nobody_out(secured: Secured) -> None:
    host, _, port = secured.bootstrap.partition(":")
    silent = [socket.create_connection((host, int(port)), DEADLINE_S) for _ in range(200)]
    try:
        assert produced(secured, "alices-flood", 10, **secured.settings("alice")) == [0] * 10
    finally:
        for each in silent:
            each.close()


def test_a_renewed_certificate_is_used_and_a_bad_one_is_not(secured: Secured) -> None:
    def serial() -> Any:
        with encrypted(secured) as connection:
            return connection.getpeercert()["serialNumber"]  # type: ignore[index]

    first, whole = serial(), secured.pem.read_bytes()
    secured.pem.write_bytes(whole[: len(whole) // 2])
    until(lambda: "is no good" in secured.broker.log())
    assert serial() == first
    folder = secured.pem.parent / "renewed"
    folder.mkdir()
    pem, ca = certificate(folder)
    os.replace(ca, secured.ca)
    os.replace(pem, secured.pem)
    until(lambda: "renewed certificate" in secured.broker.log())

    # The control port's may be the first that is renewed.
    def is_renewed() -> bool:
        try:
            return bool(serial() != first)
        except ssl.SSLCertVerificationError:
            return False

    until(is_renewed)


def test_no_password_stands_in_the_log(secured: Secured) -> None:
    log = secured.broker.log()
    assert not [
        password for password in USERS.values() if f" {password}" in log and password != "other"
    ]


def test_what_a_broker_writes_is_for_its_own_user(secured: Secured) -> None:
    assert produced(secured, "files", 100, **secured.settings("admin")) == [0] * 100
    home = secured.broker.data_dir
    for path in (home, *home.rglob("*")):
        with suppress(FileNotFoundError):  # it works on, and may have taken one away
            assert not path.stat().st_mode & 0o077, path


def test_what_is_refused_and_changed_is_in_the_trail_and_in_its_topic(secured: Secured) -> None:
    admin = AdminClient(secured.settings("admin"))
    for done in admin.create_topics([NewTopic("audited", 1)]).values():
        done.result(DEADLINE_S)
    assert produced(secured, "audited", 1, **secured.settings("bob")) == [
        KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    folder = secured.broker.data_dir / "audit"

    def said() -> set[tuple[str, str, str]]:
        lines = [msgspec.json.decode(data) for _, data in lines_of(folder)]
        return {(each["principal"], each["action"], each["resource"]) for each in lines}

    wanted = {
        ("User:admin", "CreateTopics", "TOPIC audited"),
        ("User:bob", "Metadata DESCRIBE", "TOPIC audited"),
    }
    until(lambda: wanted <= said(), said=said)
    assert verify(lines_of(folder)).findings == []
    assert produced(secured, AUDIT_TOPIC, 1, **secured.settings("admin")) == [
        KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    with pytest.raises(KafkaException):
        admin.delete_topics([AUDIT_TOPIC])[AUDIT_TOPIC].result(DEADLINE_S)
    consumer = Consumer(secured.settings("admin", **{"group.id": "auditors"}))
    consumer.assign([TopicPartition(AUDIT_TOPIC, 0, 0)])
    found: set[str] = set()
    deadline = time.monotonic() + DEADLINE_S
    while "CreateTopics" not in found and time.monotonic() < deadline:
        found |= {
            msgspec.json.decode(message.value())["action"]
            for message in consumer.consume(500, 0.1)
            if message.error() is None
        }
    consumer.close()
    assert "CreateTopics" in found


def test_no_secret_and_nothing_of_a_record_is_said(secured: Secured, tmp_path: Path) -> None:
    """Markers as key, value, header and password, some of them where something is refused."""
    marks = {
        "key": "mark-k-11",
        "value": "mark-v-22",
        "password": "mark-p-33",
        "header": "mark-h-44",
    }
    settings = secured.settings("alice")
    producer = Producer(settings | {"message.timeout.ms": str(int(DEADLINE_S * 1000))})
    for topic in ("alices-said", "not-hers"):
        producer.produce(topic, marks["value"], marks["key"], headers={"h": marks["header"]})
    assert producer.flush(DEADLINE_S) == 0
    broken = encode_batch([(marks["key"].encode(), marks["value"].encode(), 1, ())])
    with Client(secured.bootstrap, security=_security(settings), timeout_s=5.0) as client:
        with suppress(CatchwaterError):
            client.produce([(("alices-said", 0), broken[:-1] + b"\x00")])
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        wrong = secured.settings("alice", mechanism, **{"sasl.password": marks["password"]})
        with pytest.raises(KafkaException):
            AdminClient(wrong).list_topics(timeout=1)
    url = logged_in(secured.broker.control_url, "alice", marks["password"])
    with pytest.raises(CatchwaterError):
        Control(url, timeout_s=5.0).pins()
    assert secured.broker.process is not None
    process = Path("/proc") / str(secured.broker.process.pid)
    said = {
        "log": secured.broker.stderr_file.read_bytes(),
        "command line": (process / "cmdline").read_bytes(),
        "audit": b"".join(data for _, data in lines_of(secured.broker.data_dir / "audit")),
        "access": secured.access.read_bytes(),
    }
    assert said["log"] and said["command line"] and said["audit"]
    found = [(what, where) for what, mark in marks.items() for where, text in said.items()
             if mark.encode() in text]  # fmt: skip
    assert not found


def _security(settings: dict[str, str]) -> Any:
    options = {f"kafka.{key}": value for key, value in settings.items()}
    return parse_options(options | {"subscribe": "t"}).security
