"""Which host a task is given, by where its shards were."""

from collections import Counter
from itertools import product

from catchwater.pipeline.spark.placement import assign


def moved(were: list[str], hosts: dict[str, int]) -> int:
    """How many tasks are not where they were."""
    return sum(a != b for a, b in zip(were, assign(were, hosts), strict=True))


def test_tasks_stay_where_they_were() -> None:
    were = ["b", "a", "c", "a", "b", "c"]
    assert assign(were, {"a": 1, "b": 1, "c": 1}) == were
    assert assign(["a", "a", "b"], {"a": 1, "b": 1}) == ["a", "a", "b"]
    assert assign(["b", "a", "b"], {"a": 1, "b": 1}) == ["b", "a", "b"]


def test_at_first_each_host_has_its_share() -> None:
    assert Counter(assign([None] * 6, {"a": 1, "b": 1, "c": 1})) == {"a": 2, "b": 2, "c": 2}
    assert Counter(assign([None] * 6, {"a": 2, "b": 1})) == {"a": 4, "b": 2}
    assert Counter(assign([None] * 2, {"a": 1, "b": 1, "c": 1})).total() == 2


def test_a_host_that_is_lost_or_comes_moves_its_share_and_no_more() -> None:
    were = ["a", "b", "c"] * 4
    assert moved(were, {"a": 1, "b": 1}) == 4
    assert moved(were, {"a": 1, "b": 1, "c": 1, "d": 1}) == 3
    assert moved(were, {"a": 1, "b": 1, "d": 1}) == 4


def test_any_tasks_are_spread_as_evenly_as_executors_are() -> None:
    for were in product([None, "a", "b", "gone"], repeat=5):
        for hosts in ({"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 1}):
            found = Counter(assign(were, hosts))
            assert found.keys() <= hosts.keys()
            for host, number in hosts.items():
                even = len(were) * number / sum(hosts.values())
                assert even - 1 < found[host] < even + len(hosts)
            assert assign(assign(were, hosts), hosts) == assign(were, hosts)


def test_where_there_are_no_executors_nothing_is_said() -> None:
    assert assign(["a", None], {}) == []
