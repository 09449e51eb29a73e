"""The gate: every way in and out asks it, and what it denies is denied alone."""

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.fetch.v11 import request as fetch_v11
from kio.schema.fetch.v13 import request as fetch_v13
from kio.schema.list_offsets.v5 import request as list_offsets_v5
from kio.schema.metadata.v12 import request as metadata_v12
from kio.schema.offset_for_leader_epoch.v3 import request as leader_epoch_v3
from kio.schema.produce.v9 import request as produce_v9
from kio.static.primitive import i32Timedelta

from catchwater.broker.control.app import create_app
from catchwater.broker.gate import ANONYMOUS, AllowAll, Operation, Resource, ResourceType
from catchwater.catalog.rows import BrokerRow

OPEN, SECRET = "open", "secret"
NO_WAIT = i32Timedelta.parse(timedelta(0))


class Keep:
    """Lets nobody do one operation with one topic, and notes who asked."""

    def __init__(self, operation: Operation) -> None:
        self.denied = (operation, Resource(ResourceType.TOPIC, SECRET))
        self.principals: set[str] = set()

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        self.principals.add(principal)
        return (operation, resource) != self.denied


@pytest.fixture(autouse=True)
async def topics(client) -> None:
    for name in (OPEN, SECRET):
        await client.log.create_topic(name, 1)


@pytest.fixture
def deny(client) -> Any:
    def deny(operation: Operation) -> Keep:
        client.broker.gate = Keep(operation)
        return client.broker.gate

    return deny


def produce(batch: bytes, *names: str) -> produce_v9.ProduceRequest:
    partition = produce_v9.PartitionProduceData(index=0, records=batch)
    return produce_v9.ProduceRequest(
        acks=-1,
        timeout=NO_WAIT,
        topic_data=tuple(
            produce_v9.TopicProduceData(name=name, partition_data=(partition,)) for name in names
        ),
    )


def fetch(version: Any, topics: Any, wait_ms: int = 0, **more: Any) -> Any:
    return version.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=1,
        topics=topics,
        forgotten_topics_data=(),
        **more,
    )


def fetch_by_name(*names: str, **more: Any) -> fetch_v11.FetchRequest:
    wanted = fetch_v11.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    topics = tuple(fetch_v11.FetchTopic(topic=name, partitions=(wanted,)) for name in names)
    return fetch(fetch_v11, topics, **more)


def fetched(reply: Any) -> list[tuple[str, bool]]:
    """By topic: the error, and whether records came."""
    return [
        (p.error_code.name, bool(p.records)) for topic in reply.responses for p in topic.partitions
    ]


def test_everybody_may_do_everything_by_default(broker) -> None:
    assert isinstance(broker.gate, AllowAll)
    for operation in Operation:
        assert broker.gate_of(ANONYMOUS, "h").may(
            ANONYMOUS, operation, Resource(ResourceType.TOPIC, SECRET)
        )


async def test_nothing_is_written_to_a_topic_that_is_denied(client, deny, batch) -> None:
    gate = deny(Operation.WRITE)
    reply = await client.send(produce(batch(1), SECRET, OPEN, "no such topic"))
    answers = [each.partition_responses[0] for each in reply.responses]
    assert [answer.error_code.name for answer in answers] == [
        "topic_authorization_failed",
        "none",
        "unknown_topic_or_partition",
    ]
    assert SECRET in answers[0].error_message
    secret = client.log.topics.get(SECRET)
    assert client.log.state((secret.id, 0)).high_watermark == 0
    assert gate.principals == {"User:ANONYMOUS"}


async def test_nothing_is_fetched_of_a_topic_that_is_denied(client, deny, batch) -> None:
    await client.send(produce(batch(1), SECRET, OPEN))
    deny(Operation.READ)
    # At once, whatever the client would wait.
    reply = await client.send(fetch_by_name(SECRET, OPEN, wait_ms=60_000))
    assert fetched(reply) == [("topic_authorization_failed", False), ("none", True)]
    answer = reply.responses[0].partitions[0]
    assert (answer.high_watermark, answer.log_start_offset) == (-1, -1)


async def test_nothing_is_fetched_by_id_either(client, deny, batch) -> None:
    await client.send(produce(batch(1), SECRET, OPEN))
    deny(Operation.READ)
    wanted = fetch_v13.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    ids = [uuid.UUID(bytes=client.log.topics.get(name).id) for name in (SECRET, OPEN)]
    topics = tuple(fetch_v13.FetchTopic(topic_id=i, partitions=(wanted,)) for i in ids)
    reply = await client.send(fetch(fetch_v13, topics))
    assert fetched(reply) == [("topic_authorization_failed", False), ("none", True)]


