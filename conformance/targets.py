"""What the clients speak to: our broker, or Apache Kafka, as a child process on loopback."""

import contextlib
from collections.abc import Iterator

from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.our_broker import catchwater_broker

TARGETS = {"catchwater": "Catchwater", "kafka": f"Apache Kafka {KAFKA_VERSION}"}


@contextlib.contextmanager
def target(name: str) -> Iterator[str]:
    """The bootstrap address of the target named. Raises `MavenMissing` where Kafka needs it."""
    if name == "kafka":
        with apache_kafka() as (bootstrap, _):
            yield bootstrap
    else:
        with catchwater_broker() as broker:
            yield broker.bootstrap
