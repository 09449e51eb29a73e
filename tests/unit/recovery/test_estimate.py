"""The estimate says when a pipeline is useful again; a simulated one agrees."""

from statistics import median

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from catchwater.pipeline.epochs import PaceMeter, RestoreWatch
from catchwater.recovery.estimate import (
    DEFAULT_DETECTION_S,
    DEFAULT_REPLAY_RECORDS_PER_S,
    DEFAULT_SCHEDULING_S,
    DEFAULT_STARTUP_S,
    Pace,
    RestoreSample,
    estimate,
    near_s,
)
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SourceOffset

BEFORE_S = DEFAULT_DETECTION_S + DEFAULT_SCHEDULING_S
"""Until a process begins, where nothing was measured."""
SAMPLE = RestoreSample(1, 5.0, 100_000_000, 2.0, 1_000_000, 10.0)
"""State at 50 MB/s, replay at 100,000 records/s."""


def test_without_measured_restores_the_estimate_is_cautious_and_says_so() -> None:
    guess = estimate([], state_bytes=0, replay_records=0)
    assert guess.seconds == BEFORE_S + DEFAULT_STARTUP_S
    assert (guess.samples, guess.capacity) == (0, "assumed")
    assert guess.low_s is not None and guess.high_s is not None
    assert guess.low_s < guess.seconds < guess.high_s


def test_measured_restores_replace_the_defaults() -> None:
    guess = estimate([SAMPLE] * 3, state_bytes=50_000_000, replay_records=500_000)
    assert guess.seconds == pytest.approx(BEFORE_S + 5.0 + 1.0 + 5.0)
    assert (guess.samples, guess.capacity, guess.capacity_per_s) == (3, "restores", 100_000)


def test_the_two_timelines_add_up() -> None:
    pace = Pace(input_per_s=50_000, near_s=0)
    guess = estimate([SAMPLE], state_bytes=50_000_000, replay_records=500_000, pace=pace)
    before, after = guess.infrastructure, guess.application
    assert before is not None and after is not None and guess.seconds is not None
    assert (before.detection_s, before.scheduling_s, before.session_s) == (
        DEFAULT_DETECTION_S, DEFAULT_SCHEDULING_S, 5.0,
    )  # fmt: skip
    # Down for 8 s, in which 400,000 more come; caught up with at 50,000 a second.
    assert BEFORE_S + 5.0 + 1.0 == 8.0
    assert (after.state_s, after.replay_s) == (1.0, 18.0)
    assert after.replay_records == 1_800_000
    assert guess.infrastructure_s == 7.0 and guess.application_s == 19.0
    assert guess.seconds == 26.0


def test_what_comes_while_it_is_down_counts_even_if_nothing_lies_behind() -> None:
    idle = estimate([SAMPLE], state_bytes=0, replay_records=0)
    pace = Pace(input_per_s=80_000)
    loaded = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=pace)
    down_s = BEFORE_S + 5.0
    assert idle.seconds == down_s
    # Until two seconds' input is left, as behind ordinary epochs.
    assert loaded.seconds == down_s + (down_s - 2.0) * 80_000 / 20_000
    nothing_left = msgspec.structs.replace(pace, near_s=0)
    loaded = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=nothing_left)
    assert loaded.seconds == down_s + down_s * 80_000 / 20_000


def test_input_above_capacity_is_never_caught_up_with_and_the_missing_headroom_is_named() -> None:
    guess = estimate([SAMPLE], state_bytes=0, replay_records=9, pace=Pace(input_per_s=130_000))
    assert (guess.seconds, guess.low_s, guess.high_s) == (None, None, None)
    assert guess.missing_per_s == 30_000
    assert guess.application_s is None and guess.infrastructure_s == BEFORE_S + 5.0


def test_input_near_capacity_has_an_error_bar_that_ends_nowhere() -> None:
    guess = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=Pace(input_per_s=90_000))
    assert guess.seconds is not None and guess.low_s is not None
    assert guess.low_s < guess.seconds
    assert guess.high_s is None


def test_a_saturated_pipeline_can_do_what_it_does_whatever_was_measured_before() -> None:
    pace = Pace(input_per_s=2_000, busy_per_s=1_500, saturated=True)
    guess = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=pace)
    assert (guess.seconds, guess.capacity, guess.missing_per_s) == (None, "epochs", 500)


def test_a_pipeline_can_do_at_least_what_it_does() -> None:
    guess = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=Pace(busy_per_s=150_000))
    assert (guess.capacity_per_s, guess.capacity) == (150_000, "epochs")


