"""Whether the wall clock can be believed: it must have gone on as the monotonic clock has.

Retention by age and delete horizons compare the times of records with the wall clock, and one that
was set an hour ahead would delete an hour too early. So they act only when both clocks agree on
how long it has been since the last look; after a jump they wait for the next one.
"""

from catchwater.clock import Clock

TOLERANCE_MS = 10_000
"""More than a clock is slewed by between two passes; what it may cost in retention."""


class ClockJumps:
    """Compares the clocks at every look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._look()

    def since_last(self) -> int:
        """By how many milliseconds the wall clock has jumped since the last call; 0: it has not."""
        before_ms, self._ahead_ms = self._ahead_ms, self._look()
        jump_ms = self._ahead_ms - before_ms
        return jump_ms if abs(jump_ms) > TOLERANCE_MS else 0

    def _look(self) -> int:
        return self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)
