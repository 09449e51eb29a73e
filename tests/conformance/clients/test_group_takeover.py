"""Groups whose coordinator is killed and comes back: nobody rejoins, nothing is processed twice."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Brokers

PARTITIONS = 6
DEADLINE_S = 120.0
PROTOCOLS = ("classic", "consumer")


class Reader:
    """A member that commits what it has processed, as often as it can."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, instance: str | None) -> None:
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
        self.read: list[tuple[int, int]] = []
        self.assigned: set[int] = set()
        self.taken: list[str] = []
        """What was revoked or lost."""
        self.committed: dict[int, int] = {}
        self.refused: list[str] = []
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


class Scene:
    """Two members of a group on a topic that is being written to."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, *, static: bool) -> None:
        self.written = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._topic = topic
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(DEADLINE_S)
        names = [f"i{number}" if static else None for number in range(2)]
        self.readers = [Reader(bootstrap, topic, protocol, name) for name in names]
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

    def judge(self) -> None:
        """Nobody lost a partition or was refused as a stranger, and nothing was read twice."""
        seen = Counter(place for reader in self.readers for place in reader.read)
        assert len(seen) == self.written
        assert [place for place, times in seen.items() if times > 1] == []
        assert [reader.taken for reader in self.readers] == [[], []]
        told_off = {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH"}
        assert [told_off & set(reader.refused) for reader in self.readers] == [set(), set()]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


def wait_until(is_done, tell) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


SETTINGS = {"group.consumer.heartbeat.interval.ms": "300"}


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_outlive_a_broker_that_is_killed(broker_alone, protocol, static) -> None:
    scene = Scene(broker_alone.bootstrap, f"{protocol}-{static}", protocol, static=static)
    try:
        for _ in range(2):
            scene.write()  # so that it dies while some is read and not committed
            broker_alone.kill()
            broker_alone.start()
            scene.let_read()
        scene.judge()
    finally:
        scene.close()


@pytest.fixture(scope="module")
def broker_alone(make_broker):
    return make_broker(SETTINGS)


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_move_with_their_coordinator_there_and_back(brokers, protocol) -> None:
    topic = f"among-{protocol}"
    scene = Scene(brokers.bootstrap, topic, protocol, static=False)
    try:

        def coordinator() -> int:
            # A new one each time: it would go on asking the broker it has once found.
            admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
            asked = admin.describe_consumer_groups([f"{topic}-readers"], request_timeout=3)
            (found,) = asked.values()
            try:
                return found.result(DEADLINE_S).coordinator.id
            except KafkaException:  # on the way from one to the other
                return -1

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
