"""Groups whose coordinator is killed and comes back: nobody rejoins, nothing is processed twice."""

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.kafka_jars import jars
from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from conformance.programs import Missing, build_go
from tests.cluster import Brokers
from tests.conftest import BrokerProcess

PARTITIONS = 6
DEADLINE_S = 120.0
PROTOCOLS = ("classic", "consumer")
Close = Callable[[], None]


class Seen:
    """What has happened to a member."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []
        self.assigned: set[int] = set()
        self.taken: list[str] = []
        """What was revoked or lost."""
        self.committed: dict[int, int] = {}
        self.refused: list[str] = []


class Reader(Seen):
    """A member by librdkafka that commits what it has processed, as often as it can."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, instance: str | None) -> None:
        super().__init__()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-readers",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 300}
        if instance:
            settings["group.instance.id"] = instance
        self._consumer = Consumer(settings)
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned |= {p.partition for p in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {p.partition for p in partitions}
        if not self._stop.is_set():
            self.taken.append(f"revoked {len(partitions)}")

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {p.partition for p in partitions}
        self.taken.append(f"lost {len(partitions)}")

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(100, 0.1):
                if message.error() is None:
                    self.read.append((message.partition(), message.offset()))
            if self.assigned:
                try:
                    for place in self._consumer.commit(asynchronous=False):
                        assert place.error is None, place.error
                        if place.offset >= 0:  # others had nothing new
                            self.committed[place.partition] = place.offset
                except KafkaException as error:
                    name = error.args[0].name()
                    if name != "_NO_OFFSET":
                        self.refused.append(name)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


class Foreign:
    """Two members in a process of another language, which prints what happens to them."""

    def __init__(self, *command: str) -> None:
        self.readers = [Seen(), Seen()]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, what, *said = line.split()
            seen = self.readers[int(number)]
            if what == "refused":
                seen.refused.append(" ".join(said))
                continue
            numbers = [int(each) for each in said]
            if what == "read":
                seen.read.append((numbers[0], numbers[1]))
            elif what == "committed":
                seen.committed[numbers[0]] = numbers[1]
            elif what == "assigned":
                seen.assigned |= set(numbers)
            else:
                seen.assigned -= set(numbers)
                seen.taken.append(f"{what} {numbers}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Scene:
    """Two members of a group on a topic that is being written to."""

    def __init__(
        self, bootstrap: str, topic: str, start: Callable[[], tuple[Sequence[Seen], Close]]
    ) -> None:
        self.written = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._topic = topic
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(DEADLINE_S)
        self.readers, self.close = start()
        try:
            wait_until(lambda: self.sizes() == [3, 3], self.tell)
            self.let_read()
        except BaseException:
            self.close()
            raise
        for reader in self.readers:
            reader.taken.clear()
            reader.refused.clear()

    def sizes(self) -> list[int]:
        return [len(reader.assigned) for reader in self.readers]

    def write(self) -> None:
        """Let there be more to read."""
        for number in range(self.written, self.written + 600):
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(DEADLINE_S) == 0
        self.written += 600

    def let_read(self) -> None:
        """Write more, and wait until it was read and committed by those who hold it."""
        self.write()
        wait_until(lambda: sum(len(r.read) for r in self.readers) >= self.written, self.tell)
        each = self.written // PARTITIONS
        wait_until(lambda: self.committed() == dict.fromkeys(range(PARTITIONS), each), self.tell)

    def committed(self) -> dict[int, int]:
        """The position by partition, as it was acknowledged to whoever committed it."""
        return {p: at for reader in self.readers for p, at in reader.committed.items()}

    def tell(self) -> object:
        return [(r.assigned, r.taken, len(r.read), r.committed, r.refused) for r in self.readers]

    def judge(self, *, rejoins: bool = False) -> None:
        """Nobody lost a partition or was refused as a stranger, and nothing was read twice.

        `rejoins`: the client may ask for a rebalance of its own accord.
        """
        seen = Counter(place for reader in self.readers for place in reader.read)
        assert len(seen) == self.written
        assert [place for place, times in seen.items() if times > 1] == []
        lost = [[what for what in r.taken if what.startswith("lost")] for r in self.readers]
        assert (lost if rejoins else [reader.taken for reader in self.readers]) == [[], []]
        # librdkafka says so when a commit finds no broker; it is repeated with the next.
        refused = {name for reader in self.readers for name in reader.refused}
        assert refused <= {"_TRANSPORT", "_WAIT_COORD", "_TIMED_OUT", "_ALL_BROKERS_DOWN"}


def wait_until(is_done, tell) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


SETTINGS = {"group.consumer.heartbeat.interval.ms": "300"}


def librdkafka(
    bootstrap: str, topic: str, protocol: str, *, static: bool = False
) -> tuple[list[Reader], Close]:
    names = [f"i{number}" if static else None for number in range(2)]
    readers = [Reader(bootstrap, topic, protocol, name) for name in names]

    def close() -> None:
        for reader in readers:
            reader.close()

    return readers, close


def foreign(
    language: str, bootstrap: str, topic: str, protocol: str, *more: str
) -> tuple[list[Seen], Close]:
    """Two members by Kafka's own Java client, or by franz-go."""
    if language == "java":
        if not all(map(shutil.which, ("java", "mvn"))):
            pytest.skip("Java or Maven is not installed")
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        source = str(Path(__file__).with_name("Takeover.java"))
        command = ["java", *options, "-cp", f"{jars('kafka')}/*", source]
    else:
        try:
            command = [build_go("./takeover", "takeover")]
        except Missing as reason:
            pytest.skip(str(reason))
    started = Foreign(*command, bootstrap, topic, protocol, *more)
    return started.readers, started.close


def kill_alone(broker: BrokerProcess, scene: Scene, *, rejoins: bool = False) -> None:
    """Twice, while some is read and not committed; then nobody may have noticed."""
    try:
        for _ in range(2):
            scene.write()
            broker.kill()
            broker.start()
            scene.let_read()
        scene.judge(rejoins=rejoins)
    finally:
        scene.close()


@pytest.fixture(scope="module")
def broker_alone(make_broker) -> BrokerProcess:
    return make_broker(SETTINGS)


@pytest.mark.parametrize(
    ("protocol", "static"),
    [
        ("classic", False),
        ("consumer", True),
        pytest.param("classic", True, marks=pytest.mark.slow),
        pytest.param("consumer", False, marks=pytest.mark.slow),
    ],
)
def test_members_outlive_a_broker_that_is_killed(broker_alone, protocol, static) -> None:
    at, topic = broker_alone.bootstrap, f"{protocol}-{static}"
    kill_alone(
        broker_alone, Scene(at, topic, lambda: librdkafka(at, topic, protocol, static=static))
    )


# By the classic protocol franz-go gives its partitions up by itself where no broker listens.
#
# Java's classic consumer forgets all topics when no broker answers (metadata.recovery.strategy is
# `rebootstrap` since 4.0, KIP-1102). If it learns of its topics and its coordinator within one
# poll, it takes the topics for changed and rejoins ("cached metadata has changed"), as the member
# it was. Whether it does is a matter of timing; it happens with Apache Kafka 4.3.1, too. Without
# that strategy it never does.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "protocol", "more"),
    [
        ("java", "classic", ["rebootstrap"]),
        ("java", "classic", ["none"]),
        ("java", "consumer", []),
        ("go", "consumer", []),
    ],
    ids=["java-classic", "java-classic-none", "java-consumer", "go-consumer"],
)
def test_foreign_members_outlive_a_broker_that_is_killed(
    broker_alone, language, protocol, more
) -> None:
    at, topic = broker_alone.bootstrap, "-".join([language, protocol, *more])
    scene = Scene(at, topic, lambda: foreign(language, at, topic, protocol, *more))
    kill_alone(broker_alone, scene, rejoins="rebootstrap" in more)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, postgres_server) -> Iterator[Brokers]:
    home = tmp_path_factory.mktemp("cluster")
    cluster = Brokers(home, postgres_server.new_database(), SETTINGS)
    try:
        cluster.start()
        yield cluster
        assert "Traceback" not in cluster.log()
    finally:
        cluster.close()


