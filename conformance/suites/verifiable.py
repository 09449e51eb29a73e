"""Kafka's VerifiableProducer and VerifiableConsumer, which its system tests drive.

The producer sends numbers with acks=all and tells of each where it was acknowledged; consumers, of
groups of both protocols at once, tell what they read and committed. One member of each group is
killed and another joins while records come (`run`); then the same with a broker that is killed
twice under an idempotent producer (`run_killing`). Nothing acknowledged may be missing, at its
place, in any group; what is read twice, which at-least-once allows, is counted.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from conformance.suites.jvm import Jvm, Jvms, Late, jvms, libraries, until
from conformance.suites.mortal import mortal
from conformance.suites.outcome import Outcome, judged
from conformance.suites.positions import Positions
from conformance.suites.promises import (
    Acknowledged,
    Place,
    backward,
    disordered,
    lost,
    twice,
)

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PROTOCOLS = {
    "classic": ["--session-timeout", "10000"],
    "consumer": [],
}
PARTITIONS, KEYS = 6, 60
RECORDS, PER_S = 24_000, 1_200
START_S, PRODUCE_S = 60.0, 90.0
READ_S = 60.0
ONCE = """enable.idempotence=true
retries=2147483647
delivery.timeout.ms=60000
request.timeout.ms=5000
"""


@dataclass
class Load:
    """A topic, its producer, and the members of a group of each protocol."""

    topic: str
    bootstrap: str
    programs: Jvms
    groups: dict[str, list[Jvm]] = field(default_factory=lambda: {p: [] for p in PROTOCOLS})

    def join(self, protocol: str) -> None:
        """One more member."""
        members = self.groups[protocol]
        members.append(self.programs.start(
            f"{self.topic}-{protocol}-{len(members)}", CONSUMER,
            "--bootstrap-server", self.bootstrap, "--topic", self.topic, "--verbose",
            "--group-id", protocol, "--group-protocol", protocol.upper(), *PROTOCOLS[protocol],
        ))  # fmt: skip

    def begin(self, members: int, *options: str) -> None:
        """Create the topic, wait until every member has a share, start the producer."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        for protocol in list(PROTOCOLS) * members:
            self.join(protocol)
        everyone = [member for members in self.groups.values() for member in members]
        until(lambda: all(map(has_partitions, everyone)), "a share for each member", START_S)
        self.producer = self.programs.start(
            f"{self.topic}-producer", PRODUCER,
            "--bootstrap-server", self.bootstrap, "--topic", self.topic, "--acks", "-1",
            "--max-messages", str(RECORDS), "--throughput", str(PER_S),
            "--repeating-keys", str(KEYS), *options,
        )  # fmt: skip

    def when_acknowledged(self, records: int) -> None:
        """Wait for so many. Raises `Late`."""
        told = "producer_send_success"
        until(lambda: len(self.producer.events(told)) >= records or not self.producer.runs(),
              f"the {records}th answer", PRODUCE_S)  # fmt: skip

    def end(self) -> None:
        """Wait for the producer, then until all is read, or for long enough."""
        until(lambda: not self.producer.runs(), "the producer's end", PRODUCE_S)
        sent = acknowledged(self.producer)
        with contextlib.suppress(Late):  # what is not read is told by the judgement
            until(lambda: not any(lost(sent, read(m)) for m in self.groups.values()),
                  "reading all", READ_S)  # fmt: skip


