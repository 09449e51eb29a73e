"""TxnOffsetCommit among several brokers: only the group's coordinator takes positions."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.txn_offset_commit import v2, v5
from tests.unit.log.shared import World

from catchwater.broker.broker import Broker
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.held import LogClaims
from catchwater.broker.coordination.members import GroupLimits


@pytest.fixture
async def coordinating(broker: Broker) -> AsyncIterator[Broker]:
    """The broker, over a shared log in which it coordinates every group."""
    world = World()
    broker.log = await world.log(1)
    broker.groups = Coordinator(GroupLimits(), world.clock, LogClaims(broker.log, 1, set()))
    await broker.log.create_topic("t", 1)
    yield broker
    await world.close()


async def commit(client: Any, producer: Any, of: Any = v5, metadata: str = "") -> str:
    fields = {} if of is v2 else {"generation_id": -1, "member_id": "", "group_instance_id": None}
    partition = of.request.TxnOffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=1,
        committed_leader_epoch=-1,
        committed_metadata=metadata,
    )
    topic = of.request.TxnOffsetCommitRequestTopic(name="t", partitions=(partition,))
    reply = await client.send(
        of.request.TxnOffsetCommitRequest(
            transactional_id="id",
            group_id="g",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=(topic,),
            **fields,
        )
    )
    return reply.topics[0].partitions[0].error_code.name


@pytest.mark.parametrize("of", [v2, v5])
async def test_a_broker_that_another_has_followed_takes_no_positions(
    coordinating: Broker, client: Any, of: Any
) -> None:
    txns: Any = coordinating.log.txns
    producer = await txns.init_producer("id", 60_000)
    await txns.add_partitions("id", producer, [])
    assert await commit(client, producer, of, "x\0y") == "invalid_request"
    assert await commit(client, producer, of) == "none"
    producer = await txns.end("id", producer, committed=True, version=2)
    await txns.add_partitions("id", producer, [])
    # Another broker claims the group, which this one does not know yet.
    await coordinating.log.take_group("g")
    assert await commit(client, producer, of) == "not_coordinator"
    assert await txns.unstable("g") == set()
    assert await commit(client, producer, of) == "none", "it has claimed the group itself since"


async def test_a_broker_that_the_groups_name_does_not_point_to_takes_no_positions(
    coordinating: Broker, client: Any
) -> None:
    coordinating.groups = Coordinator(
        GroupLimits(), coordinating.clock, LogClaims(coordinating.log, 2, set())
    )
    producer = await coordinating.log.txns.init_producer("id", 60_000)
    for of in (v2, v5):
        assert await commit(client, producer, of) == "not_coordinator"
