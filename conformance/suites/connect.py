"""Kafka Connect: a file that grows goes into a topic and from there into another file.

The connectors are Kafka's own FileStreamSource and FileStreamSink. A standalone worker is killed
twice and started again: no line may be missing, and those that came twice, which at-least-once
allows, are counted. Then two distributed workers, whose connectors, offsets and states lie in
compacted topics, one killed, then both: there the source is exactly-once (KIP-618), so every line
stands in the topic once.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.ports import free_port

from conformance.suites.growing_file import GrowingFile
from conformance.suites.jvm import Jvm, Jvms, Late, jvms, libraries, properties, until
from conformance.suites.outcome import Outcome, judged
from conformance.suites.promises import missing
from conformance.suites.reading import COMMITTED, UNCOMMITTED, whole

STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
PARTITIONS, SINK_TASKS = 3, 2
SERVED_S, ASKED_S = 60.0, 20.0
UNFILLED = "1000000"
"""Lines of a batch: after a full one the source keeps what it has read until the file grows."""
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "200",
    "plugin.discovery": "service_load",
    "consumer.session.timeout.ms": "6000",
    "consumer.heartbeat.interval.ms": "1000",
}
REACHING = ("", "producer.", "consumer.", "admin.")
"""What a worker's settings for its clients begin with: its own, and its connectors'."""
CLUSTER = {
    "group.id": "connect-cluster",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "exactly.once.source.support": "enabled",
    "consumer.isolation.level": "read_committed",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}

TRANSACTIONS = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": "700"}
"""Of the exactly-once source: long ones, so that a kill is likely to leave one open."""


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """One worker alone, then two. Raises `Missing`."""
    with jvms(f"{libraries('connect')}/*", folder) as programs:
        for story in (standalone, distributed):
            yield from story(GrowingFile(story.__name__, bootstrap, folder, PARTITIONS), programs)


def standalone(
    file: GrowingFile, programs: Jvms, client: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Outcome]:
    """Killed when a third has arrived, and when two thirds have.

    `client` says how the worker and its connectors reach the broker, if not by its address alone.
    """
    reached = {f"{of}{key}": value for of in REACHING for key, value in client.items()}
    worker = (
        WORKER
        | {"bootstrap.servers": file.bootstrap}
        | reached
        | {
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": str(file.folder / "standalone.offsets"),
        }
    )
    arguments = [properties(file.folder / "standalone.properties", worker)]
    for name, settings in connectors(file).items():
        path = file.folder / f"{name}.properties"
        arguments.append(properties(path, {"name": name, **settings}))
    try:
        with file.growing():
            for life, part in enumerate((1 / 3, 2 / 3, 1)):
                running = programs.start(f"standalone-{life}", STANDALONE, *arguments)
                file.when_arrived(part)
                if part < 1:
                    running.kill()
    except Late as late:
        yield Outcome("standalone: goes on", "failed", str(late))
    yield from judge(file, [running], exactly_once=False)


def distributed(file: GrowingFile, programs: Jvms) -> Iterator[Outcome]:
    """Two workers; one is killed and comes back, then both are killed and one comes back."""
    ports = {"a": free_port(), "b": free_port()}
    lives: list[Jvm] = []

    def start(place: str) -> Jvm:
        listener = {"listeners": f"http://127.0.0.1:{ports[place]}"}
        worker = WORKER | CLUSTER | listener | {"bootstrap.servers": file.bootstrap}
        config = properties(file.folder / f"distributed-{place}.properties", worker)
        lives.append(programs.start(f"distributed-{len(lives)}", DISTRIBUTED, config))
        return lives[-1]

    try:
        a, b = start("a"), start("b")
        for name, settings in connectors(file, **TRANSACTIONS).items():
            until(partial(_put, ports["a"], name, settings),
                  f"taking {name}", SERVED_S)  # fmt: skip
        with file.growing():
            file.when_arrived(1 / 4)
            a.kill()
            file.when_arrived(1 / 2)
            a = start("a")
            file.when_arrived(3 / 4)
            a.kill()
            b.kill()
            b = start("b")
            file.when_arrived(1)
        for name in connectors(file):
            until(partial(_all_run, ports["b"], name), f"{name} running", SERVED_S)
    except Late as late:
        yield Outcome("distributed: goes on", "failed", str(late))
    yield from judge(file, [life for life in lives if life.runs()], exactly_once=True)


def connectors(file: GrowingFile, **transactions: str) -> dict[str, dict[str, str]]:
    """The source and the sink, by name."""
    package = "org.apache.kafka.connect.file"
    source = {"connector.class": f"{package}.FileStreamSourceConnector", "tasks.max": "1",
              "file": str(file.source), "topic": file.topic, "batch.size": UNFILLED,
              **transactions}  # fmt: skip
    sink = {"connector.class": f"{package}.FileStreamSinkConnector", "tasks.max": f"{SINK_TASKS}",
            "file": str(file.target), "topics": file.topic}  # fmt: skip
    return {f"{file.name}-source": source, f"{file.name}-sink": sink}


def judge(file: GrowingFile, living: list[Jvm], *, exactly_once: bool) -> Iterator[Outcome]:
    """Stop who lives, then compare the files, and the topic."""
    name, wanted = file.name, file.lines
    kept = [worker.name for worker in living if not worker.stop()]
    yield judged(f"{name}: workers end when told", f"{kept} do not" if kept else "")
    try:
        messages = whole(file.bootstrap, file.topic, PARTITIONS, COMMITTED)
        every = whole(file.bootstrap, file.topic, PARTITIONS, UNCOMMITTED)
    except Late as late:
        yield Outcome(f"{name}: the topic can be read to its end", "failed", str(late))
        return
    places = {"topic": [(message.value() or b"").decode() for message in messages],
              "file": file.target.read_text().splitlines()}  # fmt: skip
    for where, lines in places.items():
        gone = missing(lines, wanted)
        problem = f"{len(gone)} are not, the first of them {gone[:3]}" if gone else ""
        again = len(lines) - len(set(lines))
        note = f"{wanted} lines, {again} of them more than once"
        yield judged(f"{name}: every line is in the {where}", problem, note)
        if exactly_once and where == "topic":
            problem = f"{again} more than once" if again else ""
            note = f"{len(every) - len(messages)} lines of aborted transactions are not among them"
            yield judged(f"{name}: every line is in the topic once", problem, note)


def _put(port: int, name: str, settings: dict[str, str]) -> bool:
    """Whether the worker has taken the connector."""
    body = json.dumps(settings).encode()
    return _ask(port, f"{name}/config", body) is not None


def _all_run(port: int, name: str) -> bool:
    """Whether the connector and all of its tasks are running."""
    told = _ask(port, f"{name}/status") or {"connector": {"state": "?"}, "tasks": []}
    states = [told["connector"]["state"], *(task["state"] for task in told["tasks"])]
    return len(states) > 1 and set(states) == {"RUNNING"}


def _ask(port: int, path: str, body: bytes | None = None) -> Any:
    """What the worker answers; None if it does not, or does not yet."""
    url = f"http://127.0.0.1:{port}/connectors/{path}"
    request = urllib.request.Request(
        url, data=body, method="PUT" if body else "GET",
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=ASKED_S) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
