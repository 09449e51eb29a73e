"""OffsetCommit, and OffsetFetch as its other half."""

from typing import Any

import pytest
from kio.schema.offset_commit.v8 import request as commit_v8
from kio.schema.offset_fetch.v5 import request as fetch_v5
from kio.schema.offset_fetch.v8 import request as fetch_v8


@pytest.fixture(autouse=True)
async def topic(client):
    return await client.log.create_topic("t", 2)


def commit(*partitions: tuple[int, int], **changes: Any) -> commit_v8.OffsetCommitRequest:
    return commit_v8.OffsetCommitRequest(
        group_id=changes.get("group", "g"),
        generation_id_or_member_epoch=changes.get("generation", -1),
        member_id=changes.get("member", ""),
        topics=(
            commit_v8.OffsetCommitRequestTopic(
                name=changes.get("topic", "t"),
                partitions=tuple(
                    commit_v8.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=0,
                        committed_metadata=changes.get("metadata", "m"),
                    )
                    for index, offset in partitions
                ),
            ),
        ),
    )


def errors(reply) -> list[str]:
    return [p.error_code.name for p in reply.topics[0].partitions]


async def test_a_position_is_read_back_by_every_form_of_the_question(client) -> None:
    assert errors(await client.send(commit((0, 5), (1, 7)))) == ["none", "none"]
    topic = fetch_v8.OffsetFetchRequestTopics(name="t", partition_indexes=(1, 9))
    groups = (
        fetch_v8.OffsetFetchRequestGroup(group_id="g", topics=(topic,)),
        fetch_v8.OffsetFetchRequestGroup(group_id="g", topics=None),
        fetch_v8.OffsetFetchRequestGroup(group_id="other", topics=None),
    )
    named, everything, other = (
        await client.send(fetch_v8.OffsetFetchRequest(groups=groups))
    ).groups
    found = [
        (p.partition_index, p.committed_offset, p.metadata) for p in named.topics[0].partitions
    ]
    assert found == [(1, 7, "m"), (9, -1, "")]
    assert [p.committed_offset for p in everything.topics[0].partitions] == [5, 7]
    assert other.topics == ()
    old = await client.send(fetch_v5.OffsetFetchRequest(group_id="g", topics=None))
    assert [p.committed_offset for p in old.topics[0].partitions] == [5, 7]


async def test_one_bad_position_does_not_hold_back_the_others(client) -> None:
    reply = await client.send(commit((0, 5), (1, -1), (2, 5)))
    assert errors(reply) == ["none", "invalid_request", "unknown_topic_or_partition"]
    assert client.log.offsets["g"].keys() == {("t", 0)}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group": ""}, "invalid_group_id"),
        ({"group": "a\x1bb"}, "invalid_group_id"),
        ({"group": "x" * 256}, "invalid_group_id"),
        ({"topic": "nowhere"}, "unknown_topic_or_partition"),
        ({"metadata": "x" * 4097}, "offset_metadata_too_large"),
        ({"metadata": "x\0y"}, "invalid_request"),
        ({"generation": 3, "member": "gone"}, "unknown_member_id"),
    ],
)
async def test_what_cannot_be_is_refused(client, changes, error) -> None:
    assert errors(await client.send(commit((0, 5), **changes))) == [error]
    assert not client.log.offsets
