"""Positions that nobody uses any more expire; those of living groups never do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription
from tests.unit.log.shared import World

from catchwater.broker.broker import Broker
from catchwater.broker.coordination import expiry
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.held import LogClaims
from catchwater.broker.coordination.members import GroupLimits, Join
from catchwater.catalog.errors import CatalogDead
from catchwater.catalog.rows import OffsetCommit
from catchwater.wire.messages import encode

WEEK_MS = 10_080 * 60_000
PLACES = [("t", 0), ("u", 0)]


class Claims(LogClaims):
    """Of a broker whose session ends only in the eyes of a clock that is moved by weeks."""

    def is_mine(self, group_id: str) -> bool:
        return True


@pytest.fixture
async def keeping(broker: Broker) -> AsyncIterator[tuple[Broker, World]]:
    """A broker over a shared log, and its world with the clock."""
    world = World()
    broker.log = await world.log(1)
    broker.clock = world.clock
    broker.groups = Coordinator(GroupLimits(), world.clock, Claims(broker.log, 1, set()))
    for name in ("t", "u"):
        await broker.log.create_topic(name, 1)
    yield broker, world
    await world.close()


async def commit(broker: Broker, group: str, *places: tuple[str, int]) -> None:
    await broker.groups.hold(group)
    commits = {place: OffsetCommit(5, -1, "", broker.clock.now_ms()) for place in places}
    await broker.log.commit_offsets(group, commits, broker.groups.claim_epoch(group))


async def join(broker: Broker, group: str, *topics: str) -> tuple[str, None, int]:
    """One stable member that reads these topics."""
    says = ConsumerProtocolSubscription(topics=topics, user_data=None, owned_partitions=())
    protocols = (("range", b"\0\1" + encode(says)),)
    request = Join("", "m", None, "c", "h", 10_000, 10_000, "consumer", protocols, False)
    joined = await broker.groups.join(group, request)
    member = ("m", None, joined.generation)
    await broker.groups.sync(group, member, (None, None), {"m": b"all"})
    return member


async def left(broker: Broker, group: str) -> set[tuple[str, int]]:
    return set(await broker.log.committed(group))


async def test_without_members_a_position_lives_since_it_was_committed(keeping, caplog) -> None:
    broker, world = keeping
    caplog.set_level("INFO")
    await commit(broker, "g", ("t", 0))
    world.clock.advance(1000)
    await commit(broker, "g", ("u", 0))
    world.clock.advance(WEEK_MS - 1001)
    await expiry.expire(broker)
    assert await left(broker, "g") == set(PLACES)
    world.clock.advance(1)
    await expiry.expire(broker)
    assert await left(broker, "g") == {("u", 0)}
    assert "Group g has forgotten 1 positions" in caplog.text and "t-0" in caplog.text
    world.clock.advance(1000)
    await expiry.expire(broker)
    assert await broker.log.groups() == []
    assert (await broker.log.group("g")).epoch == 0, "its claim is gone, too"


async def test_members_keep_the_positions_of_what_they_read(keeping) -> None:
    broker, world = keeping
    await commit(broker, "g", *PLACES)
    await join(broker, "g", "t")
    world.clock.advance(2 * WEEK_MS)
    await expiry.expire(broker)
    assert await left(broker, "g") == {("t", 0)}


async def test_while_a_group_rebalances_it_loses_nothing(keeping) -> None:
    broker, world = keeping
    await commit(broker, "g", *PLACES)
    await join(broker, "g", "t")
    request = Join("m", "m", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),), False)
    await broker.groups.join("g", request)
    world.clock.advance(2 * WEEK_MS)
    await expiry.expire(broker)
    assert await left(broker, "g") == set(PLACES)


async def test_a_group_keeps_its_positions_since_its_last_member_went(keeping) -> None:
    broker, world = keeping
    await commit(broker, "g", *PLACES)
    member = await join(broker, "g", "t", "u")
    world.clock.advance(2 * WEEK_MS)
    await broker.groups.leave("g", member[0], None)
    await expiry.expire(broker)
    world.clock.advance(WEEK_MS - 1000)
    await expiry.expire(broker)
    assert await left(broker, "g") == set(PLACES)
    # The next coordinator knows since when, too.
    broker.groups = Coordinator(GroupLimits(), world.clock, Claims(broker.log, 1, set()))
    await expiry.expire(broker)
    assert await left(broker, "g") == set(PLACES)
    world.clock.advance(2000)
    await expiry.expire(broker)
    assert await left(broker, "g") == set()


async def test_what_a_transaction_may_move_stays(keeping) -> None:
    broker, world = keeping
    log: Any = broker.log
    await commit(broker, "g", *PLACES)
    producer = await log.txns.init_producer("id", 60_000)
    await log.txns.commit_offsets("id", producer, "g", {("t", 0): OffsetCommit(9)}, implicit=True)
    world.clock.advance(2 * WEEK_MS)
    await expiry.expire(broker)
    assert await left(broker, "g") == {("t", 0)}


async def test_after_a_jump_of_the_wall_clock_nothing_expires(keeping) -> None:
    broker, world = keeping
    await commit(broker, "g", *PLACES)
    passes = 0
    now_ms, monotonic_s = world.clock.now_ms, world.clock.monotonic_s

    class Clock:
        ahead_ms = 0

        def now_ms(self) -> int:
            return now_ms() + self.ahead_ms

        def monotonic_s(self) -> float:
            return monotonic_s()

        async def sleep(self, seconds: float) -> None:
            nonlocal passes
            passes += 1
            if passes == 2:
                raise EndOfTest
            self.ahead_ms = 2 * WEEK_MS

    broker.clock = Clock()
    with pytest.raises(EndOfTest):
        await expiry.run(broker)
    assert await left(broker, "g") == set(PLACES)


async def test_a_catalog_that_fails_for_good_does_not_end_the_broker(keeping) -> None:
    broker, world = keeping
    passes = 0

    async def dead(until_ms: int) -> list[str]:
        raise CatalogDead("It could not be written.")

    async def sleep(seconds: float) -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise EndOfTest

    broker.log.groups_to_expire = dead
    world.clock.sleep = sleep
    with pytest.raises(EndOfTest):
        await expiry.run(broker)


class EndOfTest(Exception):
    """The clock was asked to sleep once more."""
