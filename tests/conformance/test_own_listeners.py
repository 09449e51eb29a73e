"""Our broker with several listeners: certificates, repeated logins, tokens, Kafka's admin API."""

import base64
import re
import resource
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from tests.certificates import certificate
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import until
from tests.ports import free_port, mute_connections
from tests.token_endpoint import AUDIENCE, CLIENT_ID, Provider

from catchwater.broker.access import change, with_user
from catchwater.wire.security.verifiers import verifiers

REAUTH_MS = 3_000
"""Clients repeat their login after nine tenths of it, in what is left of it at the latest."""


class Listening:
    """A broker with a plain listener, and one each for certificates, logins and tokens."""

    def __init__(self, make_broker: Callable[..., Any], folder: Path) -> None:
        self.pem, self.ca = certificate(folder)
        self.client, self.client_ca = certificate(folder, "client")
        self.stranger, _ = certificate(folder, "stranger")
        self.provider = Provider()
        (folder / "jwks.json").write_text(self.provider.jwks())
        access = folder / "access.json"
        change(access, lambda now: with_user(now, "admin", verifiers("root")))
        self.at = {
            name: f"127.0.0.1:{free_port()}" for name in ("INSIDE", "CERTS", "LOGINS", "TOKENS")
        }
        self.broker = make_broker(start=False)
        self.broker.settings |= {
            "listeners": ",".join(f"{name}://{at}" for name, at in self.at.items()),
            "listener.security.protocol.map":
                "INSIDE:PLAINTEXT,CERTS:SSL,LOGINS:SASL_SSL,TOKENS:SASL_SSL",
            "inter.broker.listener.name": "INSIDE",
            "ssl.keystore.location": str(self.pem),
            "catchwater.control.listener": "https://127.0.0.1:0",
            "catchwater.control.ssl.client.auth": "requested",
            "ssl.truststore.location": str(self.client_ca),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/cert-$1/",
            "listener.name.certs.ssl.client.auth": "required",
            "listener.name.certs.ssl.truststore.location": str(self.client_ca),
            "listener.name.certs.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/cert-$1/",
            "listener.name.logins.connections.max.reauth.ms": str(REAUTH_MS),
            "listener.name.logins.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{folder / 'jwks.json'}",
            "sasl.oauthbearer.expected.issuer": "tests",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.clock.skew.seconds": "0",
            "catchwater.access.file": str(access),
            "super.users": f"User:admin;User:cert-client;User:{CLIENT_ID}",
        }  # fmt: skip
        self.broker.start()

    def by_login(self, user: str = "admin", password: str = "root", **more: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.at["LOGINS"],
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        } | more

    def by_certificate(self, pem: Path) -> dict[str, str]:
        return {
            "bootstrap.servers": self.at["CERTS"],
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(pem),
            "ssl.key.location": str(pem),
        }

    def by_token(self, audience: str = AUDIENCE) -> dict[str, Any]:
        def token(_: str) -> tuple[str, float]:
            self.provider.audience = audience
            return self.provider.token(), time.time() + self.provider.lifetime_s

        return {
            "bootstrap.servers": self.at["TOKENS"],
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": token,
            "ssl.ca.location": str(self.ca),
        }


@pytest.fixture(scope="module")
def listening(make_broker, tmp_path_factory) -> Listening:
    return Listening(make_broker, tmp_path_factory.mktemp("listening"))


def brokers(settings: dict[str, Any]) -> list[str]:
    client = AdminClient(settings)
    client.poll(1.0)  # tokens are asked for here
    found = client.list_topics(timeout=DEADLINE_S).brokers.values()
    return [f"{broker.host}:{broker.port}" for broker in found]


def test_clients_are_told_the_address_of_the_listener_that_they_came_by(
    listening: Listening,
) -> None:
    assert brokers({"bootstrap.servers": listening.at["INSIDE"]}) == [listening.at["INSIDE"]]
    assert brokers(listening.by_login()) == [listening.at["LOGINS"]]
    assert brokers(listening.by_certificate(listening.client)) == [listening.at["CERTS"]]
    assert brokers(listening.by_token()) == [listening.at["TOKENS"]]


def errors_of(settings: dict[str, Any], expected: int) -> None:
    met: list[KafkaError] = []
    client = AdminClient(settings | {"error_cb": met.append})
    deadline = time.monotonic() + DEADLINE_S
    while expected not in [each.code() for each in met]:
        assert time.monotonic() < deadline, met
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.2)
        client.poll(0.1)


