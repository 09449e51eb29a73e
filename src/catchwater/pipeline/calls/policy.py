"""How long, how often and how many at a time an endpoint may be asked, as a function declares it.

`Call` and `Breaker` are what a user writes, with durations as texts; `Policy` is the same in
milliseconds, checked. Pure.
"""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
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
    again, the event becomes a dead letter, or the handler gets None.
    """

    timeout: str = "2s"
    concurrency: int = 16
    attempts: int = 3
    backoff: str = "100ms"
    max_backoff: str = "5s"
    budget: str | None = None
    breaker: Breaker | None = Breaker()
    on_failure: OnFailure = "fail"


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
