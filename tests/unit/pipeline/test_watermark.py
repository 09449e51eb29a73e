"""The watermark: held back by what is unread, never back, on with the clock when input is idle."""

import msgspec
import pytest

from catchwater.pipeline.watermark import EventTime
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SourceOffset

SEEN = {"t-0": 1_000, "t-1": 5_000}


def begin(*watermarks: int) -> SourceOffset:
    return SourceOffset(4, {"t": {"0": 7, "1": 9}}, list(watermarks), 0)


def entry(*shards: ShardEpoch) -> EpochEntry:
    return EpochEntry(4, begin(0), begin(0), list(shards), {}, 0)


@pytest.mark.parametrize(
    ("unread", "watermark"),
    [
        ({}, 4_900),
        ({("t", 0): 20}, 900),
        ({("t", 1): 20}, 4_900),
        ({("t", 0): 20, ("t", 1): 20}, 900),
    ],
)
def test_the_partitions_with_something_unread_hold_it_back(
    unread: dict[tuple[str, int], int], watermark: int
) -> None:
    assert EventTime(100).advance(begin(0), SEEN, unread, 0) == [watermark]


def test_a_partition_nothing_was_seen_of_holds_it_where_it_is() -> None:
    assert EventTime(100).advance(begin(300), SEEN, {("t", 2): 5}, 0) == [300]
    assert EventTime(100).advance(begin(300), {}, {}, 0) == [300]


def test_it_never_goes_back() -> None:
    assert EventTime(100).advance(begin(2_000), SEEN, {("t", 0): 20}, 0) == [2_000]


def test_every_later_stage_is_an_epoch_behind() -> None:
    time = EventTime(100, stages=3)
    assert time.advance(begin(2_000, 1_500, 1_200), SEEN, {}, 0) == [4_900, 2_000, 1_500]
    assert time.advance(begin(2_000), SEEN, {}, 0) == [4_900, 2_000, 2_000]


@pytest.mark.parametrize(("idle_ms", "watermark"), [(30_000, 4_900), (30_001, 4_901)])
def test_idle_for_longer_than_the_timeout_it_goes_on_with_the_clock(
    idle_ms: int, watermark: int
) -> None:
    time = EventTime(100, idle_timeout_ms=30_000)
    assert time.advance(begin(0), SEEN, {}, idle_ms) == [watermark]


def test_idle_is_only_who_has_nothing_unread() -> None:
    time = EventTime(100, idle_timeout_ms=30_000)
    assert time.advance(begin(0), SEEN, {("t", 0): 20}, 90_000) == [900]


def test_an_epoch_is_due_as_soon_as_it_leads_any_stage_to_what_that_waits_for() -> None:
    time = EventTime(100, stages=2)
    last = entry(ShardEpoch(0, next_due_ms=60), ShardEpoch(0, stage=1, next_due_ms=50))
    assert not time.is_due(last, 49, 0)
    assert time.is_due(last, 50, 0)
    assert not EventTime(100).is_due(last, 50, 0)
    assert EventTime(100).is_due(last, 60, 0)


def test_the_clock_wakes_a_shard_that_waits_for_it() -> None:
    last = entry(ShardEpoch(0), ShardEpoch(1, next_due_clock_ms=70))
    assert not EventTime(100).is_due(last, 0, 69)
    assert EventTime(100).is_due(last, 0, 70)


@pytest.mark.parametrize("idle_timeout_ms", [None, 0, 30_000])
@pytest.mark.parametrize("clock_due_ms", [None, 1, 70_000])
@pytest.mark.parametrize("due_ms", [None, 4_901, 9_000, 50_000])
def test_it_is_due_from_the_time_on_that_is_told(
    idle_timeout_ms: int | None, clock_due_ms: int | None, due_ms: int | None
) -> None:
    time = EventTime(100, idle_timeout_ms=idle_timeout_ms)
    shards = [ShardEpoch(0, next_due_ms=due_ms, next_due_clock_ms=clock_due_ms), ShardEpoch(1)]
    last = EpochEntry(4, begin(0), begin(0), shards, {}, 0, seen=SEEN)
    found = msgspec.structs.replace(begin(4_900), input_ms=1_000)

    def is_due(at_ms: int) -> bool:
        (watermark_ms,) = time.advance(found, SEEN, {}, at_ms - found.input_ms)
        return time.is_due(last, watermark_ms, at_ms)

    at_ms = time.due_at_ms(found, last)
    if at_ms is None:
        assert not is_due(10**12)
    else:
        assert is_due(at_ms) and not is_due(at_ms - 1)
