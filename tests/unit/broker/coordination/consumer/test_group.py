"""A consumer group, step by step: joining, fencing, leaving, static members, time, limits."""

from typing import Any

import pytest

from catchwater.broker.coordination.consumer.group import ConsumerGroup, GroupState, TopicLookup
from catchwater.broker.coordination.consumer.member import (
    JOINS,
    LEAVES,
    PAUSES,
    ConsumerLimits,
    Heartbeat,
    HeartbeatReply,
)
from catchwater.wire.errors import ErrorCode

NOW = 1_000_000
LIMITS = ConsumerLimits(session_timeout_ms=45_000, max_members=3)
T = b"t" * 16


class Life:
    """A group, and topics that can be changed between heartbeats."""

    def __init__(self, limits: ConsumerLimits = LIMITS) -> None:
        self.group = ConsumerGroup("g", limits)
        self.topics: dict[str, tuple[bytes, int]] = {"t": (T, 4)}
        self.now_ms = NOW

    def beat(self, member: str, epoch: int, owned: Any = None, **more: Any) -> HeartbeatReply:
        if epoch == JOINS:
            more = {"rebalance_timeout_ms": 5_000, "names": frozenset({"t"})} | more
            owned = ()
        held = None if owned is None else frozenset(owned)
        topics = TopicLookup(
            self.topics.get,
            lambda pattern: frozenset(n for n in self.topics if n.startswith(pattern)),
        )
        return self.group.heartbeat(
            Heartbeat(member, epoch, owned=held, **more), topics, self.now_ms
        )

    def join(self, member: str, **more: Any) -> int:
        beaten = self.beat(member, JOINS, **more)
        assert beaten.error is ErrorCode.NONE, beaten
        return beaten.epoch

    def pass_s(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.group.tick(self.now_ms)


def keys(*indexes: int, topic: bytes = T) -> frozenset[tuple[bytes, int]]:
    return frozenset((topic, index) for index in indexes)


@pytest.fixture
def life() -> Life:
    return Life()


def test_states_are_named_as_kafka_names_them(life: Life) -> None:
    assert life.group.state is GroupState.EMPTY
    life.join("a")
    assert life.group.state is GroupState.STABLE
    life.join("b")
    assert life.group.state is GroupState.RECONCILING
    life.beat("b", LEAVES)
    assert life.group.state is GroupState.ASSIGNING
    assert [state.value for state in GroupState] == [
        "Empty",
        "Assigning",
        "Reconciling",
        "Stable",
    ]


@pytest.mark.parametrize("epoch", [2, 7])
def test_an_epoch_that_was_never_given_is_fenced(life: Life, epoch: int) -> None:
    assert life.join("a") == 1
    assert life.beat("a", epoch).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_heard_with_what_the_member_may_have(life: Life) -> None:
    life.join("a")
    life.topics["t"] = (T, 6)
    assert life.beat("a", 1).assigned == keys(0, 1, 2, 3, 4, 5)
    again = life.beat("a", 1, owned=keys(0, 1))
    assert (again.error, again.epoch, again.assigned) == (
        ErrorCode.NONE,
        2,
        keys(0, 1, 2, 3, 4, 5),
    )
    assert life.beat("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert life.beat("a", 1, owned=keys(9)).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_always_join_again_and_is_told_what_is_its_own(life: Life) -> None:
    life.join("a")
    life.topics["t"] = (T, 6)
    life.beat("a", 1)
    again = life.beat("a", JOINS)
    assert (again.epoch, again.assigned) == (2, keys(*range(6)))


def test_a_late_join_frees_nothing_and_hides_nothing(life: Life) -> None:
    """Found by the property test: the answer to the late one was all that told of the news."""
    life.join("a")
    life.join("b")
    told = life.beat("a", 1)
    assert told.assigned is not None and len(told.assigned) == 2
    life.beat("a", JOINS)
    # It still works on what it was told to give up.
    assert life.beat("b", 2).assigned is None
    done = life.beat("a", 1, owned=told.assigned)
    assert done.epoch == 2
    life.topics["t"] = (T, 6)
    life.beat("a", JOINS)
    assert life.beat("a", 2).assigned is not None


def test_a_static_member_pauses_and_its_heir_has_what_it_had(life: Life) -> None:
    life.join("a", instance_id="i")
    life.join("b")
    kept = life.beat("a", 1).assigned
    assert kept
    life.beat("a", 1, owned=kept)
    epoch = life.group.epoch
    taken = life.beat("c", JOINS, instance_id="i")
    assert taken.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert life.beat("c", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert life.beat("a", PAUSES, instance_id="i").epoch == PAUSES
    assert life.group.check("a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    heir = life.beat("c", JOINS, instance_id="i")
    assert (heir.error, heir.epoch, heir.assigned) == (ErrorCode.NONE, epoch, kept)
    assert life.group.epoch == epoch
    assert life.beat("a", 2, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert life.beat("x", 2, instance_id="other").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_is_removed(life: Life) -> None:
    life.join("a", instance_id="i")
    life.beat("a", PAUSES, instance_id="i")
    life.pass_s(44)
    assert life.group.members
    life.pass_s(1)
    assert not life.group.members
    assert life.join("b", instance_id="i") > 1


def test_who_is_silent_or_keeps_what_is_anothers_is_removed(life: Life) -> None:
    life.join("a")
    life.join("b")
    life.beat("a", 1)
    life.pass_s(4)
    life.beat("a", 1, owned=keys(0, 1, 2, 3))
    assert set(life.group.members) == {"a", "b"}
    life.pass_s(1)
    assert set(life.group.members) == {"b"}
    assert life.beat("b", 2).assigned == keys(0, 1, 2, 3)
    life.pass_s(45)
    assert life.group.state is GroupState.EMPTY
    assert life.beat("b", 3).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_new(life: Life) -> None:
    for member in ("a", "b", "c"):
        life.join(member)
    assert life.beat("d", JOINS).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert life.beat("a", JOINS).error is ErrorCode.NONE


def test_topics_that_change_make_a_new_assignment(life: Life) -> None:
    life.join("a", names=frozenset({"t", "u"}))
    assert life.beat("a", 1).assigned is None
    life.topics["u"] = (b"u" * 16, 1)
    told = life.beat("a", 1)
    assert (told.epoch, told.assigned) == (2, keys(0, 1, 2, 3) | keys(0, topic=b"u" * 16))
    # Deleted and made again: another topic, for all its name.
    life.topics["u"] = (b"v" * 16, 1)
    assert life.beat("a", 2).assigned == keys(0, 1, 2, 3)
    assert life.beat("a", 2, owned=keys(0, 1, 2, 3)).assigned == keys(0, 1, 2, 3) | keys(
        0, topic=b"v" * 16
    )


def test_a_subscription_changes_by_name_and_by_pattern(life: Life) -> None:
    life.topics["u1"] = (b"u" * 16, 1)
    life.join("a")
    more = life.beat("a", 1, pattern="u")
    assert more.assigned == keys(0, 1, 2, 3) | keys(0, topic=b"u" * 16)
    only = life.beat("a", 2, names=frozenset())
    assert only.assigned == keys(0, topic=b"u" * 16)
    life.beat("a", 2, owned=only.assigned)
    assert life.beat("a", 3, pattern="").assigned == frozenset()


def test_the_assignor_most_members_ask_for_is_used(life: Life) -> None:
    life.join("a", assignor="range")
    assert life.group.assignor == "range"
    life.join("b", assignor="uniform")
    life.join("c", assignor="uniform")
    assert life.group.assignor == "uniform"


def test_positions_are_the_members_with_its_epoch(life: Life) -> None:
    assert life.group.check("", -1) is ErrorCode.NONE
    life.join("a")
    assert life.group.check("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert life.group.check("a", 1) is ErrorCode.NONE
    assert life.group.check("a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert life.group.check("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_thousands_that_join_together_do_not_each_have_everything_assigned() -> None:
    life = Life(ConsumerLimits())
    life.topics["t"] = (T, 1_000)
    epochs = set()
    for number in range(2_000):
        life.now_ms += number % 2
        epochs.add(life.join(f"m{number}"))
    assert len(epochs) < 500
    life.pass_s(1)
    for _ in range(3):
        for member in list(life.group.members.values()):
            standing = member.standing
            life.beat(member.id, standing.epoch, owned=standing.assigned)
    assert life.group.state is GroupState.STABLE
    assert {len(m.standing.assigned) for m in life.group.members.values()} == {0, 1}
