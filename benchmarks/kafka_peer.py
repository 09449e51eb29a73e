"""A real Apache Kafka, one node in KRaft combined mode on loopback, for as long as a `with` lasts.

`flush_every_message=True` syncs before acknowledging, which is what Catchwater always does; the
default leaves durability to the page cache.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.ports import free_port

from benchmarks.kafka_jars import jars

START_S = 180.0


def java(main_class: str, *arguments: str) -> list[str]:
    """A command that runs one of Kafka's own classes."""
    executable = shutil.which("java") or "java"
    return [executable, "-cp", f"{jars('kafka')}/*", "-Xmx1g", main_class, *arguments]


def properties(
    folder: Path,
    port: int,
    controller: int,
    flush_every_message: bool,
    stamp_on_append: bool,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> str:
    node_id = settings.get("node.id", "1")
    lines = {
        "process.roles": "broker,controller",
        "node.id": node_id,
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "logs"),
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    if flush_every_message:
        lines["log.flush.interval.messages"] = "1"
    if stamp_on_append:
        lines["log.message.timestamp.type"] = "LogAppendTime"
    ports = {"{port}": str(port), "{controller}": str(controller)}
    for name, value in settings.items():
        for word, number in ports.items():
            value = value.replace(word, number)
        lines[name] = value
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Apache Kafka stopped while starting:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return
        time.sleep(0.2)
    raise TimeoutError(f"Apache Kafka did not listen within {START_S:.0f} s.")


@contextlib.contextmanager
def apache_kafka(
    settings: Mapping[str, str] | None = None,
    *,
    flush_every_message: bool = False,
    stamp_on_append: bool = False,
) -> Iterator[tuple[str, int]]:
    """Yields (bootstrap servers, pid of the broker's process); settings are the broker's.

    In their values {port} and {controller} are the ports that it has on loopback.
    """
    folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
    port, controller = free_port(), free_port()
    config = folder / "server.properties"
    lines = properties(
        folder, port, controller, flush_every_message, stamp_on_append, settings or {}
    )
    config.write_text(lines)
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
    format_command = ["format", "-t", cluster_id, "-c", str(config)]
    subprocess.run(
        java("kafka.tools.StorageTool", *format_command), check=True, capture_output=True
    )
    log = folder / "broker.log"
    environment = {**os.environ, "KAFKA_LOG4J_OPTS": ""}
    with log.open("wb") as output:
        process = subprocess.Popen(
            java("kafka.Kafka", str(config)), stdout=output, stderr=output, env=environment
        )
    try:
        wait_until_listening(port, process, log)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
