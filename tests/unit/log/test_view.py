"""What one broker sees of what others do: all of it, soon, and never backwards."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.log.shared import World, append, batch, catalog_of, offsets, settled, until

from catchwater.catalog.errors import CatalogUnavailable, TopicExists, TopicUnknown
from catchwater.catalog.rows import Notice, PartitionKey, PartitionRow
from catchwater.log.log import Log
from catchwater.log.view import View
from catchwater.wire.errors import ErrorCode


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def pair(world: World) -> tuple[Log, Log, PartitionKey]:
    one, two = await world.log(1), await world.log(2)
    topic = await one.create_topic("t", 2)
    await until(lambda: two.topics.get("t"))
    return one, two, (topic.id, 0)


def view_of(log: Log) -> View:
    assert log._view is not None
    return log._view


async def deafen(log: Log) -> None:
    """No notice reaches this broker any more, once what it has heard of was dealt with."""
    await settled()
    catalog_of(log).close()


async def test_topics_made_and_deleted_elsewhere_come_and_go(world: World) -> None:
    one, two, key = await pair(world)
    assert two.state(key).high_watermark == 0
    await one.delete_topic("t")
    await until(lambda: two.topics.get("t") is None)
    with pytest.raises(KeyError):
        two.state(key)
    again = await one.create_topic("t", 1)
    await until(lambda: two.topics.by_id(again.id))


async def test_whoever_waits_wakes_for_what_another_broker_appends(world: World) -> None:
    one, two, key = await pair(world)
    waiting = two.wait_for([key])
    await offsets(one, batch(key, 3))
    await asyncio.wait_for(waiting, 60)
    read = await two.read(key, 0, 1 << 20, at_least_one=True)
    assert (read.high_watermark, len(read.parts)) == (3, 1)


async def test_a_topic_nobody_told_of_is_looked_up(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    await deafen(two)
    topic = await one.create_topic("t", 1)
    await settled()
    assert two.topics.get("t") is None
    await two.look_up(["t"])
    assert two.topics.get("t") == topic
    await one.create_topic("other", 1)
    with pytest.raises(TopicExists):
        await two.create_topic("other", 1)
    assert two.topics.get("other") is not None
    await one.create_topic("third", 1)
    await two.delete_topic("third")
    with pytest.raises(TopicUnknown):
        await two.delete_topic("third")


async def test_an_offset_beyond_what_is_known_is_asked_of_the_catalog_before_it_is_refused(
    world: World,
) -> None:
    one, two, key = await pair(world)
    await deafen(two)
    await offsets(one, batch(key, 3))
    await settled()
    assert two.state(key).high_watermark == 0
    read = await two.read(key, 3, 1 << 20, at_least_one=True)
    assert (read.error, read.high_watermark) == (ErrorCode.NONE, 3)
    read = await two.read(key, 4, 1 << 20, at_least_one=True)
    assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE
    await two.refresh([key])
    assert two.state(key).high_watermark == 3


async def test_out_of_touch_an_offset_beyond_what_is_known_is_not_called_out_of_range(
    world: World,
) -> None:
    one, two, key = await pair(world)
    await deafen(two)
    await offsets(one, batch(key, 3))
    catalog_of(two).is_cut = True
    for committed in (False, True):
        read = await two.read(key, 3, 1 << 20, at_least_one=True, committed=committed)
        assert read.error == ErrorCode.KAFKA_STORAGE_ERROR
    catalog_of(two).is_cut = False
    read = await two.read(key, 3, 1 << 20, at_least_one=True)
    assert read.error == ErrorCode.NONE


async def test_nothing_moves_back_whatever_is_told_late(world: World) -> None:
    one, two, key = await pair(world)
    await offsets(one, batch(key, 5))
    await until(lambda: two.state(key).high_watermark == 5)
    view_of(two).notify(Notice("partitions", [(*key, 0, 3)]))
    await settled()
    assert two.state(key).high_watermark == 5
    view_of(two).notify(Notice("partitions", [(*key, 4, 5)]))
    view_of(two).notify(Notice("partitions", [(*key, 2, 5)]))
    await settled()
    assert two.state(key).log_start == 4
    two._core.show([PartitionRow(*key, 1, 2, 10, 7)])
    assert (two.state(key).log_start, two.state(key).high_watermark) == (4, 5)
    two._core.show([PartitionRow(*key, 5, 5, 0, -1)])
    assert two.state(key).log_start == 5


async def test_after_missed_notices_everything_is_loaded_again(world: World) -> None:
    one, two, key = await pair(world)
    await deafen(two)
    await offsets(one, batch(key, 5))
    await one.create_topic("later", 3)
    view_of(two).notify(Notice("resync"))
    await until(lambda: two.topics.get("later"))
    assert two.state(key).high_watermark == 5


async def test_what_cannot_be_loaded_now_is_loaded_later(world: World) -> None:
    one, two, _ = await pair(world)
    catalog_of(two).is_cut = True
    with pytest.raises(CatalogUnavailable):
        await two.look_up(["other"])
    await one.create_topic("other", 1)
    await settled()
    assert two.topics.get("other") is None
    catalog_of(two).is_cut = False
    await world.beat()
    await until(lambda: two.topics.get("other"))


async def test_a_notice_of_the_chunk_being_committed_waits_for_its_bytes(world: World) -> None:
    one, _, key = await pair(world)
    with view_of(one).hold([key]):
        view_of(one).notify(Notice("partitions", [(*key, 0, 9), (key[0], 1, 0, 4)]))
        await settled()
        assert one.state(key).high_watermark == 0
        assert one.state((key[0], 1)).high_watermark == 4
    assert one.state(key).high_watermark == 9


async def test_batches_for_a_topic_deleted_elsewhere_are_refused(world: World) -> None:
    one, two, key = await pair(world)
    await deafen(two)
    await one.delete_topic("t")
    (answer,) = await append(two, batch(key))
    assert answer.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
