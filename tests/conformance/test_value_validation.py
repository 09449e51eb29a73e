"""A topic that refuses records which do not fit, with a real broker, client and serializer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from tests.conformance.test_bad_requests import PRODUCE, built
from tests.conftest import BrokerProcess, until
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.clock import SYSTEM
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.client import LATEST, Client
from catchwater.wire.connection import Connection, ask
from catchwater.wire.errors import ErrorCode

pytest.importorskip("fastavro")
confluent = pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

SCHEMA = json.dumps(
    {"type": "record", "name": "Txn", "fields": [{"name": "card", "type": "string"}]}
)
PATIENCE_S = 60


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess], registry: FakeRegistry) -> BrokerProcess:
    registry.login = "broker:hunter2"
    return make_broker(
        {
            "catchwater.schema.registry.url": registry.url,
            "catchwater.schema.registry.user": "broker",
            "catchwater.schema.registry.password": "hunter2",
        }
    )


@pytest.fixture
def payments(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "payments-" + request.node.name.split("_")[1]
    with Client(broker.bootstrap) as client:
        client.create_topics({name: 1}, {"catchwater.value.validation": "schema"})
    return name


def serializer(registry: FakeRegistry, topic: str) -> Callable[[dict[str, Any]], bytes]:
    asked = confluent.SchemaRegistryClient(
        {"url": registry.url, "basic.auth.user.info": registry.login}
    )
    write = AvroSerializer(asked, SCHEMA)
    within = SerializationContext(topic, MessageField.VALUE)
    return lambda row: bytes(write(row, within))


class Sent:
    """What became of what a producer sent."""

    def __init__(self, broker: BrokerProcess, **settings: Any) -> None:
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 60_000, **settings}
        )
        self.errors: list[KafkaError | None] = []

    def send(self, topic: str, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce(topic, value, b"k", on_delivery=self._done)

    def _done(self, error: KafkaError | None, message: object) -> None:
        self.errors.append(error)

    def poll(self) -> None:
        """What was sent so far goes as one batch, however slow the machine."""
        self._producer.flush(0.05)

    def all(self, count: int) -> list[KafkaError | None]:
        def reached() -> bool:
            self.poll()
            return len(self.errors) >= count

        until(reached, PATIENCE_S)
        return self.errors


def read_values(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    with Client(broker.bootstrap) as client:
        key = (topic, 0)
        end, offset, found = client.list_offsets({key: LATEST})[key], 0, []
        while offset < end:
            fetched = client.fetch({key: offset})[key]
            batches = place(fetched.records, partial_tail=True)
            for table in decode(fetched.records, batches, first=offset, columns=["value"]):
                found += table.column("value").to_pylist()
            offset = batches[-1].next_offset
    return found


def test_fitting_records_are_taken_and_others_refused_by_their_place(
    broker: BrokerProcess, registry: FakeRegistry, payments: str
) -> None:
    write = serializer(registry, payments)
    good = write({"card": "a"})
    sent = Sent(broker)
    sent.send(payments, good, None)
    assert sent.all(2) == [None, None], "the first batch is sent again once its schema is known"
    for bad in (b"no frame", good[:-1], b"\0\0\0\0\x63x"):
        refused = Sent(broker)
        refused.send(payments, good, bad)
        codes = {error and error.code() for error in refused.all(2)}
        assert codes == {KafkaError.INVALID_RECORD}
    now_ms = SYSTEM.now_ms()
    batch = encode_batch([(b"k", each, now_ms, ()) for each in (good, b"x", good, b"\1")])
    data = [{"name": payments, "partition_data": [{"index": 0, "records": batch}]}]
    connection = Connection("127.0.0.1", broker.port, timeout_s=60, clock=SYSTEM)
    asked = built(PRODUCE, 9, acks=-1, timeout=10_000, topic_data=data)
    (answer,) = ask(connection, "test", asked).responses[0].partition_responses
    connection.close()
    assert ErrorCode(int(answer.error_code)) is ErrorCode.INVALID_RECORD
    blamed = {each.batch_index: each.batch_index_error_message for each in answer.record_errors}
    assert [*blamed] == [1, 3]
    assert "does not fit the topic's schema: it has 1 bytes" in blamed[1]
    assert read_values(broker, payments) == [good, None]
    assert "hunter2" not in broker.log()


def test_unanswered_questions_make_producers_wait_and_others_not(
    broker: BrokerProcess, registry: FakeRegistry, payments: str
) -> None:
    good = serializer(registry, payments)({"card": "a"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"plain": 1})
    registry.status = 503
    try:
        waiting = Sent(broker)
        waiting.send(payments, good)
        beside = Sent(broker)
        for _ in range(20):
            beside.send("plain", b"x" * 100)
            waiting.poll()
        assert beside.all(20) == 20 * [None]
        waiting.poll()
        assert waiting.errors == []
    finally:
        registry.status = 200
    assert waiting.all(1) == [None]
    assert read_values(broker, payments) == [good]