def test_a_stranger_s_certificate_and_none_are_refused(listening: Listening) -> None:
    """B10."""
    host, _, port = listening.at["CERTS"].partition(":")
    for pem in (listening.stranger, None):
        context = ssl.create_default_context(cafile=str(listening.ca))
        if pem is not None:
            context.load_cert_chain(pem)
        with pytest.raises(OSError):
            with context.wrap_socket(
                socket.create_connection((host, int(port)), DEADLINE_S), server_hostname=host
            ) as connection:
                # ApiVersions: with TLS 1.3 the refusal comes with the first answer.
                connection.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff")
                if not connection.recv(4):
                    raise ConnectionResetError


def asked(listening: Listening, pem: Path | None, **headers: str) -> int:
    """The status with which the control API answers a question that needs a rule."""
    context = ssl.create_default_context(cafile=str(listening.ca))
    if pem is not None:
        context.load_cert_chain(pem)
    url = f"{listening.broker.control_url}/api/v1/cluster"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_control_api_knows_callers_by_certificate_password_and_token(
    listening: Listening,
) -> None:
    listening.provider.audience = AUDIENCE
    right, wrong = (
        {"Authorization": "Basic " + base64.b64encode(login).decode()}
        for login in (b"admin:root", b"admin:wrong")
    )
    bearer = {"Authorization": f"Bearer {listening.provider.token()}"}
    assert asked(listening, None) == 401
    assert asked(listening, listening.client) == 200
    assert asked(listening, None, **right) == 200
    assert asked(listening, None, **bearer) == 200
    assert asked(listening, listening.client, **wrong) == 401, "what is said counts, if it is"
    with pytest.raises(OSError):
        asked(listening, listening.stranger)


def test_the_end_of_every_certificate_is_a_metric(listening: Listening) -> None:
    context = ssl.create_default_context(cafile=str(listening.ca))
    context.load_cert_chain(listening.client)
    url = f"{listening.broker.control_url}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_S, context=context) as reply:
        page = reply.read().decode()
    found = dict(
        re.findall(
            r'^catchwater_certificate_end_timestamp_seconds{listener="(.+)"} (\S+)$', page, re.M
        )
    )
    assert set(found) == {"CERTS", "LOGINS", "TOKENS", "control API"}
    own = x509.load_pem_x509_certificate(listening.pem.read_bytes())
    assert {float(each) for each in found.values()} == {own.not_valid_after_utc.timestamp()}
    assert f"{listening.pem} ends on" in listening.broker.log(), "within a day"


def test_a_token_for_somebody_else_is_refused(listening: Listening) -> None:
    errors_of(listening.by_token(audience="another"), KafkaError._AUTHENTICATION)


