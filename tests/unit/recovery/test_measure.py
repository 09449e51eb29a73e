"""A restore is measured from the process's start to the tail of that moment."""

import os
from pathlib import Path

import pytest

from catchwater.pipeline.epochs import RestoreWatch
from catchwater.recovery.estimate import (
    Estimate,
    RestoreSample,
    add_sample,
    down_s,
    last_alive_ms,
    load_samples,
    rest,
    show_life,
)
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SourceOffset, operator_ms


def entry(epoch: int, end: int, records: int, rebuilt: int = 0) -> EpochEntry:
    start = SourceOffset(epoch - 1, {"t": {"0": end - records}}, [0], 0)
    offset = SourceOffset(epoch, {"t": {"0": end}}, [0], 0)
    shards = [ShardEpoch(s, events=records, rebuilt_bytes=rebuilt, restore_s=1.0) for s in (0, 1)]
    return EpochEntry(epoch, start, offset, shards, {}, 0)


def test_start_up_state_and_replay_are_told_apart() -> None:
    watch = RestoreWatch(100.0, {("t", 0): 50}, tasks=2)
    assert watch.epoch_done(entry(7, 20, 10, rebuilt=30), 110.0) is None
    assert watch.epoch_done(entry(8, 40, 20), 112.0) is None
    assert watch.epoch_done(entry(9, 60, 20), 114.0) == RestoreSample(7, 9.0, 60, 1.0, 40, 4.0)


def test_one_epoch_may_be_all_there_was_to_catch_up_with() -> None:
    watch = RestoreWatch(100.0, {("t", 0): 20}, tasks=1)
    assert watch.epoch_done(entry(7, 20, 5), 105.0) == RestoreSample(7, 3.0, 0, 2.0, 0, 0.0)


@pytest.mark.parametrize(("rebuilt", "estimated_s"), [(30, 12.0), (0, 5.0)])
def test_what_was_foretold_is_kept_beside_what_it_took(rebuilt: int, estimated_s: float) -> None:
    told = Estimate(12.0, 9.0, 15.0, 3, with_local_s=5.0)
    watch = RestoreWatch(
        100.0, {("t", 0): 20}, tasks=1, foretold=told, detection_s=1.0, scheduling_s=2.0
    )
    sample = watch.epoch_done(entry(7, 20, 5, rebuilt=rebuilt), 105.0)
    assert sample is not None
    assert (sample.estimated_s, sample.whole_s) == (estimated_s, 8.0)


def test_nothing_was_foretold_of_what_is_no_failure() -> None:
    sample = RestoreWatch(100.0, {("t", 0): 20}, tasks=1).epoch_done(entry(7, 20, 5), 105.0)
    assert sample is not None
    assert sample.estimated_s is None


def test_samples_are_kept_in_order(tmp_path: Path) -> None:
    assert load_samples(tmp_path) == []
    samples = [RestoreSample(e, 1.0, 2, 3.0, 4, 5.0) for e in range(3)]
    for sample in samples:
        add_sample(tmp_path, sample)
    assert load_samples(tmp_path) == samples


def test_time_in_the_operator_is_counted_by_events() -> None:
    shards = [ShardEpoch(0, events=98, operator_ms=10.0), ShardEpoch(1, events=2, operator_ms=70.0)]
    assert operator_ms(shards, 0.5, 0.98, 0.99) == [10.0, 10.0, 70.0]
    assert operator_ms([ShardEpoch(0, operator_ms=5.0)], 0.5) == [0.0]


NOW_MS = 10_000_000


@pytest.mark.parametrize(
    ("alive_ms", "noticed_ms", "detection_s", "scheduling_s"),
    [
        (NOW_MS - 5_000, NOW_MS - 2_000, 3.0, 2.0),
        (NOW_MS - 1_000, NOW_MS - 2_000, 0, 2.0),  # its driver lived on for a moment
        (None, NOW_MS - 2_000, None, 2.0),
        (NOW_MS - 5_000, None, 0.0, 5.0),
        (None, None, None, None),
        (NOW_MS - 900_000, NOW_MS - 2_000, None, 2.0),  # of another failure
        (NOW_MS - 5_000, NOW_MS - 900_000, 0.0, 5.0),  # the supervisor has died with its driver
        (NOW_MS - 900_000, None, None, None),  # a start so much later does not follow from it
        (NOW_MS + 5_000, None, None, None),  # a clock that was set back
    ],
)
def test_how_long_nobody_noticed_and_how_long_it_took_to_begin(
    alive_ms: int | None,
    noticed_ms: int | None,
    detection_s: float | None,
    scheduling_s: float | None,
) -> None:
    assert down_s(alive_ms, noticed_ms, NOW_MS) == (detection_s, scheduling_s)


def test_a_sign_of_life_is_renewed_and_ends_with_a_stop_that_was_asked_for(tmp_path: Path) -> None:
    assert last_alive_ms(tmp_path) is None
    show_life(tmp_path)  # of a checkpoint that is gone: no run fails for it
    (tmp_path / "catchwater").mkdir()
    show_life(tmp_path)
    file = tmp_path / "catchwater" / "alive"
    os.utime(file, (1_000, 1_000))
    assert last_alive_ms(tmp_path) == 1_000_000
    show_life(tmp_path)
    found = last_alive_ms(tmp_path)
    assert found is not None and found > 1_000_000
    rest(tmp_path)
    rest(tmp_path)
    assert last_alive_ms(tmp_path) is None
