"""The schedule of one epoch's questions to one endpoint. Pure.

Every question is in one of four places: ready (may begin when there is room and the breaker lets
it), waiting (for the time of its next attempt), under way (until it is answered, fails, or its
deadline cuts it off), or settled (answered, or failed for good with the last cause). The caller
begins the questions that `begin` returns, reports their outcomes, and calls again at `wake_ms`.

Promises that a question is attempted no more than `attempts` times, that retries are spaced as the
policy says, that never more than `concurrency` are under way, and that all is settled when the
budget ends.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random  # noqa: TID251  (only its type; drawn from a clock's)

from catchwater.pipeline.calls.policy import BreakerState, Gate, Policy


@dataclass
class Counts:
    """Counts of the attempts' outcomes."""

    attempts: int = 0
    failed: int = 0
    """Attempts that failed or were cut."""
    latencies_ms: list[int] = field(default_factory=list)
    """Of the attempts that were answered."""


class Schedule:
    """One epoch's questions to one endpoint, known by their index."""

    def __init__(
        self, policy: Policy, breaker: BreakerState, questions: int, random: Random, now_ms: int
    ) -> None:
        self._policy = policy
        self._breaker = breaker
        self._random = random
        self._ready = deque(range(questions))
        self._waiting: list[tuple[int, int]] = []
        """A heap of (time of the next attempt, index)."""
        self._under_way: dict[int, int] = {}
        """Index → when its attempt began; in the order they began."""
        self._attempts = [0] * questions
        self._end_ms = None if policy.budget_ms is None else now_ms + policy.budget_ms
        self.failures: dict[int, str] = {}
        """Questions that failed for good, with why."""
        self.counts = Counts()

    @property
    def settled(self) -> bool:
        """Whether every question is answered or has failed for good."""
        return not (self._ready or self._waiting or self._under_way)

    def begin(self, now_ms: int) -> list[int]:
        """The questions whose next attempt begins now; they are under way from here on."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(heappop(self._waiting)[1])
        begun: list[int] = []
        while self._ready and len(self._under_way) < self._policy.concurrency:
            gate = self._breaker.gate(now_ms)
            if gate is Gate.HOLD:
                break
            index = self._ready.popleft()
            if gate is Gate.REFUSED:
                self.failures[index] = "the breaker is open: too many calls failed"
                continue
            self._under_way[index] = now_ms
            self._attempts[index] += 1
            self.counts.attempts += 1
            begun.append(index)
        return begun

    def attempt_of(self, index: int) -> int | None:
        """The number of the attempt under way, None if none is: what comes then is too late."""
        return self._attempts[index] if index in self._under_way else None

    def answered(self, index: int, now_ms: int) -> None:
        """The attempt under way was answered."""
        began_ms = self._under_way.pop(index)
        self._breaker.succeeded(began_ms, now_ms)
        self.counts.latencies_ms.append(now_ms - began_ms)

    def failed(self, index: int, why: str, now_ms: int) -> None:
        """The attempt under way failed; there may be another one."""
        began_ms = self._under_way.pop(index)
        self._breaker.failed(began_ms, now_ms)
        self.counts.failed += 1
        attempts = self._attempts[index]
        if attempts >= self._policy.attempts:
            tried = "" if attempts == 1 else f" ({attempts} attempts)"
            self.failures[index] = f"{why}{tried}"
        else:
            heappush(self._waiting, (now_ms + self._policy.wait_ms(attempts, self._random), index))

    def cut(self, now_ms: int) -> None:
        """End the attempts whose time is over, and everything when the budget is."""
        late = now_ms - self._policy.timeout_ms
        for index in [i for i, began_ms in self._under_way.items() if began_ms <= late]:
            self.failed(index, f"no answer within {self._policy.timeout_ms} ms", now_ms)
        if self._end_ms is not None and now_ms >= self._end_ms and not self.settled:
            self._end()

    def _end(self) -> None:
        for began_ms in self._under_way.values():
            self._breaker.gave_up(began_ms)
        unsettled = [*self._ready, *(index for _, index in self._waiting), *self._under_way]
        why = f"the budget of {self._policy.budget_ms} ms for an epoch's calls was spent"
        self.failures.update(dict.fromkeys(unsettled, why))
        self._ready.clear()
        self._waiting.clear()
        self._under_way.clear()

    def wake_ms(self) -> int | None:
        """When to look again though nothing was reported; None: all is settled."""
        times = [self._end_ms] if self._end_ms is not None else []
        if self._waiting:
            times.append(self._waiting[0][0])
        if self._under_way:
            times.append(next(iter(self._under_way.values())) + self._policy.timeout_ms)
        return None if self.settled else min(times)
