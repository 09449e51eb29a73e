"""A broker, ours or Kafka's, that is reached in plaintext and by TLS or logins besides.

In plaintext everybody is a super user: a suite looks at the broker there, and makes users and rules
with what Kafka has for it.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.certificates import certificate
from tests.ports import free_port

from conformance.targets import KAFKA_WITH_ACLS

ADDRESSES, CA = "addresses.json", "ca-cert"
"""Files of the folder: where which protocol is spoken, and who signed the broker's certificate."""
_LOGIN = "org.apache.kafka.common.security"


def settings(
    against: str, folder: Path, protocols: Sequence[str], users: Mapping[str, str]
) -> dict[str, str]:
    """Keys of the broker; `users` with their passwords are those whom Kafka knows by PLAIN."""
    pem, ca = certificate(folder)
    shutil.copy(ca, folder / CA)
    secured = {name: f"127.0.0.1:{free_port()}" for name in protocols}
    (folder / ADDRESSES).write_text(json.dumps(secured))
    is_kafka = against == "kafka"
    plain = "{port}" if is_kafka else str(free_port())
    every = {"PLAINTEXT": f"127.0.0.1:{plain}"} | secured
    advertised = ",".join(f"{protocol}://{address}" for protocol, address in every.items())
    common = KAFKA_WITH_ACLS | {
        "advertised.listeners": advertised,
        "ssl.keystore.location": str(pem),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    if not is_kafka:
        return common | {"listeners": advertised}
    known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
    logins = {"plain": f"{_LOGIN}.plain.PlainLoginModule required {known};"}
    for size in (256, 512):
        logins[f"scram-sha-{size}"] = f"{_LOGIN}.scram.ScramLoginModule required;"
    return {
        **common,
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{{controller}}",
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", *(f"{protocol}:{protocol}" for protocol in every)]
        ),
        "ssl.keystore.type": "PEM",
        **{
            f"listener.name.{protocol.lower()}.{mechanism}.sasl.jaas.config": module
            for protocol in protocols
            for mechanism, module in logins.items()
        },
    }


def addresses(folder: Path) -> dict[str, str]:
    """Where each of the protocols is spoken, but PLAINTEXT."""
    return dict(json.loads((folder / ADDRESSES).read_text()))


def add_user(bootstrap: str, user: str, password: str) -> None:
    """Let them log in by SCRAM, and where the broker is ours by PLAIN."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = ScramCredentialInfo(mechanism, 4096)
        upsertion = UserScramCredentialUpsertion(user, credential, password.encode())
        admin.alter_user_scram_credentials([upsertion])[user].result(30)


def java_client(folder: Path, protocol: str, user: str, password: str) -> dict[str, str]:
    """What a client in Java is told, to log in by SCRAM-SHA-512."""
    return {
        "bootstrap.servers": addresses(folder)[protocol],
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required "
        f'username="{user}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / CA),
    }
