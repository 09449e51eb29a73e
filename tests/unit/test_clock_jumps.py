"""A wall clock is believed only where it has gone on as the monotonic clock has (F15)."""

import pytest

from catchwater.clock import TOLERANCE_MS, ClockJumps, ManualClock

HOUR_MS = 3_600_000


class TwoClocks(ManualClock):
    """A wall clock that can be set apart from the monotonic one."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, TOLERANCE_MS + 1])
def test_a_jump_is_told_once_then_the_new_time_counts(jump_ms: int) -> None:
    clock = TwoClocks()
    jumps = ClockJumps(clock)
    clock.advance(HOUR_MS)
    assert jumps.since_last() == 0
    clock.set_by_ms += jump_ms
    clock.advance(5)
    assert jumps.since_last() == jump_ms
    clock.advance(HOUR_MS)
    assert jumps.since_last() == 0


def test_a_clock_that_is_slewed_a_little_is_believed() -> None:
    clock = TwoClocks()
    jumps = ClockJumps(clock)
    clock.set_by_ms += TOLERANCE_MS
    assert jumps.since_last() == 0
