"""The schedule of one epoch's questions, on a clock moved by hand."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from catchwater.pipeline.calls.policy import Breaker, BreakerState, Call, Policy, check
from catchwater.pipeline.calls.schedule import Schedule

Endpoint = Callable[[int, int], tuple[int, bool]]
"""(index, attempt) → (after how many ms, whether it is an answer)."""


class World:
    """Drives a `Schedule` against an endpoint, and remembers when which attempt began."""

    def __init__(
        self, call: Call, questions: int, breaker: BreakerState | None = None, now: int = 0
    ) -> None:
        self.policy: Policy = check(call)
        self.now = now
        self.breaker = breaker or BreakerState(self.policy.breaker)
        self.schedule = Schedule(self.policy, self.breaker, questions, Random(3), now)
        self.began: dict[int, list[int]] = {i: [] for i in range(questions)}
        self.most = 0

    def run(self, endpoint: Endpoint) -> None:
        schedule = self.schedule
        reports: list[tuple[int, int, int, bool]] = []
        while not schedule.settled:
            for report in sorted(reports):
                at, index, attempt, good = report
                if at <= self.now:
                    reports.remove(report)
                    if schedule.attempt_of(index) == attempt:
                        if good:
                            schedule.answered(index, self.now)
                        else:
                            schedule.failed(index, "it said no", self.now)
            schedule.cut(self.now)
            for index in schedule.begin(self.now):
                self.began[index].append(self.now)
                after, good = endpoint(index, len(self.began[index]))
                reports.append((self.now + after, index, len(self.began[index]), good))
            self.most = max(self.most, len(schedule._under_way))
            wake = schedule.wake_ms()
            if wake is not None:
                self.now = max(self.now, min([wake, *(report[0] for report in reports)]))


def test_an_endpoint_that_answers_is_asked_once_a_question():
    world = World(Call(concurrency=2), 5)
    world.run(lambda index, attempt: (10, True))
    assert all(len(began) == 1 for began in world.began.values())
    assert (world.now, world.most, world.schedule.failures) == (30, 2, {})


def test_attempts_are_as_many_and_spaced_as_declared_then_the_cause_stands():
    world = World(Call(attempts=4, backoff="100ms", max_backoff="300ms", breaker=None), 1)
    world.run(lambda index, attempt: (5, False))
    began = world.began[0]
    waits = [b - a - 5 for a, b in pairwise(began)]
    assert len(began) == 4
    for waited, declared in zip(waits, (100, 200, 300), strict=True):
        assert 0.8 * declared <= waited <= 1.2 * declared
    assert world.schedule.failures == {0: "it said no (4 attempts)"}


def test_a_call_that_hangs_is_cut_at_its_timeout():
    world = World(Call(timeout="2s", attempts=2, backoff="1s"), 1)
    world.run(lambda index, attempt: (60_000, True))
    assert world.began[0][1] - 2000 in range(800, 1201)
    assert world.schedule.failures[0] == "no answer within 2000 ms (2 attempts)"
    assert world.schedule.counts.failed == 2


def test_an_answer_that_comes_after_the_cut_is_too_late():
    world = World(Call(timeout="1s", attempts=2, backoff="1s"), 1)
    world.run(lambda index, attempt: (1500, True) if attempt == 1 else (10, True))
    assert len(world.began[0]) == 2
    assert world.schedule.counts.latencies_ms == [10]


def test_an_open_breaker_fails_what_is_left_at_once():
    world = World(Call(concurrency=2, attempts=1, breaker=Breaker(failures=4)), 100)
    world.run(lambda index, attempt: (10, False))
    assert world.schedule.counts.attempts == 4
    assert world.now == 20
    assert world.schedule.failures[99].startswith("the breaker is open")


def test_in_the_half_open_state_one_tries_and_the_others_wait_for_it():
    policy = check(Call(breaker=Breaker(failures=1, open_for="1s")))
    breaker = BreakerState(policy.breaker)
    breaker.failed(0, 0)
    world = World(Call(breaker=Breaker(failures=1, open_for="1s")), 10, breaker, 1000)
    world.run(lambda index, attempt: (10, True))
    assert sorted(began for [began] in world.began.values()) == [1000, *[1010] * 9]


def test_a_spent_budget_settles_everything():
    world = World(Call(concurrency=1, timeout="1s", attempts=9, budget="3500ms", breaker=None), 9)
    world.run(lambda index, attempt: (60_000, True))
    assert world.now == 3500
    assert len(world.schedule.failures) == 9
    assert "the budget of 3500 ms" in world.schedule.failures[8]


@given(
    questions=st.integers(0, 30),
    concurrency=st.integers(1, 5),
    attempts=st.integers(1, 4),
    breaker=st.none() | st.builds(Breaker, failures=st.integers(1, 6), open_for=st.just("100ms")),
    budget=st.none() | st.just("700ms"),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_endpoint_does_everything_settles_within_its_bounds(
    questions: int,
    concurrency: int,
    attempts: int,
    breaker: Breaker | None,
    budget: str | None,
    seed: int,
):
    draw = Random(seed)
    call = Call("50ms", concurrency, attempts, "10ms", "20ms", budget, breaker)
    world = World(call, questions)
    world.run(lambda index, attempt: (draw.choice((0, 1, 10, 70)), draw.random() < 0.5))
    counts = world.schedule.counts
    assert all(len(began) <= attempts for began in world.began.values())
    assert world.most <= concurrency
    assert counts.attempts == sum(map(len, world.began.values()))
    assert len(counts.latencies_ms) + len(world.schedule.failures) == questions
    assert budget is None or world.now <= 700
