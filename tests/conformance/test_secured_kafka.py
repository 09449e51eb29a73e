"""Our client and source against an Apache Kafka that asks for TLS, logins and certificates."""

import os
import pickle
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.kafka_jars import MavenMissing
from benchmarks.kafka_peer import free_port, java, wait_until_listening
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from catchwater.config import ConfigError
from catchwater.replay.options import SourceOptions, parse_options
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.subscription import Subscription
from catchwater.wire.client import EARLIEST, LATEST, Client
from catchwater.wire.connection import Connection, ConnectionLost
from catchwater.wire.records import encode_batch
from catchwater.wire.security.sasl import LoginFailed
from catchwater.wire.security.settings import MECHANISMS, parse_security
from catchwater.wire.security.tls import BrokerNotTrusted, TlsFailed

TOPIC = "secured"
VALUES = [b"%d" % number for number in range(300)]
USERS = {"PLAIN": "plain", "SCRAM-SHA-256": "first=reader", "SCRAM-SHA-512": "second"}
PASSWORD = "pass w=rd;"
KEY_PASSWORD = "key-password"
REAUTHENTICATE_MS = 2000

QUICK_START = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

JAAS = "org.apache.kafka.common.security"
LOGINS = {
    "PLAIN": f'{JAAS}.plain.PlainLoginModule required user_plain="{PASSWORD}";',
    "SCRAM-SHA-256": f"{JAAS}.scram.ScramLoginModule required;",
    "SCRAM-SHA-512": f"{JAAS}.scram.ScramLoginModule required;",
}


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """`name`.crt, and the key to it."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
    openssl(folder, *new, *files, "-days", "30", "-subj", f"/CN={name}")


def certificate(folder: Path, name: str, *extensions: str) -> None:
    """`name`.key and `name`.crt, signed by the authority `ca`; `name`.pem holds both."""
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / f"{name}.ext").write_text("".join(f"{line}\n" for line in extensions))
    sign = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"]
    openssl(folder, *sign, "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
            "-days", "30")  # fmt: skip
    parts = [(folder / f"{name}.{kind}").read_text() for kind in ("key", "crt")]
    (folder / f"{name}.pem").write_text("".join(parts))


class Kafka:
    """One broker: a listener for anybody, one for users over TLS, one for client certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("INTERNAL", "LOGIN", "MUTUAL", "CONTROLLER")
        self.ports = {name: free_port() for name in names}
        authority(folder, "ca")
        authority(folder, "stranger")
        certificate(folder, "server", "subjectAltName=IP:127.0.0.1")
        certificate(folder, "client", "extendedKeyUsage=clientAuth")
        kept = ["-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}"]
        openssl(folder, "pkcs8", "-in", "client.key", *kept, "-out", "client.secret.key")

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def properties(self) -> str:
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self.address('CONTROLLER')}",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners[:-1]),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "LOGIN:SASL_SSL,MUTUAL:SSL",
            "log.dirs": str(self.folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.crt"),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.login.plain.connections.max.reauth.ms": str(REAUTHENTICATE_MS),
        }
        for mechanism, login in LOGINS.items():
            lines[f"listener.name.login.{mechanism.lower()}.sasl.jaas.config"] = login
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def users(self) -> list[str]:
        """Arguments that make the users of SCRAM; the one of PLAIN stands in the properties."""
        scram = [(m, user) for m, user in USERS.items() if m != "PLAIN"]
        made = [f'{m}=[name="{user}",password="{PASSWORD}"]' for m, user in scram]
        return [argument for each in made for argument in ("--add-scram", each)]

    def options(self, mechanism: str, **more: str) -> dict[str, str]:
        """The source's, for one way to log in; underscores stand for dots."""
        return {
            "kafka.bootstrap.servers": self.address("LOGIN"),
            "subscribe": TOPIC,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": str(self.folder / "ca.crt"),
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.username": USERS[mechanism],
            "kafka.sasl.password": PASSWORD,
            **{f"kafka.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def mutual(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.address("MUTUAL"),
            "subscribe": TOPIC,
            "kafka.security.protocol": "SSL",
            **{f"kafka.ssl.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    if not (shutil.which("java") and shutil.which("openssl")):
        pytest.skip("a secured Apache Kafka needs java and openssl")
    folder = tmp_path_factory.mktemp("secured")
    made = Kafka(folder)
    config, log = folder / "server.properties", folder / "broker.log"
    config.write_text(made.properties())
    store = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(config), *made.users()]
    try:
        command = java("kafka.tools.StorageTool", *store)
    except MavenMissing as reason:
        pytest.skip(str(reason))
    subprocess.run(command, check=True, capture_output=True, env=QUICK_START)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            java("kafka.Kafka", str(config)),
            stdout=output,
            stderr=output,
            env=QUICK_START,
        ) as process,
    ):
        try:
            wait_until_listening(made.ports["MUTUAL"], process, log)
            fill(made)
            yield made
        finally:
            process.kill()


def fill(kafka: Kafka) -> None:
    """The records, and a rule by which users may not look at the broker's configuration."""
    now_ms = time.time_ns() // 1_000_000
    with Client(kafka.address("INTERNAL")) as client:
        client.create_topics({TOPIC: 2})
        for partition in (0, 1):
            values = VALUES[partition::2]
            batch = encode_batch([(b"k", value, now_ms, ()) for value in values])
            client.produce([((TOPIC, partition), batch)])
    rule = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:operator",
        "*",
        AclOperation.DESCRIBE_CONFIGS,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": kafka.address("INTERNAL")})
    for made in admin.create_acls([rule]).values():
        made.result(10)


