"""Several objects may hold the same offsets; each offset is covered once, by the longest."""

from catchwater.catalog.rows import RunRow
from catchwater.log.repair.segments import cover


def run(first: int, last: int, key: str = "o") -> RunRow:
    return RunRow(b"t" * 16, 0, first, last, f"{key}-{first}-{last}", 0, 1, 0, last - first + 1)


def test_a_packed_segment_takes_the_place_of_what_it_was_made_of() -> None:
    old = {run(0, 9): 1, run(10, 19): 2, run(0, 19): 3}
    chunks = [run(10, 14, "c"), run(15, 19, "c"), run(20, 24, "c")]
    found = cover(0, 25, old, chunks)
    assert [each.object for each in found.runs] == ["o-0-19", "c-20-24"]
    assert found.gaps == []


def test_of_two_segments_of_one_range_the_younger_is_taken() -> None:
    older, younger = run(0, 9, "older"), run(0, 9, "younger")
    assert cover(0, 10, {younger: 2, older: 1}, []).runs == [younger]


def test_the_log_may_begin_inside_a_run_and_what_ends_before_it_is_left_out() -> None:
    found = cover(5, 20, {run(0, 3): 1, run(0, 9): 1, run(10, 19): 1}, [])
    assert [each.object for each in found.runs] == ["o-0-9", "o-10-19"]


def test_offsets_that_nothing_holds_are_told() -> None:
    found = cover(0, 30, {run(5, 9): 1, run(15, 19): 1}, [])
    assert found.gaps == [(0, 4), (10, 14), (20, 29)]
    assert cover(3, 7, {}, []) == ([], [(3, 6)])
    assert cover(7, 7, {}, []) == ([], [])
