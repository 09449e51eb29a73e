"""Three brokers over one PostgreSQL, real clients: kill one, stop one, restart all, lose a zone.

Nothing acknowledged is lost or there twice, whatever happens to a broker; and what a client
notices of it is measured and printed. The brokers and their topic are the module's; every test
leaves them whole.
"""

import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from benchmarks.load import NOW_MS, Connection, frame_of_batch
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Brokers, ask, metric

from catchwater.wire.arrow import encode_batch

PARTITIONS = 6
NOT_LEADER, STORAGE_ERROR = 6, 56
SESSION_S = 1.0
TAKEOVER_S = 1.0
SLACK_S = 30.0
"""What a busy machine may add to the takeover before a test fails; the figure is printed."""
PATIENCE_S = 180.0
SETTINGS = {
    "catchwater.pack.interval.ms": "2000",
    "catchwater.pack.min.bytes": "1000000",
    "catchwater.pack.backlog.bytes": "1000000",
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, postgres_server) -> Iterator[Brokers]:
    database = postgres_server.new_database()
    cluster = Brokers(tmp_path_factory.mktemp("cluster"), database, SETTINGS)
    try:
        cluster.start()
        yield cluster
        assert "Traceback" not in cluster.log()
    finally:
        cluster.close()


@pytest.fixture
def topic(brokers, request) -> str:
    brokers.start()  # a test that failed may have left one dead
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    create(brokers.bootstrap, name)
    return name


def create(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic(name, PARTITIONS)]).values()
    created.result(PATIENCE_S)


class Load:
    """A producer that never stops, with the moment and offset of every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        self.topic = topic
        self.acknowledged: dict[str, tuple[int, int]] = {}
        """Value -> (partition, offset)."""
        self.moments: dict[int, list[float]] = {p: [] for p in range(PARTITIONS)}
        self.errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "reconnect.backoff.ms": 50,
                "retry.backoff.ms": 50,
            }
            | {key.replace("_", "."): value for key, value in settings.items()}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self.topic, str(number), partition=partition, on_delivery=self._answered
                )
                number += 1
            self._producer.poll(0.02)
        assert self._producer.flush(PATIENCE_S) == 0

    def _answered(self, error: KafkaError | None, message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        self.acknowledged[message.value().decode()] = message.partition(), message.offset()
        self.moments[message.partition()].append(time.monotonic())

    def __enter__(self) -> "Load":
        self._thread.start()
        try:
            wait_until(lambda: all(self.moments.values()))
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time in which a partition took nothing."""
        gaps = []
        for moments in self.moments.values():
            seen = [moment for moment in moments if moment >= since_s - 0.1]
            gaps += [later - earlier for earlier, later in pairwise(seen)]
        return max(gaps, default=0.0)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.02)


