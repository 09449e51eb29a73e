"""An application of Kafka Streams under load: its input, its instances, its output."""

import contextlib
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.suites.beside import beside
from conformance.suites.jvm import Jvm, Jvms, properties, until
from conformance.suites.reading import COMMITTED, QUIET, READ_S, UNCOMMITTED, reader, whole

PARTITIONS = 4
LINES, WORDS_A_LINE, VOCABULARY = 20_000, 3, 300
AT_ONCE, EVERY_S = 500, 0.4
"""How the lines are fed: in 16 s, if the machine keeps up."""
RUNNING_S, COUNTED_S, ASKED_S = 60.0, 60.0, 10.0


@dataclass
class Application:
    """Words to count, and whoever counts them."""

    name: str
    bootstrap: str
    folder: Path
    programs: Jvms
    client: Mapping[str, str] = field(default_factory=dict)
    """How the instances reach the broker; by the address alone if nothing is said."""
    lines: list[str] = field(default_factory=list)
    instances: list[Jvm] = field(default_factory=list)

    def __post_init__(self) -> None:
        noise = random.Random(self.name)
        for _ in range(LINES):
            # Some words are frequent, most are not.
            numbers = (int(VOCABULARY * noise.random() ** 2) for _ in range(WORDS_A_LINE))
            self.lines.append(" ".join(f"word{number}" for number in numbers))
        self._input, self.output = f"{self.name}-lines", f"{self.name}-counts"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(topic, PARTITIONS, 1) for topic in (self._input, self.output)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        self._progress = reader(self.bootstrap, self.output, PARTITIONS)
        self._counted = 0

    def feeding(self) -> contextlib.AbstractContextManager[None]:
        """Lines come until all have, or until the `with` is left."""
        return beside(self._feed)

    def _feed(self, stopped: threading.Event) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": QUIET}
        )
        for index, line in enumerate(self.lines):
            producer.produce(self._input, line.encode(), f"{index}".encode())
            if index % AT_ONCE == AT_ONCE - 1:
                producer.flush()
                if stopped.wait(EVERY_S):
                    return

    def state(self, place: str) -> Path:
        """The folder of an instance's state."""
        return self.folder / f"{self.name}-state-{place}"

    def start(self, place: str) -> Jvm:
        """An instance over the state of that place."""
        client = self.client or {"bootstrap.servers": self.bootstrap}
        instance = self.programs.start(
            f"{self.name}-{len(self.instances)}", "WordCount",
            properties(self.folder / f"{self.name}.properties", client),
            self._input, self.output, self.name, str(self.state(place)),
        )  # fmt: skip
        self.instances.append(instance)
        return instance

    def when_running(self, instance: Jvm) -> None:
        """Wait until it has its share. Raises `Late`."""
        until(lambda: any(event["what"] == "RUNNING" for event in instance.events("state")),
              f"{instance.name} running", RUNNING_S)  # fmt: skip

    def when_counted(self, part: float) -> None:
        """Wait until that part of all words is counted and committed. Raises `Late`."""
        wanted = int(part * LINES * WORDS_A_LINE)

        def counted() -> bool:
            for message in self._progress.consume(100_000, 0.2):
                self._counted += message.error() is None
            return self._counted >= wanted

        until(counted, f"{wanted} counts", COUNTED_S)

    def stop(self) -> list[str]:
        """End the instances that live; the names of those that do not end by themselves."""
        self._progress.close()
        return [each.name for each in self.instances if each.runs() and not each.stop()]

    def updates(self, isolation: str = COMMITTED) -> list[tuple[str, int]]:
        """All counts, in the order of the log for any word. Raises `Late`."""
        messages = whole(self.bootstrap, self.output, PARTITIONS, isolation)
        return [((each.key() or b"").decode(), int(each.value() or 0)) for each in messages]

    def when_closed(self) -> None:
        """Wait until no transaction is open on the output. Raises `Late`."""
        committed = reader(self.bootstrap, self.output, PARTITIONS)
        every = reader(self.bootstrap, self.output, PARTITIONS, UNCOMMITTED)
        partitions = [TopicPartition(self.output, partition) for partition in range(PARTITIONS)]
        until(lambda: all(committed.get_watermark_offsets(p, ASKED_S)[1]
                          == every.get_watermark_offsets(p, ASKED_S)[1] for p in partitions),
              "the end of the last transaction", READ_S)  # fmt: skip
        committed.close()
        every.close()
