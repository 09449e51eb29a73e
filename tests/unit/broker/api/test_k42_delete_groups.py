"""What is forgotten of groups: whole ones, and single positions; and what keeps them."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.join_group.v0 import request as join_v0
from kio.schema.offset_delete.v0 import request as delete_v0
from kio.static.primitive import i32Timedelta

from catchwater.broker.coordination.held import HeldGroups
from catchwater.catalog.errors import CatalogUnavailable, CoordinatorMoved
from catchwater.catalog.rows import OffsetCommit
from catchwater.wire.messages import encode

TEN_S = i32Timedelta.parse(timedelta(seconds=10))


@pytest.fixture(autouse=True)
async def topics(client: Any) -> None:
    for name in ("t", "u"):
        await client.log.create_topic(name, 2)
    for group in ("g", "h"):
        places = [("t", 0), ("u", 0), ("u", 1)]
        client.log.offsets[group] = dict.fromkeys(places, OffsetCommit(5))


async def delete(client: Any, *names: str) -> list[str]:
    reply = await client.send(DeleteGroupsRequest(groups_names=names))
    assert [result.group_id for result in reply.results] == list(dict.fromkeys(names))
    return [result.error_code.name for result in reply.results]


async def delete_offsets(client: Any, *keys: tuple[str, int], group: str = "g") -> Any:
    reply = await client.send(
        delete_v0.OffsetDeleteRequest(
            group_id=group,
            topics=tuple(
                delete_v0.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=(delete_v0.OffsetDeleteRequestPartition(partition_index=index),),
                )
                for name, index in keys
            ),
        )
    )
    if reply.error_code.name != "none":
        return reply.error_code.name
    return [p.error_code.name for topic in reply.topics for p in topic.partitions]


async def join(client: Any, protocol_type: str = "consumer", metadata: bytes = b"") -> Any:
    request = join_v0.JoinGroupRequest(
        group_id="g",
        session_timeout=TEN_S,
        member_id="",
        protocol_type=protocol_type,
        protocols=(join_v0.JoinGroupRequestProtocol(name="range", metadata=metadata),),
    )
    return await client.send(request)


async def beat(client: Any, epoch: int) -> Any:
    more = {"rebalance_timeout": TEN_S, "subscribed_topic_names": ("t",), "topic_partitions": ()}
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        **(more | {}),  # type: ignore[arg-type]
    )
    return await client.send(request)


async def test_groups_without_members_are_deleted_with_their_positions(client: Any) -> None:
    assert await delete(client, "g", "none", "", "none", "g\0") == [
        "none",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
    ]
    assert client.log.offsets.keys() == {"h"}
    assert await delete(client, "g") == ["group_id_not_found"]
    described = DescribeGroupsRequest(groups=("g", "h"), include_authorized_operations=True)
    gone, left = (await client.send(described)).groups
    assert (gone.error_code.name, gone.group_state) == ("group_id_not_found", "Dead")
    assert (left.error_code.name, left.group_state) == ("none", "Empty")
    assert left.authorized_operations == 0b1_0100_1000


async def test_members_of_either_protocol_keep_their_group(client: Any) -> None:
    member = (await join(client)).member_id
    assert await delete(client, "g") == ["non_empty_group"]
    assert await client.broker.groups.leave("g", member, None) == 0
    assert (await beat(client, 0)).error_code.name == "none"
    assert await delete(client, "g") == ["non_empty_group"]
    assert (await beat(client, -1)).error_code.name == "none"
    assert client.log.offsets.keys() == {"g", "h"}
    assert await delete(client, "g") == ["none"]
    assert client.broker.groups.consumer_groups == {}


async def test_positions_are_forgotten_one_by_one(client: Any) -> None:
    keys = [("t", 0), ("u", 1), ("u", 7), ("none", 0)]
    assert await delete_offsets(client, *keys) == [
        "none",
        "none",
        "unknown_topic_or_partition",
        "unknown_topic_or_partition",
    ]
    assert client.log.offsets["g"].keys() == {("u", 0)}
    assert len(client.log.offsets["h"]) == 3
    assert await delete_offsets(client, ("t", 0), group="none") == "group_id_not_found"
    assert await delete_offsets(client, ("t", 0), group="") == "invalid_group_id"


async def test_what_members_read_is_not_forgotten(client: Any) -> None:
    subscription = ConsumerProtocolSubscription(topics=("t",), user_data=None, owned_partitions=())
    await join(client, metadata=b"\x00\x01" + encode(subscription))
    expected = ["group_subscribed_to_topic", "none"]
    assert await delete_offsets(client, ("t", 0), ("u", 0)) == expected
    client.broker.groups.groups.clear()
    await beat(client, 0)
    assert await delete_offsets(client, ("t", 0), ("u", 1)) == expected


async def test_members_that_cannot_be_asked_keep_everything(client: Any) -> None:
    await join(client, metadata=b"\x00")
    assert await delete_offsets(client, ("u", 0)) == ["group_subscribed_to_topic"]
    client.broker.groups.groups.clear()
    await join(client, protocol_type="connect")
    assert await delete_offsets(client, ("u", 0)) == "non_empty_group"


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (CoordinatorMoved("followed"), "not_coordinator"),
        (CatalogUnavailable("gone"), "coordinator_not_available"),
    ],
)
async def test_a_catalog_that_refuses_is_told(
    client: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception, error: str
) -> None:
    async def fail(*_: Any) -> None:
        raise failure

    given_up = []
    monkeypatch.setattr(HeldGroups, "give_up", lambda self, name: given_up.append(name))
    monkeypatch.setattr(client.log, "delete_group", fail, raising=False)
    monkeypatch.setattr(client.log, "delete_offsets", fail, raising=False)
    assert await delete(client, "g") == [error]
    assert await delete_offsets(client, ("t", 0)) == error
    assert "g" in given_up
