"""A group's life over the protocol: join, sync, heartbeat, describe, leave."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v0 import request as join_v0
from kio.schema.join_group.v7 import request as join_v7
from kio.schema.leave_group.v4 import request as leave_v4
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.sync_group.v5 import request as sync_v5
from kio.static.primitive import i32Timedelta

LONGEST = i32Timedelta.parse(timedelta(milliseconds=2**31 - 1))
TEN_S = i32Timedelta.parse(timedelta(seconds=10))


def join(member: str = "", **changes: Any) -> join_v7.JoinGroupRequest:
    values = {
        "group_id": "g",
        "session_timeout": TEN_S,
        "rebalance_timeout": TEN_S,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": (join_v7.JoinGroupRequestProtocol(name="range", metadata=b"meta"),),
    }
    return join_v7.JoinGroupRequest(**(values | changes))


async def joined(client) -> str:
    member = (await client.send(join())).member_id
    assert (await client.send(join(member))).error_code.name == "none"
    return member


async def test_one_member_goes_through_all_states(client) -> None:
    asked = await client.send(join())
    assert asked.error_code.name == "member_id_required"
    member = asked.member_id
    assert member.startswith("test-")
    reply = await client.send(join(member))
    assert (reply.generation_id, reply.leader, reply.protocol_name) == (1, member, "range")
    assert [(m.member_id, m.metadata) for m in reply.members] == [(member, b"meta")]

    assignment = sync_v5.SyncGroupRequestAssignment(member_id=member, assignment=b"mine")
    synced = await client.send(
        sync_v5.SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(assignment,),
        )
    )
    assert (synced.error_code.name, synced.assignment) == ("none", b"mine")

    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert (await client.send(beat)).error_code.name == "none"

    described = DescribeGroupsRequest(groups=("g", "none"), include_authorized_operations=False)
    group, none = (await client.send(described)).groups
    assert (group.group_state, group.protocol_data, none.group_state) == ("Stable", "range", "Dead")
    assert [(m.member_id, m.client_host) for m in group.members] == [(member, "10.0.0.1")]
    listed = (await client.send(ListGroupsRequest(states_filter=("stable",)))).groups
    assert [g.group_id for g in listed] == ["g"]
    assert (await client.send(ListGroupsRequest(states_filter=("Empty",)))).groups == ()

    leaving = leave_v4.MemberIdentity(member_id=member, group_instance_id=None)
    left = await client.send(leave_v4.LeaveGroupRequest(group_id="g", members=(leaving,)))
    assert left.members[0].error_code.name == "none"
    assert (await client.send(beat)).error_code.name == "unknown_member_id"


async def test_the_oldest_version_joins_at_once(client) -> None:
    reply = await client.send(
        join_v0.JoinGroupRequest(
            group_id="g",
            session_timeout=TEN_S,
            member_id="",
            protocol_type="consumer",
            protocols=(join_v0.JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
    )
    assert (reply.error_code.name, reply.generation_id) == ("none", 1)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, "invalid_group_id"),
        ({"group_id": "x" * 65_536}, "invalid_group_id"),
        ({"group_id": "g\0"}, "invalid_group_id"),
        ({"group_id": "g\n2026 INFO all is well"}, "invalid_group_id"),
        ({"session_timeout": i32Timedelta.parse(timedelta(0))}, "invalid_session_timeout"),
        ({"session_timeout": LONGEST}, "invalid_session_timeout"),
        ({"group_instance_id": ""}, "invalid_request"),
        ({"group_instance_id": "x" * 65_536}, "invalid_request"),
        ({"member_id": "m\0"}, "invalid_request"),
        (
            {"protocols": (join_v7.JoinGroupRequestProtocol(name="r", metadata=bytes(2_000_000)),)},
            "invalid_request",
        ),
        (
            {
                "protocols": tuple(
                    join_v7.JoinGroupRequestProtocol(name=f"r{i}", metadata=b"")
                    for i in range(100_000)
                )
            },
            "invalid_request",
        ),
        ({"protocols": ()}, "inconsistent_group_protocol"),
        (
            {"protocols": (join_v7.JoinGroupRequestProtocol(name="r", metadata=bytes(2**20)),)},
            "invalid_request",
        ),
        (
            {
                "protocols": tuple(
                    join_v7.JoinGroupRequestProtocol(name=f"r{i}", metadata=b"") for i in range(99)
                )
            },
            "invalid_request",
        ),
        ({"member_id": "stranger"}, "unknown_member_id"),
    ],
)
async def test_a_join_that_cannot_be_is_refused(client, changes, error) -> None:
    assert (await client.send(join(**changes))).error_code.name == error


async def test_time_removes_a_silent_member_and_forgets_an_empty_group(client) -> None:
    await joined(client)
    ticking = asyncio.ensure_future(client.broker.groups.run())
    for _ in range(400):
        await asyncio.sleep(0)
    assert client.broker.groups.groups == {}
    ticking.cancel()


async def test_who_waits_when_the_broker_stops_is_answered(client) -> None:
    await joined(client)
    second = (await client.send(join())).member_id
    waiting = asyncio.ensure_future(client.send(join(second)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    client.broker.groups.stop()
    assert (await waiting).error_code.name == "coordinator_not_available"


async def test_what_no_group_can_be_named_is_told_by_every_request(client) -> None:
    who = {"member_id": "m", "generation_id": 1, "group_instance_id": None}
    protocol = {"protocol_type": "consumer", "protocol_name": "r"}
    gone = leave_v4.MemberIdentity(member_id="m", group_instance_id=None)
    invalid, unknown = ["invalid_group_id"] * 3, ["unknown_member_id"] * 2 + ["none"]
    for name, errors in (("", invalid), ("g\0", invalid), ("g", unknown)):
        requests = (
            sync_v5.SyncGroupRequest(group_id=name, assignments=(), **who, **protocol),
            HeartbeatRequest(group_id=name, **who),
            leave_v4.LeaveGroupRequest(group_id=name, members=(gone,)),
        )
        assert [(await client.send(each)).error_code.name for each in requests] == errors


async def test_who_syncs_names_the_protocol_where_there_is_room_for_it(client) -> None:
    request = sync_v5.SyncGroupRequest(
        group_id="g", generation_id=1, member_id="m", protocol_name="r", assignments=()
    )
    reply = await client.send(request)
    assert reply.error_code.name == "inconsistent_group_protocol"
