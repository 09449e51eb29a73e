"""Every request about a group asks the gate, by Kafka's operations (KIP-11)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v7 import request as join_v7
from kio.schema.leave_group.v4.request import LeaveGroupRequest
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.offset_commit.v8 import request as commit_v8
from kio.schema.offset_delete.v0 import request as delete_v0
from kio.schema.offset_fetch.v8 import request as fetch_v8
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.txn_offset_commit.v5 import request as txn_v5
from kio.static.primitive import i32Timedelta

from catchwater.broker.gate import THE_CLUSTER, Operation, Resource, ResourceType
from catchwater.catalog.errors import CatalogRefused
from catchwater.catalog.rows import OffsetCommit

TEN_S = i32Timedelta.parse(timedelta(seconds=10))
GROUP, TOPIC = Resource(ResourceType.GROUP, "g"), Resource(ResourceType.TOPIC, "t")


class Keep:
    """Lets nobody do these."""

    def __init__(self, *denied: tuple[Operation, Resource]) -> None:
        self.denied = denied

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return (operation, resource) not in self.denied


@pytest.fixture(autouse=True)
async def topics(client: Any) -> None:
    await client.log.create_topic("t", 1)
    await client.log.create_topic("u", 1)
    client.log.offsets["g"] = {("t", 0): OffsetCommit(5), ("u", 0): OffsetCommit(5)}
    client.log.offsets["h"] = {}


def commit() -> Any:
    partition = commit_v8.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_leader_epoch=0, committed_metadata=""
    )
    topics = tuple(
        commit_v8.OffsetCommitRequestTopic(name=name, partitions=(partition,)) for name in "tu"
    )
    return commit_v8.OffsetCommitRequest(group_id="g", member_id="", topics=topics)


def commit_in_transaction() -> Any:
    partition = txn_v5.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_metadata=""
    )
    return txn_v5.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=(txn_v5.TxnOffsetCommitRequestTopic(name="t", partitions=(partition,)),),
    )


def fetch(topics: Any = None) -> Any:
    group = fetch_v8.OffsetFetchRequestGroup(group_id="g", topics=topics)
    return fetch_v8.OffsetFetchRequest(groups=(group,))


def delete_offsets() -> Any:
    partition = delete_v0.OffsetDeleteRequestPartition(partition_index=0)
    topics = tuple(
        delete_v0.OffsetDeleteRequestTopic(name=name, partitions=(partition,)) for name in "tu"
    )
    return delete_v0.OffsetDeleteRequest(group_id="g", topics=topics)


JOIN = join_v7.JoinGroupRequest(
    group_id="g",
    session_timeout=TEN_S,
    rebalance_timeout=TEN_S,
    member_id="",
    protocol_type="consumer",
    protocols=(join_v7.JoinGroupRequestProtocol(name="range", metadata=b""),),
)
BEAT = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=0,
    rebalance_timeout=TEN_S,
    subscribed_topic_names=("t",),
    topic_partitions=(),
)
SYNC = SyncGroupRequest(
    group_id="g",
    generation_id=1,
    member_id="m",
    assignments=(),
    protocol_type="consumer",
    protocol_name="range",
)
ADD_TO_TXN = AddOffsetsToTxnRequest(
    transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"
)
DESCRIBE = DescribeGroupsRequest(groups=("g",), include_authorized_operations=False)
DESCRIBE_CONSUMERS = ConsumerGroupDescribeRequest(
    group_ids=("g",), include_authorized_operations=False
)


@pytest.mark.parametrize(
    ("operation", "request_", "answer"),
    [
        (Operation.READ, JOIN, lambda r: r),
        (Operation.READ, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), None),
        (Operation.READ, LeaveGroupRequest(group_id="g", members=()), None),
        (
            Operation.READ,
            SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=()),
            None,
        ),
        (Operation.READ, commit(), lambda r: r.topics[0].partitions[0]),
        (Operation.READ, BEAT, None),
        (Operation.READ, commit_in_transaction(), lambda r: r.topics[0].partitions[0]),
        (Operation.DESCRIBE, fetch(), lambda r: r.groups[0]),
        (Operation.DESCRIBE, DESCRIBE, lambda r: r.groups[0]),
        (Operation.DESCRIBE, DESCRIBE_CONSUMERS, lambda r: r.groups[0]),
        (
            Operation.DESCRIBE,
            FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)),
            lambda r: r.coordinators[0],
        ),
        (Operation.DELETE, DeleteGroupsRequest(groups_names=("g",)), lambda r: r.results[0]),
        (Operation.DELETE, delete_offsets(), None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__api_key__") else "",
)
async def test_what_is_denied_of_a_group_is_not_done(
    client: Any, operation: Operation, request_: Any, answer: Any
) -> None:
    client.broker.gate = Keep((operation, GROUP))
    reply = await client.send(request_)
    told = answer(reply) if answer else reply
    assert told.error_code.name == "group_authorization_failed"
    assert client.log.offsets["g"][("t", 0)].offset == 5
    assert client.broker.groups.groups == client.broker.groups.consumer_groups == {}


async def test_a_topic_that_is_denied_is_left_out_of_what_is_done(client: Any) -> None:
    client.broker.gate = Keep((Operation.READ, TOPIC), (Operation.DESCRIBE, TOPIC))
    for request in (commit(), delete_offsets()):
        answers = [t.partitions[0].error_code.name for t in (await client.send(request)).topics]
        assert answers == ["topic_authorization_failed", "none"]
        assert client.log.offsets["g"][("t", 0)].offset == 5
    client.log.offsets["g"][("u", 0)] = OffsetCommit(9)
    (everything,) = (await client.send(fetch())).groups
    assert [topic.name for topic in everything.topics] == ["u"]
    asked = (fetch_v8.OffsetFetchRequestTopics(name="t", partition_indexes=(0,)),)
    (named,) = (await client.send(fetch(asked))).groups
    found = named.topics[0].partitions[0]
    assert (found.error_code.name, found.committed_offset) == ("topic_authorization_failed", -1)


async def test_nobody_subscribes_to_a_topic_that_it_may_not_know(client: Any) -> None:
    assert (await client.send(BEAT)).error_code.name == "none"
    client.broker.gate = Keep((Operation.DESCRIBE, TOPIC))
    assert (await client.send(BEAT)).error_code.name == "topic_authorization_failed"
    (group,) = (await client.send(DESCRIBE_CONSUMERS)).groups
    assert (group.error_code.name, group.members) == ("topic_authorization_failed", ())
    any_topic = ConsumerGroupHeartbeatRequest(
        group_id="h",
        member_id="m",
        member_epoch=0,
        rebalance_timeout=TEN_S,
        subscribed_topic_regex=".*",
        topic_partitions=(),
    )
    assigned = (await client.send(any_topic)).assignment.topic_partitions
    assert [topic.topic_id.bytes for topic in assigned] == [client.log.topics.get("u").id]


async def test_groups_are_listed_to_who_may_describe_them_or_the_cluster(client: Any) -> None:
    async def listed() -> list[str]:
        return [g.group_id for g in (await client.send(ListGroupsRequest())).groups]

    client.broker.gate = Keep((Operation.DESCRIBE, GROUP))
    assert await listed() == ["g", "h"]
    client.broker.gate = Keep((Operation.DESCRIBE, GROUP), (Operation.DESCRIBE, THE_CLUSTER))
    assert await listed() == ["h"]


def of_group(request: Any, group_id: str) -> Any:
    """The request, about another group."""
    if hasattr(request, "groups"):
        those = tuple(
            replace(g, group_id=group_id) if hasattr(g, "group_id") else group_id
            for g in request.groups
        )
        return replace(request, groups=those)
    if hasattr(request, "group_ids"):
        return replace(request, group_ids=(group_id,))
    return replace(request, group_id=group_id)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (JOIN, None),
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), None),
        (LeaveGroupRequest(group_id="g", members=()), None),
        (SYNC, None),
        (commit(), lambda r: r.topics[0].partitions[0]),
        (commit_in_transaction(), lambda r: r.topics[0].partitions[0]),
        (ADD_TO_TXN, None),
        (fetch(), lambda r: r.groups[0]),
        (DESCRIBE, lambda r: r.groups[0]),
        (DESCRIBE_CONSUMERS, lambda r: r.groups[0]),
        (delete_offsets(), None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__api_key__") else "",
)
@pytest.mark.parametrize("group_id", ["g\0", "g" * 256])
async def test_an_id_that_no_group_can_have_never_reaches_the_catalog(
    client: Any, monkeypatch: pytest.MonkeyPatch, group_id: str, request_: Any, answer: Any
) -> None:
    async def refused(*_: Any) -> Any:
        raise CatalogRefused("PostgreSQL text fields cannot contain NUL (0x00) bytes")

    for name in ("committed", "take_group", "commit_offsets", "delete_offsets"):
        monkeypatch.setattr(client.log, name, refused, raising=False)
    reply = await client.send(of_group(request_, group_id))
    assert (answer(reply) if answer else reply).error_code.name == "invalid_group_id"
