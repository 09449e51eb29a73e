"""librdkafka through confluent-kafka."""

import time
from functools import cache, partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from conformance.clients.script import (
    BOOTSTRAP,
    PREFIX,
    SESSION_S,
    WRITTEN,
    for_librdkafka,
    main,
    same,
    until,
)

ADDRESS = {"bootstrap.servers": BOOTSTRAP} | for_librdkafka()


@cache
def admin() -> AdminClient:
    return AdminClient(ADDRESS)


def topic(name: str, partitions: int = 1) -> str:
    made = f"{PREFIX}-{name}"
    admin().create_topics([NewTopic(made, partitions, 1)])[made].result(20)
    until(lambda: len(shown(made).partitions) == partitions, f"the metadata of {made}")
    return made


def shown(name: str) -> Any:
    return admin().list_topics(name, 10).topics[name]


def producer(**settings: Any) -> Producer:
    return Producer(ADDRESS | {k.replace("_", "."): v for k, v in settings.items()})


def consumer(group: str = "none", **settings: Any) -> Consumer:
    defaults = {
        "group.id": f"{PREFIX}-{group}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer(ADDRESS | defaults | {k.replace("_", "."): v for k, v in settings.items()})


def write(
    name: str, records: list[Any] = WRITTEN, partition: int = 0, **settings: Any
) -> list[Message]:
    """The records written and acknowledged, as the library reports them."""
    told: list[Message] = []
    errors: list[KafkaError] = []
    client = producer(**settings)
    for key, value in records:
        client.produce(
            name, value, key, partition=partition,
            on_delivery=lambda error, message: (errors if error else told).append(error or message),
        )  # fmt: skip
    same(client.flush(30), 0, "records left")
    same(errors, [], "errors of delivery")
    return told


def read(client: Consumer, count: int, timeout_s: float = 30.0) -> list[Message]:
    """Up to so many records; fewer if the time is out."""
    found: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for message in client.consume(count - len(found), 0.2):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message)
    return found


def read_back(name: str, count: int, at: int = 0, **settings: Any) -> list[Message]:
    client = consumer(**settings)
    client.assign([TopicPartition(name, 0, at)])
    found = read(client, count)
    client.close()
    return found


def pairs(messages: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    return [(m.key(), m.value()) for m in messages]


def offsets(messages: list[Message]) -> list[int]:
    return [m.offset() for m in messages]


def code(error: KafkaException) -> int:
    return int(error.args[0].code())


def create_topic() -> None:
    name = topic("create", 3)
    try:
        admin().create_topics([NewTopic(name, 3, 1)])[name].result(20)
    except KafkaException as error:
        same(code(error), KafkaError.TOPIC_ALREADY_EXISTS, "error")
    else:
        raise AssertionError("the second creation was not refused")


def metadata() -> None:
    name = topic("metadata", 3)
    cluster = admin().list_topics(name, 10)
    same(len(cluster.brokers), 1, "brokers")
    partitions = cluster.topics[name].partitions.values()
    same({p.leader in cluster.brokers for p in partitions}, {True}, "leaders are brokers")


def produce(codec: str) -> None:
    name = topic(f"codec-{codec}")
    write(name, compression_type=codec)
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def acks(number: str) -> None:
    name = topic(f"acks-{number}")
    write(name, acks=number)
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def idempotent() -> None:
    name = topic("idempotent")
    told = write(name, enable_idempotence=True)
    same(offsets(told), list(range(100)), "offsets")
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def headers() -> None:
    name = topic("headers")
    given = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]
    client = producer()
    client.produce(name, b"v", b"k", headers=given)
    client.flush(20)
    same(read_back(name, 1)[0].headers(), given, "headers")


def null_key_value() -> None:
    name = topic("nulls")
    given = [(None, b"v"), (b"k", None), (b"", b""), (None, None)]
    write(name, given)
    same(pairs(read_back(name, 4)), given, "records")


def large_record() -> None:
    name = topic("large")
    given = [(b"k", bytes(range(250)) * 3600)]
    write(name, given)
    same(pairs(read_back(name, 1)) == given, True, "the record is read back")


def consume_earliest() -> None:
    name = topic("earliest")
    write(name)
    client = consumer("earliest")
    client.subscribe([name])
    same(pairs(read(client, 100)), WRITTEN, "records")
    client.close()


def consume_latest() -> None:
    name = topic("latest")
    write(name)
    client = consumer("latest", auto_offset_reset="latest")
    client.subscribe([name])
    until(lambda: client.poll(0.1) is None and client.assignment(), "the assignment")
    until(lambda: client.poll(0.1) is None and at_end(client, name), "the position at the end")
    write(name, [(b"new", b"record")])
    same(offsets(read(client, 1)), [100], "offsets")
    client.close()


def at_end(client: Consumer, name: str) -> bool:
    """Whether the reader stands at offset 100; librdkafka has a position only after a record."""
    _, high = client.get_watermark_offsets(TopicPartition(name, 0), cached=True)
    return bool(high == 100)


