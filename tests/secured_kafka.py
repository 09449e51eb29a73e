"""An Apache Kafka that asks for TLS, logins and certificates, for as long as a `with` lasts."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.kafka_peer import java, wait_until_listening
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.ports import free_port
from tests.token_endpoint import AUDIENCE, CLIENT_ID, CLIENT_SECRET, Provider, provider

from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

TOPIC = "secured"
VALUES = [b"%d" % number for number in range(300)]
USERS = {"PLAIN": "plain", "SCRAM-SHA-256": "first=reader", "SCRAM-SHA-512": "second"}
PASSWORD = "pass w=rd;"
KEY_PASSWORD = "key-password"
REAUTHENTICATE_MS = 2000

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

JAAS = "org.apache.kafka.common.security"
OAUTH = f"{JAAS}.oauthbearer.OAuthBearerLogin"
VALIDATOR = f"{JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
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


def certificate(folder: Path, name: str, *extensions: str, days: int = 30) -> None:
    """`name`.key and `name`.crt, signed by the authority `ca`; `name`.pem holds both."""
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / f"{name}.ext").write_text("".join(f"{line}\n" for line in extensions))
    sign = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"]
    openssl(folder, *sign, "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
            "-days", str(days))  # fmt: skip
    parts = [(folder / f"{name}.{kind}").read_text() for kind in ("key", "crt")]
    (folder / f"{name}.pem").write_text("".join(parts))


class Kafka:
    """One broker: a listener for anybody, one for users over TLS, one for client certificates, one
    whose own certificate has expired, and one for the tokens of a provider.
    """

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.folder = folder
        self.provider = provider
        (folder / "jwks.json").write_text(provider.jwks())
        names = ("INTERNAL", "LOGIN", "MUTUAL", "EXPIRED", "OAUTH", "CONTROLLER")
        self.ports = {name: free_port() for name in names}
        authority(folder, "ca")
        authority(folder, "stranger")
        certificate(folder, "server", "subjectAltName=IP:127.0.0.1")
        certificate(folder, "client", "extendedKeyUsage=clientAuth")
        certificate(folder, "expired", "subjectAltName=IP:127.0.0.1", days=-1)
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
            "LOGIN:SASL_SSL,MUTUAL:SSL,EXPIRED:SSL,OAUTH:SASL_SSL",
            "log.dirs": str(self.folder / "logs"),
            "log.retention.ms": "-1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.crt"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.type": "PEM",
            "listener.name.expired.ssl.keystore.location": str(self.folder / "expired.pem"),
            "sasl.enabled.mechanisms": ",".join(USERS),
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{OAUTH}Module required ;",
            "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
            "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "60000",
            "sasl.oauthbearer.jwks.endpoint.url": (self.folder / "jwks.json").as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
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

    def by_token(self, **more: str) -> dict[str, str]:
        """The source's, for a login by a token."""
        stem = "kafka.sasl.oauthbearer."
        return {
            "kafka.bootstrap.servers": self.address("OAUTH"),
            "subscribe": TOPIC,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": str(self.folder / "ca.crt"),
            "kafka.sasl.mechanism": "OAUTHBEARER",
            f"{stem}token.endpoint.url": self.provider.url,
            f"{stem}client.credentials.client.id": CLIENT_ID,
            f"{stem}client.credentials.client.secret": CLIENT_SECRET,
            **{stem + name.replace("_", "."): value for name, value in more.items()},
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


class SecuredKafkaMissing(Exception):
    """What it needs is not installed here."""


@contextlib.contextmanager
def secured_kafka(folder: Path) -> Iterator[Kafka]:
    """A started broker with TOPIC in it. Raises `SecuredKafkaMissing`, `MavenMissing`."""
    if not (shutil.which("java") and shutil.which("openssl")):
        raise SecuredKafkaMissing("a secured Apache Kafka needs java and openssl")
    with provider() as idp:
        yield from _started(Kafka(folder, idp))


def _started(made: Kafka) -> Iterator[Kafka]:
    folder = made.folder
    config, log = folder / "server.properties", folder / "broker.log"
    config.write_text(made.properties())
    store = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(config), *made.users()]
    command = java("kafka.tools.StorageTool", *store)
    allowed = (folder / "jwks.json").as_uri()
    options = f"{JVM_OPTIONS} -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}"
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": options}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            java("kafka.Kafka", str(config)),
            stdout=output,
            stderr=output,
            env=environment,
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
        made.result(60)