def test_a_pipeline_of_small_epochs_that_keeps_up_is_not_said_never_to_catch_up() -> None:
    """It is at work all the time with what comes, which says nothing of what it could do."""
    slow = RestoreSample(1, 5.0, 0, 0.0, 1_000, 10.0)
    pace = Pace(input_per_s=500, busy_per_s=505, interval_s=0.2)
    guess = estimate([slow], state_bytes=0, replay_records=0, pace=pace)
    assert (guess.capacity_per_s, guess.capacity) == (DEFAULT_REPLAY_RECORDS_PER_S, "assumed")
    assert guess.seconds is not None and guess.seconds < BEFORE_S + 5.0 + 0.1


def test_a_restore_of_few_records_says_nothing_of_a_rate() -> None:
    few = RestoreSample(1, 5.0, 0, 0.0, 10, 3.0)
    guess = estimate([few], state_bytes=0, replay_records=0)
    assert (guess.capacity_per_s, guess.capacity) == (DEFAULT_REPLAY_RECORDS_PER_S, "assumed")


def test_a_failure_comes_half_a_checkpoint_later_and_at_worst_a_whole_one() -> None:
    pace = Pace(input_per_s=10_000, interval_s=60.0)
    rare = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=pace)
    often = estimate([SAMPLE], state_bytes=0, replay_records=300_000, pace=Pace(10_000))
    assert rare.seconds == often.seconds
    assert rare.high_s is not None and often.high_s is not None
    assert rare.high_s > often.high_s


@pytest.mark.parametrize(("count", "spread"), [(0, 0.6), (1, 0.42), (3, 0.3), (5, 0.25), (9, 0.25)])
def test_the_error_bar_narrows_with_each_restore_that_was_as_foretold(
    count: int, spread: float
) -> None:
    measured = [RestoreSample(1, 10.0, 0, 0.0, 0, 0.0)] * count
    guess = estimate(measured, state_bytes=0, replay_records=0)
    assert guess.seconds and guess.low_s is not None and guess.high_s is not None
    assert 1 - guess.low_s / guess.seconds == pytest.approx(spread, abs=0.005)
    assert guess.high_s / guess.seconds - 1 == pytest.approx(spread, abs=0.005)


def test_the_error_bar_is_as_wide_as_the_worst_miss() -> None:
    samples = [RestoreSample(1, startup, 0, 0.0, 0, 0.0) for startup in (4.0, 5.0, 10.0)]
    guess = estimate(samples, state_bytes=0, replay_records=0)
    whole_s = BEFORE_S + 5.0
    assert (guess.seconds, guess.low_s, guess.high_s) == (whole_s, whole_s / 2, whole_s * 1.5)


def test_a_large_first_epoch_is_replay_and_a_small_one_is_start() -> None:
    small = RestoreSample(1, 5.0, 0, 0.0, 0, 0.0, first_records=3, first_s=2.0)
    large = RestoreSample(2, 5.0, 0, 0.0, 0, 0.0, first_records=1_000_000, first_s=22.0)
    guess = estimate([small, large], state_bytes=0, replay_records=500_000)
    assert guess.capacity_per_s == 50_000
    assert guess.seconds == BEFORE_S + 5.0 + 2.0 + 10.0


def test_waiting_for_the_next_process_is_measured_where_a_supervisor_saw_the_failure() -> None:
    waited = RestoreSample(1, 5.0, 0, 0.0, 0, 0.0, scheduling_s=8.0)
    guess = estimate([waited, SAMPLE], state_bytes=0, replay_records=0)
    assert guess.infrastructure is not None and guess.infrastructure.scheduling_s == 8.0


def test_an_estimate_names_what_nobody_has_measured() -> None:
    nothing = estimate([], state_bytes=1, replay_records=0)
    assert nothing.assumed == ["detection", "scheduling", "session", "state", "capacity"]
    assert "state" not in estimate([], state_bytes=0, replay_records=0).assumed
    assert estimate([SAMPLE], state_bytes=1, replay_records=0).assumed == [
        "detection", "scheduling",
    ]  # fmt: skip
    all_of_it = RestoreSample(1, 5.0, 100, 2.0, 10_000, 10.0, scheduling_s=0.2, detection_s=1.5)
    guess = estimate([all_of_it], state_bytes=1, replay_records=0)
    assert guess.assumed == []
    assert guess.infrastructure is not None and guess.infrastructure.detection_s == 1.5


