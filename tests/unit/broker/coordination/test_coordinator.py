"""Groups of several brokers: claimed, fenced, continued above the recorded generation."""

import asyncio
from collections.abc import Callable

import pytest

from catchwater.broker.coordination import coordinator as coordinator_module
from catchwater.broker.coordination.consumer.group import TopicLookup
from catchwater.broker.coordination.consumer.member import Heartbeat
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.members import GroupLimits, Join
from catchwater.catalog.commit import json_text
from catchwater.catalog.errors import CatalogRefused, CatalogUnavailable, CoordinatorMoved
from catchwater.catalog.rows import GroupChanges, GroupRow
from catchwater.clock import ManualClock
from catchwater.wire.errors import ErrorCode

NOBODY = ("", None, -1)


class Claims:
    """One broker's side of `catalog`, which all brokers share."""

    catalog: dict[str, GroupRow]

    def __init__(self, catalog: dict[str, GroupRow], is_alone: bool = False) -> None:
        self.catalog = catalog
        self.is_alone = is_alone
        self.changes: list[GroupChanges] = []
        self.session = 1
        self.mine: Callable[[str], bool] = lambda _: True
        self.brokers = 1
        self.fails: Exception | None = None

    @property
    def view(self) -> tuple[int, int]:
        return self.session, self.brokers

    def is_mine(self, group_id: str) -> bool:
        return self.mine(group_id)

    async def take(self, group_id: str) -> GroupRow:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails
        before = self.catalog.get(group_id, GroupRow(0, 0))
        self.catalog[group_id] = before._replace(epoch=before.epoch + (not self.is_alone))
        return self.catalog[group_id]

    async def save(self, group_id: str, epoch: int | None, changes: GroupChanges) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails
        row = self.catalog[group_id]
        if epoch is not None and row.epoch != epoch:
            raise CoordinatorMoved("claimed by another")
        self.changes.append(changes)
        members = {} if changes.is_whole else dict(row.members)
        for member_id, state in changes.members.items():
            members.pop(member_id, None)
            if state is not None:
                members[member_id] = json_text(state)
        text = row.state if changes.state is None else json_text(changes.state)
        self.catalog[group_id] = GroupRow(row.epoch, changes.generation, text, None, members)

    async def groups_with_members(self) -> list[str]:
        return [group_id for group_id, row in self.catalog.items() if row.members]


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


