"""A consumer group under members that come, go, fall silent, miss answers and are heard twice.

Within one epoch a member is heard in the order it spoke, as on one connection; whatever it said
with an earlier epoch, or to join, may be heard again at any time.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchwater.broker.coordination.consumer.assign import ASSIGNORS
from catchwater.broker.coordination.consumer.group import ConsumerGroup, GroupState, TopicLookup
from catchwater.broker.coordination.consumer.member import (
    JOINS,
    LEAVES,
    NOTHING,
    PAUSES,
    ConsumerLimits,
    Heartbeat,
    Partitions,
)
from catchwater.wire.errors import ErrorCode

MEMBERS, TOPICS = 5, ("t", "u", "v")
LIMITS = ConsumerLimits(session_timeout_ms=10_000, heartbeat_interval_ms=1_000)


@dataclass
class Client:
    """A member as it sees itself: what it works on, and what it was told to."""

    id: str
    instance_id: str | None
    names: frozenset[str]
    assignor: str
    epoch: int = -1
    owned: Partitions = NOTHING
    told: Partitions = NOTHING
    missed: bool = False
    """Whether the last answer was lost, so that it says everything again."""
    lives: int = 0

    def beat(self) -> Heartbeat:
        says_all = self.epoch == JOINS or self.missed
        return Heartbeat(
            self.id,
            self.epoch,
            self.instance_id,
            rebalance_timeout_ms=5_000 if says_all else None,
            names=self.names if says_all else None,
            assignor=self.assignor if says_all else None,
            owned=self.owned,
        )


@dataclass
class World:
    """A group, its clients, and the invariants that hold after every step."""

    same_topics: bool
    assignor: str
    group: ConsumerGroup = field(default_factory=lambda: ConsumerGroup("g", LIMITS))
    topics: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    now_ms: int = 0
    made: int = 0
    said: list[Heartbeat] = field(default_factory=list)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.grow(0), self.grow(1)
        self.clients = [
            Client(
                f"m{number}",
                f"i{number}" if number % 2 else None,
                frozenset(TOPICS) if self.same_topics else frozenset(TOPICS[number % 3 :]),
                self.assignor,
            )
            for number in range(MEMBERS)
        ]

    # --- steps ---------------------------------------------------------------------------

    def join(self, number: int) -> None:
        client = self.clients[number]
        if client.epoch < JOINS:
            client.lives += 1
            if client.instance_id:
                client.id = f"m{number}-{client.lives}"
            client.epoch, client.owned, client.told = JOINS, NOTHING, NOTHING
            self.beat(number)

    def beat(self, number: int, lost: bool = False, works: bool = True) -> None:
        client = self.clients[number]
        if client.epoch < JOINS:
            return
        # Who missed an answer begins with nothing new: the one gap that `reconcile` tells of.
        if works and client.epoch != JOINS and not client.missed:
            client.owned = client.told
        beat = client.beat()
        self.said.append(beat)
        beaten = self.group.heartbeat(beat, self.seen, self.now_ms)
        client.missed = lost
        if lost:
            return
        if beaten.error is not ErrorCode.NONE:
            assert beaten.error in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNRELEASED_INSTANCE_ID,
                ErrorCode.FENCED_INSTANCE_ID,
            )
            client.epoch, client.owned, client.told = JOINS, NOTHING, NOTHING
            return
        assert beaten.epoch >= client.epoch, "an epoch went back"
        client.epoch = beaten.epoch
        if beaten.assigned is not None:
            client.told = beaten.assigned

    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.epoch > JOINS:
            how = PAUSES if client.instance_id else LEAVES
            self.group.heartbeat(
                Heartbeat(client.id, how, client.instance_id), self.seen, self.now_ms
            )
            client.epoch, client.owned, client.told = -1, NOTHING, NOTHING

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.group.tick(self.now_ms)

    def grow(self, number: int) -> None:
        name = TOPICS[number]
        self.made += 1
        topic_id, count = self.topics.get(name, (self.made.to_bytes(16, "big"), 0))
        self.topics[name] = (topic_id, count + 2)

    def delete(self, number: int) -> None:
        self.topics.pop(TOPICS[number], None)

    def replay(self, number: int) -> None:
        if not self.said:
            return
        beat = self.said[number % len(self.said)]
        member = self.group.members.get(beat.member_id)
        if member is None or beat.epoch != member.standing.epoch:
            self.group.heartbeat(beat, self.seen, self.now_ms)

    # --- what holds ----------------------------------------------------------------------

    @property
    def seen(self) -> TopicLookup:
        return TopicLookup(self.topics.get, lambda pattern: frozenset())

    def check(self) -> None:
        assert self.group.epoch >= self.epoch
        assert self.group.assignment_epoch <= self.group.epoch
        self.epoch = self.group.epoch
        held = [key for m in self.group.members.values() for key in m.standing.held]
        assert len(held) == len(set(held)), "two members hold a partition"
        used: set[object] = set()
        for client in self.clients:
            member = self.group.members.get(client.id)
            if member is None or client.epoch <= JOINS:
                continue
            standing = member.standing
            if client.epoch in (standing.epoch, standing.previous_epoch):
                # Whoever would be heard works on nothing that another one could be given.
                assert client.owned <= standing.held
                assert not used & client.owned
                used |= client.owned

    def settle(self) -> None:
        """Everybody speaks and is heard until nothing changes any more."""
        for _ in range(40):
            self.wait(1_000)
            for number in range(MEMBERS):
                self.beat(number)
                self.check()
        here = [client for client in self.clients if client.epoch > JOINS]
        assert all(client.epoch >= -1 for client in here)
        # Ghosts that were heard again after they had left are gone by now.
        assert {client.id for client in here} == set(self.group.members)
        if not here:
            return
        assert self.group.state is GroupState.STABLE
        assert {client.epoch for client in here} == {self.group.epoch}
        wanted = frozenset().union(*(client.names for client in here))
        found = [key for client in here for key in client.owned]
        assert sorted(found) == sorted(
            (topic_id, index)
            for name, (topic_id, count) in self.topics.items()
            if name in wanted
            for index in range(count)
        )
        if self.same_topics and self.assignor == "uniform":
            loads = [len(client.owned) for client in here]
            assert max(loads) - min(loads) <= 1


numbers = st.integers(0, MEMBERS - 1)
steps = st.one_of(
    st.tuples(st.just("join"), numbers),
    st.tuples(st.just("beat"), numbers, st.booleans(), st.booleans()),
    st.tuples(st.just("leave"), numbers),
    st.tuples(st.just("wait"), st.sampled_from([0, 500, 3_000, 6_000, 11_000])),
    st.tuples(st.just("grow"), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("replay"), st.integers(0, 200)),
)


def run_and_check(world: World, happens: list[tuple[object, ...]]) -> None:
    for number in range(2):
        world.join(number)
    for name, *arguments in happens:
        getattr(world, str(name))(*arguments)
        world.check()
    world.settle()


@example(True, "uniform", [("beat", 0, False, True), ("beat", 0, False, False)])
@example(False, "range", [("leave", 0), ("replay", 1)])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.booleans(), st.sampled_from(sorted(ASSIGNORS)), st.lists(steps, max_size=60))
def test_a_partition_has_one_owner_epochs_rise_and_all_settles(same, assignor, happens) -> None:
    run_and_check(World(same, assignor), happens)


@pytest.mark.slow
@settings(max_examples=5_000, deadline=None)
@given(st.booleans(), st.sampled_from(sorted(ASSIGNORS)), st.lists(steps, max_size=200))
def test_the_same_for_five_thousand_longer_lives(same, assignor, happens) -> None:
    run_and_check(World(same, assignor), happens)