def test_where_local_state_is_intact_none_is_read() -> None:
    pace = Pace(input_per_s=50_000)
    guess = estimate([SAMPLE], state_bytes=50_000_000, replay_records=0, pace=pace)
    stateless = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=pace)
    assert guess.with_local_s == stateless.seconds == stateless.with_local_s
    assert guess.seconds is not None and guess.with_local_s is not None
    assert guess.with_local_s < guess.seconds


def test_a_slow_function_shows_in_its_epochs_before_any_restore_was_measured() -> None:
    """Forty thousand a second would be said of it otherwise, and a restore to take no time."""
    pace = Pace(input_per_s=400, busy_per_s=420, interval_s=0.5, work_per_s=600)
    guess = estimate([], state_bytes=0, replay_records=0, pace=pace)
    assert (guess.capacity_per_s, guess.capacity) == (600, "epochs")
    assert "capacity" not in guess.assumed
    again = estimate([], state_bytes=0, replay_records=0, pace=guess.pace)
    assert (again.capacity_per_s, again.capacity) == (600, "epochs")
    # A measured restore knows better: it had epochs as a restore has them.
    known = estimate([SAMPLE], state_bytes=0, replay_records=0, pace=pace)
    assert known.capacity == "restores"


def test_a_large_restore_says_more_of_a_rate_than_many_small_ones() -> None:
    """As measured: a planned start took 2 s for 1,716 records, a restore 9.2 s for 30,462."""
    small = RestoreSample(1, 5.0, 0, 0.0, 1_716, 2.128)
    large = RestoreSample(2, 5.0, 0, 0.0, 30_462, 9.228)
    guess = estimate([small, large, *[small] * 8], state_bytes=0, replay_records=0)
    assert guess.capacity_per_s == pytest.approx(30_462 / 9.228, abs=1)


def test_a_short_restore_is_no_reason_to_say_never() -> None:
    """As measured: 986 a second in one of two seconds, of a pipeline that can do 3,000."""
    short = RestoreSample(1, 5.0, 0, 0.0, 1_716, 1.74)
    guess = estimate([short], state_bytes=0, replay_records=0, pace=Pace(input_per_s=1_000))
    assert guess.seconds is not None and guess.capacity == "assumed"
    fast = RestoreSample(1, 5.0, 0, 0.0, 120_000, 2.0)
    guess = estimate([short, fast], state_bytes=0, replay_records=0)
    assert (guess.capacity_per_s, guess.capacity) == (60_000, "restores")


def test_the_last_five_starts_say_how_long_a_start_takes() -> None:
    slow, fast = (RestoreSample(1, s, 0, 0.0, 0, 0.0, first_s=1.0) for s in (25.0, 10.0))
    guess = estimate([*[slow] * 9, *[fast] * 3], state_bytes=0, replay_records=0)
    assert guess.infrastructure is not None and guess.infrastructure.session_s == 11.0


def test_a_first_epoch_that_took_as_long_as_small_ones_do_says_nothing_of_a_rate() -> None:
    """Two thousand records in the three seconds that a cold session takes for ten."""
    cold = RestoreSample(1, 5.0, 0, 0.0, 0, 0.0, first_records=2_000, first_s=2.9)
    guess = estimate([cold], state_bytes=0, replay_records=0)
    assert guess.capacity == "assumed"
    assert guess.infrastructure is not None and guess.infrastructure.session_s == 5.0 + 2.9


def test_a_pipeline_that_keeps_up_with_more_than_a_restore_did_is_not_said_never_to() -> None:
    slow = RestoreSample(1, 5.0, 0, 0.0, 5_000, 5.0)
    pace = Pace(input_per_s=1_100, busy_per_s=990, kept_up=True)
    guess = estimate([slow], state_bytes=0, replay_records=0, pace=pace)
    assert guess.seconds is not None and guess.capacity == "assumed"


spans = st.floats(0.1, 1000)
samples_drawn = st.lists(
    st.builds(RestoreSample, st.just(0), spans, st.integers(0, 10**9), spans,
              st.integers(0, 10**9), spans, st.integers(0, 10**6), spans),
    max_size=15,
)  # fmt: skip
paces = st.builds(
    Pace, st.floats(0, 10**6), st.floats(0, 10**6), st.booleans(), st.just(False),
    st.floats(0, 600),
    st.floats(0, 60), st.floats(0, 10**6), st.floats(0, 10**6),
)  # fmt: skip


