"""Groups of several brokers: claimed, fenced, continued above the recorded generation."""

import asyncio
from collections.abc import Callable

import pytest

from catchwater.broker.coordination.consumer.group import TopicsSeen
from catchwater.broker.coordination.consumer.member import Beat
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.members import GroupLimits, Join
from catchwater.catalog.base import CatalogUnavailable, CoordinatorMoved
from catchwater.catalog.rows import GroupClaim
from catchwater.clock import ManualClock
from catchwater.wire.errors import ErrorCode

NOBODY = ("", None, -1)


class Claims:
    """One broker's side of `catalog`, which all brokers share."""

    catalog: dict[str, GroupClaim]

    def __init__(self, catalog: dict[str, GroupClaim]) -> None:
        self.catalog = catalog
        self.session = 1
        self.mine: Callable[[str], bool] = lambda _: True
        self.brokers = 1
        self.fails: Exception | None = None

    @property
    def view(self) -> tuple[int, int]:
        return self.session, self.brokers

    def is_mine(self, group_id: str) -> bool:
        return self.mine(group_id)

    async def take(self, group_id: str) -> GroupClaim:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails
        before = self.catalog.get(group_id, GroupClaim(0, 0))
        self.catalog[group_id] = GroupClaim(before.epoch + 1, before.generation)
        return self.catalog[group_id]

    async def record(self, group_id: str, claim: GroupClaim) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails
        if self.catalog[group_id].epoch != claim.epoch:
            raise CoordinatorMoved("claimed by another")
        self.catalog[group_id] = claim


@pytest.fixture
def claims() -> Claims:
    return Claims({})


@pytest.fixture
def coordinator(claims) -> Coordinator:
    return Coordinator(GroupLimits(), ManualClock(), claims)


def join(member_id: str = "", fresh_id: str = "m", metadata: bytes = b"") -> Join:
    return Join(
        *(member_id, fresh_id, None, "c", "h", 10_000, 10_000, "consumer"),
        protocols=(("range", metadata),),
        must_return_with_id=False,
    )