def read_all(bootstrap: str, topic: str, **settings: object) -> dict[str, tuple[int, int]]:
    """Value -> (partition, offset) of everything; nothing may be there twice."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
        | {key.replace("_", "."): value for key, value in settings.items()}
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: dict[str, tuple[int, int]] = {}
    ended: set[int] = set()
    errors: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"only {sorted(ended)} were read to their end: {errors}"
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is None:
                value = message.value().decode()
                assert value not in found, "nothing is there twice"
                found[value] = message.partition(), message.offset()
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                errors.append(f"{message.partition()}: {error}")
    consumer.close()
    return found


def assert_all_there(brokers: Brokers, load: Load) -> None:
    found = read_all(brokers.bootstrap, load.topic)
    assert {value: found.get(value) for value in load.acknowledged} == load.acknowledged
    assert not load.errors


def test_what_one_broker_does_is_seen_by_all(brokers, topic):
    for number, broker in brokers.all.items():
        create(broker.bootstrap, f"made-by-{number}")
    made = {topic, "made-by-1", "made-by-2", "made-by-3"}
    for broker in brokers.all.values():
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        # On a busy machine a session may end for a moment, and all is one broker's meanwhile.
        wait_until(lambda a=admin: seen_whole(a, made))
    with Load(brokers.bootstrap, topic) as load:
        time.sleep(0.5)
    for broker in brokers.all.values():
        assert read_all(broker.bootstrap, topic) == load.acknowledged
        wait_until(lambda b=broker: zones_seen(b) == ["a", "b", "c"])


def zones_seen(broker) -> list[str]:
    status, cluster = ask(broker, "/api/v1/cluster")
    assert status == 200
    return [row["zone"] for row in cluster["brokers"]]


def seen_whole(admin: AdminClient, made: set[str]) -> bool:
    """Whether all topics and brokers are there, and partitions are spread over brokers.

    Over those of all topics: ids are random, and one in 243 gives all six of a topic to one broker.
    """
    listed = admin.list_topics(timeout=PATIENCE_S)
    if not made <= set(listed.topics) or len(listed.brokers) < 3:
        return False
    partitions = (p for name in made for p in listed.topics[name].partitions.values())
    return len({partition.leader for partition in partitions}) > 1


@pytest.mark.parametrize("history_mb", [0, 50])
def test_a_killed_brokers_partitions_go_on_elsewhere(brokers, topic, history_mb):
    if history_mb:
        write_history(brokers.bootstrap, topic, history_mb)
    with Load(brokers.bootstrap, topic) as load:
        time.sleep(0.5)
        killed_s = time.monotonic()
        brokers.all[2].kill()
        time.sleep(SESSION_S + 1.5)
    gap_s = load.longest_gap_s(killed_s)
    print(f"takeover with {history_mb} MB of history: {gap_s:.2f} s as the client sees it")
    brokers.start()
    found = {v: place for v, place in read_all(brokers.bootstrap, topic).items() if v.isdecimal()}
    assert {value: found.get(value) for value in load.acknowledged} == load.acknowledged
    assert not load.errors
    assert gap_s < TAKEOVER_S + SLACK_S


def write_history(bootstrap: str, topic: str, megabytes: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(megabytes * 10):
        producer.produce(topic, b"h%d-" % number + bytes(100_000), partition=number % PARTITIONS)
        producer.poll(0)
        if number % 100 == 99:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


class Zombie:
    """Raw requests to one broker, sent whether it answers or not."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.answers: list[tuple[float, int, int]] = []
        """(moment, error, offset) of the requests, in their order."""
        self._connection = Connection(address)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def send(self, count: int) -> None:
        for _ in range(count):
            batch = encode_batch([(None, b"z%d" % self.sent, NOW_MS, ())])
            self._connection.socket.sendall(frame_of_batch(self.topic, 0, batch))
            self.sent += 1

    def _read(self) -> None:
        while True:
            try:
                answer = self._connection.answer()
            except (OSError, ValueError, struct.error):
                return
            at = len(answer) - struct.calcsize(">hqqq") - len(NOTHING_MORE)
            error, offset = struct.unpack_from(">hq", answer, at)
            self.answers.append((time.monotonic(), error, offset))

    def is_taken(self) -> bool:
        """Whether one more is acknowledged."""
        self.send(1)
        wait_until(lambda: len(self.answers) == self.sent)
        return self.answers[-1][1] == 0

    def close(self) -> None:
        wait_until(lambda: len(self.answers) == self.sent)
        self._connection.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(PATIENCE_S)
        self._connection.close()


# Record errors, error message, tagged fields of partition and topic, throttle time, tagged fields.
NOTHING_MORE = b"\x01\x00" + b"\0" * (1 + 1 + 4 + 1)


def test_a_stopped_broker_acknowledges_nothing_of_its_ended_session(brokers, topic):
    # It may find out first, join again, and take what was sent meanwhile in its new session; and
    # where the others stand still as well, nobody ends the one it has.
    attempts = (refuses_what_came_too_late(brokers, f"{topic}-{n}") for n in count())
    wait_until(lambda: next(attempts))


def refuses_what_came_too_late(brokers: Brokers, topic: str) -> bool:
    """Stop broker 1 until its session is over; whether it then refused anything."""
    broker = brokers.all[1]
    create(broker.bootstrap, topic)
    before = ask(broker, "/api/v1/cluster")[1]["session"]
    zombie = Zombie(broker.bootstrap, topic)
    for _ in range(50):
        zombie.send(1)
        time.sleep(0.01)
    wait_until(lambda: len(zombie.answers) == zombie.sent)
    if any(error for _, error, _ in zombie.answers):
        zombie.close()
        wait_until(lambda: ask(broker, "/api/v1/cluster")[1]["session"] > before)
        return False  # its session has ended already, as on a busy machine it may
    zombie.send(10)
    brokers.signal(1, signal.SIGSTOP)
    zombie.send(10)
    others = ",".join(brokers.all[number].bootstrap for number in (2, 3))
    with Load(others, topic) as load:
        time.sleep(2 * SESSION_S)
        resumed_s = time.monotonic()
        brokers.signal(1, signal.SIGCONT)
        wait_until(lambda: len(zombie.answers) == zombie.sent)
        wait_until(lambda: ask(broker, "/readyz")[0] == 200)
        wait_until(zombie.is_taken)
        zombie.close()
    has_ended = ask(broker, "/api/v1/cluster")[1]["session"] > before
    answers = list(enumerate(zombie.answers))
    told = {f"z{number}": (0, offset) for number, (_, error, offset) in answers if not error}
    late = {error for _, (moment, error, _) in answers if error and moment >= resumed_s}
    print(f"of {zombie.sent} requests {len(told)} acknowledged, others refused with {late}")
    assert late <= ({NOT_LEADER, STORAGE_ERROR} if has_ended else set())
    found = read_all(others, topic)
    assert {value: found.get(value) for value in told} == told
    assert {value: found.get(value) for value in load.acknowledged} == load.acknowledged
    return bool(late)