def consume_timestamp() -> None:
    name = topic("timestamp")
    began_ms = int(time.time() * 1000) - 60_000
    client = producer()
    for second in range(10):
        client.produce(name, b"v", timestamp=began_ms + second * 1000)
    client.flush(20)
    reader = consumer()
    for asked_ms, wanted in ((0, 0), (4_500, 5), (9_000, 9), (9_001, -1)):
        at = TopicPartition(name, 0, began_ms + asked_ms)
        (found,) = reader.offsets_for_times([at], 10)
        same(found.offset, wanted, f"offset {asked_ms} ms after the first")
    reader.close()


def long_session() -> None:
    name = topic("session")
    errors: list[KafkaError] = []
    writer, reader = producer(enable_idempotence="true"), consumer()
    reader.assign([TopicPartition(name, 0, 0)])
    found: list[Message] = []
    count, until_s = 0, time.monotonic() + SESSION_S
    while time.monotonic() < until_s:
        writer.produce(
            name, b"%d" % count, partition=0,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )  # fmt: skip
        count += 1
        writer.poll(0.01)
        found += read(reader, 1, 0.01)
    same(writer.flush(30), 0, "records left")
    same(errors, [], "errors of delivery")
    found += read(reader, count - len(found))
    same([m.value() for m in found], [b"%d" % each for each in range(count)], "values")
    reader.close()


def group_one() -> None:
    name = topic("one", 3)
    for partition in range(3):
        write(name, WRITTEN[:10], partition)
    client = consumer("one")
    client.subscribe([name])
    same(len(read(client, 30)), 30, "records")
    same(len(client.assignment()), 3, "partitions")
    client.close()


def group_resume() -> None:
    name = topic("resume")
    write(name)
    client = consumer("resume")
    client.subscribe([name])
    same(len(read(client, 40)), 40, "records")
    client.commit(offsets=[TopicPartition(name, 0, 40)], asynchronous=False)
    client.close()
    client = consumer("resume")
    client.subscribe([name])
    same(offsets(read(client, 60)), list(range(40, 100)), "offsets")
    client.close()


def two_members(group: str, **settings: Any) -> None:
    name = topic(group, 4)
    first, second = consumer(group, **settings), consumer(group, **settings)

    def shares(wanted: list[int]) -> bool:
        for client in (first, second)[: len(wanted)]:
            client.poll(0.05)
        return [len(c.assignment()) for c in (first, second)[: len(wanted)]] == wanted

    first.subscribe([name])
    until(lambda: shares([4]), "all partitions for the first member")
    second.subscribe([name])
    until(lambda: shares([2, 2]), "two partitions for each")
    second.close()
    until(lambda: shares([4]), "all partitions for the first member again")
    first.close()


def group_static() -> None:
    name = topic("static", 4)
    static = {"session_timeout_ms": 30_000}
    first = consumer("static", group_instance_id="a", **static)
    second = consumer("static", group_instance_id="b", **static)
    first.subscribe([name])
    second.subscribe([name])

    def settled() -> bool:
        for client in (first, second):
            client.poll(0.05)
        return [len(c.assignment()) for c in (first, second)] == [2, 2]

    until(settled, "two partitions for each")
    had = sorted(p.partition for p in second.assignment())
    second.close()
    second = consumer("static", group_instance_id="b", **static)
    second.subscribe([name])
    until(settled, "two partitions for each after the restart", 15)
    same(sorted(p.partition for p in second.assignment()), had, "partitions")
    first.close()
    second.close()


def transactional(name: str) -> Producer:
    client = producer(transactional_id=f"{PREFIX}-{name}")
    client.init_transactions(20)
    return client


def put(client: Producer, name: str, count: int) -> None:
    for key, value in WRITTEN[:count]:
        client.produce(name, value, key)
    client.flush(20)


def txn_commit() -> None:
    name = topic("commit")
    client = transactional("commit")
    client.begin_transaction()
    put(client, name, 10)
    client.commit_transaction(20)
    same(pairs(read_back(name, 10, isolation_level="read_committed")), WRITTEN[:10], "records")


def txn_abort() -> None:
    name = topic("abort")
    client = transactional("abort")
    client.begin_transaction()
    put(client, name, 5)
    client.abort_transaction(20)
    client.begin_transaction()
    put(client, name, 5)
    client.commit_transaction(20)
    committed = read_back(name, 5, isolation_level="read_committed")
    same(offsets(committed), [6, 7, 8, 9, 10], "committed offsets")
    everything = read_back(name, 10, isolation_level="read_uncommitted")
    same(offsets(everything), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "all offsets")


def txn_isolation() -> None:
    name = topic("isolation")
    write(name, WRITTEN[:3])
    client = transactional("isolation")
    client.begin_transaction()
    put(client, name, 2)
    write(name, WRITTEN[:1])
    reader = consumer(isolation_level="read_committed")
    reader.assign([TopicPartition(name, 0, 0)])
    same(offsets(read(reader, 6, 3)), [0, 1, 2], "offsets before the end")
    client.commit_transaction(20)
    same(offsets(read(reader, 3)), [3, 4, 5], "offsets after the end")
    reader.close()