async def settled() -> None:
    """Until all have had their turns, however long the machine takes for them."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_the_next_coordinator_goes_on_above_the_recorded_generation(
    coordinator, claims
) -> None:
    joined = await coordinator.join("g", join())
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 1)
    assert claims.catalog["g"][:2] == (1, 1)
    other = Coordinator(GroupLimits(), ManualClock(), Claims(claims.catalog))
    assert await other.heartbeat("g", ("m", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await other.join("g", join())).generation == 2
    assert claims.catalog["g"][:2] == (2, 2)


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
    await settled()
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
    await settled()
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
    await settled()
    alone.stop()
    assert (await waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def beat(member: str = "m", epoch: int = 0, **changes: object) -> Heartbeat:
    full = {"rebalance_timeout_ms": 1000, "names": frozenset({"t"}), "owned": frozenset()}
    return Heartbeat(member, epoch, **((full if epoch == 0 else {}) | changes))


TOPICS = TopicLookup({"t": (b"t" * 16, 2)}.get, lambda pattern: frozenset())


async def test_an_epoch_is_recorded_before_its_member_hears_of_it(coordinator, claims) -> None:
    beaten = await coordinator.consumer_heartbeat("g", beat(), TOPICS)
    assert (beaten.error, beaten.epoch) == (ErrorCode.NONE, 1)
    assert claims.catalog["g"][:2] == (1, 1)
    other = Coordinator(GroupLimits(), ManualClock(), Claims(claims.catalog))
    assert (await other.consumer_heartbeat("g", beat(epoch=1), TOPICS)).error is ErrorCode.NONE
    assert (await other.consumer_heartbeat("g", beat("o"), TOPICS)).epoch == 2
    # The first one was followed, and finds out as soon as it has something to tell.
    assert (
        await coordinator.consumer_heartbeat("g", beat("n"), TOPICS)
    ).error is ErrorCode.NOT_COORDINATOR
    assert "g" not in coordinator.consumer_groups


async def test_members_of_a_group_that_was_given_up_look_elsewhere(coordinator, claims) -> None:
    await coordinator.consumer_heartbeat("g", beat(), TOPICS)
    assert await coordinator.check_fetch("g", "m", 1) is ErrorCode.NONE
    claims.mine, claims.brokers = (lambda _: False), 2
    assert (
        await coordinator.consumer_heartbeat("g", beat(epoch=1), TOPICS)
    ).error is ErrorCode.NOT_COORDINATOR
    assert await coordinator.check_commit("g", ("m", None, 1)) is ErrorCode.NOT_COORDINATOR
    assert await coordinator.check_fetch("g", "m", 1) is ErrorCode.NOT_COORDINATOR


async def test_who_names_itself_is_looked_for_in_groups_of_its_protocol_only(coordinator) -> None:
    await coordinator.consumer_heartbeat("g", beat(), TOPICS)
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
        assert (await coordinator.consumer_heartbeat(group, beat(), TOPICS)).error is ErrorCode.NONE
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await coordinator.consumer_heartbeat("c", beat(), TOPICS)).error is full
    assert (await coordinator.join("c", join())).error is full
    await coordinator.consumer_heartbeat("a", beat(epoch=-1), TOPICS)
    assert (await coordinator.consumer_heartbeat("c", beat(), TOPICS)).error is ErrorCode.NONE
    assert coordinator.consumer_groups.keys() == {"b", "c"}


async def test_what_all_groups_bring_is_bounded_and_small_groups_go_on(monkeypatch) -> None:
    monkeypatch.setattr(coordinator_module, "MAX_BYTES", 100_000)
    coordinator = Coordinator(GroupLimits(), ManualClock())
    large, full = join(metadata=bytes(40_000)), ErrorCode.GROUP_MAX_SIZE_REACHED
    for group_id in ("a", "b"):
        assert (await coordinator.join(group_id, large)).error is ErrorCode.NONE
    assert (await coordinator.join("c", large)).error is full
    synced = await coordinator.sync("a", ("m", None, 1), (None, None), {"m": bytes(40_000)})
    assert synced.error is full
    synced = await coordinator.sync("a", ("m", None, 1), (None, None), {"m": bytes(10_000)})
    assert synced.error is ErrorCode.NONE
    assert (await coordinator.join("d", join(metadata=bytes(10_000)))).error is ErrorCode.NONE
    many, few = frozenset({"x" * 40_000}), frozenset({"x"})
    assert (await coordinator.consumer_heartbeat("e", beat(names=many), TOPICS)).error is full
    assert (
        await coordinator.consumer_heartbeat("e", beat(names=few), TOPICS)
    ).error is ErrorCode.NONE
    await coordinator.leave("b", "m", None)
    ticking = asyncio.ensure_future(coordinator.run())
    async with asyncio.timeout(30):
        while "b" in coordinator.groups:
            await asyncio.sleep(0)
        while (joined := await coordinator.join("c", large)).error is full:
            await asyncio.sleep(0)  # the tick that counts is not over
    ticking.cancel()
    assert joined.error is ErrorCode.NONE


async def test_a_wall_clock_that_jumps_ends_no_session() -> None:
    class Jumping(ManualClock):
        def now_ms(self) -> int:
            return super().now_ms() * 2

    clock = ManualClock()
    coordinator = Coordinator(GroupLimits(), clock)
    await coordinator.join("g", join())
    await coordinator.consumer_heartbeat("h", beat(), TOPICS)
    clock.__class__ = Jumping
    ticking = asyncio.ensure_future(coordinator.run())
    for _ in range(5):
        await asyncio.sleep(0)
    ticking.cancel()
    assert coordinator.has_members("g")
    assert coordinator.has_members("h")


# --- what outlives a coordinator -----------------------------------------------------------


def next_one(claims: Claims) -> Coordinator:
    """The coordinator after this one: a broker that was started again, or another."""
    return Coordinator(GroupLimits(), ManualClock(), Claims(claims.catalog))


async def stable(coordinator: Coordinator, *names: str, statics: bool = False) -> None:
    """A group "g" of these members, each with its name as its assignment."""
    instances = {name: f"i-{name}" if statics else None for name in names}
    for name in names:
        request = join(fresh_id=name)._replace(instance_id=instances[name])
        joining = asyncio.ensure_future(coordinator.join("g", request))
        await settled()
    group = coordinator.groups["g"]
    if len(names) > 1:
        waiting = [joining]
        for name in names[:-1]:
            request = join(name)._replace(instance_id=instances[name])
            waiting.append(asyncio.ensure_future(coordinator.join("g", request)))
        await asyncio.gather(*waiting)
    await joining
    shares = {name: name.encode() for name in names}
    order = sorted(names, key=lambda name: name != group.leader)
    syncing = [
        coordinator.sync("g", (name, instances[name], group.generation), (None, None), given)
        for name in order
        for given in [shares if name == group.leader else {}]
    ]
    synced = await asyncio.gather(*syncing)
    assert [s.assignment for s in synced] == [name.encode() for name in order]


@pytest.mark.parametrize("is_alone", [True, False])
async def test_members_go_on_at_the_next_coordinator(is_alone) -> None:
    claims = Claims({}, is_alone)
    await stable(Coordinator(GroupLimits(), ManualClock(), claims), "a", "b")
    other = next_one(claims)
    for name in ("a", "b"):
        assert await other.heartbeat("g", (name, None, 2)) is ErrorCode.NONE
        assert await other.check_commit("g", (name, None, 2)) is ErrorCode.NONE
    assert await other.check_commit("g", ("a", None, 1)) is ErrorCode.ILLEGAL_GENERATION
    assert await other.check_commit("g", ("z", None, 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    synced = await other.sync("g", ("b", None, 2), (None, None), {})
    assert synced.assignment == b"b"
    assert other.groups["g"].leader == "a"


async def test_sessions_begin_anew_with_the_coordinator(claims) -> None:
    await stable(Coordinator(GroupLimits(), ManualClock(), claims), "a", "b")
    other = next_one(claims)
    assert await other.heartbeat("g", ("a", None, 2)) is ErrorCode.NONE
    group = other.groups["g"]
    now_ms = group.members["b"].last_seen_ms
    group.tick(now_ms + 9_999)
    assert group.members.keys() == {"a", "b"}
    group.tick(now_ms + 10_000)
    assert not group.members


async def test_groups_with_members_are_taken_over_unasked_and_end_where_nobody_comes(
    claims,
) -> None:
    await stable(Coordinator(GroupLimits(), ManualClock(), claims), "a")
    other = next_one(claims)
    ticking = asyncio.ensure_future(other.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert other.has_members("g")
    for _ in range(500):  # the clock moves by a tick whenever it is asked to sleep
        await asyncio.sleep(0)
    ticking.cancel()
    assert not other.has_members("g")
    assert claims.catalog["g"].members == {}


async def test_an_assignment_is_not_told_before_it_is_saved(coordinator, claims) -> None:
    joined = await coordinator.join("g", join())
    claims.fails = CatalogUnavailable("gone")
    me = ("m", None, joined.generation)
    synced = await coordinator.sync("g", me, (None, None), {"m": b"mine"})
    assert (synced.error, synced.assignment) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
    again = await coordinator.sync("g", me, (None, None), {})
    assert again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    claims.fails = None
    assert (await coordinator.sync("g", me, (None, None), {})).assignment == b"mine"
    assert await next_one(claims).heartbeat("g", me) is ErrorCode.NONE


async def test_a_group_that_the_catalog_refuses_is_taken_again_as_it_was_saved(
    coordinator, claims
) -> None:
    joined = await coordinator.join("g", join())
    claims.fails = CatalogRefused("The catalog cannot hold this.")
    me = ("m", None, joined.generation)
    synced = await coordinator.sync("g", me, (None, None), {"m": b"mine"})
    assert (synced.error, synced.assignment) == (ErrorCode.NOT_COORDINATOR, b"")
    claims.fails = None
    assert await coordinator.heartbeat("g", me) is not ErrorCode.NONE
    assert (await coordinator.join("g", join())).generation == 2


async def test_of_a_rebalance_under_way_the_generation_before_is_left(coordinator, claims) -> None:
    await stable(coordinator, "a")
    joining = asyncio.ensure_future(coordinator.join("g", join(fresh_id="b")))
    await settled()
    await coordinator.join("g", join("a"))
    await joining
    assert coordinator.groups["g"].generation == 2
    other = next_one(claims)
    # Nobody was given anything in generation 2: what the members of 1 commit still holds.
    assert await other.check_commit("g", ("a", None, 1)) is ErrorCode.NONE
    assert await other.heartbeat("g", ("a", None, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert await other.heartbeat("g", ("b", None, 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await other.join("g", join("a", metadata=b"2"))).generation == 3


async def test_static_members_are_known_to_the_next_coordinator(coordinator, claims) -> None:
    await stable(coordinator, "a", "b", statics=True)
    back = join(fresh_id="a2")._replace(instance_id="i-a")
    joined = await coordinator.join("g", back)
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 2)
    other = next_one(claims)
    assert await other.heartbeat("g", ("a2", "i-a", 2)) is ErrorCode.NONE
    assert await other.heartbeat("g", ("a", "i-a", 2)) is ErrorCode.FENCED_INSTANCE_ID
    assert await other.heartbeat("g", ("b", "i-b", 2)) is ErrorCode.NONE
    assert other.groups["g"].leader == "a2"
    # In the middle of a rebalance too: the id before would have the new one fenced for ever.
    waiting = [asyncio.ensure_future(other.join("g", join(fresh_id="c")))]
    await settled()
    waiting.append(asyncio.ensure_future(other.join("g", back._replace(fresh_id="a3"))))
    await settled()
    third = next_one(claims)
    assert await third.heartbeat("g", ("a3", "i-a", 2)) is ErrorCode.NONE
    for joining in waiting:
        joining.cancel()


async def test_the_last_one_to_leave_leaves_nothing(coordinator, claims) -> None:
    await stable(coordinator, "a")
    assert await coordinator.leave("g", "a", None) is ErrorCode.NONE
    await settled()
    assert claims.catalog["g"].members == {}
    assert await next_one(claims).heartbeat("g", ("a", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_consumers_go_on_at_the_next_coordinator(coordinator, claims) -> None:
    await coordinator.consumer_heartbeat("g", beat("m"), TOPICS)
    await coordinator.consumer_heartbeat("g", beat("n", instance_id="i"), TOPICS)
    await coordinator.consumer_heartbeat("g", beat("m", 1, owned=OWNED), TOPICS)
    m = await coordinator.consumer_heartbeat("g", beat("m", 1, owned=frozenset()), TOPICS)
    n = await coordinator.consumer_heartbeat("g", beat("n", 2, instance_id="i"), TOPICS)
    before = coordinator.consumer_groups["g"]
    other = next_one(claims)
    for name, epoch in (("m", m.epoch), ("n", n.epoch)):
        assert await other.check_commit("g", (name, None, epoch)) is ErrorCode.NONE
        assert (
            await other.check_commit("g", (name, None, epoch - 1)) is ErrorCode.STALE_MEMBER_EPOCH
        )
    after = other.consumer_groups["g"]
    assert (after.epoch, after.assignment_epoch) == (before.epoch, before.assignment_epoch)
    assert after.target == before.target
    assert {m.id: m.standing for m in after.members.values()} == {
        m.id: m.standing for m in before.members.values()
    }
    written = len(claims.changes)
    beaten = await other.consumer_heartbeat("g", beat("m", m.epoch), TOPICS)
    assert beaten == (ErrorCode.NONE, None, "m", m.epoch, None)
    assert after.epoch == before.epoch
    stranger = await other.consumer_heartbeat("g", beat("x", instance_id="i"), TOPICS)
    assert stranger.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert len(claims.changes) == written


OWNED = frozenset({(b"t" * 16, 0), (b"t" * 16, 1)})


async def test_a_heartbeat_without_news_writes_nothing(coordinator, claims) -> None:
    beaten = await coordinator.consumer_heartbeat("g", beat(pattern="t.*", names=None), PATTERN)
    beaten = await coordinator.consumer_heartbeat(
        "g", beat(epoch=beaten.epoch, owned=OWNED), PATTERN
    )
    written = len(claims.changes)
    for _ in range(3):
        beaten = await coordinator.consumer_heartbeat("g", beat(epoch=beaten.epoch), PATTERN)
        assert beaten.error is ErrorCode.NONE
    assert len(claims.changes) == written
    other = next_one(claims)
    after = await other.consumer_heartbeat("g", beat(epoch=beaten.epoch), PATTERN)
    assert (after.error, after.epoch) == (ErrorCode.NONE, beaten.epoch)


PATTERN = TopicLookup(TOPICS.find, lambda pattern: frozenset({"t"}))


async def test_members_that_change_together_are_written_together(coordinator, claims) -> None:
    names = [f"m{number}" for number in range(50)]
    await asyncio.gather(
        *(coordinator.consumer_heartbeat("g", beat(name), TOPICS) for name in names)
    )
    assert len(claims.changes) <= 3
    assert claims.catalog["g"].members.keys() == set(names)


async def test_those_who_wait_for_a_catalog_that_is_gone_wait_for_one_try(
    coordinator, claims
) -> None:
    await coordinator.consumer_heartbeat("g", beat("m0"), TOPICS)
    tries = 0
    save = claims.save

    async def failing(group_id: str, epoch: int | None, changes: GroupChanges) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.01)
        raise CatalogUnavailable("gone")

    claims.save = failing
    names = [f"m{number}" for number in range(1, 50)]
    beaten = await asyncio.gather(
        *(coordinator.consumer_heartbeat("g", beat(name), TOPICS) for name in names)
    )
    assert {b.error for b in beaten} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert tries <= 2
    claims.save = save
    assert (await coordinator.consumer_heartbeat("g", beat("m1"), TOPICS)).error is ErrorCode.NONE
    assert claims.catalog["g"].members.keys() == {"m0", *names}


async def test_what_a_defect_kept_from_being_saved_is_saved_before_its_member_hears_of_it(
    coordinator, claims
) -> None:
    claims.fails = None
    await coordinator.hold("g")
    claims.fails = OSError("too many open files")
    with pytest.raises(OSError, match="too many open files"):
        await coordinator.consumer_heartbeat("g", beat(), TOPICS)
    claims.fails = CatalogUnavailable("gone")
    refused = await coordinator.consumer_heartbeat("g", beat(), TOPICS)
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    claims.fails = None
    assert (await coordinator.consumer_heartbeat("g", beat(), TOPICS)).error is ErrorCode.NONE
    assert claims.catalog["g"].members.keys() == {"m"}
