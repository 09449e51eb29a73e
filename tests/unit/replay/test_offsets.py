"""Offsets: admitted in fair shares, written as Spark's Kafka source does, checked for loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.replay.offsets import (
    HistoryLost,
    admit,
    at_most,
    behind,
    from_json,
    to_json,
    wanted,
)
from catchwater.replay.plan import Missing, OffsetRange, Slice, Task

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20))


def test_offsets_are_written_as_spark_s_kafka_source_does() -> None:
    offsets = {("b", 10): 3, ("b", 2): 1, ("a", 0): 7}
    content = {"a": {"0": 7}, "b": {"2": 1, "10": 3}}
    assert to_json(offsets) == content
    assert from_json(content) == offsets


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert wanted({("a", 0): 5}, {("a", 0): 5, ("a", 1): 3}) == [OffsetRange("a", 1, 0, 3)]


def test_a_log_that_ends_before_the_query_has_lost_something() -> None:
    with pytest.raises(HistoryLost, match="a-0 offsets 4 to 8") as caught:
        wanted({("a", 0): 9}, {("a", 0): 4})
    assert caught.value.missing == (Missing("a", 0, 4, 9),)
    assert caught.value.exit_code == 5


def test_a_partition_is_behind_by_what_it_has_more() -> None:
    latest = {("a", 0): 9, ("a", 1): 4, ("b", 0): 2}
    assert behind({("a", 0): 1, ("b", 0): 3}, latest) == {("a", 0): 8, ("a", 1): 4, ("b", 0): 0}


def test_without_a_limit_everything_is_admitted() -> None:
    assert admit({("a", 0): 1}, {("a", 0): 9, ("a", 1): 4}, None) == {("a", 0): 9, ("a", 1): 4}


def test_shares_are_by_how_far_behind_a_partition_is() -> None:
    latest = {("a", 0): 900, ("a", 1): 100, ("a", 2): 50}
    assert admit({("a", 2): 50}, latest, 100) == {("a", 0): 90, ("a", 1): 10, ("a", 2): 50}


def test_a_partition_made_anew_is_noticed_not_read_again() -> None:
    start, latest = {("a", 0): 90, ("a", 1): 0}, {("a", 0): 10, ("a", 1): 1000}
    with pytest.raises(HistoryLost):
        wanted(start, admit(start, latest, 100))


@given(
    start=st.dictionaries(KEYS, st.integers(0, 1000)),
    more=st.dictionaries(KEYS, st.integers(0, 2000)),
    most=st.integers(1, 3000),
)
def test_a_limited_batch_makes_progress_everywhere_and_ends(
    start: dict[tuple[str, int], int], more: dict[tuple[str, int], int], most: int
) -> None:
    latest = {key: start.get(key, 0) + count for key, count in more.items()}
    start = {key: offset for key, offset in start.items() if key in latest}
    end = admit(start, latest, most)
    for key, offset in latest.items():
        begin = start.get(key, 0)
        assert begin <= end[key] <= offset
        assert end[key] > begin or offset == begin
    admitted = sum(end[key] - start.get(key, 0) for key in end)
    assert admitted <= max(most, 0) + len(latest)


TASKS = st.lists(
    st.lists(
        st.builds(
            lambda partition, first, count: Slice("a", partition, first, first + count),
            st.integers(0, 3),
            st.integers(0, 1000),
            st.integers(1, 50),
        ),
        max_size=5,
    ).map(lambda slices: Task(tuple(slices))),
    max_size=4,
)


def numbered(tasks: list[Task]) -> list[tuple[int, int]]:
    slices = [each for task in tasks for each in task.slices]
    return [(each.partition, n) for each in slices for n in range(each.first, each.stop)]


@given(tasks=TASKS, most=st.integers(1, 60))
def test_tasks_of_limited_size_bring_the_same_in_the_same_order(
    tasks: list[Task], most: int
) -> None:
    limited = at_most(tasks, most)
    assert numbered(limited) == numbered(tasks)
    sizes = [len(numbered([task])) for task in limited]
    assert all(size <= most for size in sizes)
    least = sum(max(1, -(-len(numbered([task])) // most)) for task in tasks)
    assert len(limited) == least, "as few as can be, and a task without a slice stays one"


def test_without_a_largest_size_tasks_stay_as_they_are() -> None:
    tasks = [Task((Slice("a", 0, 0, 10**9),)), Task(())]
    assert at_most(tasks, None) == tasks
