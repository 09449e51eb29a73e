"""Asks the endpoints: threads, time and the schedule together.

One `Caller` is used for the whole life of its process, with its breakers and threads. `ask` blocks
until every question is settled, for a time that the policies bound.

Daemon threads that run calls, and may be left behind while they hang.

A thread cannot be ended from outside. A call that is cut off keeps its thread until the endpoint
answers; the next call gets another thread, up to a limit. Daemon threads, unlike those of
`concurrent.futures`, do not keep the interpreter from exiting.

The answers for one shard's epoch: those that are kept, then the endpoints, then handlers.

A handler gets only answers that are in the journal. So its handlers get the same answers in every
repetition of an epoch, by any process; an endpoint is asked again only questions whose answer no
earlier attempt had written, or that it failed to answer while `on_failure` is "fail".
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.calls.answers import (
    Answers,
    BoundCall,
    CallFailed,
    Key,
    Outcome,
    questions,
)
from catchwater.pipeline.calls.journal import Journal
from catchwater.pipeline.calls.policy import BreakerState
from catchwater.pipeline.calls.schedule import Schedule
from catchwater.recovery.ledger import CallEpoch


class Threads:
    """At most so many threads, started when they are needed and kept for the next call."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that no job has been given to."""

    @property
    def count(self) -> int:
        """Threads there are, busy, hanging or idle."""
        return self._threads

    def run(self, job: Callable[[], None]) -> bool:
        """Run the job, which must not raise, on a thread of its own; False if all of them hang."""
        with self._lock:
            if self._free:
                self._free -= 1
            elif self._threads < self._limit:
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                return False
        self._jobs.put(job)
        return True

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._free += 1


HANGING_PER_PLACE = 4
"""How many cut calls may still hang for each that may be under way."""

_Report = tuple[int, int, list[Outcome]]
"""Index, attempt, and what came of its questions."""


class Caller:
    """The endpoints of one function, asked from this process."""

    def __init__(self, calls: Mapping[str, BoundCall], clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._endpoints = {name: _Endpoint(call, clock) for name, call in calls.items()}

    def ask(self, questions: Mapping[Key, Any]) -> tuple[dict[Key, Outcome], dict[str, CallEpoch]]:
        """Ask all endpoints at the same time; the outcome of each question, and of each call."""
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
    """The state that is kept between epochs: breaker and threads."""

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
        together = endpoint.call.policy.batch or 1
        count = len(questions)
        self._asked = [range(at, min(at + together, count)) for at in range(0, count, together)]
        """Which questions are asked together: one question of the schedule's."""
        self._wake = wake
        self._reports: SimpleQueue[_Report] = SimpleQueue()
        self._schedule = Schedule(
            endpoint.call.policy,
            endpoint.breaker,
            len(self._asked),
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
            index, attempt, outcomes = self._reports.get()
            if schedule.attempt_of(index) != attempt:
                continue
            if outcomes[0].answer is None:
                schedule.failed(index, outcomes[0].why, self._endpoint.now_ms())
            else:
                schedule.answered(index, self._endpoint.now_ms())
                keys = (self._keys[each] for each in self._asked[index])
                self._answered.update(zip(keys, outcomes, strict=True))
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
        """In a thread: ask once, and wake the waiting caller."""
        outcomes = self._endpoint.call.answers([self._questions[i] for i in self._asked[index]])
        self._reports.put((index, attempt, outcomes))
        self._wake.put(None)

    def outcomes(self) -> dict[Key, Outcome]:
        """Of every question, once all is settled."""
        failed = {
            self._keys[each]: Outcome(None, why)
            for index, why in self._schedule.failures.items()
            for each in self._asked[index]
        }
        return self._answered | failed

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
            failures=sum(len(self._asked[index]) for index in self._schedule.failures),
            p99_ms=_p99(counts.latencies_ms),
            breaker=self._endpoint.breaker.name(self._endpoint.now_ms()),
        )


def _p99(latencies_ms: list[int]) -> int:
    return sorted(latencies_ms)[len(latencies_ms) * 99 // 100] if latencies_ms else 0


class Calls:
    """The calls of one function in this process."""

    def __init__(
        self, calls: Mapping[str, BoundCall], journal: Journal, clock: Clock = SYSTEM
    ) -> None:
        self._calls = calls
        self._journal = journal
        self._caller = Caller(calls, clock)

    def answers(
        self, epoch: int, shard: int, events: Iterable[Any]
    ) -> tuple[Answers, dict[str, CallEpoch]]:
        """Answers to all the events ask, and what was asked for them now, by call.

        Raises `CallFailed` for a question without an answer whose call says "fail"; what was
        answered is kept for the next attempt. Raises `JournalDamaged`, `StoreError`.
        """
        wanted = questions(self._calls, events)
        if not wanted:
            return Answers(self._calls, {}), {}
        pages = self._journal.open(epoch, shard)
        asked = {key: q for key, q in wanted.items() if key not in pages.outcomes}
        found, counts = self._caller.ask(asked)
        pages.add({key: outcome for key, outcome in found.items() if self._may_keep(key, outcome)})
        for key in asked:
            if key not in pages.outcomes:
                raise self._failed(key, found[key], sum(key not in pages.outcomes for key in asked))
        return Answers(self._calls, pages.outcomes), counts

    def _may_keep(self, key: Key, outcome: Outcome) -> bool:
        return outcome.answer is not None or self._calls[key[0]].policy.on_failure != "fail"

    def _failed(self, key: Key, outcome: Outcome, failures: int) -> CallFailed:
        return CallFailed(
            f"The call {key[0]!r} was not answered for {failures} questions of this epoch, the "
            f"first: {outcome.why}.",
            hint='The epoch is tried again. With on_failure="dead-letter" or "none" it would go on '
            "without these answers.",
        )
