"""Sessions: who is alive, who was superseded, and what the others are told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.log.shared import QUIET, FaultyCatalog, World, catalog_of, settled, until

from catchwater.catalog.errors import BrokerRefused, CatalogFull, CatalogUncertain
from catchwater.catalog.rows import BrokerRow
from catchwater.log import open as opening
from catchwater.log.cluster import BrokerReplaced, Cluster
from catchwater.log.log import Log


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


def ids(log: Log) -> list[int]:
    return [row.id for row in log.brokers()]


async def test_all_brokers_know_of_each_other_as_soon_as_they_join_and_leave(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    await until(lambda: ids(one) == [1, 2])
    assert ids(two) == [1, 2]
    assert one.session is not None and two.session is not None
    assert one.session.epoch != two.session.epoch
    await two.close()
    world.logs.remove(two)
    await until(lambda: ids(one) == [1])


async def test_a_broker_that_died_is_left_out_when_its_deadline_passes_and_not_before(
    world: World,
) -> None:
    one, two = await world.log(1), await world.log(2)
    await until(lambda: ids(one) == [1, 2])
    catalog_of(two).is_cut = True
    await world.beat(250)
    await world.beat(250)
    await world.beat(250)
    world.clock.advance(200)
    assert ids(one) == [1, 2]
    world.clock.advance(51)
    assert ids(one) == [1]


async def test_out_of_touch_with_the_catalog_a_broker_still_lists_those_it_knew(
    world: World,
) -> None:
    one, two = await world.log(1), await world.log(2)
    await until(lambda: ids(one) == [1, 2])
    catalog_of(one).is_cut = catalog_of(two).is_cut = True
    for _ in range(20):
        await world.beat()
    assert ids(one) == [1, 2]


async def test_heartbeats_keep_a_session_for_as_long_as_it_is_wanted(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    sessions = one.session, two.session
    for _ in range(20):
        await world.beat()
    assert (one.session, two.session) == sessions
    assert ids(one) == ids(two) == [1, 2]


async def test_a_catalog_without_space_for_a_while_does_not_end_the_heartbeats(
    world: World,
) -> None:
    one, two = await world.log(1), await world.log(2)
    catalog_of(one).refusal = CatalogFull("There is no space for the catalog.")
    await world.beat()
    catalog_of(one).refusal = None
    for _ in range(20):
        await world.beat()
    assert ids(one) == ids(two) == [1, 2]


async def test_a_superseded_broker_joins_again_with_a_new_epoch(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    ended = one.session
    assert ended is not None
    catalog_of(one).is_cut = True
    for _ in range(5):
        await world.beat()
    assert ids(two) == [2]
    catalog_of(one).is_cut = False
    await world.beat()
    await until(lambda: one.session != ended)
    await until(lambda: ids(two) == [1, 2])
    assert one.session is not None and one.session.epoch > ended.epoch
    assert two.brokers()[0].epoch == one.session.epoch


async def test_a_draining_broker_says_so_at_once(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    assert one.cluster is not None
    await one.cluster.drain()
    await until(lambda: two.brokers()[0].state == "draining")
    for _ in range(5):
        await world.beat()
    assert [row.state for row in two.brokers()] == ["draining", "live"]


async def test_a_catalog_that_is_gone_does_not_hold_up_the_end(world: World) -> None:
    one = await world.log(1)
    catalog_of(one).is_cut = True
    assert one.cluster is not None
    await asyncio.wait_for(one.cluster.drain(), 60)


async def test_whose_id_another_process_has_taken_stops_instead_of_taking_it_back(
    world: World,
) -> None:
    first = await world.log(1)
    assert first.session is not None and first.cluster is not None
    second = await world.log(1, host="elsewhere")
    with pytest.raises(BrokerReplaced, match="elsewhere:9092, has joined as broker 1"):
        await first.cluster.rejoin(first.session)
    assert first.cluster.replaced.is_set()
    kept = second.session
    for _ in range(5):
        await world.beat()
    assert second.session == kept


async def test_a_restarted_process_follows_its_own_earlier_self(world: World) -> None:
    first = await world.log(1)
    second = await world.log(1)
    assert first.session is not None and second.session is not None
    assert second.session.epoch > first.session.epoch
    assert ids(second) == [1]


async def test_a_log_of_its_own_may_not_join_others(world: World) -> None:
    await world.log(1)
    row = BrokerRow(2, 0, "", "h", 1, "", "file", False, "live", 0)
    alone = Cluster(catalog_of(world.logs[0]), row, 1000, world.clock)
    with pytest.raises(BrokerRefused, match="cannot be read by others"):
        await alone.join()
    await settled()


@pytest.mark.parametrize(("lost", "joins"), [(1, True), (4, True), (5, False)])
async def test_a_start_whose_commit_got_no_answer_begins_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: int, joins: bool
) -> None:
    catalogs = []

    def open_catalog(url: str, clock: Any) -> FaultyCatalog:
        catalog = FaultyCatalog(world.database)
        if len(catalogs) < lost:
            catalog.refusal = CatalogUncertain("The connection was lost.")
        catalogs.append(catalog)
        return catalog

    monkeypatch.setattr(opening, "open_catalog", open_catalog)
    monkeypatch.setattr(opening, "open_store", lambda url, clock: world.store)
    row = BrokerRow(7, 0, "", "host7", 9092, "", "object", True, "live", 0)
    stores = opening.SharedStores("postgresql://c", "s3://o")
    connecting = asyncio.ensure_future(Log.connect(stores, row, QUIET, world.clock))
    while not connecting.done():
        await settled()
        world.clock.advance(500)
    if not joins:
        with pytest.raises(CatalogUncertain):
            connecting.result()
        return
    world.logs.append(connecting.result())
    assert ids(connecting.result()) == [7]
    assert len(catalogs) == lost + 1
