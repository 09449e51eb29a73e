"""What is taken away bites on the live connections of all brokers, within a second.

Two brokers over one PostgreSQL. Rules and users are changed at the first one by Kafka's admin API;
each broker reads its own file of revoked certificates. A busy machine may be late once: what has to
hold is that in one of `ATTEMPTS` nobody is served for longer than `SOON_S`.
"""

import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kio.schema.metadata.v4 import request as metadata
from tests.certificates import certificate, revocable
from tests.cluster import Brokers
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import BrokerProcess, until
from tests.ports import free_port

from catchwater.broker.access import change, with_user
from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Address
from catchwater.replay.options import parse_options
from catchwater.wire.connection import Connections, ask
from catchwater.wire.security.verifiers import verifiers

SOON_S, ATTEMPTS = 1.0, 6
TOPIC, USER, PASSWORD = "kept", "alice", "secret"


class Guarded:
    """Two brokers with a port for logins and one for certificates each, and their administrator."""

    def __init__(self, folder: Path, postgres_url: str) -> None:
        self.pem, self.ca = certificate(folder)
        self.client, self.client_ca, self.revoke = revocable(folder)
        self.revoke(None)
        access = folder / "access.json"
        change(access, lambda now: with_user(now, "admin", verifiers("root")))
        self.brokers = Brokers(
            folder,
            postgres_url,
            {
                "listener.security.protocol.map": "LOGINS:SASL_SSL,CERTS:SSL",
                "ssl.keystore.location": str(self.pem),
                "ssl.truststore.location": str(self.client_ca),
                "listener.name.certs.ssl.client.auth": "required",
                "catchwater.control.listener": "https://127.0.0.1:0",
                "catchwater.control.ssl.client.auth": "required",
                "catchwater.access.file": str(access),
                "super.users": "User:admin;User:CN=client",
            },
            ("a", "b"),
        )
        self.at: dict[str, list[Address]] = {"LOGINS": [], "CERTS": []}
        for broker in self.brokers.all.values():
            new = {name: Address("127.0.0.1", free_port()) for name in self.at}
            broker.settings["listeners"] = ",".join(f"{name}://{at}" for name, at in new.items())
            for name, at in new.items():
                self.at[name].append(at)
        self.brokers.start()
        self.admin = AdminClient(self.login("admin", "root"))

    def login(self, user: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": str(self.at["LOGINS"][0]),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.ca),
        }

    def by_certificate(self) -> dict[str, str]:
        return {
            "bootstrap.servers": str(self.at["CERTS"][0]),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.client),
            "ssl.key.location": str(self.client),
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Guarded]:
    url = postgres_server.new_database()
    made = Guarded(tmp_path_factory.mktemp("guarded"), url)
    try:
        # It knows both brokers before it is asked for anything: what it has asked of an address
        # alone fails when it learns whose that is.
        until(lambda: len(made.admin.list_topics(timeout=DEADLINE_S).brokers) == 2)
        made.admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(DEADLINE_S)
        yield made
        assert "Traceback" not in made.brokers.log()
    finally:
        made.brokers.close()
        postgres_server.drop_database(url)


class ByKafka:
    """A connection to one broker that asks for the metadata of the topic."""

    def __init__(self, address: Address, security: Any) -> None:
        self._all = Connections(
            str(address), client_id="t", timeout_s=DEADLINE_S, clock=SYSTEM, security=security
        )
        self._connection = self._all.to(address)

    def is_served(self) -> bool:
        topic = metadata.MetadataRequestTopic(name=TOPIC)
        wanted = metadata.MetadataRequest(topics=(topic,), allow_auto_topic_creation=False)
        try:
            return int(ask(self._connection, "t", wanted).topics[0].error_code) == 0
        except CatchwaterError:  # it was closed
            return False

    def close(self) -> None:
        self._all.close()


class ByHttp:
    """A connection to one control API that asks for the cluster."""

    def __init__(self, broker: BrokerProcess, context: ssl.SSLContext) -> None:
        host = broker.control_url.removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, timeout=DEADLINE_S, context=context)

    def is_served(self) -> bool:
        try:
            self._connection.request("GET", "/api/v1/cluster")
            with self._connection.getresponse() as reply:
                reply.read()
                return reply.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def close(self) -> None:
        self._connection.close()