@example([], 0, 1, 1, Pace(0.0, 2.0, True, interval_s=0.0, near_s=22.0))
@example([], 0, 0, 59_520, Pace(near_s=0.0, work_per_s=3.3108892507759626e-304))
@given(samples_drawn, st.integers(0, 10**10), st.integers(0, 10**9), st.integers(1, 10**6), paces)
def test_more_to_replay_and_more_input_never_take_less_time(
    samples: list[RestoreSample], state: int, records: int, more: int, pace: Pace
) -> None:
    less = estimate(samples, state_bytes=state, replay_records=records, pace=pace)
    longer = estimate(samples, state_bytes=state + more, replay_records=records + more, pace=pace)
    if less.seconds is None:
        assert longer.seconds is None and less.missing_per_s >= 0
        return
    assert less.low_s is not None and 0 <= less.low_s <= less.seconds + 0.01
    assert less.high_s is None or less.high_s >= less.seconds - 0.01
    assert longer.seconds is not None and longer.seconds >= less.seconds
    assert less.infrastructure_s is not None and less.application_s is not None
    assert less.infrastructure_s + less.application_s == pytest.approx(less.seconds, abs=0.05)
    busier = msgspec.structs.replace(pace, input_per_s=pace.input_per_s * 1.1 + 1)
    loaded = estimate(samples, state_bytes=state, replay_records=records, pace=busier)
    assert loaded.seconds is None or loaded.seconds >= less.seconds


def simulated_s(tail: float, down_s: float, input_per_s: float, capacity_per_s: float) -> float:
    """A pipeline in epochs: each takes all there was when it began, and input goes on."""
    now_s, read, step_s = down_s, 0.0, 0.01
    while True:
        there = tail + input_per_s * now_s
        if there - read <= input_per_s * step_s + 1e-6:
            return now_s
        took = min(there - read, capacity_per_s * step_s)
        read += took
        now_s += took / capacity_per_s


@given(
    st.integers(0, 200_000), st.integers(0, 400_000_000), st.floats(0, 0.9), st.floats(0, 5.0),
)  # fmt: skip
def test_a_simulated_pipeline_is_useful_again_when_the_estimate_says(
    tail: int, state_bytes: int, load: float, scheduling_s: float
) -> None:
    sample = RestoreSample(1, 5.0, 100_000_000, 2.0, 100_000, 10.0, scheduling_s=scheduling_s)
    guess = estimate(
        [sample], state_bytes=state_bytes, replay_records=tail, pace=Pace(10_000 * load, near_s=0)
    )
    down_s = DEFAULT_DETECTION_S + scheduling_s + 5.0 + state_bytes / 50e6
    assert guess.seconds == pytest.approx(
        simulated_s(tail, down_s, 10_000 * load, 10_000), rel=0.05, abs=0.2
    )


# --- the pace ------------------------------------------------------------------------------------


def entry(
    epoch: int, start: int, end: int, clock_ms: int, finished_ms: int, run_ms: float = 0.0
) -> EpochEntry:
    def at(offset: int) -> SourceOffset:
        return SourceOffset(epoch, {"t": {"0": offset}}, [0], clock_ms)

    return EpochEntry(epoch, at(start), at(end), [], {}, finished_ms, run_ms=run_ms)


