"""The coordinator's assignors: complete, even, and not moved without need."""

from hypothesis import given
from hypothesis import strategies as st

from catchwater.broker.coordination.consumer.assign import (
    ASSIGNORS,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)

TOPICS = [bytes([number]) * 16 for number in range(4)]

sizes = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12))
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=6)


def indexes(keys, topic):
    return sorted(index for found, index in keys if found == topic)


@given(st.sampled_from(sorted(ASSIGNORS)), subscriptions, sizes)
def test_every_partition_that_somebody_wants_has_one_owner_who_wants_it(
    name, topics, partitions
) -> None:
    members = {f"m{number}": Subscriber(wanted) for number, wanted in enumerate(topics)}
    given_out = ASSIGNORS[name](members, partitions)
    assert given_out.keys() == members.keys()
    everything = [key for keys in given_out.values() for key in keys]
    wanted = {topic for topics in members.values() for topic in topics.topics} & partitions.keys()
    assert sorted(everything) == sorted((t, i) for t in wanted for i in range(partitions[t]))
    for member_id, keys in given_out.items():
        assert {topic for topic, _ in keys} <= members[member_id].topics


@given(st.integers(1, 9), sizes, st.data())
def test_the_same_subscriptions_get_as_many_partitions_give_or_take_one(
    count, partitions, data
) -> None:
    names = [f"m{number}" for number in range(count)]
    # Whoever had what before, also what is gone and what two believed to have.
    keys = st.tuples(st.sampled_from(TOPICS), st.integers(0, 15))
    before = {name: data.draw(st.frozensets(keys)) for name in names}
    members = {name: Subscriber(frozenset(TOPICS), before[name]) for name in names}
    loads = [len(keys) for keys in assign_uniformly(members, partitions).values()]
    assert max(loads) - min(loads) <= 1


@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), sizes)
def test_no_more_moves_than_evenness_takes(count, leaving, joining, partitions) -> None:
    names = [f"m{number}" for number in range(count)]
    all_topics = frozenset(TOPICS)
    first = assign_uniformly({name: Subscriber(all_topics) for name in names}, partitions)
    left = names[min(leaving, count - 1) :] + [f"n{number}" for number in range(joining)]
    members = {name: Subscriber(all_topics, first.get(name, frozenset())) for name in left}
    second = assign_uniformly(members, partitions)
    # Nobody who stays loses a partition and gets another one for it.
    for name in left:
        before = first.get(name, frozenset())
        assert not (before - second[name] and second[name] - before)
    if joining == 0:
        assert all(first[name] <= second[name] for name in left)


def test_different_subscriptions_are_evened_out_as_far_as_they_allow() -> None:
    wide, narrow = frozenset(TOPICS[:2]), frozenset(TOPICS[:1])
    members = {"a": Subscriber(wide), "b": Subscriber(narrow)}
    given_out = assign_uniformly(members, {TOPICS[0]: 6, TOPICS[1]: 2})
    assert {name: len(keys) for name, keys in given_out.items()} == {"a": 4, "b": 4}
    assert len(indexes(given_out["a"], TOPICS[1])) == 2


def test_ranges_are_consecutive_and_alike_in_topics_of_the_same_size() -> None:
    members = {name: Subscriber(frozenset(TOPICS[:2])) for name in ("a", "b", "c")}
    given_out = assign_ranges(members, {TOPICS[0]: 7, TOPICS[1]: 7})
    for topic in TOPICS[:2]:
        assert [indexes(given_out[name], topic) for name in ("a", "b", "c")] == [
            [0, 1, 2],
            [3, 4],
            [5, 6],
        ]


def test_static_members_keep_their_range_under_another_member_id() -> None:
    topics, partitions = frozenset(TOPICS[:1]), {TOPICS[0]: 4}
    before = assign_ranges(
        {"z": Subscriber(topics, instance_id="i1"), "a": Subscriber(topics)}, partitions
    )
    after = assign_ranges(
        {"b": Subscriber(topics, instance_id="i1"), "a": Subscriber(topics)}, partitions
    )
    assert before["z"] == after["b"]
    assert indexes(after["b"], TOPICS[0]) == [0, 1]


def test_ten_thousand_members_keep_what_they_have() -> None:
    members = {f"m{number}": Subscriber(frozenset(TOPICS)) for number in range(10_000)}
    given_out = assign_uniformly(members, dict.fromkeys(TOPICS, 3_000))
    again = assign_uniformly(
        {name: Subscriber(frozenset(TOPICS), keys) for name, keys in given_out.items()},
        dict.fromkeys(TOPICS, 3_000),
    )
    assert again == given_out