Live = ByKafka | ByHttp


def by_kafka(settings: dict[str, str], at: Sequence[Address]) -> Iterator[Live]:
    options = {f"kafka.{key}": value for key, value in settings.items()} | {"subscribe": TOPIC}
    security = parse_options(options).security
    yield from (ByKafka(address, security) for address in at)


def by_http(guarded: Guarded) -> Iterator[Live]:
    context = ssl.create_default_context(cafile=str(guarded.ca))
    context.load_cert_chain(guarded.client)
    yield from (ByHttp(broker, context) for broker in guarded.brokers.all.values())


@contextmanager
def connections(connected: Callable[[], Iterator[Live]]) -> Iterator[list[Live]]:
    """Connections that are served, once all brokers let the client in."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        with ExitStack() as stack:
            live: list[Live] = []
            with suppress(CatchwaterError):  # a broker has not seen yet what was given back
                for each in connected():
                    live.append(stack.enter_context(closing(each)))
                if all(each.is_served() for each in live):
                    yield live
                    return
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def bites(
    connected: Callable[[], Iterator[Live]],
    take_away: Callable[[], None],
    give_back: Callable[[], None],
) -> bool:
    """Whether what is taken away is refused by both brokers soon, at least once."""
    took_s: list[float] = []
    while len(took_s) < ATTEMPTS:
        with connections(connected) as live:
            take_away()
            began_s = time.monotonic()
            while any([each.is_served() for each in live]):
                assert time.monotonic() - began_s < DEADLINE_S
                time.sleep(0.01)
        took_s.append(time.monotonic() - began_s)
        give_back()
        if took_s[-1] < SOON_S:
            break
    print("refused after", *(f"{each:.2f} s" for each in took_s))
    return took_s[-1] < SOON_S


def test_a_rule_that_is_gone(guarded: Guarded) -> None:
    named = ("TOPIC", TOPIC, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    rule = AclBinding(
        ResourceType.TOPIC, *named[1:], AclOperation.DESCRIBE, AclPermissionType.ALLOW
    )
    only = AclBindingFilter(
        ResourceType.TOPIC, *named[1:], AclOperation.DESCRIBE, AclPermissionType.ALLOW
    )

    def allow() -> None:
        [made] = guarded.admin.create_acls([rule]).values()
        made.result(DEADLINE_S)

    def forbid() -> None:
        [gone] = guarded.admin.delete_acls([only]).values()
        assert len(gone.result(DEADLINE_S)) == 1

    put(guarded, USER)
    allow()

    def connected() -> Iterator[Live]:
        return by_kafka(guarded.login(USER, PASSWORD), guarded.at["LOGINS"])

    assert bites(connected, forbid, allow)


def test_a_user_that_is_gone(guarded: Guarded) -> None:
    user = "bob"
    rule = AclBinding(
        ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, f"User:{user}", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    [made] = guarded.admin.create_acls([rule]).values()
    made.result(DEADLINE_S)
    put(guarded, user)

    def forget() -> None:
        gone = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        guarded.admin.alter_user_scram_credentials([gone])[user].result(DEADLINE_S)

    def connected() -> Iterator[Live]:
        return by_kafka(guarded.login(user, PASSWORD), guarded.at["LOGINS"])

    assert bites(connected, forget, lambda: put(guarded, user))


@pytest.mark.parametrize("port", ["kafka", "control"])
def test_a_certificate_that_is_revoked(guarded: Guarded, port: str) -> None:
    def connected() -> Iterator[Live]:
        if port == "control":
            return by_http(guarded)
        return by_kafka(guarded.by_certificate(), guarded.at["CERTS"])

    assert bites(connected, lambda: guarded.revoke(guarded.client), lambda: guarded.revoke(None))


def put(guarded: Guarded, user: str) -> None:
    given = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
    )
    guarded.admin.alter_user_scram_credentials([given])[user].result(DEADLINE_S)
