"""Asking the endpoints: threads, time and the schedule put together.

One `Caller` lives as long as its process; its breakers and threads outlive an epoch. `ask` blocks
until every question is settled, which the policies bound.
"""

from collections.abc import Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.calls.answers import BoundCall, Key, Outcome
from catchwater.pipeline.calls.breaker import BreakerState
from catchwater.pipeline.calls.schedule import Schedule
from catchwater.pipeline.calls.threads import Threads
from catchwater.recovery.ledger import CallEpoch

HANGING_PER_PLACE = 4
"""How many cut calls may still hang for each that may be under way."""

_Report = tuple[int, int, Outcome]
"""Index, attempt, and what came of it."""


class Caller:
    """The endpoints of one function, asked from this process."""

    def __init__(self, calls: Mapping[str, BoundCall], clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._endpoints = {name: _Endpoint(call, clock) for name, call in calls.items()}

    def ask(self, questions: Mapping[Key, Any]) -> tuple[dict[Key, Outcome], dict[str, CallEpoch]]:
        """Ask everything, all endpoints at the same time; what came of each, and of each call."""
        reports: SimpleQueue[None] = SimpleQueue()
        rounds = []
        for name, endpoint in self._endpoints.items():
            own = {key: question for key, question in questions.items() if key[0] == name}
            if own:
                rounds.append(_Round(endpoint, own, reports))
        while pending := [each for each in rounds if not each.advance()]:
            wake_ms = min(each.wake_ms() for each in pending)
            wait_s = wake_ms / 1000 - self._clock.monotonic_s()
            if wait_s > 0:
                try:
                    reports.get(timeout=wait_s)
                except Empty:
                    continue
        outcomes: dict[Key, Outcome] = {}
        for each in rounds:
            outcomes |= each.outcomes()
        return outcomes, {each.name: each.counts() for each in rounds}


class _Endpoint:
    """What outlives an epoch: breaker and threads."""

    def __init__(self, call: BoundCall, clock: Clock) -> None:
        self.call = call
        self.clock = clock
        self.breaker = BreakerState(call.policy.breaker)
        places = call.policy.concurrency
        self.threads = Threads(f"call-{call.name}", places * (1 + HANGING_PER_PLACE))

    def now_ms(self) -> int:
        """Milliseconds on a clock that never goes back."""
        return round(self.clock.monotonic_s() * 1000)


class _Round:
    """One epoch's questions to one endpoint."""

    def __init__(
        self, endpoint: _Endpoint, questions: Mapping[Key, Any], wake: "SimpleQueue[None]"
    ) -> None:
        self._endpoint = endpoint
        self._keys = list(questions)
        self._questions = list(questions.values())
        self._wake = wake
        self._reports: SimpleQueue[_Report] = SimpleQueue()
        self._schedule = Schedule(
            endpoint.call.policy,
            endpoint.breaker,
            len(questions),
            endpoint.clock.random,
            endpoint.now_ms(),
        )
        self._answered: dict[Key, Outcome] = {}

    @property
    def name(self) -> str:
        """The call's."""
        return self._endpoint.call.name

    def advance(self) -> bool:
        """Take what was reported, cut what is late, begin what may begin; whether all is settled.

        A report that comes after its attempt was cut is dropped.
        """
        schedule = self._schedule
        while not self._reports.empty():
            index, attempt, outcome = self._reports.get()
            if schedule.attempt_of(index) != attempt:
                continue
            if outcome.answer is None:
                schedule.failed(index, outcome.why, self._endpoint.now_ms())
            else:
                schedule.answered(index, self._endpoint.now_ms())
                self._answered[self._keys[index]] = outcome
        schedule.cut(self._endpoint.now_ms())
        while begun := schedule.begin(self._endpoint.now_ms()):
            for index in begun:
                self._begin(index)
        return schedule.settled

    def _begin(self, index: int) -> None:
        threads = self._endpoint.threads
        attempt = self._schedule.attempt_of(index)
        assert attempt is not None, "it has just begun"
        if not threads.run(partial(self._run, index, attempt)):
            why = f"all {threads.count} threads hang in calls that were cut"
            self._schedule.failed(index, why, self._endpoint.now_ms())

    def _run(self, index: int, attempt: int) -> None:
        """In a thread: ask once, and wake the one who waits."""
        outcome = self._endpoint.call.answer(self._questions[index])
        self._reports.put((index, attempt, outcome))
        self._wake.put(None)

    def outcomes(self) -> dict[Key, Outcome]:
        """Of every question, once all is settled."""
        failures = self._schedule.failures.items()
        return self._answered | {self._keys[i]: Outcome(None, why) for i, why in failures}

    def wake_ms(self) -> int:
        """When to look again though nothing was reported; not asked once all is settled."""
        wake_ms = self._schedule.wake_ms()
        assert wake_ms is not None, "something is not settled"
        return wake_ms

    def counts(self) -> CallEpoch:
        """For the shard's manifest."""
        counts = self._schedule.counts
        return CallEpoch(
            questions=len(self._keys),
            attempts=counts.attempts,
            failed_attempts=counts.failed,
            failures=len(self._schedule.failures),
            p99_ms=_p99(counts.latencies_ms),
            breaker=self._endpoint.breaker.name(self._endpoint.now_ms()),
        )


def _p99(latencies_ms: list[int]) -> int:
    return sorted(latencies_ms)[len(latencies_ms) * 99 // 100] if latencies_ms else 0
