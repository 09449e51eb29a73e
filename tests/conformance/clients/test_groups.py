"""Groups as clients live in them: librdkafka with the consumer protocol (KIP-848)."""

import time

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def broker(make_broker):
    process = make_broker({"group.consumer.heartbeat.interval.ms": "200"})
    yield process
    process.kill()


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def consumer(broker):
    """`consumer("group", …)`: a member by the consumer protocol, gone when the test ends."""
    made = []

    def make(group, **settings):
        settings = {key.replace("_", "."): value for key, value in settings.items()}
        client = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
            }
            | settings
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def write(broker, topic, count, partitions):
    client = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        client.produce(topic, f"{number}", partition=number % partitions)
    assert client.flush(DEADLINE_S) == 0


def create(admin, topic, partitions):
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)


def poll_until(is_done, *clients, seen=None):
    """Let the clients poll until something holds; what they read goes to `seen`."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, [c.assignment() for c in clients]
        for client in clients:
            for message in client.consume(1000, 0.05):
                assert message.error() is None, message.error()
                if seen is not None:
                    seen.append((message.topic(), message.partition(), message.offset()))


def sizes(*clients):
    return sorted(len(client.assignment()) for client in clients)


def test_members_share_commit_and_go_on_where_another_stopped(broker, admin, consumer):
    create(admin, "shared", 4)
    first, second = consumer("sharing"), consumer("sharing")
    seen = []
    first.subscribe(["shared"])
    poll_until(lambda: sizes(first) == [4], first)
    second.subscribe(["shared"])
    poll_until(lambda: sizes(first, second) == [2, 2], first, second)
    held = {(p.topic, p.partition) for c in (first, second) for p in c.assignment()}
    assert len(held) == 4
    write(broker, "shared", 1000, 4)
    poll_until(lambda: len(seen) >= 1000, first, second, seen=seen)
    assert len(set(seen)) == len(seen) == 1000
    first.commit(asynchronous=False)
    second.commit(asynchronous=False)
    first.close()
    poll_until(lambda: sizes(second) == [4], second)
    write(broker, "shared", 8, 4)
    poll_until(lambda: len(seen) >= 1008, second, seen=seen)
    # What the first had read was not read again.
    assert len(set(seen)) == len(seen) == 1008


def test_a_pattern_follows_new_topics(broker, admin, consumer):
    create(admin, "seen-1", 1)
    create(admin, "unseen", 1)
    client = consumer("patterns")
    client.subscribe(["^seen-.*"])
    poll_until(lambda: sizes(client) == [1], client)
    create(admin, "seen-2", 2)
    poll_until(lambda: sizes(client) == [3], client)
    assert {p.topic for p in client.assignment()} == {"seen-1", "seen-2"}


def test_more_partitions_are_shared_out(broker, admin, consumer):
    create(admin, "growing", 2)
    clients = [consumer("growers"), consumer("growers")]
    for client in clients:
        client.subscribe(["growing"])
    poll_until(lambda: sizes(*clients) == [1, 1], *clients)
    admin.create_partitions([NewPartitions("growing", 5)])["growing"].result(DEADLINE_S)
    poll_until(lambda: sizes(*clients) == [2, 3], *clients)


def test_a_static_member_comes_back_to_its_partitions(broker, admin, consumer):
    create(admin, "static", 4)
    other = consumer("statics", group_instance_id="two")
    first = consumer("statics", group_instance_id="one")
    for client in (first, other):
        client.subscribe(["static"])
    poll_until(lambda: sizes(first, other) == [2, 2], first, other)
    before = [sorted(p.partition for p in c.assignment()) for c in (first, other)]
    first.close()
    again = consumer("statics", group_instance_id="one")
    again.subscribe(["static"])
    poll_until(lambda: sizes(again) == [2], again, other)
    assert [sorted(p.partition for p in c.assignment()) for c in (again, other)] == before


def test_a_restarted_broker_knows_nobody_and_members_join_again(make_broker):
    broker = make_broker({"group.consumer.heartbeat.interval.ms": "200"})
    create(AdminClient({"bootstrap.servers": broker.bootstrap}), "t", 2)
    write(broker, "t", 100, 2)
    settings = {"group.id": "g", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    client = Consumer(
        settings | {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False}
    )
    seen = []
    client.subscribe(["t"])
    poll_until(lambda: len(seen) == 100, client, seen=seen)
    client.commit(asynchronous=False)
    broker.restart()
    write(broker, "t", 10, 2)
    deadline = time.monotonic() + DEADLINE_S
    more = []
    while len(more) < 10 and time.monotonic() < deadline:
        more += [m.offset() for m in client.consume(100, 0.2) if m.error() is None]
    assert sorted(more) == sorted([*range(50, 55), *range(50, 55)])
    client.close()
    broker.kill()


def test_tools_describe_list_and_delete_groups_of_both_protocols(broker, admin, consumer):
    create(admin, "told", 2)
    member = consumer("told-new")
    member.subscribe(["told"])
    poll_until(lambda: sizes(member) == [2], member)
    member.commit(offsets=[At("told", 0, 0)], asynchronous=False)
    classic = consumer("told-old", group_protocol="classic")
    classic.commit(offsets=[At("told", 0, 1), At("told", 1, 1)], asynchronous=False)

    described = admin.describe_consumer_groups(["told-new"])["told-new"].result(DEADLINE_S)
    assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
    assert len(described.members[0].assignment.topic_partitions) == 2
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(DEADLINE_S)
    assert "told-new" in {group.group_id for group in listed.valid}
    assert "told-old" not in {group.group_id for group in listed.valid}
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["told-new"])["told-new"].result(DEADLINE_S)
    member.close()
    admin.delete_consumer_groups(["told-new"])["told-new"].result(DEADLINE_S)
    wanted = [ConsumerGroupTopicPartitions("told-old", [At("told", 0)])]
    position = admin.list_consumer_group_offsets(wanted)["told-old"].result(DEADLINE_S)
    assert position.topic_partitions[0].offset == 1
