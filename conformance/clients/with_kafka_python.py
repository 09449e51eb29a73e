"""kafka-python."""

import time
from functools import cache, partial
from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, ProducerFencedError, TopicAlreadyExistsError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from conformance.clients.script import (
    BOOTSTRAP,
    MECHANISM,
    PREFIX,
    SESSION_S,
    WRITTEN,
    for_python,
    main,
    same,
    token,
    until,
)


class Tokens(AbstractTokenProvider):
    def token(self) -> str:
        return token()


SECURITY = for_python()
if MECHANISM == "OAUTHBEARER":
    SECURITY["sasl_oauth_token_provider"] = Tokens()


@cache
def admin() -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=BOOTSTRAP, **SECURITY)


def topic(name: str, partitions: int = 1) -> str:
    made = f"{PREFIX}-{name}"
    admin().create_topics({made: {"num_partitions": partitions, "replication_factor": 1}})
    until(lambda: partitions_of(made) == partitions, f"the metadata of {made}")
    return made


def partitions_of(name: str) -> int:
    (found,) = admin().describe_topics([name])
    return len(found["partitions"])


def producer(**settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=BOOTSTRAP, **SECURITY | settings)


def consumer(group: str | None = None, **settings: Any) -> KafkaConsumer:
    defaults = {
        "bootstrap_servers": BOOTSTRAP,
        "group_id": group and f"{PREFIX}-{group}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    return KafkaConsumer(**defaults | SECURITY | settings)


def put(client: KafkaProducer, name: str, records: list[Any], partition: int = 0) -> list[int]:
    """The offsets that the library reports."""
    sent = [client.send(name, value, key, partition=partition) for key, value in records]
    client.flush(30)
    return [each.get(30).offset for each in sent]


def write(
    name: str, records: list[Any] = WRITTEN, partition: int = 0, **settings: Any
) -> list[int]:
    client = producer(**settings)
    told = put(client, name, records, partition)
    client.close()
    return told


def read(client: KafkaConsumer, count: int, timeout_s: float = 30.0) -> list[Any]:
    """Up to so many records; fewer if the time is out.

    A poll that is shorter than the library takes to join its group begins the join anew.
    """
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for records in client.poll(1_000, max_records=count - len(found)).values():
            found += records
    return found


def read_back(name: str, count: int, **settings: Any) -> list[Any]:
    client = consumer(**settings)
    client.assign([TopicPartition(name, 0)])
    client.seek_to_beginning()
    found = read(client, count)
    client.close()
    return found


def pairs(records: list[Any]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


def create_topic() -> None:
    name = topic("create", 3)
    try:
        admin().create_topics({name: {"num_partitions": 3, "replication_factor": 1}})
    except TopicAlreadyExistsError:
        return
    raise AssertionError("the second creation was not refused")


def metadata() -> None:
    name = topic("metadata", 3)
    brokers = {broker["broker_id"] for broker in admin().describe_cluster()["brokers"]}
    same(len(brokers), 1, "brokers")
    (found,) = admin().describe_topics([name])
    same({p["leader_id"] for p in found["partitions"]}, brokers, "leaders")


def produce(codec: str) -> None:
    name = topic(f"codec-{codec}")
    write(name, compression_type=None if codec == "none" else codec)
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def acks(number: str) -> None:
    name = topic(f"acks-{number}")
    write(name, acks=number if number == "all" else int(number), enable_idempotence=False)
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def idempotent() -> None:
    name = topic("idempotent")
    same(write(name, enable_idempotence=True), list(range(100)), "offsets")
    same(pairs(read_back(name, 100)), WRITTEN, "records")


def headers() -> None:
    name = topic("headers")
    given = [("a", b"1"), ("a", b"2"), ("empty", b"")]  # the library writes no null
    client = producer()
    client.send(name, b"v", b"k", headers=given).get(20)
    client.close()
    same([tuple(each) for each in read_back(name, 1)[0].headers], given, "headers")


def null_key_value() -> None:
    name = topic("nulls")
    given = [(None, b"v"), (b"k", None), (b"", b"")]
    write(name, given)
    same(pairs(read_back(name, 3)), given, "records")


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
    until(lambda: not client.poll(100) and client.assignment(), "the assignment")
    same(client.position(TopicPartition(name, 0)), 100, "position")
    write(name, [(b"new", b"record")])
    same(offsets(read(client, 1)), [100], "offsets")
    client.close()


def consume_timestamp() -> None:
    name = topic("timestamp")
    at = TopicPartition(name, 0)
    began_ms = int(time.time() * 1000) - 60_000
    client = producer()
    for second in range(10):
        client.send(name, b"v", timestamp_ms=began_ms + second * 1000)
    client.flush(20)
    client.close()
    reader = consumer()
    for asked_ms, wanted in ((0, 0), (4_500, 5), (9_000, 9)):
        found = reader.offsets_for_times({at: began_ms + asked_ms})[at]
        same(found.offset, wanted, f"offset {asked_ms} ms after the first")
    same(reader.offsets_for_times({at: began_ms + 9_001})[at], None, "behind the last")
    reader.close()


def long_session() -> None:
    name = topic("session")
    writer, reader = producer(enable_idempotence=True), consumer()
    reader.assign([TopicPartition(name, 0)])
    reader.seek_to_beginning()
    sent, found = [], []
    until_s = time.monotonic() + SESSION_S
    while time.monotonic() < until_s:
        sent.append(writer.send(name, b"%d" % len(sent), partition=0))
        for records in reader.poll(10).values():
            found += records
    writer.flush(30)
    same([each.get(0).offset for each in sent], list(range(len(sent))), "offsets")
    found += read(reader, len(sent) - len(found))
    same([r.value for r in found], [b"%d" % each for each in range(len(sent))], "values")
    writer.close()
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
    at = TopicPartition(name, 0)
    write(name)
    client = consumer("resume")
    client.subscribe([name])
    same(len(read(client, 40)), 40, "records")
    client.commit({at: OffsetAndMetadata(40, "up to here", -1)})
    same(client.committed(at, metadata=True).metadata, "up to here", "metadata")
    client.close()
    client = consumer("resume")
    client.subscribe([name])
    same(offsets(read(client, 60)), list(range(40, 100)), "offsets")
    client.close()


def shares(clients: list[KafkaConsumer], each: int) -> bool:
    for client in clients:
        client.poll(1_000)  # a shorter one can end before the library has joined, again and again
    return [len(client.assignment()) for client in clients] == [each] * len(clients)


def two_members(group: str, assignor: type) -> None:
    name = topic(group, 4)
    strategy = {"partition_assignment_strategy": [assignor]}
    first, second = consumer(group, **strategy), consumer(group, **strategy)
    first.subscribe([name], listener=Quiet())
    until(lambda: shares([first], 4), "all partitions for the first member")
    second.subscribe([name], listener=Quiet())
    until(lambda: shares([first, second], 2), "two partitions for each")
    second.close()
    until(lambda: shares([first], 4), "all partitions for the first member again")
    first.close()


class Quiet(ConsumerRebalanceListener):
    """A listener that does nothing: the library's own way to say that a rebalance is expected."""

    def on_partitions_revoked(self, revoked: object) -> None: ...

    def on_partitions_assigned(self, assigned: object) -> None: ...


def group_static() -> None:
    name = topic("static", 4)
    first = consumer("static", group_instance_id="a")
    second = consumer("static", group_instance_id="b")
    first.subscribe([name])
    second.subscribe([name])
    until(lambda: shares([first, second], 2), "two partitions for each")
    had = sorted(p.partition for p in second.assignment())
    second.close()
    second = consumer("static", group_instance_id="b")
    second.subscribe([name])
    until(lambda: shares([first, second], 2), "two partitions for each after the restart", 15)
    same(sorted(p.partition for p in second.assignment()), had, "partitions")
    first.close()
    second.close()


def transactional(name: str) -> KafkaProducer:
    client = producer(transactional_id=f"{PREFIX}-{name}")
    client.init_transactions()
    return client


def txn_commit() -> None:
    name = topic("commit")
    client = transactional("commit")
    client.begin_transaction()
    put(client, name, WRITTEN[:10])
    client.commit_transaction()
    client.close()
    same(pairs(read_back(name, 10, isolation_level="read_committed")), WRITTEN[:10], "records")


def txn_abort() -> None:
    name = topic("abort")
    client = transactional("abort")
    client.begin_transaction()
    put(client, name, WRITTEN[:5])
    client.abort_transaction()
    client.begin_transaction()
    put(client, name, WRITTEN[:5])
    client.commit_transaction()
    client.close()
    committed = read_back(name, 5, isolation_level="read_committed")
    same(offsets(committed), [6, 7, 8, 9, 10], "committed offsets")
    everything = read_back(name, 10)
    same(offsets(everything), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "all offsets")


def txn_isolation() -> None:
    name = topic("isolation")
    write(name, WRITTEN[:3])
    client = transactional("isolation")
    client.begin_transaction()
    put(client, name, WRITTEN[:2])
    write(name, WRITTEN[:1])
    reader = consumer(isolation_level="read_committed")
    reader.assign([TopicPartition(name, 0)])
    reader.seek_to_beginning()
    same(offsets(read(reader, 6, 3)), [0, 1, 2], "offsets before the end")
    client.commit_transaction()
    same(offsets(read(reader, 3)), [3, 4, 5], "offsets after the end")
    reader.close()
    client.close()


def txn_offsets() -> None:
    name = topic("offsets")
    at = TopicPartition(name, 0)
    write(name)
    client = transactional("offsets")
    reader = consumer("txn")
    reader.subscribe([name])
    read(reader, 10)
    for position, end in ((10, client.commit_transaction), (20, client.abort_transaction)):
        client.begin_transaction()
        sent = {at: OffsetAndMetadata(position, "", -1)}
        client.send_offsets_to_transaction(sent, reader.group_metadata())
        end()
        # Kafka writes the markers after its answer, and the library does not wait for them.
        until(lambda: reader.committed(at) == 10, "the committed offset")
    reader.close()
    client.close()


def txn_fencing() -> None:
    name = topic("fencing")
    older = transactional("fencing")
    older.begin_transaction()
    put(older, name, WRITTEN[:1])
    newer = transactional("fencing")
    try:
        older.commit_transaction()
    except KafkaError as error:
        fenced = isinstance(error, ProducerFencedError) or "Fenced" in repr(error)
        same(fenced or "InvalidProducerEpoch" in repr(error), True, f"fenced by {error!r}")
    else:
        raise AssertionError("the older producer was not fenced")
    newer.begin_transaction()
    put(newer, name, WRITTEN[:1])
    newer.commit_transaction()
    newer.close()
    same(len(read_back(name, 1, isolation_level="read_committed")), 1, "records")


def delete_topic() -> None:
    name = topic("delete")
    admin().delete_topics([name])
    until(lambda: name not in admin().list_topics(), "the deletion")


def create_partitions() -> None:
    name = topic("grow")
    admin().create_partitions({name: 3})
    until(lambda: partitions_of(name) == 3, "three partitions")


def configs() -> None:
    name = topic("configs")
    kind = ConfigResourceType.TOPIC
    admin().alter_configs([ConfigResource(kind, name, configs={"retention.ms": "123456"})])

    def is_described() -> bool:
        found = admin().describe_configs([ConfigResource(kind, name)])
        return "123456" in str(found)

    until(is_described, "the altered value")


def delete_records() -> None:
    name = topic("records")
    at = TopicPartition(name, 0)
    write(name)
    admin().delete_records({at: 30})
    reader = consumer()
    same(reader.beginning_offsets([at]), {at: 30}, "earliest offset")
    reader.close()


def list_offsets() -> None:
    name = topic("list")
    at = TopicPartition(name, 0)
    began_ms = int(time.time() * 1000) - 60_000
    client = producer()
    for second in (0, 3, 1):
        client.send(name, b"v", timestamp_ms=began_ms + second * 1000).get(20)
    client.close()
    for spec, wanted in (
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 3),
        (OffsetSpec.MAX_TIMESTAMP, 1),
    ):
        found = admin().list_partition_offsets({at: spec})[at]
        same(found.offset, wanted, f"offset of {spec}")


def groups() -> None:
    name = topic("groups")
    group = f"{PREFIX}-groups"
    write(name)
    client = consumer("groups")
    client.subscribe([name])
    same(len(read(client, 100)), 100, "records")
    client.commit()
    same(group in str(admin().list_groups()), True, "the group is listed")
    described = admin().describe_groups([group])[group]
    found = (described["group_state"], len(described["members"]))
    same(found, ("Stable", 1), "state and members")
    client.close()
    committed = admin().list_group_offsets({group: None})[group]
    same(committed[TopicPartition(name, 0)].offset, 100, "committed offset")
    admin().delete_groups([group])
    same(group in str(admin().list_groups()), False, "the group is listed")


def delete_group_offsets() -> None:
    name = topic("lost", 2)
    group = f"{PREFIX}-lost"
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    at_start = OffsetAndMetadata(0, "", -1)
    admin().alter_group_offsets(group, {zero: at_start, one: at_start})
    admin().delete_group_offsets(group, [zero])
    left = admin().list_group_offsets({group: None})[group]
    same([at for at, found in left.items() if found.offset >= 0], [one], "partitions left")


if __name__ == "__main__":
    main(
        {
            "create-topic": create_topic,
            "metadata": metadata,
            **{
                f"produce-{codec}": partial(produce, codec)
                for codec in ("none", "gzip", "lz4", "zstd")
            },
            "produce-snappy": "the library wants python-snappy, which is not installed",
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
            "group-eager": partial(two_members, "eager", RangePartitionAssignor),
            "group-cooperative": partial(two_members, "cooperative", CooperativeStickyAssignor),
            "group-static": group_static,
            "group-consumer": "the library does not speak KIP-848",
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
            "delete-group-offsets": delete_group_offsets,
        }
    )