async def test_the_next_coordinator_goes_on_above_the_recorded_generation(
    coordinator, claims
) -> None:
    joined = await coordinator.join("g", join())
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 1)
    assert claims.catalog["g"] == GroupClaim(1, 1)
    other = Coordinator(GroupLimits(), ManualClock(), Claims(claims.catalog))
    assert await other.heartbeat("g", ("m", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await other.join("g", join())).generation == 2
    assert claims.catalog["g"] == GroupClaim(2, 2)


async def test_requests_that_come_together_claim_a_group_once(coordinator, claims) -> None:
    errors = await asyncio.gather(*(coordinator.check_commit("g", NOBODY) for _ in range(5)))
    assert set(errors) == {ErrorCode.NONE}
    assert claims.catalog["g"].epoch == coordinator.claim_epoch("g") == 1


async def test_a_coordinator_that_was_followed_tells_no_new_generation(coordinator, claims) -> None:
    await coordinator.join("g", join())
    await Claims(claims.catalog).take("g")
    joined = await coordinator.join("g", join("m", metadata=b"2"))
    assert joined.error is ErrorCode.NOT_COORDINATOR
    assert "g" not in coordinator.groups


async def test_a_group_whose_name_points_elsewhere_is_given_up(coordinator, claims) -> None:
    await coordinator.join("g", join())
    waiting = asyncio.ensure_future(coordinator.join("g", join(fresh_id="n")))
    await asyncio.sleep(0.01)
    claims.mine, claims.brokers = (lambda _: False), 2
    assert await coordinator.heartbeat("g", ("m", None, 1)) is ErrorCode.NOT_COORDINATOR
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR
    with pytest.raises(CoordinatorMoved):
        coordinator.claim_epoch("g")


async def test_after_a_new_session_groups_are_claimed_again(coordinator, claims) -> None:
    await coordinator.join("g", join())
    claims.session = 2
    assert await coordinator.heartbeat("g", ("m", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.claim_epoch("g") == 2


async def test_without_the_catalog_nobody_coordinates(coordinator, claims) -> None:
    claims.fails = CatalogUnavailable("gone")
    assert (await coordinator.join("g", join())).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    claims.fails = None
    assert (await coordinator.join("g", join())).generation == 1
    claims.fails = CatalogUnavailable("gone")
    again = join("m", metadata=b"2")
    assert (await coordinator.join("g", again)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    claims.fails = None
    assert (await coordinator.join("g", again)).generation == 2


async def test_a_stopping_coordinator_sends_everybody_on(coordinator) -> None:
    await coordinator.join("g", join())
    waiting = asyncio.ensure_future(coordinator.join("g", join(fresh_id="n")))
    await asyncio.sleep(0.01)
    coordinator.stop()
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR
    assert await coordinator.heartbeat("g", ("m", None, 1)) is ErrorCode.NOT_COORDINATOR
    assert await coordinator.check_commit("h", NOBODY) is ErrorCode.NOT_COORDINATOR


async def test_one_broker_alone_needs_no_claims() -> None:
    alone = Coordinator(GroupLimits(), ManualClock())
    assert (await alone.join("g", join())).generation == 1
    assert alone.claim_epoch("g") is None
    assert await alone.check_commit("h", NOBODY) is ErrorCode.NONE
    assert await alone.check_commit("h", ("m", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    waiting = asyncio.ensure_future(alone.join("g", join(fresh_id="n")))
    await asyncio.sleep(0.01)
    alone.stop()
    assert (await waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def beat(member: str = "m", epoch: int = 0, **changes: object) -> Beat:
    full = {"rebalance_timeout_ms": 1000, "names": frozenset({"t"}), "owned": frozenset()}
    return Beat(member, epoch, **((full if epoch == 0 else {}) | changes))


TOPICS = TopicsSeen({"t": (b"t" * 16, 2)}.get, lambda pattern: frozenset())


async def test_an_epoch_is_recorded_before_its_member_hears_of_it(coordinator, claims) -> None:
    beaten = await coordinator.beat("g", beat(), TOPICS)
    assert (beaten.error, beaten.epoch) == (ErrorCode.NONE, 1)
    assert claims.catalog["g"] == GroupClaim(1, 1)
    other = Coordinator(GroupLimits(), ManualClock(), Claims(claims.catalog))
    assert (await other.beat("g", beat(epoch=1), TOPICS)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await other.beat("g", beat(), TOPICS)).epoch == 2
    # The first one was followed, and finds out as soon as it has something to tell.
    assert (await coordinator.beat("g", beat("n"), TOPICS)).error is ErrorCode.NOT_COORDINATOR
    assert "g" not in coordinator.consumer_groups


async def test_members_of_a_group_that_was_given_up_look_elsewhere(coordinator, claims) -> None:
    await coordinator.beat("g", beat(), TOPICS)
    assert await coordinator.check_fetch("g", "m", 1) is ErrorCode.NONE
    claims.mine, claims.brokers = (lambda _: False), 2
    assert (await coordinator.beat("g", beat(epoch=1), TOPICS)).error is ErrorCode.NOT_COORDINATOR
    assert await coordinator.check_commit("g", ("m", None, 1)) is ErrorCode.NOT_COORDINATOR
    assert await coordinator.check_fetch("g", "m", 1) is ErrorCode.NOT_COORDINATOR


async def test_who_names_itself_is_looked_for_in_groups_of_its_protocol_only(coordinator) -> None:
    await coordinator.beat("g", beat(), TOPICS)
    assert await coordinator.check_fetch("g", "m", 1) is ErrorCode.NONE
    assert await coordinator.check_fetch("g", "m", 7) is ErrorCode.STALE_MEMBER_EPOCH
    assert await coordinator.check_fetch("g", "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await coordinator.check_fetch("classic", "some-member", 3) is ErrorCode.NONE


async def test_commits_of_one_group_do_not_pass_each_other(coordinator) -> None:
    order = []

    async def commit(number: int) -> None:
        async with coordinator.in_order("g"):
            await asyncio.sleep(0.001 * (3 - number))
            order.append(number)

    await asyncio.gather(*(commit(number) for number in range(3)))
    assert order == [0, 1, 2]


async def test_empty_groups_give_way_when_there_are_too_many(monkeypatch) -> None:
    monkeypatch.setattr("catchwater.broker.coordination.coordinator.MAX_GROUPS", 2)
    coordinator = Coordinator(GroupLimits(), ManualClock())
    for group in ("a", "b"):
        assert (await coordinator.beat(group, beat(), TOPICS)).error is ErrorCode.NONE
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await coordinator.beat("c", beat(), TOPICS)).error is full
    assert (await coordinator.join("c", join())).error is full
    await coordinator.beat("a", beat(epoch=-1), TOPICS)
    assert (await coordinator.beat("c", beat(), TOPICS)).error is ErrorCode.NONE
    assert coordinator.consumer_groups.keys() == {"b", "c"}


async def test_a_wall_clock_that_jumps_ends_no_session() -> None:
    class Jumping(ManualClock):
        def now_ms(self) -> int:
            return super().now_ms() * 2

    clock = ManualClock()
    coordinator = Coordinator(GroupLimits(), clock)
    await coordinator.join("g", join())
    await coordinator.beat("h", beat(), TOPICS)
    clock.__class__ = Jumping
    ticking = asyncio.ensure_future(coordinator.run())
    for _ in range(5):
        await asyncio.sleep(0)
    ticking.cancel()
    assert coordinator.has_members("g")
    assert coordinator.has_members("h")
