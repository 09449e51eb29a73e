"""Progress: Spark's own objects in, behind, rate and time left per partition out."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.listener import StreamingQueryProgress

from catchwater.replay.progress import PartitionProgress, progress_of

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPARK_S_OTHERS = [0, None, [1], {"logOffset": 3}, "null", "None", "5"]


def source(start: Any, end: Any, latest: Any) -> dict[str, Any]:
    return {
        "description": "catchwater",
        "startOffset": start,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }


def batch(*sources: dict[str, Any], at_s: float = 0, ran_s: float = 1) -> dict[str, Any]:
    stamp = (BEGAN + timedelta(seconds=at_s)).isoformat(timespec="milliseconds")
    return {
        "id": str(UUID(int=1)),
        "runId": str(UUID(int=2)),
        "name": None,
        "timestamp": stamp.replace("+00:00", "Z"),
        "batchId": 0,
        "batchDuration": round(ran_s * 1000),
        "stateOperators": [],
        "sources": [*sources],
        "sink": {"description": "none", "numOutputRows": -1},
    }


def of_one(start: int, end: int, latest: int) -> dict[str, Any]:
    return source(*({"t": {"0": offset}} for offset in (start, end, latest)))


def test_spark_s_own_object_is_read() -> None:
    start, end = {"t": {"0": 10, "1": 5}}, {"t": {"0": 110, "1": 5, "2": 50}}
    latest = {"t": {"0": 310, "1": 5, "2": 60}}
    given = batch(source(start, end, latest), ran_s=2)
    for progress in (given, StreamingQueryProgress.fromJson(given)):
        assert progress_of(progress) == [
            PartitionProgress("t", 0, 110, 310, 200, 50.0, 4.0),
            PartitionProgress("t", 1, 5, 5, 0, 0.0, 0.0),
            PartitionProgress("t", 2, 50, 60, 10, 25.0, 0.4),
        ]


def test_offsets_may_come_as_text() -> None:
    texts = (json.dumps({"t": {"0": offset}}) for offset in (0, 10, 30))
    (found,) = progress_of(batch(source(*texts)))
    assert found == PartitionProgress("t", 0, 10, 30, 20, 10.0, 2.0)
    assert str(found) == "t-0: 20 behind, 10 records/s, 2 s to go"


def test_before_the_first_micro_batch_there_is_none() -> None:
    assert progress_of(None) == []
    assert progress_of([]) == []


@pytest.mark.parametrize("start", [None, "null", "None"])
def test_without_a_known_start_there_is_no_rate(start: Any) -> None:
    first = batch(source(start, {"t": {"0": 10}}, {"t": {"0": 30}}))
    (found,) = progress_of(first)
    assert found == PartitionProgress("t", 0, 10, 30, 20, None, None)
    assert str(found) == "t-0: 20 behind"
    (found,) = progress_of([first, batch(of_one(10, 20, 30), at_s=1, ran_s=2)])
    assert (found.records_per_s, found.eta_s) == (5.0, 2.0)


def test_without_a_latest_offset_the_end_is_the_latest() -> None:
    (found,) = progress_of(batch(source({"t": {"0": 0}}, {"t": {"0": 10}}, None)))
    assert (found.latest, found.behind, found.eta_s) == (10, 0, 0.0)


def test_a_partition_that_stands_still_has_no_time_left_to_tell() -> None:
    (found,) = progress_of(batch(of_one(10, 10, 30)))
    assert (found.behind, found.records_per_s, found.eta_s) == (20, 0.0, None)


def test_a_log_made_anew_is_not_less_than_nothing_behind() -> None:
    (found,) = progress_of(batch(of_one(50, 50, 30)))
    assert found.behind == 0


@pytest.mark.parametrize("other", SPARK_S_OTHERS)
def test_other_sources_are_left_out(other: Any) -> None:
    (found,) = progress_of(batch(source(other, other, other), of_one(0, 10, 30)))
    assert (found.source, found.topic) == (1, "t")


def test_idle_hours_do_not_slow_the_rate() -> None:
    busy = [batch(of_one(0, 10, 10), ran_s=2), batch(of_one(10, 10, 10), at_s=60, ran_s=3)]
    (found,) = progress_of([*busy, batch(of_one(10, 30, 70), at_s=7200, ran_s=2)])
    assert (found.records_per_s, found.eta_s) == (7.5, pytest.approx(40 / 7.5))


STEPS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 500), st.integers(0, 500)), st.integers(1, 60), st.integers(0, 60)
    ),
    min_size=1,
    max_size=8,
)


@given(steps=STEPS, left=st.integers(1, 10_000))
def test_catching_up_the_rate_is_what_was_read_by_the_time_it_took(
    steps: list[tuple[tuple[int, int], int, int]], left: int
) -> None:
    """Records read, by the time from the first batch's start to the last one's end."""
    ends = [sum(counts[which] for counts, _, _ in steps) for which in (0, 1)]
    latest = {"t": {"0": ends[0] + left, "1": ends[1] + left}}
    progresses, at_s, position = [], 0, [0, 0]
    for counts, ran_s, pause_s in steps:
        start = {"t": {"0": position[0], "1": position[1]}}
        position = [old + count for old, count in zip(position, counts, strict=True)]
        end = {"t": {"0": position[0], "1": position[1]}}
        progresses.append(batch(source(start, end, latest), at_s=at_s, ran_s=ran_s))
        elapsed_s = at_s + ran_s
        at_s = elapsed_s + pause_s
    for found, read in zip(progress_of(progresses), ends, strict=True):
        assert (found.offset, found.behind) == (read, left)
        assert found.records_per_s == pytest.approx(read / elapsed_s)
        assert found.eta_s == (pytest.approx(left * elapsed_s / read) if read else None)