def ran(seconds: int, input_per_s: int, capacity_per_s: int) -> Pace:
    """A pipeline with an epoch a second, or one after the other where it cannot do that."""
    meter, read, now_ms = PaceMeter(), 0, 0
    for epoch in range(10_000):
        if now_ms >= seconds * 1000:
            break
        end = min(input_per_s * now_ms // 1000, read + capacity_per_s)
        took_ms = 1000 * (end - read) // capacity_per_s
        meter.epoch_done(entry(epoch, read, end, now_ms, now_ms + took_ms))
        read, now_ms = end, max(now_ms + took_ms, (epoch + 1) * 1000)
        meter.look({("t", 0): input_per_s * now_ms // 1000}, now_ms)
    return meter.pace()


def test_the_pace_of_a_pipeline_with_headroom() -> None:
    pace = ran(60, 100, 400)
    assert pace.input_per_s == pytest.approx(100, rel=0.02)
    assert pace.busy_per_s == pytest.approx(400, rel=0.02)
    assert pace.interval_s == pytest.approx(1, rel=0.05)
    assert pace.kept_up and not pace.saturated


def test_the_pace_of_a_pipeline_that_falls_behind() -> None:
    pace = ran(60, 500, 400)
    assert pace.saturated
    assert pace.busy_per_s == pytest.approx(400, rel=0.02)
    assert estimate([], state_bytes=0, replay_records=0, pace=pace).missing_per_s == pytest.approx(
        100, rel=0.1
    )


def test_a_short_burst_does_not_make_it_saturated() -> None:
    assert not ran(20, 500, 400).saturated


def test_a_pipeline_that_catches_up_is_not_saturated() -> None:
    meter = PaceMeter()
    for n in range(60):
        meter.epoch_done(entry(n, 400 * n, 400 * (n + 1), 1000 * n, 1000 * (n + 1)))
        meter.look({("t", 0): 10_000_000 + 100 * n}, 1000 * n)
    pace = meter.pace()
    assert (round(pace.input_per_s), pace.saturated) == (100, False)


def test_the_pace_forgets_what_is_older_than_five_minutes_and_a_replayed_clock() -> None:
    meter = PaceMeter()
    for n in range(1000):
        # Replayed epochs carry the clocks of their first time.
        meter.epoch_done(entry(n, 10 * n, 10 * (n + 1), 0, 1_000_000 + 1000 * n, run_ms=500))
        meter.look({("t", 0): 10 * n if n < 500 else 5_000}, 1_000_000 + 1000 * n)
    pace = meter.pace()
    assert pace.input_per_s == 0
    assert pace.busy_per_s == pytest.approx(10, rel=0.01)
    assert len(meter._ends) < 100 and len(meter._epochs) < 400


def after_a_burst(quiet_s: int, burst_per_s: int = 300) -> Pace:
    """A minute of it, then one record a second."""
    meter, end = PaceMeter(), 0
    for n in range(60 + quiet_s):
        before, end = end, end + (burst_per_s if n < 60 else 1)
        meter.epoch_done(entry(n, before, end, 1000 * n, 1000 * n + 500, run_ms=500))
        meter.look({("t", 0): end}, 1000 * n + 500)
    return meter.pace()


def test_a_burst_that_is_over_leaves_the_estimate_within_a_minute_and_stays_in_its_bar() -> None:
    def told(pace: Pace) -> tuple[float, float]:
        found = estimate([SAMPLE], state_bytes=0, replay_records=100, pace=pace)
        assert found.seconds is not None and found.high_s is not None
        return found.seconds, found.high_s

    during, after, long_after = (after_a_burst(each) for each in (0, 70, 400))
    assert during.input_per_s == pytest.approx(300, rel=0.02)
    assert after.input_per_s == pytest.approx(1) and after.longer_per_s > 100
    assert long_after.longer_per_s == pytest.approx(1)
    slow = Pace(input_per_s=60_000.0, longer_per_s=60_000.0)
    quiet = msgspec.structs.replace(slow, input_per_s=1.0)
    assert told(quiet)[0] < told(slow)[0] / 1.5
    assert told(quiet)[1] > 2 * told(Pace(input_per_s=1.0))[1]


def test_what_came_before_a_pipeline_fell_idle_is_not_taken_for_what_comes_now() -> None:
    meter = PaceMeter()
    for n in range(10):
        meter.look({("t", 0): 1000 * n}, 1000 * n)
    meter.look({("t", 0): 9_060}, 9_000 + 120_000)  # and nobody looked while nothing came
    assert meter._input_per_s(60_000) == pytest.approx(0.5)


def worked(records: int, function_ms: float, sink_ms: float, epochs: int = 20) -> PaceMeter:
    """A pipeline with an epoch a second, and a tenth of one beside functions and sinks."""
    meter = PaceMeter()
    for n in range(epochs):
        ran = entry(n, records * n, records * (n + 1), 1000 * n, 1000 * (n + 1), function_ms + 100)
        shards = [
            ShardEpoch(0, operator_ms=function_ms / 2),
            ShardEpoch(1, operator_ms=function_ms),
        ]
        meter.epoch_done(msgspec.structs.replace(ran, shards=shards, sink_ms={"out": sink_ms}))
    return meter


def test_the_pace_of_functions_and_sinks_is_that_of_the_slowest_task_and_the_commits() -> None:
    assert worked(300, 500.0, 100.0).pace().work_per_s == pytest.approx(500)


def test_small_epochs_say_nothing_of_how_fast_functions_are() -> None:
    assert worked(3, 20.0, 30.0).pace().work_per_s == 0
    stalled = worked(3, 20.0, 30.0)
    ran = worked(3, 5_000.0, 30.0, 1)
    stalled._epochs.extend(ran._epochs)
    assert stalled.pace().work_per_s == 0, "one that the machine held up is no measure"


def test_nothing_is_known_before_anything_was_seen() -> None:
    meter = PaceMeter()
    assert meter.pace() == Pace()
    meter.look({("t", 0): 5}, 1000)
    assert meter.pace() == Pace()


# --- a restore, measured against the moving tail -------------------------------------------------


def restored(input_per_s: int, capacity_per_s: int, tail: int) -> tuple[RestoreSample, float]:
    """Epochs of all there is, from second 110 on, after a start at 100; and when it was over."""
    watch = RestoreWatch(100.0, {("t", 0): tail}, 1, looked_s=105.0)
    now_s, read = 110.0, 0
    for epoch in range(1000):
        end = tail + int(input_per_s * (now_s - 105))
        took_s = 1.0 + (end - read) / capacity_per_s
        done = entry(epoch, read, end, 0, 0, run_ms=1000 * took_s)
        now_s, read = now_s + took_s, end
        there = tail + int(input_per_s * (now_s - 105))
        sample = watch.epoch_done(done, now_s, {("t", 0): there})
        if sample is not None:
            return sample, now_s
    raise AssertionError("it was never over")


def test_an_idle_input_is_caught_up_with_at_its_end() -> None:
    sample, _ = restored(0, 1000, 20_000)
    assert (sample.startup_s, sample.first_records, sample.first_s) == (10.0, 20_000, 21.0)
    assert (sample.replay_records, sample.replay_s) == (0, 0.0)


def test_a_moving_input_is_caught_up_with_only_near_its_end() -> None:
    sample, over_s = restored(500, 1000, 20_000)
    # The first epoch ends where the log ended when it was planned: 24 s of input are behind that.
    assert sample.replay_records > 10_000
    assert sample.seconds == pytest.approx(over_s - 100.0)
    assert estimate([sample], state_bytes=0, replay_records=0).capacity_per_s == pytest.approx(
        1000, rel=0.15
    )


@pytest.mark.parametrize("calibrated_at", [0, 500, 800])
def test_one_measured_restore_foretells_others_of_any_size_and_load(calibrated_at: int) -> None:
    """Median error a quarter at most, and none twice too long or short: idle, at 50 and 80 %."""
    calibrating, _ = restored(calibrated_at, 1000, 50_000)
    ratios = []
    for input_per_s in (0, 500, 800):
        for tail in (2_000, 20_000, 200_000):
            # What came between the start of the process and the look at the log is in the tail.
            behind = tail - 5 * input_per_s
            pace = Pace(input_per_s)
            guess = estimate([calibrating], state_bytes=0, replay_records=behind, pace=pace)
            assert guess.seconds is not None
            _, over_s = restored(input_per_s, 1000, tail)
            ratios.append((guess.seconds - BEFORE_S) / (over_s - 100.0))
    print([round(ratio, 2) for ratio in ratios])
    assert median(max(ratio, 1 / ratio) for ratio in ratios) <= 1.25
    assert all(0.5 <= ratio <= 2 for ratio in ratios)


def test_a_pipeline_that_never_catches_up_is_never_measured() -> None:
    with pytest.raises(AssertionError, match="never over"):
        restored(1200, 1000, 20_000)


def test_near_is_twice_a_usual_epoch() -> None:
    assert near_s([]) == 2.0
    assert near_s([entry(n, 0, 0, 1000, 11_000) for n in range(3)]) == 20.0


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_nothing_is_over_before_the_tail_of_the_start_is_reached(tail: int, there: int) -> None:
    assume(there < tail)
    watch = RestoreWatch(0.0, {("t", 0): tail}, 1)
    shards = [ShardEpoch(0)]
    end = SourceOffset(0, {"t": {"0": there}}, [0], 0)
    done = EpochEntry(0, end, end, shards, {}, 0)
    assert watch.epoch_done(done, 1e9, {("t", 0): tail * 1000}) is None


def test_the_default_rate_stands_where_only_small_restores_were_measured() -> None:
    tiny = RestoreSample(1, 5.0, 0, 0.0, 0, 0.0, first_records=5, first_s=3.0)
    guess = estimate([tiny], state_bytes=0, replay_records=0)
    assert (guess.capacity_per_s, guess.capacity) == (DEFAULT_REPLAY_RECORDS_PER_S, "assumed")