def settings(against: str, folder: Path) -> Mapping[str, str]:
    """The broker's session timeout for the consumer protocol, which is 45 s by default."""
    timeouts = ["group.consumer.session.timeout.ms"]
    timeouts += ["group.consumer.min.session.timeout.ms"] * (against == "kafka")
    return dict.fromkeys(timeouts, "10000")


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """Of each group one member is killed and one joins. Raises `Missing`."""
    with jvms(f"{libraries('kafka')}/*", folder) as programs:
        load = Load("members", bootstrap, programs)
        with Positions(bootstrap, load.topic, PROTOCOLS) as positions:
            try:
                load.begin(3)
                load.when_acknowledged(RECORDS // 5)
                for members in load.groups.values():
                    members[0].kill()
                load.when_acknowledged(RECORDS // 3)
                for protocol in PROTOCOLS:
                    load.join(protocol)
                load.end()
            except Late as late:
                yield Outcome("members come and go", "failed", str(late))
                return
        yield from judge_producer("", load)
        for protocol, members in load.groups.items():
            problem = "" if has_partitions(members[-1]) else "it has none"
            yield judged(f"{protocol}: who joins gets partitions", problem)
            yield from judge_group(f"{protocol}: ", load, protocol, positions)


def run_killing(against: str, folder: Path) -> Iterator[Outcome]:
    """The broker is killed twice under an idempotent producer. Raises `Missing`."""
    class_path = f"{libraries('kafka')}/*"
    config = folder / "once.properties"
    config.write_text(ONCE)
    with mortal(against, folder) as broker, jvms(class_path, folder) as programs:
        load = Load("killed", broker.bootstrap, programs)
        with Positions(broker.bootstrap, load.topic, PROTOCOLS) as positions:
            try:
                load.begin(2, "--command-config", str(config))
                for part in (1, 2):
                    load.when_acknowledged(RECORDS * part // 3)
                    broker.kill()
                    broker.start()
                load.end()
            except Late as late:
                yield Outcome("the broker is killed", "failed", str(late))
                return
        yield from judge_producer("broker killed, ", load)
        for protocol, members in load.groups.items():
            name = f"broker killed, {protocol}: "
            yield from judge_group(name, load, protocol, positions)
            again = twice(read(members))
            yield judged(f"{name}nothing stands in the log twice", shown(again))


def judge_producer(prefix: str, load: Load) -> Iterator[Outcome]:
    """What the producer told."""
    errors = Counter(event["message"] for event in load.producer.events("producer_send_error"))
    sent = acknowledged(load.producer)
    problem = "" if len(sent) == RECORDS else f"{len(sent)} of {RECORDS} are; {dict(errors)}"
    yield judged(f"{prefix}producer: every record is acknowledged", problem, f"{RECORDS} records")
    yield judged(f"{prefix}producer: a key's records keep their order", shown(disordered(sent)))


def judge_group(prefix: str, load: Load, protocol: str, positions: Positions) -> Iterator[Outcome]:
    """What the members told and committed; those that live are stopped in between."""
    sent, members = acknowledged(load.producer), load.groups[protocol]
    found = read(members)
    times = sum(len(member.events("record_data")) for member in members)
    note = f"{len(sent)} records, {times - len(found)} of them read again"
    yield judged(f"{prefix}every acknowledged record is read", shown(lost(sent, found)), note)
    samples = positions.samples[protocol]
    note = f"asked {len(samples)} times"
    yield judged(f"{prefix}positions only move forward", shown(backward(samples)), note)
    living = [member for member in members if member.runs()]
    left = [member.stop() and bool(member.events("shutdown_complete")) for member in living]
    yield judged(f"{prefix}members leave", "" if all(left) else f"{left}")
    ends = {p: 1 + max(r.place[1] for r in sent if r.place[0] == p) for p in range(PARTITIONS)}
    held = positions.now(protocol)
    problem = "" if held == ends else f"{held} instead of {ends}"
    yield judged(f"{prefix}the log's end is committed", problem)


def has_partitions(member: Jvm) -> bool:
    """Whether it was given a partition."""
    return any(event["partitions"] for event in member.events("partitions_assigned"))


def acknowledged(producer: Jvm) -> list[Acknowledged]:
    """What it was told of its records."""
    return [
        Acknowledged(event["key"], int(event["value"]), (event["partition"], event["offset"]))
        for event in producer.events("producer_send_success")
    ]


def read(members: list[Jvm]) -> dict[Place, int]:
    """What stands where, as the members told."""
    return {
        (event["partition"], event["offset"]): int(event["value"])
        for member in members
        for event in member.events("record_data")
    }


def shown(wrong: Sequence[object]) -> str:
    """How many, and the first of them; empty if there is none."""
    return f"{len(wrong)}, the first of them {wrong[:3]}" if wrong else ""
