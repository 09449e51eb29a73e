"""librdkafka (confluent-kafka) with its default settings against a real broker."""

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

DEADLINE_S = 120.0


def producer(broker, **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap} | settings)


def consumer(broker, group, **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        | settings
    )


def write(broker, topic, records, **settings):
    failed = []
    client = producer(broker, queue_buffering_max_messages=1_000_000, **settings)
    for index, (key, value) in enumerate(records):
        client.produce(
            topic, value, key, on_delivery=lambda error, _: error and failed.append(error)
        )
        if index % 10_000 == 0:
            client.poll(0)
    assert client.flush(DEADLINE_S) == 0
    assert not failed


def read(client, count):
    records = []
    deadline = time.monotonic() + DEADLINE_S
    while len(records) < count and time.monotonic() < deadline:
        for message in client.consume(10_000, 0.1):
            assert message.error() is None, message.error()
            records.append((message.offset(), message.key().decode(), message.value().decode()))
    return records


def test_an_idempotent_producer_and_an_assigned_consumer_agree(broker, codec, wanted, assert_read):
    topic = f"confluent-{codec}"
    write(broker, topic, wanted, compression_type=codec, enable_idempotence=True)
    client = consumer(broker, "unused")
    client.assign([TopicPartition(topic, 0, 0)])
    assert_read(read(client, len(wanted)), wanted)
    assert client.get_watermark_offsets(TopicPartition(topic, 0)) == (0, len(wanted))
    client.close()


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks_are_taken(broker, acks, wanted, assert_read):
    topic = f"confluent-acks-{acks}"
    write(broker, topic, wanted[:1000], acks=acks)
    client = consumer(broker, "unused")
    client.assign([TopicPartition(topic, 0, 0)])
    assert_read(read(client, 1000), wanted[:1000])
    client.close()


def test_a_group_shares_partitions_and_goes_on_where_it_stopped(broker, wanted):
    topic = "confluent-group"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(DEADLINE_S)
    first, second = consumer(broker, "sharing"), consumer(broker, "sharing")
    seen = []

    def poll():
        for client in (first, second):
            for message in client.consume(1000, 0.1):
                assert message.error() is None, message.error()
                seen.append((message.partition(), message.offset()))

    first.subscribe([topic])
    second.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while [len(c.assignment()) for c in (first, second)] != [2, 2] and time.monotonic() < deadline:
        poll()
    write(broker, topic, wanted[:20_000])
    while len(seen) < 20_000 and time.monotonic() < deadline:
        poll()
    first.commit(asynchronous=False)
    second.commit(asynchronous=False)
    first.close()
    second.close()
    assert len(set(seen)) == 20_000

    third = consumer(broker, "sharing")
    committed = third.committed([TopicPartition(topic, p) for p in range(4)], DEADLINE_S)
    assert sum(position.offset for position in committed) == 20_000
    write(broker, topic, wanted[:10])
    third.subscribe([topic])
    assert len(read(third, 10)) == 10
    third.close()


def test_committed_positions_outlive_the_broker(make_broker, wanted):
    broker = make_broker()
    write(broker, "t", wanted[:100])
    client = consumer(broker, "lasting")
    position = TopicPartition("t", 0, 42, "said beside it")  # sent with a 0 at its end
    client.commit(offsets=[position], asynchronous=False)
    broker.kill()
    broker.start()
    (kept,) = client.committed([TopicPartition("t", 0)], DEADLINE_S)
    assert (kept.offset, kept.metadata) == (42, "said beside it")
    client.close()


def test_a_subscribed_consumer_goes_on_after_a_restart(make_broker, wanted):
    broker = make_broker()
    write(broker, "t", wanted[:100])
    client = consumer(broker, "g")
    client.subscribe(["t"])
    assert len(read(client, 100)) == 100
    client.commit(asynchronous=False)
    broker.restart()
    write(broker, "t", wanted[:10])
    started_s = time.monotonic()
    offsets = []
    while len(offsets) < 10 and time.monotonic() < started_s + DEADLINE_S:
        offsets += [m.offset() for m in client.consume(10, 0.1) if m.error() is None]
    assert offsets == list(range(100, 110))
    client.close()


def test_admin_creates_describes_and_deletes(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = "confluent-admin"
    new = NewTopic(topic, 3, 1, config={"retention.ms": "12345"})
    admin.create_topics([new])[topic].result(DEADLINE_S)
    assert len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert config["retention.ms"].value == "12345"
    assert config["cleanup.policy"].value == "delete"
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([new])[topic].result(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_the_broker_tells_where_its_control_api_is(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    config = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert config["catchwater.control.url"].value == broker.control_url


def test_offsets_are_found_by_time(broker):
    topic = "confluent-times"
    client = producer(broker, acks=-1)
    began_ms = int(time.time() * 1000)  # retention goes by it
    for second in range(10):
        client.produce(topic, b"x", timestamp=began_ms + second * 1000)
        assert client.flush(DEADLINE_S) == 0
    reader = consumer(broker, "unused")
    asked = {began_ms: 0, began_ms + 4_500: 5, began_ms + 9_000: 9}
    for time_ms, offset in asked.items():
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, time_ms)], DEADLINE_S)
        assert found.offset == offset
    (none,) = reader.offsets_for_times([TopicPartition(topic, 0, began_ms + 60_000)], DEADLINE_S)
    assert none.offset == -1
    reader.close()
