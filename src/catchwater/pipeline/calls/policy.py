"""How long, how often and how many at a time an endpoint may be asked, as a function declares it.

`Call` and `Breaker` are what a user writes, with durations as texts; `Policy` is the same in
milliseconds, checked. Pure.

The breaker of one endpoint: closed, open, half-open. Pure; every method takes the time.

closed      all attempts may begin; enough failures within the declared time open the breaker
open        no attempt may begin until `open_for` has passed
half-open   one attempt may begin while the others wait: its success closes the breaker, its failure
            opens it again

Only attempts that began since the breaker last changed count: those that were under way when it
opened say nothing about the endpoint later.
"""

import typing
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from random import Random  # noqa: TID251  (only its type; drawn from a clock's)
from typing import Any, Literal

from catchwater.config import duration_ms

OnFailure = Literal["fail", "dead-letter", "none"]

JITTER = 0.2
"""A wait is drawn from so much less to so much more than the schedule says."""


@dataclass(frozen=True)
class Breaker:
    """After `failures` failed attempts `within` a time nobody asks for `open_for`."""

    failures: int = 20
    within: str = "30s"
    open_for: str = "30s"


@dataclass(frozen=True)
class Call:
    """One endpoint that a function asks.

    `timeout` is an attempt's; `concurrency` counts attempts under way in one Spark task.
    The n-th retry waits `backoff` × 2ⁿ⁻¹, at most `max_backoff`, give or take 20 %. `budget` is how
    long one shard's epoch may wait for all its answers. What is unanswered then, or after so many
    `attempts`, or while the breaker is open, goes by `on_failure`: the epoch fails and is tried
    again, the event becomes a dead letter, or the handler gets None. With `batch` so many questions
    are asked together: `call_NAME` takes a list and gives a list with an answer for each.
    """

    timeout: str = "2s"
    concurrency: int = 16
    attempts: int = 3
    backoff: str = "100ms"
    max_backoff: str = "5s"
    budget: str | None = None
    breaker: Breaker | None = Breaker()
    on_failure: OnFailure = "fail"
    batch: int | None = None


SETTINGS = (
    *(field.name for field in fields(Call) if field.name != "breaker"),
    *(f"breaker.{field.name}" for field in fields(Breaker)),
)
"""What the file of a pipeline may say of a call, in `[call.NAME]`."""


@dataclass(frozen=True)
class BreakerPolicy:
    """A `Breaker` in milliseconds."""

    failures: int
    within_ms: int
    open_for_ms: int


@dataclass(frozen=True)
class Policy:
    """A `Call` in milliseconds."""

    timeout_ms: int
    concurrency: int
    attempts: int
    backoff_ms: int
    max_backoff_ms: int
    budget_ms: int | None
    breaker: BreakerPolicy | None
    on_failure: OnFailure
    batch: int | None = None

    def wait_ms(self, failed: int, random: Random) -> int:
        """How long to wait after so many failed attempts, from the first on."""
        wait: float = min(self.max_backoff_ms, self.backoff_ms << (failed - 1))
        return round(wait * random.uniform(1 - JITTER, 1 + JITTER))


def check(call: Call) -> Policy:
    """The policy a call declares; ValueError naming the field that is wrong."""
    if not isinstance(call, Call):
        raise ValueError(f"{call!r} is not a Call(…)")
    if call.on_failure not in typing.get_args(OnFailure):
        raise ValueError(f"on_failure={call.on_failure!r} must be 'fail', 'dead-letter' or 'none'")
    return Policy(
        timeout_ms=_duration("timeout", call.timeout),
        concurrency=_count("concurrency", call.concurrency, 1000),
        attempts=_count("attempts", call.attempts, 100),
        backoff_ms=_duration("backoff", call.backoff),
        max_backoff_ms=_duration("max_backoff", call.max_backoff),
        budget_ms=None if call.budget is None else _duration("budget", call.budget),
        breaker=None if call.breaker is None else _breaker(call.breaker),
        on_failure=call.on_failure,
        batch=None if call.batch is None else _count("batch", call.batch, 100_000),
    )


def override(call: Call, settings: Mapping[str, str]) -> Call:
    """The call with what a pipeline's file says of it, by the names in `SETTINGS`.

    ValueError naming what it does not know.
    """
    own: dict[str, Any] = {}
    below: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in SETTINGS:
            raise ValueError(f"there is no {key}; there are {', '.join(SETTINGS)}")
        if key == "batch" and call.batch is None:
            raise ValueError("batch is for a call that takes a list: declare Call(batch=…)")
        value = int(text) if text.isdigit() else text
        if key.startswith("breaker."):
            below[key.removeprefix("breaker.")] = value
        else:
            own[key] = value
    breaker = replace(call.breaker or Breaker(), **below) if below else call.breaker
    return replace(call, **own, breaker=breaker)


def _breaker(breaker: Breaker) -> BreakerPolicy:
    if not isinstance(breaker, Breaker):
        raise ValueError(f"breaker={breaker!r} is neither a Breaker(…) nor None")
    return BreakerPolicy(
        failures=_count("breaker.failures", breaker.failures, 100_000),
        within_ms=_duration("breaker.within", breaker.within),
        open_for_ms=_duration("breaker.open_for", breaker.open_for),
    )


def _duration(field: str, text: str) -> int:
    ms = duration_ms(text, field)
    if ms == 0:
        raise ValueError(f"{field}={text!r} must be longer than nothing")
    return ms


def _count(field: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{field}={value!r} must be a whole number from 1 to {most}")
    return value


class Gate(Enum):
    """The breaker's answer to an attempt that would begin."""

    GO = "go"
    HOLD = "hold"
    """Another attempt is trying the endpoint; ask again when it has ended."""
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
        """An attempt ended without an outcome; if it was the trial, another may begin."""
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
