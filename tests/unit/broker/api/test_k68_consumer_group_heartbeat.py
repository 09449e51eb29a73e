"""The consumer protocol over the wire: heartbeats, what groups look like, positions by epoch."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.consumer_group_describe.v1 import request as describe_v1
from kio.schema.consumer_group_heartbeat.v0 import request as beat_v0
from kio.schema.consumer_group_heartbeat.v1 import request as beat_v1
from kio.schema.join_group.v0 import request as join_v0
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.offset_commit.v8 import request as commit_v8
from kio.schema.offset_commit.v9 import request as commit_v9
from kio.schema.offset_commit.v10 import request as commit_v10
from kio.schema.offset_fetch.v9 import request as fetch_v9
from kio.schema.offset_fetch.v10 import request as fetch_v10
from kio.schema.txn_offset_commit.v5 import request as txn_v5
from kio.static.primitive import i32Timedelta

from catchwater.broker.coordination.consumer.member import ConsumerLimits

TEN_S = i32Timedelta.parse(timedelta(seconds=10))


@pytest.fixture(autouse=True)
async def topics(client: Any) -> None:
    await client.log.create_topic("t", 4)
    await client.log.create_topic("t2", 1)


def beat(member: str, epoch: int = 0, version: Any = beat_v1, **changes: Any) -> Any:
    values: dict[str, Any] = {"group_id": "g", "member_id": member, "member_epoch": epoch}
    values["topic_partitions"] = None
    if epoch == 0:
        values |= {"rebalance_timeout": TEN_S, "subscribed_topic_names": ("t",)}
        values["topic_partitions"] = ()
    return version.ConsumerGroupHeartbeatRequest(**(values | changes))


def owned(client: Any, **indexes: tuple[int, ...]) -> Any:
    return tuple(
        beat_v1.TopicPartitions(
            topic_id=uuid.UUID(bytes=client.log.topics.get(name).id), partitions=found
        )
        for name, found in indexes.items()
    )


def assigned(client: Any, reply: Any) -> dict[str, tuple[int, ...]]:
    return {
        client.log.topics.by_id(topic.topic_id.bytes).name: topic.partitions
        for topic in reply.assignment.topic_partitions
    }


async def test_two_members_share_a_topic_one_giving_up_before_the_other_gets(client: Any) -> None:
    first = await client.send(beat("a"))
    assert (first.error_code.name, first.member_id, first.member_epoch) == ("none", "a", 1)
    assert first.heartbeat_interval == timedelta(seconds=5)
    assert assigned(client, first) == {"t": (0, 1, 2, 3)}
    second = await client.send(beat("b"))
    assert (second.member_epoch, assigned(client, second)) == (2, {})
    told = await client.send(beat("a", 1))
    (kept,) = assigned(client, told).values()
    assert (told.member_epoch, len(kept)) == (1, 2)
    assert (await client.send(beat("b", 2))).assignment is None
    done = await client.send(beat("a", 1, topic_partitions=owned(client, t=kept)))
    assert (done.member_epoch, done.assignment) == (2, None)
    rest = await client.send(beat("b", 2))
    assert sorted(kept + assigned(client, rest)["t"]) == [0, 1, 2, 3]

    request = describe_v1.ConsumerGroupDescribeRequest(
        group_ids=("g", "none"), include_authorized_operations=True
    )
    group, none = (await client.send(request)).groups
    assert none.error_code.name == "group_id_not_found"
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert (group.assignor_name, group.authorized_operations) == ("uniform", 0b1_0100_1000)
    shown = {m.member_id: m for m in group.members}
    assert shown["a"].assignment == shown["a"].target_assignment
    assert shown["a"].assignment.topic_partitions[0].topic_name == "t"
    assert (shown["b"].client_host, shown["b"].subscribed_topic_names) == ("10.0.0.1", ("t",))


async def test_a_pattern_means_topics_that_come_later_too(client: Any) -> None:
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "t|u.*"}
    first = await client.send(beat("a", **pattern))
    assert assigned(client, first) == {"t": (0, 1, 2, 3)}
    await client.log.create_topic("u1", 1)
    assert (await client.send(beat("a", 1))).assignment is None
    client.broker.clock.advance(2000)
    more = await client.send(beat("a", 1))
    assert assigned(client, more) == {"t": (0, 1, 2, 3), "u1": (0,)}


async def test_the_oldest_version_is_given_its_member_id(client: Any) -> None:
    reply = await client.send(beat("", version=beat_v0))
    assert reply.error_code.name == "none"
    assert uuid.UUID(reply.member_id)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, "invalid_request"),
        ({"group_id": "g\0"}, "invalid_request"),
        ({"group_id": "x" * 65_536}, "invalid_request"),
        ({"member_id": ""}, "invalid_request"),
        ({"member_id": "x" * 65_536}, "invalid_request"),
        ({"instance_id": ""}, "invalid_request"),
        ({"rack_id": "\x1b[2J"}, "invalid_request"),
        ({"rebalance_timeout": i32Timedelta.parse(timedelta(milliseconds=-1))}, "invalid_request"),
        ({"topic_partitions": None}, "invalid_request"),
        ({"subscribed_topic_names": None}, "invalid_request"),
        ({"subscribed_topic_names": ("x" * 1024,) * 1025}, "none"),
        ({"subscribed_topic_names": tuple(f"{i:0>999}" for i in range(1100))}, "invalid_request"),
        ({"member_epoch": -3}, "invalid_request"),
        ({"member_epoch": -2}, "invalid_request"),
        ({"member_epoch": -1}, "unknown_member_id"),
        ({"member_epoch": 1}, "unknown_member_id"),
        ({"server_assignor": "cooperative-sticky"}, "unsupported_assignor"),
        ({"subscribed_topic_regex": "("}, "invalid_regular_expression"),
        ({"subscribed_topic_regex": "a)|(b"}, "invalid_regular_expression"),
        ({"subscribed_topic_regex": "(?=t)"}, "invalid_regular_expression"),
        ({"subscribed_topic_regex": "x" * 5000}, "invalid_regular_expression"),
        ({"subscribed_topic_regex": "((a{99}){99}){99}"}, "invalid_regular_expression"),
    ],
)
async def test_a_heartbeat_that_cannot_be_is_refused(client: Any, changes: Any, error: str) -> None:
    reply = await client.send(
        beat(**({"member": "a"} | changes)) if "member" in changes else beat("a", **changes)
    )
    assert reply.error_code.name == error
    assert bool(reply.error_message) == (error != "none")
    assert (reply.heartbeat_interval == timedelta(0)) == (error != "none")


async def test_a_group_has_so_many_members_and_no_more(client: Any) -> None:
    client.broker.groups.consumer_limits = ConsumerLimits(max_members=2)
    for member in ("a", "b"):
        assert (await client.send(beat(member))).error_code.name == "none"
    assert (await client.send(beat("c"))).error_code.name == "group_max_size_reached"
    assert (await client.send(beat("a"))).error_code.name == "none"


def join_classic() -> Any:
    protocol = join_v0.JoinGroupRequestProtocol(name="range", metadata=b"")
    return join_v0.JoinGroupRequest(
        group_id="g",
        session_timeout=TEN_S,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )


async def test_a_group_is_of_one_protocol_until_it_is_empty(client: Any) -> None:
    await client.send(beat("a"))
    assert (await client.send(join_classic())).error_code.name == "inconsistent_group_protocol"
    left = await client.send(beat("a", -1))
    assert (left.member_epoch, left.heartbeat_interval) == (-1, timedelta(0))
    joined = await client.send(join_classic())
    # The generation goes on from the epoch, so that nothing old fits.
    assert (joined.error_code.name, joined.generation_id) == ("none", 3)
    assert (await client.send(beat("a"))).error_code.name == "group_id_not_found"
    assert (await client.send(beat("a", 1))).error_code.name == "unknown_member_id"
    listed = (await client.send(ListGroupsRequest(types_filter=("classic",)))).groups
    assert [g.group_id for g in listed] == ["g"]


async def test_groups_are_listed_by_type_and_state(client: Any) -> None:
    await client.send(beat("a"))
    client.log.offsets["old"] = {}

    async def listed(**filters: Any) -> list[tuple[str, ...]]:
        reply = await client.send(ListGroupsRequest(**filters))
        return [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in reply.groups]

    mine = ("g", "consumer", "Stable", "consumer")
    assert await listed() == [mine, ("old", "consumer", "Empty", "classic")]
    assert await listed(types_filter=("Consumer",)) == [mine]
    assert await listed(states_filter=("stable",), types_filter=("classic",)) == []


def commit(version: Any, epoch: int, **topic: Any) -> Any:
    partition = version.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    return version.OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id="a",
        topics=(version.OffsetCommitRequestTopic(partitions=(partition,), **topic),),
    )


async def test_positions_are_committed_and_read_with_the_members_epoch(client: Any) -> None:
    await client.send(beat("a"))

    async def error(request: Any) -> str:
        return (await client.send(request)).topics[0].partitions[0].error_code.name

    assert await error(commit(commit_v9, 0, name="t")) == "stale_member_epoch"
    assert await error(commit(commit_v9, -1, name="t")) == "stale_member_epoch"
    assert await error(commit(commit_v8, 1, name="t")) == "unsupported_version"
    topic_id = uuid.UUID(bytes=client.log.topics.get("t").id)
    assert await error(commit(commit_v10, 1, topic_id=uuid.uuid4())) == "unknown_topic_id"
    assert await error(commit(commit_v10, 1, topic_id=topic_id)) == "none"
    assert client.log.offsets["g"][("t", 0)].offset == 7

    async def fetched(version: Any, epoch: int, topics: Any) -> Any:
        group = version.OffsetFetchRequestGroup(
            group_id="g", member_id="a", member_epoch=epoch, topics=topics
        )
        (answer,) = (await client.send(version.OffsetFetchRequest(groups=(group,)))).groups
        return answer

    assert (await fetched(fetch_v9, 9, None)).error_code.name == "stale_member_epoch"
    (found,) = (await fetched(fetch_v9, 1, None)).topics
    assert (found.name, found.partitions[0].committed_offset) == ("t", 7)
    (found,) = (await fetched(fetch_v10, 1, None)).topics
    assert (found.topic_id, found.partitions[0].committed_offset) == (topic_id, 7)
    asked = tuple(
        fetch_v10.OffsetFetchRequestTopics(topic_id=each, partition_indexes=(0,))
        for each in (topic_id, uuid.uuid4())
    )
    found, missing = (await fetched(fetch_v10, 1, asked)).topics
    assert found.partitions[0].committed_offset == 7
    assert missing.partitions[0].error_code.name == "unknown_topic_id"


@pytest.mark.parametrize(("member", "epoch"), [("a", 9), ("a", 0), ("b", 1)])
async def test_a_transaction_takes_no_position_of_who_is_not_a_member_any_more(
    client: Any, member: str, epoch: int
) -> None:
    await client.send(beat("a"))
    partition = txn_v5.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    reply = await client.send(
        txn_v5.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            generation_id=epoch,
            member_id=member,
            topics=(txn_v5.TxnOffsetCommitRequestTopic(name="t", partitions=(partition,)),),
        )
    )
    error = reply.topics[0].partitions[0].error_code.name
    assert error == ("illegal_generation" if member == "a" else "unknown_member_id")


async def test_who_was_silent_is_unknown_and_joins_again_with_a_higher_epoch(client: Any) -> None:
    await client.send(beat("a"))
    client.broker.groups.consumer_groups["g"].tick(client.broker.clock.now_ms() + 45_000)
    assert (await client.send(beat("a", 1))).error_code.name == "unknown_member_id"
    assert (await client.send(beat("a"))).member_epoch > 1


async def test_tools_are_told_that_the_protocol_is_served(client: Any) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    reply = await client.send(request)
    levels = {f.name: f.max_version_level for f in reply.finalized_features}
    assert levels["group.version"] == 1
    assert {68: 1, 69: 1}.items() <= {a.api_key: a.max_version for a in reply.api_keys}.items()
