"""The group state machine: what members are told, and when."""

from typing import Any

import pytest

from catchwater.broker.coordination.groups import Group
from catchwater.broker.coordination.members import (
    Answers,
    GroupLimits,
    GroupState,
    Join,
    JoinReply,
    SyncReply,
)
from catchwater.wire.errors import ErrorCode

NOW = 1_000_000
RANGE = (("range", b"r"),)


def new_group(**limits: int) -> Group:
    return Group("g", GroupLimits(**limits))


def a_join(member_id: str = "", fresh_id: str = "", **changes: Any) -> Join:
    join = Join(
        member_id=member_id,
        fresh_id=fresh_id,
        instance_id=None,
        client_id="client",
        client_host="127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=RANGE,
        must_return_with_id=False,
    )
    return join._replace(**changes)


def only(answers: Answers) -> Any:
    assert len(answers) == 1, answers
    return answers[0][1]


def by_waiter(answers: Answers) -> dict[str, JoinReply | SyncReply]:
    return dict(answers)


def sync(
    group: Group, member_id: str, waiter: str = "s", now_ms: int = NOW, **assignments: bytes
) -> Answers:
    protocol = (None, None)
    return group.sync(member_id, None, group.generation, protocol, assignments, waiter, now_ms)


def stable_group(*members: str, now_ms: int = NOW, **limits: int) -> Group:
    """A group of these members, the first leading, all assigned their own name."""
    group = new_group(**limits)
    group.join(a_join("", members[0]), members[0], now_ms)
    for member in members[1:]:
        group.join(a_join("", member), member, now_ms)
    for member in members:
        if group.members[member].joining is None:
            group.join(a_join(member), member, now_ms)
    assert group.state is GroupState.COMPLETING
    sync(group, members[0], now_ms=now_ms, **{m: m.encode() for m in members})
    for member in members[1:]:
        sync(group, member, now_ms=now_ms)
    assert group.state is GroupState.STABLE
    return group


def test_the_first_member_leads_and_gets_the_list_of_members() -> None:
    group = new_group()
    joined = only(group.join(a_join("", "a"), "w", NOW))
    assert joined == JoinReply(
        ErrorCode.NONE, "a", 1, "consumer", "range", "a", False, (("a", None, b"r"),)
    )
    assert group.state is GroupState.COMPLETING


def test_a_new_dynamic_member_is_told_its_id_first() -> None:
    group = new_group()
    told = only(group.join(a_join("", "a", must_return_with_id=True), "w", NOW))
    assert (told.error, told.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "a")
    joined = only(group.join(a_join("a", must_return_with_id=True), "w", NOW))
    assert joined.error is ErrorCode.NONE


