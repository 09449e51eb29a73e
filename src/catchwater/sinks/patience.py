"""Asking a target again that may be back soon.

Only `SinkUnavailable` is met with patience; waits double, are drawn at random up to that, and end
with `retry` of the sink's configuration. Then the error goes up with the time it took, the epoch
fails, and the pipeline's own restarts take over.
"""

from collections.abc import Callable
from typing import TypeVar

from catchwater.clock import Clock
from catchwater.sinks.base import SinkUnavailable

T = TypeVar("T")

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


class Patience:
    """How long one target has been away."""

    def __init__(self, clock: Clock, retry_ms: int) -> None:
        self._clock = clock
        self._retry_s = retry_ms / 1000
        self._since_s: float | None = None
        self._tries = 0

    def answered(self) -> None:
        """The target is there: the next failure is a first one."""
        self._since_s, self._tries = None, 0

    def wait(self, error: SinkUnavailable) -> None:
        """Wait for the next attempt. Raises `SinkUnavailable` when it has been long enough."""
        now_s = self._clock.monotonic_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        self._tries += 1
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (self._tries - 1))
        wait_s *= self._clock.random.uniform(0.5, 1.0)
        away_s = now_s - self._since_s
        if away_s + wait_s > self._retry_s:
            raise SinkUnavailable(
                f"{error} Given up after {self._tries} tries in {away_s:.1f} s; nothing is lost.",
                hint=error.hint or "The epoch runs again when the pipeline is started again.",
            ) from error
        self._clock.pause(wait_s)


def patiently(call: Callable[[], T], clock: Clock, retry_ms: int) -> T:
    """What the call returns, asked again for so long as it raises `SinkUnavailable`."""
    patience = Patience(clock, retry_ms)
    while True:
        try:
            return call()
        except SinkUnavailable as error:
            patience.wait(error)