def move_there_and_back(brokers: Brokers, topic: str, scene: Scene) -> None:
    """Kill the coordinator, and start it again: nobody may have noticed."""

    def coordinator() -> int:
        # A new one each time: it would go on asking the broker it has once found.
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        asked = admin.describe_consumer_groups([f"{topic}-readers"], request_timeout=3)
        (found,) = asked.values()
        try:
            return found.result(DEADLINE_S).coordinator.id
        except KafkaException:  # on the way from one to the other
            return -1

    try:
        wait_until(lambda: coordinator() != -1, scene.tell)
        first = coordinator()
        scene.write()
        brokers.all[first].kill()
        wait_until(lambda: coordinator() not in (first, -1), scene.tell)
        scene.let_read()
        scene.write()
        brokers.start()
        wait_until(lambda: coordinator() == first, scene.tell)
        scene.let_read()
        scene.judge()
    finally:
        scene.close()
        brokers.start()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_move_with_their_coordinator_there_and_back(brokers, protocol) -> None:
    at, topic = brokers.bootstrap, f"among-{protocol}"
    scene = Scene(at, topic, lambda: librdkafka(at, topic, protocol))
    move_there_and_back(brokers, topic, scene)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("language", ["java", "go"])
def test_foreign_members_move_with_their_coordinator(brokers, language, protocol) -> None:
    at, topic = brokers.bootstrap, f"among-{language}-{protocol}"
    scene = Scene(at, topic, lambda: foreign(language, at, topic, protocol))
    move_there_and_back(brokers, topic, scene)
