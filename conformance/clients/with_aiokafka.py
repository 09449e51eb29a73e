"""aiokafka, each step in an event loop of its own."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from conformance.clients.script import (
    BOOTSTRAP,
    DEADLINE_S,
    MECHANISM,
    PREFIX,
    SESSION_S,
    WRITTEN,
    Step,
    for_python,
    main,
    same,
    token,
)

TOPIC_ALREADY_EXISTS = 36


class Tokens(AbstractTokenProvider):
    async def token(self) -> str:
        return await asyncio.to_thread(token)


ADDRESS = {"bootstrap_servers": BOOTSTRAP} | for_python()
if MECHANISM == "OAUTHBEARER":
    ADDRESS["sasl_oauth_token_provider"] = Tokens()


@contextlib.asynccontextmanager
async def admin() -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**ADDRESS)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def producer(**settings: Any) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(**ADDRESS, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@contextlib.asynccontextmanager
async def consumer(
    *topics: str, group: str | None = None, **settings: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    defaults = {
        "group_id": group and f"{PREFIX}-{group}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    client = AIOKafkaConsumer(*topics, **ADDRESS | defaults | settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def until(
    is_so: Callable[[], Awaitable[object]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    deadline = time.monotonic() + deadline_s
    while not await is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {deadline_s:.0f} s")
        await asyncio.sleep(0.02)


async def create(name: str, partitions: int) -> int:
    """The error code that the broker answers."""
    async with admin() as client:
        reply = await client.create_topics([NewTopic(name, partitions, 1)])
        return int(reply.topic_errors[0][1])


async def topic(name: str, partitions: int = 1) -> str:
    made = f"{PREFIX}-{name}"
    same(await create(made, partitions), 0, "error")

    async def is_shown() -> bool:
        return await partitions_of(made) == partitions

    await until(is_shown, f"the metadata of {made}")
    return made


async def partitions_of(name: str) -> int:
    async with admin() as client:
        (found,) = await client.describe_topics([name])
        return len(found["partitions"])


async def put(
    client: AIOKafkaProducer, name: str, records: list[Any], partition: int = 0
) -> list[int]:
    sent = [await client.send(name, value, key, partition=partition) for key, value in records]
    return [getattr(told, "offset", -1) for told in await asyncio.gather(*sent)]


async def write(
    name: str, records: list[Any] = WRITTEN, partition: int = 0, **settings: Any
) -> list[int]:
    async with producer(**settings) as client:
        return await put(client, name, records, partition)


async def read(client: AIOKafkaConsumer, count: int, timeout_s: float = 30.0) -> list[Any]:
    """Up to so many records; fewer if the time is out."""
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for records in (await client.getmany(timeout_ms=200)).values():
            found += records
    return found


async def read_back(name: str, count: int, **settings: Any) -> list[Any]:
    async with consumer(**settings) as client:
        client.assign([TopicPartition(name, 0)])
        await client.seek_to_beginning()
        return await read(client, count)


def pairs(records: list[Any]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


async def create_topic() -> None:
    name = await topic("create", 3)
    same(await create(name, 3), TOPIC_ALREADY_EXISTS, "error")


async def metadata() -> None:
    name = await topic("metadata", 3)
    async with admin() as client:
        brokers = {broker["node_id"] for broker in (await client.describe_cluster())["brokers"]}
        (found,) = await client.describe_topics([name])
    same(len(brokers), 1, "brokers")
    same({p["leader"] for p in found["partitions"]}, brokers, "leaders")


async def produce(codec: str) -> None:
    name = await topic(f"codec-{codec}")
    await write(name, compression_type=None if codec == "none" else codec)
    same(pairs(await read_back(name, 100)), WRITTEN, "records")


async def acks(number: str) -> None:
    name = await topic(f"acks-{number}")
    await write(name, acks=number if number == "all" else int(number))
    same(pairs(await read_back(name, 100)), WRITTEN, "records")


async def idempotent() -> None:
    name = await topic("idempotent")
    same(await write(name, enable_idempotence=True), list(range(100)), "offsets")
    same(pairs(await read_back(name, 100)), WRITTEN, "records")


async def headers() -> None:
    name = await topic("headers")
    given = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]
    async with producer() as client:
        await client.send_and_wait(name, b"v", b"k", headers=given)
    (found,) = await read_back(name, 1)
    same(list(found.headers), given, "headers")


async def null_key_value() -> None:
    name = await topic("nulls")
    given = [(None, b"v"), (b"k", None), (b"", b"")]
    await write(name, given)
    same(pairs(await read_back(name, 3)), given, "records")


async def large_record() -> None:
    name = await topic("large")
    given = [(b"k", bytes(range(250)) * 3600)]
    await write(name, given)
    same(pairs(await read_back(name, 1)) == given, True, "the record is read back")


async def consume_earliest() -> None:
    name = await topic("earliest")
    await write(name)
    async with consumer(name, group="earliest") as client:
        same(pairs(await read(client, 100)), WRITTEN, "records")


async def consume_latest() -> None:
    name = await topic("latest")
    await write(name)
    async with consumer(name, group="latest", auto_offset_reset="latest") as client:
        same(await client.position(TopicPartition(name, 0)), 100, "position")
        await write(name, [(b"new", b"record")])
        same(offsets(await read(client, 1)), [100], "offsets")


async def consume_timestamp() -> None:
    name = await topic("timestamp")
    at = TopicPartition(name, 0)
    began_ms = int(time.time() * 1000) - 60_000
    async with producer() as client:
        for second in range(10):
            await client.send_and_wait(name, b"v", timestamp_ms=began_ms + second * 1000)
    async with consumer() as reader:
        for asked_ms, wanted in ((0, 0), (4_500, 5), (9_000, 9)):
            found = (await reader.offsets_for_times({at: began_ms + asked_ms}))[at]
            same(found.offset, wanted, f"offset {asked_ms} ms after the first")
        none = await reader.offsets_for_times({at: began_ms + 9_001})
        same(none[at], None, "behind the last")


async def long_session() -> None:
    name = await topic("session")
    sent: list[Any] = []
    found: list[Any] = []
    async with producer(enable_idempotence=True) as writer, consumer() as reader:
        reader.assign([TopicPartition(name, 0)])
        await reader.seek_to_beginning()
        until_s = time.monotonic() + SESSION_S
        while time.monotonic() < until_s:
            sent.append(await writer.send(name, b"%d" % len(sent), partition=0))
            found += await read(reader, 1, 0.01)
        told = await asyncio.gather(*sent)
        same([each.offset for each in told], list(range(len(sent))), "offsets")
        found += await read(reader, len(sent) - len(found))
    same([r.value for r in found], [b"%d" % each for each in range(len(sent))], "values")


async def group_one() -> None:
    name = await topic("one", 3)
    for partition in range(3):
        await write(name, WRITTEN[:10], partition)
    async with consumer(name, group="one") as client:
        same(len(await read(client, 30)), 30, "records")
        same(len(client.assignment()), 3, "partitions")


async def group_resume() -> None:
    name = await topic("resume")
    at = TopicPartition(name, 0)
    await write(name)
    async with consumer(name, group="resume") as client:
        same(len(await read(client, 100)), 100, "records")
        await client.commit({at: OffsetAndMetadata(40, "up to here")})
        same(await client.committed(at), 40, "committed offset")
    async with consumer(name, group="resume") as client:
        same(offsets(await read(client, 60)), list(range(40, 100)), "offsets")


async def shares(clients: list[AIOKafkaConsumer], each: int) -> bool:
    for client in clients:
        await client.getmany(timeout_ms=50)
    return [len(client.assignment()) for client in clients] == [each] * len(clients)


async def group_eager() -> None:
    name = await topic("eager", 4)
    strategy = {"partition_assignment_strategy": (RangePartitionAssignor,)}
    async with consumer(name, group="eager", **strategy) as first:
        await until(lambda: shares([first], 4), "all partitions for the first member")
        async with consumer(name, group="eager", **strategy) as second:
            await until(lambda: shares([first, second], 2), "two partitions for each")
        await until(lambda: shares([first], 4), "all partitions for the first member again")


async def group_static() -> None:
    name = await topic("static", 4)
    async with consumer(name, group="static", group_instance_id="a") as first:
        async with consumer(name, group="static", group_instance_id="b") as second:
            await until(lambda: shares([first, second], 2), "two partitions for each")
            had = second.assignment()
        async with consumer(name, group="static", group_instance_id="b") as second:
            what = "two partitions for each after the restart"
            await until(lambda: shares([first, second], 2), what, 15)
            same(second.assignment(), had, "partitions")


@contextlib.asynccontextmanager
async def transactional(name: str) -> AsyncIterator[AIOKafkaProducer]:
    async with producer(transactional_id=f"{PREFIX}-{name}") as client:
        yield client


async def txn_commit() -> None:
    name = await topic("commit")
    async with transactional("commit") as client, client.transaction():
        await put(client, name, WRITTEN[:10])
    committed = await read_back(name, 10, isolation_level="read_committed")
    same(pairs(committed), WRITTEN[:10], "records")


async def txn_abort() -> None:
    name = await topic("abort")
    async with transactional("abort") as client:
        await client.begin_transaction()
        await put(client, name, WRITTEN[:5])
        await client.abort_transaction()
        async with client.transaction():
            await put(client, name, WRITTEN[:5])
    committed = await read_back(name, 5, isolation_level="read_committed")
    same(offsets(committed), [6, 7, 8, 9, 10], "committed offsets")
    everything = await read_back(name, 10)
    same(offsets(everything), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "all offsets")


async def txn_isolation() -> None:
    name = await topic("isolation")
    await write(name, WRITTEN[:3])
    async with (
        transactional("isolation") as client,
        consumer(isolation_level="read_committed") as reader,
    ):
        await client.begin_transaction()
        await put(client, name, WRITTEN[:2])
        await write(name, WRITTEN[:1])
        reader.assign([TopicPartition(name, 0)])
        await reader.seek_to_beginning()
        same(offsets(await read(reader, 6, 3)), [0, 1, 2], "offsets before the end")
        await client.commit_transaction()
        same(offsets(await read(reader, 3)), [3, 4, 5], "offsets after the end")


async def txn_offsets() -> None:
    name = await topic("offsets")
    at = TopicPartition(name, 0)
    group = f"{PREFIX}-txn"
    async with transactional("offsets") as client, admin() as teller:
        for position, end in ((10, client.commit_transaction), (20, client.abort_transaction)):
            await client.begin_transaction()
            await client.send_offsets_to_transaction({at: position}, group)
            await end()

            # Kafka writes the markers after its answer, and the library does not wait for them.
            async def is_committed() -> bool:
                committed = await teller.list_consumer_group_offsets(group)
                return at in committed and committed[at].offset == 10

            await until(is_committed, "the committed offset")


async def txn_fencing() -> None:
    name = await topic("fencing")
    older = AIOKafkaProducer(**ADDRESS, transactional_id=f"{PREFIX}-fencing")
    await older.start()
    await older.begin_transaction()
    await put(older, name, WRITTEN[:1])
    async with transactional("fencing") as newer:
        try:
            await older.commit_transaction()
        except KafkaError as error:
            same(type(error), ProducerFenced, "error")
        else:
            raise AssertionError("the older producer was not fenced")
        async with newer.transaction():
            await put(newer, name, WRITTEN[:1])
    with contextlib.suppress(KafkaError):
        await older.stop()
    same(len(await read_back(name, 1, isolation_level="read_committed")), 1, "records")


async def delete_topic() -> None:
    name = await topic("delete")
    async with admin() as client:
        await client.delete_topics([name])

        async def is_gone() -> bool:
            return name not in await client.list_topics()

        await until(is_gone, "the deletion")


async def create_partitions() -> None:
    name = await topic("grow")
    async with admin() as client:
        await client.create_partitions({name: NewPartitions(3)})

    async def has_three() -> bool:
        return await partitions_of(name) == 3

    await until(has_three, "three partitions")


async def configs() -> None:
    name = await topic("configs")
    kind = ConfigResourceType.TOPIC
    async with admin() as client:
        await client.alter_configs([ConfigResource(kind, name, configs={"retention.ms": "123456"})])

        async def is_described() -> bool:
            return "123456" in str(await client.describe_configs([ConfigResource(kind, name)]))

        await until(is_described, "the altered value")


async def delete_records() -> None:
    name = await topic("records")
    at = TopicPartition(name, 0)
    await write(name)
    async with admin() as client:
        same(await client.delete_records({at: RecordsToDelete(30)}), {at: 30}, "low watermark")
    async with consumer() as reader:
        same(await reader.beginning_offsets([at]), {at: 30}, "earliest offset")


async def list_offsets() -> None:
    name = await topic("list")
    at = TopicPartition(name, 0)
    await write(name)
    async with consumer() as reader:
        same(await reader.beginning_offsets([at]), {at: 0}, "earliest offset")
        same(await reader.end_offsets([at]), {at: 100}, "latest offset")


async def groups() -> None:
    name = await topic("groups")
    group = f"{PREFIX}-groups"
    at = TopicPartition(name, 0)
    await write(name)
    async with consumer(name, group="groups") as member, admin() as client:
        same(len(await read(member, 100)), 100, "records")
        await member.commit()
        listed = [each[0] for each in await client.list_consumer_groups()]
        same(group in listed, True, "the group is listed")
        (reply,) = await client.describe_consumer_groups([group])
        same("Stable" in str(reply), True, "the group is stable")
        committed = await client.list_consumer_group_offsets(group)
        same(committed[at].offset, 100, "committed offset")


def in_a_loop(step: Callable[[], Awaitable[None]]) -> Step:
    async def wait() -> None:
        await step()

    return lambda: asyncio.run(wait())


if __name__ == "__main__":
    main(
        {
            **{
                name: in_a_loop(step)
                for name, step in {
                    "create-topic": create_topic,
                    "metadata": metadata,
                    "produce-none": partial(produce, "none"),
                    "produce-gzip": partial(produce, "gzip"),
                    "produce-snappy": partial(produce, "snappy"),
                    "produce-lz4": partial(produce, "lz4"),
                    "produce-zstd": partial(produce, "zstd"),
                    "acks-all": partial(acks, "all"),
                    "acks-1": partial(acks, "1"),
                    "acks-0": partial(acks, "0"),
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
                    "group-eager": group_eager,
                    "group-static": group_static,
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
                }.items()
            },
            "group-cooperative": "the library has eager assignors alone",
            "group-consumer": "the library does not speak KIP-848",
        }
    )
