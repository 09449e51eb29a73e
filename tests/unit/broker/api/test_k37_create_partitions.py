"""CreatePartitions: topics grow, and every reason not to."""

from datetime import timedelta

import pytest
from kio.schema.create_partitions.v3 import request as v3
from kio.static.primitive import i32Timedelta

SECOND = i32Timedelta.parse(timedelta(seconds=1))


def grow(
    *topics: tuple[str, int, tuple[tuple[int, ...], ...] | None], validate_only: bool = False
) -> v3.CreatePartitionsRequest:
    return v3.CreatePartitionsRequest(
        topics=tuple(
            v3.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if places is None
                else tuple(v3.CreatePartitionsAssignment(broker_ids=ids) for ids in places),
            )
            for name, count, places in topics
        ),
        timeout=SECOND,
        validate_only=validate_only,
    )


@pytest.fixture(autouse=True)
async def topic(client) -> None:
    await client.log.create_topic("t", 2)


async def errors(client, request: v3.CreatePartitionsRequest) -> list[str]:
    return [r.error_code.name for r in (await client.send(request)).results]


@pytest.mark.parametrize("places", [None, ((1,), (1,))])
async def test_a_topic_grows(client, places) -> None:
    assert await errors(client, grow(("t", 4, places))) == ["none"]
    assert client.log.topics.get("t").partitions == 4


@pytest.mark.parametrize(
    ("name", "count", "places", "error"),
    [
        ("t", 2, None, "invalid_partitions"),
        ("t", 1, None, "invalid_partitions"),
        ("t", -1, None, "invalid_partitions"),
        ("t", 1_000_000, None, "invalid_partitions"),
        ("x", 3, None, "unknown_topic_or_partition"),
        ("t", 3, ((1,), (1,)), "invalid_replica_assignment"),
        ("t", 3, ((7,),), "invalid_replica_assignment"),
        ("t", 3, ((1, 1),), "invalid_replica_assignment"),
        ("t", 3, ((),), "invalid_replica_assignment"),
    ],
)
async def test_what_cannot_be_is_refused(client, name, count, places, error) -> None:
    (answer,) = (await client.send(grow((name, count, places)))).results
    assert (answer.error_code.name, bool(answer.error_message)) == (error, True)
    assert client.log.topics.get("t").partitions == 2


async def test_validation_alone_a_topic_twice_and_who_may_not_change_nothing(client, deny) -> None:
    assert await errors(client, grow(("t", 3, None), validate_only=True)) == ["none"]
    assert await errors(client, grow(("t", 3, None), ("t", 4, None))) == ["invalid_request"]
    deny(("ALTER", "t"))
    assert await errors(client, grow(("t", 3, None))) == ["topic_authorization_failed"]
    assert client.log.topics.get("t").partitions == 2