def test_a_login_is_repeated_under_load_and_nothing_is_lost_or_doubled(
    listening: Listening,
) -> None:
    """KIP-368: librdkafka repeats its login on the same connection."""
    errors: list[Any] = []
    settings = listening.by_login(**{"enable.idempotence": "true", "linger.ms": "1"})
    producer = Producer(settings)
    until_s, count = time.monotonic() + 2.5 * REAUTH_MS / 1000, 0
    while time.monotonic() < until_s:
        producer.produce("repeated", b"%d" % count, on_delivery=lambda e, _: errors.append(e))
        count += 1
        producer.poll(0.002)
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None] * count
    consumer = Consumer(listening.by_login(**{"group.id": "g", "enable.auto.commit": "false"}))
    consumer.assign([TopicPartition("repeated", 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(1_000, 0.1)]
    consumer.close()
    assert values == [b"%d" % number for number in range(count)]
    assert "has ended" not in listening.broker.log()


def test_a_session_that_is_not_renewed_ends(listening: Listening) -> None:
    """B11: after the time a request ends the connection, whatever it is."""
    host, _, port = listening.at["LOGINS"].partition(":")
    context = ssl.create_default_context(cafile=str(listening.ca))
    plain = socket.create_connection((host, int(port)), DEADLINE_S)
    with context.wrap_socket(plain, server_hostname=host) as connection:

        def ask(key: int, version: int, body: bytes) -> bytes:
            head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07\xff\xff"
            connection.sendall(len(head + body).to_bytes(4, "big") + head + body)
            size = connection.recv(4)
            return b"" if not size else connection.recv(int.from_bytes(size, "big"))

        assert ask(17, 1, b"\0\x05PLAIN")[4:6] == b"\0\0"
        login = b"\0admin\0root"
        answer = ask(36, 1, len(login).to_bytes(4, "big") + login)
        assert answer[4:6] == b"\0\0"
        assert int.from_bytes(answer[-8:], "big") == REAUTH_MS
        assert ask(3, 1, b"\xff\xff\xff\xff")
        time.sleep(REAUTH_MS / 1000 + 0.2)
        try:
            assert not ask(3, 1, b"\xff\xff\xff\xff")
        except OSError:
            pass
    until(lambda: "has ended" in listening.broker.log())


@pytest.fixture
def admin(listening: Listening) -> Iterator[AdminClient]:
    yield AdminClient(listening.by_certificate(listening.client))


def test_rules_and_users_are_made_and_taken_back_by_kafkas_admin_client(
    listening: Listening, admin: AdminClient
) -> None:
    upsertion = UserScramCredentialUpsertion(
        "eve", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"password"
    )
    admin.alter_user_scram_credentials([upsertion])["eve"].result(DEADLINE_S)
    shown = admin.describe_user_scram_credentials(["eve"])["eve"].result(DEADLINE_S)
    assert [info.iterations for info in shown.scram_credential_infos] == [4096]
    eve = AdminClient(listening.by_login("eve", "password"))
    assert not eve.list_topics(timeout=DEADLINE_S).topics
    named = ("eves-", ResourcePatternType.PREFIXED, "User:eve", "*")
    rule = AclBinding(ResourceType.TOPIC, *named, AclOperation.ALL, AclPermissionType.ALLOW)
    [made] = admin.create_acls([rule]).values()
    made.result(DEADLINE_S)
    producer = Producer(listening.by_login("eve", "password"))
    errors: list[Any] = []
    for topic in ("eves-own", "others"):
        try:
            producer.produce(topic, b"x", on_delivery=lambda e, _: errors.append(e and e.code()))
        except KafkaException as refused:  # librdkafka has asked for the topic meanwhile
            errors.append(refused.args[0].code())
        assert producer.flush(DEADLINE_S) == 0
    assert errors == [None, KafkaError.TOPIC_AUTHORIZATION_FAILED]
    any_rule = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:eve", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(any_rule).result(DEADLINE_S) == [rule]
    [gone] = admin.delete_acls([any_rule]).values()
    assert gone.result(DEADLINE_S) == [rule]
    producer.produce("eves-own", b"y", on_delivery=lambda e, _: errors.append(e and e.code()))
    assert producer.flush(DEADLINE_S) == 0
    assert errors[-1] == KafkaError.TOPIC_AUTHORIZATION_FAILED, "on the connection that is open"
    removal = UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([removal])["eve"].result(DEADLINE_S)
    errors_of(listening.by_login("eve", "password"), KafkaError._AUTHENTICATION)


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_silent_tls_connections_keep_nobody_out_and_cost_no_memory(
    make_broker, tmp_path: Path, count: int
) -> None:
    """B12, on both ports, with descriptors for a tenth of them."""
    pem, ca = certificate(tmp_path)
    access = tmp_path / "access.json"
    change(access, lambda now: with_user(now, "admin", verifiers("root")))
    broker = make_broker(start=False)
    control = free_port()
    broker.settings |= {
        "listeners": f"SASL_SSL://127.0.0.1:{free_port()}",
        "catchwater.control.listener": f"https://127.0.0.1:{control}",
        "ssl.keystore.location": str(pem),
        "catchwater.access.file": str(access),
        "super.users": "User:admin",
    }
    broker.start("prlimit", "--nofile=1024:1024")
    settings = {
        "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": "root",
        "ssl.ca.location": str(ca),
    }  # fmt: skip
    context = ssl.create_default_context(cafile=str(ca))

    def is_served() -> None:
        errors: list[Any] = []
        producer = Producer(settings)
        producer.produce("served", b"x", on_delivery=lambda e, _: errors.append(e))
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None]
        url = f"https://127.0.0.1:{control}/readyz"
        with urllib.request.urlopen(url, timeout=DEADLINE_S, context=context) as reply:
            assert reply.status == 200

    is_served()
    before = resident_bytes(broker.process.pid)
    for port in (broker.port, control):
        with mute_connections(port, count):
            for _ in range(3):
                is_served()
            assert resident_bytes(broker.process.pid) - before < 64 * 2**20
    is_served()
    assert "Traceback" not in broker.log()