def test_a_rolling_restart_costs_no_acknowledgement(brokers, topic):
    with Load(brokers.bootstrap, topic) as load:
        for broker in brokers.all.values():
            began_s = time.monotonic()
            broker.stop()
            broker.start()
            time.sleep(0.3)
            print(f"restarted, longest gap {load.longest_gap_s(began_s):.2f} s")
    assert_all_there(brokers, load)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_groups_positions_survive_its_coordinator(brokers, topic, protocol):
    with Load(brokers.bootstrap, topic):
        time.sleep(0.3)
    group = f"moved-{protocol}"
    settings = {
        "bootstrap.servers": brokers.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    } | ({"session.timeout.ms": 20_000} if protocol == "classic" else {})
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    told: dict[int, int] = {}
    unsure: set[tuple[int, int]] = set()
    """Partition and position of commits of which nobody knows whether they were taken."""

    def commit_some(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        done = 0
        while done < count:
            assert time.monotonic() < deadline, "the group does not go on"
            message = consumer.poll(0.5)
            if message is None or message.error():
                continue
            try:
                (stored,) = consumer.commit(message, asynchronous=False)
            except KafkaException:
                unsure.add((message.partition(), message.offset() + 1))
                continue  # refused or nobody knows; the group reads it again
            told[stored.partition] = stored.offset
            done += 1

    commit_some(5)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    coordinator = described.coordinator.id
    brokers.all[coordinator].kill()
    killed_s = time.monotonic()
    where = Consumer(settings)
    positions = where.committed([TopicPartition(topic, p) for p in told], timeout=PATIENCE_S)
    assert all((p.partition, p.offset) in {*told.items(), *unsure} for p in positions)
    where.close()
    commit_some(5)
    print(
        f"coordinator {coordinator} killed; the group went on {time.monotonic() - killed_s:.1f} s"
    )
    # A new client: the old one may go on trying the coordinator it knew.
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.coordinator.id != coordinator
    consumer.close()
    brokers.start()


def stays_in_zone(brokers: Brokers, topic: str) -> bool:
    """Write and read in zone a; False if a session ended meanwhile, as on a busy machine it may."""
    others = [brokers.all[2], brokers.all[3]]

    def crossed() -> float:
        names = ("catchwater_bytes_in_total", "catchwater_bytes_out_total")
        return sum(metric(broker, name) for broker in others for name in names)

    def sessions() -> list[int]:
        return [ask(broker, "/api/v1/cluster")[1]["session"] for broker in brokers.all.values()]

    here = brokers.all[1].bootstrap
    name = f"{topic}-{time.monotonic_ns()}"
    create(here, name)
    lived, before = sessions(), crossed()
    with Load(here, name, client_id="load,zone=a", linger_ms=5) as load:
        time.sleep(1.5)
    assert read_all(here, name, client_rack="a") == load.acknowledged
    other_bytes = crossed() - before
    if sessions() != lived:
        return False
    print(f"{len(load.acknowledged)} records in zone a; {other_bytes:.0f} bytes by other brokers")
    assert other_bytes < 50_000
    return True


def test_clients_stay_in_their_zone_while_it_lives(brokers, topic):
    wait_until(lambda: stays_in_zone(brokers, topic))


def test_a_lost_zone_takes_nothing_with_it_that_was_acknowledged(brokers, topic):
    with Load(brokers.bootstrap, topic, client_id="zone=a") as load:
        brokers.all[1].kill()
        killed_s = time.monotonic()
        time.sleep(SESSION_S + 1.5)
    print(f"zone a lost: {load.longest_gap_s(killed_s):.2f} s")
    assert any(moment < killed_s for moments in load.moments.values() for moment in moments)
    # While the zone is away: the others have all of it, and it is not that which brings it back.
    others = ",".join(brokers.all[number].bootstrap for number in (2, 3))
    found = read_all(others, topic)
    assert {value: found.get(value) for value in load.acknowledged} == load.acknowledged
    assert not load.errors
    brokers.start()
