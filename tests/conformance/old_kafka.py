"""Apache Kafka in the releases that people still run, each started as it is run most.

Two brokers with ZooKeeper for 2.8, one node in KRaft mode for what came later. The jars come by
Maven, as the newest release's do; records are on the page cache only, and an end is a kill.

A broker that listens need not be of use: 3.3 answers before it lists itself, and librdkafka's admin
client, told of no controller, asks again after minutes only. So all are waited for.
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.kafka_jars import jars
from benchmarks.kafka_peer import START_S, wait_until_listening
from tests.ports import free_port

from catchwater.wire.client import Client

RELEASES = ("2.8.2", "3.3.2", "3.7.2", "3.9.1")
ZOOKEEPER_RELEASE = "2.8.2"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
LOGGING = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""
ZOOKEEPER = {"tickTime": "500", "clientPortAddress": "127.0.0.1", "admin.enableServer": "false"}
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # What is compacted is another test's business.
    "log.cleaner.enable": "false",
}


@dataclass
class OldKafka:
    """A cluster on loopback; its processes by the id of the broker, ZooKeeper's under 0."""

    release: str
    folder: Path
    ports: dict[int, int] = field(default_factory=dict)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """All brokers there were, those that were killed among them."""
        return ",".join(f"127.0.0.1:{port}" for id, port in self.ports.items() if id)

    def kill(self, id: int) -> None:
        """kill -9 of one process."""
        process = self.processes.pop(id)
        process.kill()
        process.wait()

    def start_with_zookeeper(self, brokers: int) -> None:
        """ZooKeeper, which forgets a dead broker after two seconds, and so many brokers."""
        port = free_port()
        lines = {**ZOOKEEPER, "dataDir": str(self.folder / "zookeeper"), "clientPort": str(port)}
        self._start(0, port, "org.apache.zookeeper.server.quorum.QuorumPeerMain", lines)
        for id in range(1, brokers + 1):
            listening = free_port()
            lines = {
                "broker.id": str(id),
                "zookeeper.connect": f"127.0.0.1:{port}",
                "zookeeper.session.timeout.ms": "2000",
                "listeners": f"PLAINTEXT://127.0.0.1:{listening}",
            }
            self._start(id, listening, "kafka.Kafka", {**self._settings(id), **lines})

    def start_alone(self) -> None:
        """One node that is broker and controller."""
        port, controller = free_port(), free_port()
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
        }
        settings = {**self._settings(1), **lines}
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self._write(1, settings))]
        command = self._java("kafka.tools.StorageTool", *arguments)
        subprocess.run(command, check=True, capture_output=True)
        self._start(1, port, "kafka.Kafka", settings)

    def wait_until_listed(self) -> None:
        """Every broker tells of all of them; raises TimeoutError where that takes too long."""
        ids = {id for id in self.ports if id}
        deadline = time.monotonic() + START_S
        for id in ids:
            with Client(f"127.0.0.1:{self.ports[id]}", timeout_s=START_S) as client:
                while set(client.metadata(()).brokers) != ids:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"Broker {id} does not tell of all of {ids}.")
                    time.sleep(0.1)

    def _settings(self, id: int) -> dict[str, str]:
        return {**SETTINGS, "log.dirs": str(self.folder / f"logs-{id}")}

    def _start(self, id: int, port: int, main: str, lines: Mapping[str, str]) -> None:
        log = self.folder / f"{id}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._java(main, str(self._write(id, lines))), stdout=output, stderr=output
            )
        self.ports[id], self.processes[id] = port, process
        wait_until_listening(port, process, log)

    def _write(self, id: int, lines: Mapping[str, str]) -> Path:
        path = self.folder / f"{id}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def _java(self, main: str, *arguments: str) -> list[str]:
        logging = self.folder / "log4j.properties"
        logging.write_text(LOGGING)
        java = shutil.which("java")
        if java is None:
            raise FileNotFoundError("java is not on the path")
        minor = self.release.rpartition(".")[0]
        found = [java, "-cp", f"{jars(f'kafka-{minor}')}/*", "-Xmx512m", "-XX:+UseSerialGC"]
        return [*found, f"-Dlog4j.configuration=file:{logging}", main, *arguments]


@contextlib.contextmanager
def old_kafka(release: str) -> Iterator[OldKafka]:
    """Raises `MavenMissing`, and FileNotFoundError where there is no Java."""
    kafka = OldKafka(release, Path(tempfile.mkdtemp(prefix="old-kafka-")))
    try:
        if release == ZOOKEEPER_RELEASE:
            kafka.start_with_zookeeper(2)
        else:
            kafka.start_alone()
        kafka.wait_until_listed()
        yield kafka
    finally:
        for id in list(kafka.processes):
            kafka.kill(id)
        shutil.rmtree(kafka.folder, ignore_errors=True)