def read(given: dict[str, str]) -> list[bytes]:
    """All values in the order of their numbers, planned here and read as on another machine."""
    options = parse_options(given)
    query = Subscription(options)
    tasks = query.tasks(query.starting(EARLIEST), query.ending())
    assert query.control_url() is None
    query.close()
    settings = ReadSettings(options.bootstrap, ("value",), security=options.security.loaded())
    sent: ReadSettings = pickle.loads(pickle.dumps(settings))
    rows = [value for task in tasks for part in read_task(task, sent) for value in part["value"]]
    return sorted((value.as_py() for value in rows), key=int)


def connect(options: SourceOptions, timeout_s: float = 5) -> None:
    """Raises what a query raises that cannot begin."""
    with Client(options.bootstrap, timeout_s=timeout_s, security=options.security) as client:
        client.metadata([TOPIC])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_reads_by_each_mechanism(kafka: Kafka, mechanism: str) -> None:
    assert read(kafka.options(mechanism)) == VALUES


def test_javas_form_of_a_login_will_do(kafka: Kafka) -> None:
    options = kafka.options("SCRAM-SHA-512", ssl_endpoint_identification_algorithm="")
    name, password = options.pop("kafka.sasl.username"), options.pop("kafka.sasl.password")
    options["kafka.ssl.truststore.location"] = options.pop("kafka.ssl.ca.location")
    options |= {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required "
        f'username="{name}"\n password="{password}";',
    }
    assert read(options) == VALUES


def test_a_client_shows_its_certificate(kafka: Kafka) -> None:
    ca, both = kafka.file("ca.crt"), kafka.file("client.pem")
    java_names = {"truststore_type": "PEM", "truststore_location": ca, "keystore_type": "PEM"}
    assert read(kafka.mutual(**java_names, keystore_location=both)) == VALUES
    named = {
        "ca_location": ca,
        "certificate_location": kafka.file("client.crt"),
        "key_location": kafka.file("client.secret.key"),
    }
    assert read(kafka.mutual(**named, key_password=KEY_PASSWORD)) == VALUES
    with pytest.raises(ConfigError, match="holds no usable certificate"):
        connect(parse_options(kafka.mutual(**named, key_password="another")))


def test_without_a_certificate_it_is_refused(kafka: Kafka) -> None:
    with pytest.raises(TlsFailed, match="bad certificate") as caught:
        connect(parse_options(kafka.mutual(ca_location=kafka.file("ca.crt"))))
    assert "client certificate" in str(caught.value.hint)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_named_and_not_shown(kafka: Kafka, mechanism: str) -> None:
    options = parse_options(kafka.options(mechanism, sasl_password="wr0ng"))
    began_s = time.monotonic()
    with pytest.raises(LoginFailed, match="SASL_AUTHENTICATION_FAILED") as caught:
        connect(options)
    assert repr(USERS[mechanism]) in str(caught.value) and mechanism in str(caught.value)
    shown = [str(caught.value), str(caught.value.hint), repr(options), repr(caught.value)]
    assert not any("wr0ng" in text for text in shown)
    assert time.monotonic() - began_s < 4, "a refused login is not tried again"


def test_an_unknown_authority_is_named(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", ssl_ca_location=kafka.file("stranger.crt"))
    with pytest.raises(BrokerNotTrusted, match=f"{kafka.address('LOGIN')} is not trusted"):
        connect(parse_options(options))


def test_another_host_than_the_certificates_is_named(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=f"localhost:{kafka.ports['LOGIN']}")
    with pytest.raises(BrokerNotTrusted, match="Hostname mismatch"):
        connect(parse_options(options))
    connect(parse_options(options | {"kafka.ssl.endpoint.identification.algorithm": ""}))


def test_a_client_that_is_not_secured_is_told_why_nobody_answers(kafka: Kafka) -> None:
    with pytest.raises(ConnectionLost) as caught, Client(kafka.address("LOGIN"), timeout_s=1) as c:
        c.metadata([TOPIC])
    assert "(security.protocol)" in str(caught.value.hint)


def test_tls_is_not_spoken_everywhere(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=kafka.address("INTERNAL"))
    with pytest.raises(ConnectionLost) as caught:
        connect(parse_options(options), timeout_s=1)
    assert "(security.protocol)" in str(caught.value.hint)


def test_a_listener_without_logins_says_so(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=kafka.address("INTERNAL"))
    for name in [name for name in options if name.startswith("kafka.ssl.")]:
        del options[name]
    with pytest.raises(LoginFailed, match="ILLEGAL_SASL_STATE"):
        connect(parse_options(options | {"kafka.security.protocol": "SASL_PLAINTEXT"}))


def test_a_login_that_ends_is_renewed_before(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    lost: list[OSError] = []
    connected, broken = Connection.__init__, Connection._lost
    monkeypatch.setattr(
        Connection,
        "__init__",
        lambda self, *a, **k: (made.append("one"), connected(self, *a, **k))[1],
    )
    monkeypatch.setattr(
        Connection, "_lost", lambda self, error: (lost.append(error), broken(self, error))[1]
    )
    security = parse_security(kafka.options("PLAIN"))
    deadline_s = time.monotonic() + 1.3 * REAUTHENTICATE_MS / 1000
    with Client(kafka.address("LOGIN"), security=security) as client:
        while time.monotonic() < deadline_s:
            assert client.list_offsets({(TOPIC, 0): LATEST}) == {(TOPIC, 0): 150}
            time.sleep(0.05)
    assert len(made) > 1 and not lost
