"""kafka-python, which fetches in sessions (KIP-227), over many partitions that come and go."""

import gc
import time
import warnings
from collections import defaultdict

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings():
    # It reads its message schemas by a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves sockets to the collector when it connects anew.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 100
ROUND = 5
DEADLINE_S = 120.0


class Reading:
    """A consumer of assigned partitions, and the offsets it has read of each."""

    def __init__(self, bootstrap: str, **settings) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=50,
            retry_backoff_ms=20,
            metadata_max_age_ms=1_000,
            **settings,
        )
        self.offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)

    def assign(self, *places: tuple[str, int]) -> None:
        """Go on with these, those that are new from their beginning."""
        self.consumer.assign([TopicPartition(*place) for place in places])
        for place in places:
            self.consumer.seek(TopicPartition(*place), len(self.offsets[place]))

    def read(self, expected: dict[tuple[str, int], int]) -> None:
        """Until all partitions have so many records: every offset once and in order."""
        deadline = time.monotonic() + DEADLINE_S
        while any(len(self.offsets[place]) < count for place, count in expected.items()):
            assert time.monotonic() < deadline, {p: len(o) for p, o in self.offsets.items()}
            for place, records in self.consumer.poll(100).items():
                self.offsets[place.topic, place.partition] += [r.offset for r in records]
        for place, count in expected.items():
            assert self.offsets[place] == list(range(count)), place

    @property
    def session(self) -> tuple[int, int]:
        """Id and epoch of its session with the only broker; the client keeps them to itself."""
        (handler,) = self.consumer._fetcher._session_handlers.values()
        return handler.next_metadata.session_id, handler.next_metadata.epoch


def write(bootstrap: str, places) -> None:
    """One round of records to each partition."""
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic, partition in places:
        for number in range(ROUND):
            producer.produce(
                topic, b"%d" % number, partition=partition,
                on_delivery=lambda error, _: error and failed.append(error),
            )  # fmt: skip
    assert producer.flush(DEADLINE_S) == 0
    assert not failed


@pytest.fixture(autouse=True)
def collected():
    """What kafka-python leaves behind is collected, and warned of, while that is allowed."""
    yield
    gc.collect()


@pytest.mark.parametrize(
    "isolation", ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.slow)]
)
def test_nothing_is_lost_or_repeated_while_partitions_come_and_go(make_broker, isolation) -> None:
    broker = make_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("many", PARTITIONS, 1), NewTopic("later", 3, 1)]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_S)
    many = [("many", index) for index in range(PARTITIONS)]
    later = [("later", index) for index in range(3)]
    reading = Reading(broker.bootstrap, isolation_level=isolation)
    reading.assign(*many)
    write(broker.bootstrap, many)
    reading.read(dict.fromkeys(many, ROUND))
    session_id, _ = reading.session
    assert session_id > 0

    kept = many[::2] + later
    reading.assign(*kept)
    write(broker.bootstrap, [*many, *later])
    reading.read({place: ROUND * (1 if place in later else 2) for place in kept})
    still, epoch = reading.session
    assert still == session_id and epoch > 1, "it went on with the session it had"
    assert reading.offsets["many", 1] == list(range(ROUND)), "not assigned, so not read"

    broker.kill()
    broker.start()
    write(broker.bootstrap, kept)
    reading.read({place: ROUND * (2 if place in later else 3) for place in kept})
    assert reading.session[0] not in (0, session_id), "the broker did not know the old one"
    reading.assign(*many)
    reading.read({place: ROUND * (3 if place in kept else 2) for place in many})
    reading.consumer.close()


def test_clients_without_room_for_a_session_read_all_the_same(make_broker) -> None:
    broker = make_broker({"max.incremental.fetch.session.cache.slots": "1"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 5, 1)])["t"].result(DEADLINE_S)
    places = [("t", index) for index in range(5)]
    readings = [Reading(broker.bootstrap) for _ in range(2)]
    for times in (1, 2):
        write(broker.bootstrap, places)
        for reading in readings:
            if times == 1:
                reading.assign(*places)
            reading.read(dict.fromkeys(places, ROUND * times))
    assert [reading.session[0] > 0 for reading in readings] == [True, False]
    for reading in readings:
        reading.consumer.close()
