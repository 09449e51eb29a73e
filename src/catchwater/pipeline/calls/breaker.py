"""The breaker of one endpoint: closed, open, half-open. Pure; every method is told the time.

closed      all may ask; the last failures are remembered, and enough of them within the declared
            time open it
open        nobody may ask until `open_for` has passed
half-open   one may try while the others wait: its success closes the breaker, its failure opens it
            again

Only attempts that began since the breaker last changed count: what was under way when it opened
says nothing about the endpoint later.
"""

from collections import deque
from enum import Enum

from catchwater.pipeline.calls.policy import BreakerPolicy


class Gate(Enum):
    """What an attempt that wants to begin is told."""

    GO = "go"
    HOLD = "hold"
    """Another one is trying the endpoint; ask again when it is through."""
    REFUSED = "refused"


class BreakerState:
    """One endpoint's breaker in one process; without a policy it is always closed."""

    def __init__(self, policy: BreakerPolicy | None) -> None:
        self._policy = policy
        self._failed_ms: deque[int] = deque(maxlen=policy.failures if policy else 1)
        self._open_until_ms: int | None = None
        """None: closed."""
        self._trial_began_ms: int | None = None
        self._changed_ms = -1

    def name(self, now_ms: int) -> str:
        """`closed`, `open` or `half-open`."""
        if self._open_until_ms is None:
            return "closed"
        return "open" if now_ms < self._open_until_ms else "half-open"

    def gate(self, now_ms: int) -> Gate:
        """May an attempt begin now? GO in the half-open state makes it the one that tries."""
        if self._open_until_ms is None:
            return Gate.GO
        if now_ms < self._open_until_ms:
            return Gate.REFUSED
        if self._trial_began_ms is not None:
            return Gate.HOLD
        self._trial_began_ms = now_ms
        return Gate.GO

    def succeeded(self, began_ms: int, now_ms: int) -> None:
        """An attempt was answered."""
        if self._is_trial(began_ms):
            self._open_until_ms = self._trial_began_ms = None
            self._changed_ms = now_ms
            self._failed_ms.clear()

    def failed(self, began_ms: int, now_ms: int) -> None:
        """An attempt failed or was cut."""
        if self._policy is None:
            return
        if self._is_trial(began_ms):
            self._open(now_ms)
        elif self._open_until_ms is None and began_ms >= self._changed_ms:
            self._failed_ms.append(now_ms)
            full = len(self._failed_ms) == self._policy.failures
            if full and now_ms - self._failed_ms[0] <= self._policy.within_ms:
                self._open(now_ms)

    def gave_up(self, began_ms: int) -> None:
        """An attempt ended without a word on the endpoint; if it was the trial, another may try."""
        if self._is_trial(began_ms):
            self._trial_began_ms = None

    def _is_trial(self, began_ms: int) -> bool:
        return self._trial_began_ms is not None and began_ms >= self._trial_began_ms

    def _open(self, now_ms: int) -> None:
        assert self._policy is not None, "without a policy it stays closed"
        self._open_until_ms = now_ms + self._policy.open_for_ms
        self._trial_began_ms = None
        self._changed_ms = now_ms
        self._failed_ms.clear()