def test_a_promised_id_expires() -> None:
    group = new_group()
    group.join(a_join("", "a", must_return_with_id=True), "w", NOW)
    assert not group.is_idle
    group.tick(NOW + 10_000)
    assert group.is_idle
    assert only(group.join(a_join("a"), "w", NOW)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_join_again_and_only_the_leader_gets_the_list() -> None:
    group = stable_group("a")
    assert group.join(a_join("", "b"), "wb", NOW) == []
    assert group.heartbeat("a", None, 1, NOW) is ErrorCode.REBALANCE_IN_PROGRESS
    answers = by_waiter(group.join(a_join("a"), "wa", NOW))
    assert {m[0] for m in answers["wa"].members} == {"a", "b"}  # type: ignore[union-attr]
    assert answers["wb"].members == ()  # type: ignore[union-attr]
    assert answers["wa"].generation == answers["wb"].generation == 2  # type: ignore[union-attr]


def test_a_follower_waits_for_the_leaders_assignment() -> None:
    group = new_group()
    group.join(a_join("", "a"), "wa", NOW)
    group.join(a_join("", "b"), "wb", NOW)
    group.join(a_join("a"), "wa", NOW)
    assert sync(group, "b", "sb") == []
    answers = by_waiter(sync(group, "a", "sa", a=b"1", b=b"2"))
    assert answers["sa"].assignment == b"1"  # type: ignore[union-attr]
    assert answers["sb"].assignment == b"2"  # type: ignore[union-attr]
    assert only(sync(group, "b")).assignment == b"2"


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    group = stable_group("a", "b")
    generation = group.generation
    assert group.heartbeat("a", None, generation, NOW + 9_000) is ErrorCode.NONE
    group.tick(NOW + 10_000)
    assert list(group.members) == ["a"]
    again = group.heartbeat("a", None, generation, NOW + 10_000)
    assert again is ErrorCode.REBALANCE_IN_PROGRESS
    assert only(group.join(a_join("a"), "w", NOW + 10_001)).generation == generation + 1


def test_who_does_not_join_again_in_time_is_removed() -> None:
    group = stable_group("a", "b", min_session_timeout_ms=1)
    group.join(a_join("a", protocols=(("range", b"new"),)), "wa", NOW)
    for now_ms in range(NOW, NOW + 60_000, 5_000):
        assert group.heartbeat("b", None, group.generation, now_ms) is not ErrorCode.NONE
        assert group.tick(now_ms) == []
    joined = by_waiter(group.tick(NOW + 60_000))["wa"]
    assert [m[0] for m in joined.members] == ["a"]  # type: ignore[union-attr]


def test_who_does_not_sync_in_time_is_removed() -> None:
    group = new_group()
    group.join(a_join("", "a"), "wa", NOW)
    for now_ms in range(NOW, NOW + 60_000, 5_000):
        group.heartbeat("a", None, 1, now_ms)
        group.tick(now_ms)
    group.tick(NOW + 60_000)
    assert group.state is GroupState.EMPTY


def test_leaving_empties_the_group_at_once() -> None:
    group = stable_group("a")
    error, answers = group.leave("a", None, NOW)
    assert (error, answers, group.state) == (ErrorCode.NONE, [], GroupState.EMPTY)
    assert group.leave("a", None, NOW)[0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_leader_is_replaced_when_it_leaves() -> None:
    group = stable_group("a", "b")
    group.leave("a", None, NOW)
    assert only(group.join(a_join("b"), "w", NOW)).leader == "b"


def test_a_repeated_join_of_an_unchanged_follower_disturbs_nobody() -> None:
    group = stable_group("a", "b")
    generation = group.generation
    assert only(group.join(a_join("b"), "w", NOW)).generation == generation
    assert group.state is GroupState.STABLE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_timeout_ms": 0}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    group = stable_group("a")
    assert only(group.join(a_join(**{"fresh_id": "b"} | changes), "w", NOW)).error is error
    assert group.state is GroupState.STABLE


def test_a_full_group_takes_nobody_new_but_lets_members_rejoin() -> None:
    group = stable_group("a", max_members=1)
    assert only(group.join(a_join("", "b"), "w", NOW)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert only(group.join(a_join("a"), "w", NOW)).error is ErrorCode.NONE


def test_the_protocol_with_most_votes_among_common_ones_wins() -> None:
    group = new_group(initial_rebalance_delay_ms=1)
    preferences = {"a": ("x", "y", "z"), "b": ("z", "y"), "c": ("y", "z")}
    for name, protocols in preferences.items():
        group.join(a_join("", name, protocols=tuple((p, b"") for p in protocols)), name, NOW)
    answers = group.tick(NOW + 1)
    # a and c vote for y, the first that all know; b for z.
    assert [joined.protocol for _, joined in answers] == ["y", "y", "y"]


def test_an_initial_delay_lets_a_starting_fleet_join_in_one_generation() -> None:
    group = new_group(initial_rebalance_delay_ms=3_000)
    assert group.join(a_join("", "a"), "wa", NOW) == []
    assert group.join(a_join("", "b"), "wb", NOW + 1_000) == []
    assert group.tick(NOW + 2_999) == []
    assert len(group.tick(NOW + 3_000)) == 2
    assert group.generation == 1


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance() -> None:
    group = new_group()
    group.join(a_join("", "a1", instance_id="a"), "w", NOW)
    sync_answer = group.sync("a1", "a", 1, (None, None), {"a1": b"all"}, "s", NOW)
    assert only(sync_answer).assignment == b"all"
    joined = only(group.join(a_join("", "a2", instance_id="a"), "w", NOW))
    assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.NONE, "a2", 1)
    assert joined.skip_assignment
    assert only(group.sync("a2", "a", 1, (None, None), {}, "s", NOW)).assignment == b"all"
    assert group.heartbeat("a1", "a", 1, NOW) is ErrorCode.FENCED_INSTANCE_ID
    assert group.check_commit("a1", "a", 1, NOW) is ErrorCode.FENCED_INSTANCE_ID
    assert only(group.join(a_join("a1", instance_id="a"), "w", NOW)).error is (
        ErrorCode.FENCED_INSTANCE_ID
    )


def test_a_static_member_leaves_by_its_instance_id() -> None:
    group = new_group()
    group.join(a_join("", "a1", instance_id="a"), "w", NOW)
    assert group.leave("", "b", NOW)[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leave("zz", "a", NOW)[0] is ErrorCode.FENCED_INSTANCE_ID
    assert group.leave("", "a", NOW)[0] is ErrorCode.NONE
    assert group.state is GroupState.EMPTY


def test_only_members_of_the_running_generation_commit() -> None:
    group = stable_group("a")
    assert group.check_commit("a", None, 1, NOW) is ErrorCode.NONE
    assert group.check_commit("a", None, 0, NOW) is ErrorCode.ILLEGAL_GENERATION
    assert group.check_commit("b", None, 1, NOW) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_commit("", None, -1, NOW) is ErrorCode.UNKNOWN_MEMBER_ID
    group.leave("a", None, NOW)
    assert group.check_commit("", None, -1, NOW) is ErrorCode.NONE


def test_a_sync_of_another_generation_or_protocol_is_refused() -> None:
    group = stable_group("a")
    old = group.sync("a", None, 0, (None, None), {}, "s", NOW)
    assert only(old) == SyncReply(ErrorCode.ILLEGAL_GENERATION)
    other = group.sync("a", None, 1, ("consumer", "sticky"), {}, "s", NOW)
    assert only(other) == SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def test_a_rebalance_sends_waiting_followers_back_to_join() -> None:
    group = new_group()
    group.join(a_join("", "a"), "wa", NOW)
    group.join(a_join("", "b"), "wb", NOW)
    group.join(a_join("a"), "wa", NOW)
    sync(group, "b", "sb")
    answers = by_waiter(group.join(a_join("", "c"), "wc", NOW))
    assert answers["sb"] == SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)


def test_who_waits_when_the_broker_stops_is_sent_to_look_again() -> None:
    group = stable_group("a")
    group.join(a_join("", "b"), "wb", NOW)
    assert only(group.abandon(ErrorCode.NOT_COORDINATOR)).error is ErrorCode.NOT_COORDINATOR
    assert group.abandon(ErrorCode.NOT_COORDINATOR) == []


def test_ten_thousand_members_join_and_sync_each_once() -> None:
    group = new_group()
    names = [f"m{number}" for number in range(10_000)]
    for name in names:
        group.join(a_join("", name), name, NOW)
    answers = group.join(a_join(names[0]), names[0], NOW)
    assert len(answers) == 10_000
    assert only(group.join(a_join("", "one more"), "w", NOW)).error is (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    for name in names[1:]:
        assert sync(group, name, name) == []
    assert len(sync(group, names[0], "leader", **{name: b"x" for name in names})) == 10_000
    assert group.state is GroupState.STABLE
    assert only(sync(group, names[5])).assignment == b"x"


def test_all_members_together_have_so_much_metadata_and_no_more() -> None:
    group = new_group()
    metadata = (("range", bytes(1024 * 1024)),)
    errors = [
        [reply.error for _, reply in group.join(a_join("", f"m{n}", protocols=metadata), n, NOW)]
        for n in range(64)
    ]
    assert errors[1:] == [[]] * 62 + [[ErrorCode.GROUP_MAX_SIZE_REACHED]]
    # Who says less than before makes room, and so does who leaves.
    group.join(a_join("m0"), "again", NOW)
    assert group.join(a_join("", "n", protocols=metadata), "w", NOW) == []
    group.leave("n", None, NOW)
    assert group.join(a_join("", "o", protocols=metadata), "w", NOW) == []


def test_a_leader_assigns_so_much_and_no_more() -> None:
    group = new_group()
    assert only(group.join(a_join("", "a"), "wa", NOW)).leader == "a"
    most = bytes(64 * 1024 * 1024)
    assert only(sync(group, "a", a=most + b"x")).error is ErrorCode.INVALID_REQUEST
    assert group.state is GroupState.COMPLETING
    assert only(sync(group, "a", a=most)).assignment == most
    assert group.size_bytes > len(most)


def test_protocols_count_again_when_members_change_theirs_and_go() -> None:
    group = new_group()
    both = (("range", b""), ("sticky", b""))
    group.join(a_join("", "a", protocols=both), "a", NOW)
    group.join(a_join("", "b", protocols=both), "b", NOW)
    group.join(a_join("b", protocols=both[1:]), "b", NOW)
    refused = only(group.join(a_join("", "c"), "c", NOW))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # The one it would leave behind does not count.
    assert group.join(a_join("b", protocols=both), "b", NOW)
    group.leave("b", None, NOW)
    assert group.join(a_join("", "c"), "c", NOW) == []