async def test_a_fetch_that_is_sent_elsewhere_is_denied_here(client, deny) -> None:
    deny(Operation.READ)
    rows = [(1, "near"), (2, "far")]
    client.log.rows = [
        BrokerRow(i, 0, zone, "h", 9092, "", "", False, "live", 0) for i, zone in rows
    ]
    client.broker.config = client.broker.config.__class__(node_id=1, broker_rack="near")
    reply = await client.send(fetch_by_name(SECRET, OPEN, rack_id="far"))
    secret, other = [topic.partitions[0] for topic in reply.responses]
    assert (secret.error_code.name, secret.preferred_read_replica) == (
        "topic_authorization_failed",
        -1,
    )
    assert (other.error_code.name, other.preferred_read_replica) == ("none", 2)


async def test_where_a_topic_ends_is_not_told_if_that_is_denied(client, deny) -> None:
    deny(Operation.DESCRIBE)
    end = list_offsets_v5.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = list_offsets_v5.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=tuple(
            list_offsets_v5.ListOffsetsTopic(name=name, partitions=(end,))
            for name in (SECRET, OPEN)
        ),
    )
    reply = await client.send(request)
    answers = [(p.error_code.name, p.offset) for t in reply.topics for p in t.partitions]
    assert answers == [("topic_authorization_failed", -1), ("none", 0)]
    assert client.log.looked_up == [OPEN]


async def test_where_an_epoch_ended_is_not_told_if_that_is_denied(client, deny, batch) -> None:
    await client.send(produce(batch(3), SECRET, OPEN))
    deny(Operation.DESCRIBE)
    wanted = leader_epoch_v3.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=0, leader_epoch=0
    )
    names = (SECRET, OPEN, "no such topic")
    request = leader_epoch_v3.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=tuple(
            leader_epoch_v3.OffsetForLeaderTopic(topic=name, partitions=(wanted,)) for name in names
        ),
    )
    reply = await client.send(request)
    answers = [(p.error_code.name, p.end_offset) for t in reply.topics for p in t.partitions]
    assert answers == [
        ("topic_authorization_failed", -1),
        ("none", 3),
        ("unknown_topic_or_partition", -1),
    ]
    assert client.log.looked_up == [OPEN, "no such topic"]


async def test_metadata_show_what_may_be_described(client, deny) -> None:
    secret_id = uuid.UUID(bytes=client.log.topics.get(SECRET).id)

    async def ask(topics: Any) -> list[tuple[str | None, str]]:
        request = metadata_v12.MetadataRequest(
            topics=topics, include_topic_authorized_operations=False
        )
        reply = await client.send(request)
        return [(topic.name, topic.error_code.name) for topic in reply.topics]

    deny(Operation.DESCRIBE)
    assert await ask(None) == [(OPEN, "none")]
    by_name = tuple(
        metadata_v12.MetadataRequestTopic(name=name, topic_id=None) for name in (SECRET, OPEN)
    )
    assert await ask(by_name) == [(SECRET, "topic_authorization_failed"), (OPEN, "none")]
    by_id = (metadata_v12.MetadataRequestTopic(name=None, topic_id=secret_id),)
    assert await ask(by_id) == [(None, "unknown_topic_id")]


async def test_a_topic_that_is_denied_is_not_created(client, deny) -> None:
    await client.log.delete_topic(SECRET)
    deny(Operation.DESCRIBE)
    wanted = metadata_v12.MetadataRequestTopic(name=SECRET, topic_id=None)
    await client.send(
        metadata_v12.MetadataRequest(topics=(wanted,), include_topic_authorized_operations=False)
    )
    assert client.log.topics.get(SECRET) is None


async def call(broker: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request to the control API, without sockets."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await create_app(broker)(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(each.get("body", b"") for each in sent))


@pytest.mark.parametrize(
    ("operation", "method", "path", "body"),
    [
        (Operation.READ, "POST", "/api/v1/plans", {"ranges": []}),
        (Operation.DESCRIBE, "GET", f"/api/v1/topics/{SECRET}", {}),
        (Operation.WRITE, "PUT", "/api/v1/sinks/p/s/epochs/1", {"staged": []}),
        (Operation.WRITE, "PUT", "/api/v1/sinks/p/s/fence", {"fence": {"name": "f", "number": 1}}),
    ],
)
async def test_the_control_api_answers_403(client, deny, operation, method, path, body) -> None:
    gate = deny(operation)
    status, answer = await call(client.broker, method, path, {"topic": SECRET} | body)
    assert status == 403
    assert answer["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert answer["message"] == f"User:ANONYMOUS may not {operation} topic {SECRET}."
    assert operation in answer["hint"]
    assert gate.principals == {"User:ANONYMOUS"}


async def test_the_control_api_lists_what_may_be_described(client, deny) -> None:
    deny(Operation.DESCRIBE)
    status, answer = await call(client.broker, "GET", "/api/v1/topics")
    assert (status, [topic["name"] for topic in answer["topics"]]) == (200, [OPEN])
