"""Plans into tasks: everything wanted, once, in order, in even shares."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from catchwater.replay.plan import (
    CHUNK,
    SEGMENT,
    TASK_BYTES,
    Aborted,
    Missing,
    OffsetRange,
    PlanRange,
    Slice,
    Task,
    cut,
    slices_of,
    uncovered,
)


def a_range(partition: int, base: int, last: int, size: int = 1000) -> PlanRange:
    return PlanRange("t", partition, SEGMENT, f"file:///{base}", 0, size, base, last)


def offsets(tasks: list[Task]) -> list[tuple[str, int, int]]:
    return [
        (each.topic, each.partition, offset)
        for task in tasks
        for each in task.slices
        for offset in range(each.first, each.stop)
    ]


def test_a_range_is_described_as_the_control_api_does() -> None:
    fields = {
        "partition": 3,
        "kind": "chunk",
        "url": "file:///x",
        "byte_offset": 7,
        "byte_size": 8,
        "base_offset": 9,
        "last_offset": 10,
        "max_timestamp": 11,
    }
    assert PlanRange.from_json("t", fields) == PlanRange("t", 3, CHUNK, "file:///x", 7, 8, 9, 10)


def test_a_slice_is_the_wanted_part_of_a_range() -> None:
    slices = slices_of([OffsetRange("t", 0, 5, 25)], [a_range(0, 20, 29), a_range(0, 0, 19)])
    assert [(each.first, each.stop) for each in slices] == [(5, 20), (20, 25)]


def test_a_partition_may_be_wanted_in_several_pieces() -> None:
    wanted = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 0, 20, 25), OffsetRange("t", 0, 27, 40)]
    ranges = [a_range(0, 0, 9), a_range(0, 20, 29), a_range(0, 20, 29), a_range(0, 30, 39)]
    slices = slices_of(wanted, ranges)
    found = [(each.first, each.stop) for each in slices]
    assert found == [(0, 10), (20, 25), (27, 30), (30, 40)], "each once, though listed twice"
    assert uncovered(wanted, slices) == []
    assert uncovered(wanted, slices[1:3]) == [Missing("t", 0, 0, 10), Missing("t", 0, 30, 40)]


def test_ranges_nobody_asked_for_are_left_out() -> None:
    assert slices_of([OffsetRange("t", 0, 5, 6)], [a_range(1, 0, 9), a_range(0, 6, 9)]) == []


def test_an_aborted_transaction_is_described_as_the_control_api_does() -> None:
    fields = {"partition": 3, "producer_id": 7, "first_offset": 8, "last_offset": 9}
    assert Aborted.from_json("t", fields) == Aborted("t", 3, 7, 8, 9)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=20),
    wanted=st.lists(st.integers(0, 100), min_size=4, max_size=4),
    aborted=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 99), st.integers(1, 40)),
        max_size=20,
    ),
)
def test_a_slice_has_the_aborted_transactions_that_reach_into_it(
    sizes: list[tuple[int, int]], wanted: list[int], aborted: list[tuple[int, int, int, int]]
) -> None:
    ends, ranges = [0, 0], []
    for partition, size in sizes:
        ranges.append(a_range(partition, ends[partition], ends[partition] + size - 1))
        ends[partition] += size
    wants = [OffsetRange("t", p, min(wanted[p::2]), max(wanted[p::2])) for p in (0, 1)]
    voids = [Aborted("t", p, producer, first, first + more) for p, producer, first, more in aborted]
    for each in slices_of(wants, ranges, voids):
        assert sorted(each.aborted) == sorted(
            void
            for void in voids
            if void.partition == each.partition
            and void.first_offset < each.stop
            and void.last_offset >= each.first
        )
        assert replace(each, aborted=()) in slices_of(wants, ranges)


def test_what_no_slice_holds_is_named() -> None:
    wanted = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 5, 6)]
    slices = slices_of(wanted, [a_range(0, 10, 19), a_range(0, 30, 39)])
    assert uncovered(wanted, slices) == [
        Missing("t", 0, 0, 10),
        Missing("t", 0, 20, 30),
        Missing("t", 0, 40, 100),
        Missing("t", 1, 5, 6),
    ]
    assert str(Missing("t", 0, 20, 30)) == "t-0 offsets 20 to 29"


def test_nothing_wanted_is_no_task() -> None:
    assert cut([]) == [] and cut([], 4) == []


def test_one_offset_is_one_task_however_many_are_asked_for() -> None:
    assert cut([Slice("t", 0, 0, 1)], 2) == [Task((Slice("t", 0, 0, 1),))]


def test_by_default_each_partition_has_a_task() -> None:
    slices = [Slice("t", number, 0, 10, a_range(number, 0, 9)) for number in range(5)]
    assert len(cut(slices)) == 5


def test_a_large_partition_is_read_by_many_tasks() -> None:
    pieces = [a_range(0, 10 * n, 10 * n + 9, TASK_BYTES // 8) for n in range(80)]
    slices = slices_of([OffsetRange("t", 0, 0, 800)], pieces)
    tasks = cut(slices)
    assert len(tasks) == 10
    assert {len(task.slices) for task in tasks} == {8}


def test_offsets_without_known_bytes_are_cut_anywhere() -> None:
    tasks = cut([Slice("t", 0, 0, 1000), Slice("t", 1, 0, 10)], 4)
    assert len(tasks) == 4
    sizes = [sum(each.weight for each in task.slices) for task in tasks]
    assert max(sizes) - min(sizes) < 20


def test_two_partitions_of_nearly_one_size_are_a_task_each() -> None:
    slices = [Slice("t", 0, 0, 249_804), Slice("t", 1, 0, 250_196)]
    assert cut(slices, 2) == [Task((each,)) for each in slices]


@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 10_000)), min_size=1, max_size=30
    ),
    count=st.none() | st.integers(1, 40),
    known=st.booleans(),
    deleted=st.integers(0, 30),
)
def test_tasks_together_are_what_was_wanted(
    lengths: list[tuple[int, int]], count: int | None, known: bool, deleted: int
) -> None:
    """Also where the log has deleted the first of them, and a table has them."""
    ranges, at = [], 0
    for number, (length, size) in enumerate(lengths):
        if number % 7 == 0:
            at = 0
        ranges.append(a_range(number // 7, at, at + length - 1, size))
        at += length
    slices = [
        Slice("t", r.partition, r.base_offset, r.last_offset + 1, files=("file:///f",))
        if n < deleted
        else Slice("t", r.partition, r.base_offset, r.last_offset + 1, r if known else None)
        for n, r in enumerate(ranges)
    ]
    tasks = cut(slices, count)
    assert offsets(tasks) == offsets([Task(tuple(slices))])
    assert all(task.slices for task in tasks)
    if count is not None:
        assert len(tasks) <= count
    if count is not None and not known and not deleted:
        wanted = len(offsets(tasks))
        assert len(tasks) == min(count, wanted)
        sizes = [sum(each.weight for each in task.slices) for task in tasks]
        assert max(sizes) <= wanted / count * (1 + 3 / 16) + 1, "no task has much more than others"