def txn_offsets() -> None:
    name = topic("offsets")
    write(name)
    client = transactional("offsets")
    reader = consumer("txn")
    reader.subscribe([name])
    read(reader, 10)
    for position, ends in ((10, client.commit_transaction), (20, client.abort_transaction)):
        client.begin_transaction()
        sent = [TopicPartition(name, 0, position)]
        client.send_offsets_to_transaction(sent, reader.consumer_group_metadata(), 20)
        ends(20)
        (committed,) = reader.committed([TopicPartition(name, 0)], 10)
        same(committed.offset, 10, "committed offset")
    reader.close()


def txn_fencing() -> None:
    name = topic("fencing")
    older = transactional("fencing")
    older.begin_transaction()
    put(older, name, 1)
    newer = transactional("fencing")
    try:
        older.commit_transaction(20)
    except KafkaException as error:
        same(code(error), KafkaError._FENCED, "error")
    else:
        raise AssertionError("the older producer was not fenced")
    newer.begin_transaction()
    put(newer, name, 1)
    newer.commit_transaction(20)
    same(len(read_back(name, 1, isolation_level="read_committed")), 1, "records")


def delete_topic() -> None:
    name = topic("delete")
    admin().delete_topics([name])[name].result(20)
    until(lambda: name not in admin().list_topics(timeout=10).topics, "the deletion")


def create_partitions() -> None:
    name = topic("grow")
    admin().create_partitions([NewPartitions(name, 3)])[name].result(20)
    until(lambda: len(shown(name).partitions) == 3, "three partitions")


def configs() -> None:
    name = topic("configs")
    entry = ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    admin().incremental_alter_configs([resource])[resource].result(20)

    def described() -> str | None:
        asked = ConfigResource(ConfigResource.Type.TOPIC, name)
        found = admin().describe_configs([asked])[asked].result(20)
        return str(found["retention.ms"].value)

    until(lambda: described() == "123456", "the altered value")


def delete_records() -> None:
    name = topic("records")
    write(name)
    at = TopicPartition(name, 0, 30)
    same(admin().delete_records([at])[at].result(20).low_watermark, 30, "low watermark")
    reader = consumer()
    same(reader.get_watermark_offsets(TopicPartition(name, 0), 10), (30, 100), "watermarks")
    reader.close()


def list_offsets() -> None:
    name = topic("list")
    write(name)
    at = TopicPartition(name, 0)
    for spec, wanted in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 100),
    ):
        found = admin().list_offsets({at: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        same(found[at].result(20).offset, wanted, f"offset of {spec}")
    found = admin().list_offsets({at: OffsetSpec.max_timestamp()})
    same(0 <= found[at].result(20).offset < 100, True, "an offset of the maximal timestamp")


def groups() -> None:
    name = topic("groups")
    write(name)
    client = consumer("groups")
    client.subscribe([name])
    read(client, 100)
    client.commit(asynchronous=False)
    group = f"{PREFIX}-groups"
    listed = admin().list_consumer_groups().result(20).valid
    same(group in [g.group_id for g in listed], True, "the group is listed")
    described = admin().describe_consumer_groups([group])[group].result(20)
    same((described.state.name, len(described.members)), ("STABLE", 1), "state and members")
    client.close()
    asked = admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    same(asked[group].result(20).topic_partitions[0].offset, 100, "committed offset")
    admin().delete_consumer_groups([group])[group].result(20)
    listed = admin().list_consumer_groups().result(20).valid
    same(group in [g.group_id for g in listed], False, "the group is listed")


if __name__ == "__main__":
    main(
        {
            "create-topic": create_topic,
            "metadata": metadata,
            **{
                f"produce-{codec}": partial(produce, codec)
                for codec in ("none", "gzip", "snappy", "lz4", "zstd")
            },
            **{f"acks-{acks_of}": partial(acks, acks_of) for acks_of in ("all", "1", "0")},
            "idempotent": idempotent,
            "headers": headers,
            "null-key-value": null_key_value,
            "large-record": large_record,
            "consume-earliest": consume_earliest,
            "consume-latest": consume_latest,
            "consume-timestamp": consume_timestamp,
            "long-session": long_session,
            "group-one": group_one,
            "group-resume": group_resume,
            "group-eager": partial(
                two_members, "eager", partition_assignment_strategy="range,roundrobin"
            ),
            "group-cooperative": partial(
                two_members, "cooperative", partition_assignment_strategy="cooperative-sticky"
            ),
            "group-static": group_static,
            "group-consumer": partial(two_members, "consumer", group_protocol="consumer"),
            "txn-commit": txn_commit,
            "txn-abort": txn_abort,
            "txn-isolation": txn_isolation,
            "txn-offsets": txn_offsets,
            "txn-fencing": txn_fencing,
            "delete-topic": delete_topic,
            "create-partitions": create_partitions,
            "configs": configs,
            "delete-records": delete_records,
            "list-offsets": list_offsets,
            "groups": groups,
        }
    )
