"""What the clients speak to: our broker, or Apache Kafka, as a child process on loopback."""

import contextlib
from collections.abc import Iterator, Mapping

from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.our_broker import catchwater_broker

TARGETS = {"catchwater": "Catchwater", "kafka": f"Apache Kafka {KAFKA_VERSION}"}

KAFKA_WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings under which a broker takes ACLs, and lets everybody do everything all the same."""


@contextlib.contextmanager
def target(name: str, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The bootstrap address of the target named, which may be told settings of a broker.

    Raises `MavenMissing` where Kafka needs it.
    """
    if name == "kafka":
        with apache_kafka(settings) as (bootstrap, _):
            yield bootstrap
    else:
        keys = {key.replace(".", "_"): value for key, value in (settings or {}).items()}
        with catchwater_broker(**keys) as broker:
            yield broker.bootstrap
