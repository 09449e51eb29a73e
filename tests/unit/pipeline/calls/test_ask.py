"""Asking with real threads: what is cut, what is retried, what hangs."""

import threading
from typing import Any

import pytest

from catchwater.clock import SYSTEM
from catchwater.pipeline.calls.answers import bind, questions
from catchwater.pipeline.calls.ask import HANGING_PER_PLACE, Caller
from catchwater.pipeline.calls.policy import Breaker, Call

PATIENT = Call(timeout="30s", backoff="1ms", max_backoff="2ms", breaker=None)
QUICK = Call(timeout="60ms", attempts=1, concurrency=2, breaker=None)


class Endpoint:
    """What the tests' functions ask; it can be made to fail or to hang."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail_first = 0
        self.let_go = threading.Event()
        self.hanging: set[str] = set()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, question: str) -> int:
        with self._lock:
            self.asked.append(question)
            self._now += 1
            self.most = max(self.most, self._now)
            failing = self.asked.count(question) <= self.fail_first
        try:
            if question in self.hanging:
                self.let_go.wait(60)
            if failing:
                raise ConnectionError("no route")
            return len(question)
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture
def endpoint() -> Any:
    made = Endpoint()
    yield made
    made.let_go.set()


def caller_of(endpoint: Endpoint, call: Call) -> tuple[Caller, Any]:
    class Function:
        def ask_size(self, e: str) -> str:
            return e

        def call_size(self, question: str) -> int:
            return endpoint(question)

    calls = bind(Function, {"size": call})
    return Caller(calls), lambda events: questions(calls, events)


def test_every_question_is_answered_and_places_are_bounded(endpoint: Endpoint):
    caller, ask = caller_of(endpoint, Call(timeout="60s", concurrency=3, breaker=None))
    outcomes, counts = caller.ask(ask(f"{n}" for n in range(200)))
    assert len(outcomes) == len(endpoint.asked) == 200
    assert all(outcome.answer is not None for outcome in outcomes.values())
    assert endpoint.most <= 3
    assert (counts["size"].questions, counts["size"].attempts) == (200, 200)


def test_a_failed_attempt_is_repeated_as_often_as_declared(endpoint: Endpoint):
    endpoint.fail_first = 2
    caller, ask = caller_of(endpoint, PATIENT)
    outcomes, counts = caller.ask(ask(["a", "b"]))
    assert all(outcome.answer is not None for outcome in outcomes.values())
    assert sorted(endpoint.asked) == ["a"] * 3 + ["b"] * 3
    assert (counts["size"].failed_attempts, counts["size"].failures) == (4, 0)


def test_what_stays_unanswered_says_why(endpoint: Endpoint):
    endpoint.fail_first = 9
    caller, ask = caller_of(endpoint, PATIENT)
    [outcome] = caller.ask(ask(["a"]))[0].values()
    assert outcome.why == "ConnectionError: no route (3 attempts)"
    assert endpoint.asked == ["a"] * 3


def test_a_call_that_hangs_is_cut_and_the_others_are_answered(endpoint: Endpoint):
    endpoint.hanging = {"slow"}
    # The others have a second attempt, for the machine may stand still during their first.
    call = Call(timeout="2s", attempts=2, backoff="1ms", concurrency=2, breaker=None)
    caller, ask = caller_of(endpoint, call)
    began_s = SYSTEM.monotonic_s()
    outcomes, _ = caller.ask(ask(["slow", "a", "b", "c"]))
    assert SYSTEM.monotonic_s() - began_s < 50, "the endpoint would hang for a minute"
    whys = [outcome.why for outcome in outcomes.values() if outcome.answer is None]
    assert whys == ["no answer within 2000 ms (2 attempts)"]


def test_threads_left_behind_are_bounded_and_come_back(endpoint: Endpoint):
    endpoint.hanging = {f"{n}" for n in range(50)}
    caller, ask = caller_of(endpoint, QUICK)
    outcomes, _ = caller.ask(ask(f"{n}" for n in range(50)))
    limit = QUICK.concurrency * (1 + HANGING_PER_PLACE)
    deadline_s = SYSTEM.monotonic_s() + 60
    while len(endpoint.asked) < limit:  # a thread may begin after its call was cut
        assert SYSTEM.monotonic_s() < deadline_s
        SYSTEM.pause(0.01)
    assert len(endpoint.asked) == limit
    assert sum("threads hang" in outcome.why for outcome in outcomes.values()) == 50 - limit
    endpoint.let_go.set()
    [outcome] = caller.ask(ask(["a"]))[0].values()
    while outcome.answer is None:  # the threads come back one after the other
        [outcome] = caller.ask(ask(["a"]))[0].values()


def test_the_breaker_outlives_an_epoch(endpoint: Endpoint):
    endpoint.fail_first = 99
    call = Call(attempts=1, concurrency=1, breaker=Breaker(failures=2, open_for="1h"))
    caller, ask = caller_of(endpoint, call)
    _, counts = caller.ask(ask(["a", "b", "c", "d"]))
    assert (len(endpoint.asked), counts["size"].breaker) == (2, "open")
    [outcome] = caller.ask(ask(["e"]))[0].values()
    assert "the breaker is open" in outcome.why
    assert len(endpoint.asked) == 2


def test_two_endpoints_are_asked_at_the_same_time():
    both = threading.Barrier(2, timeout=60)

    class Function:
        def ask_left(self, e: str) -> str:
            return e

        ask_right = ask_left

        def call_left(self, question: str) -> int:
            return both.wait()

        call_right = call_left

    calls = bind(Function, {"left": PATIENT, "right": PATIENT})
    outcomes, counts = Caller(calls).ask(questions(calls, ["a"]))
    assert all(outcome.answer is not None for outcome in outcomes.values())
    assert counts["left"].failed_attempts == 0


def sizes_of(ask: Any, **declared: Any) -> tuple[Caller, Any]:
    class Function:
        def ask_size(self, e: str) -> str:
            return e

        def call_size(self, questions: list[str]) -> list[int]:
            return ask(questions)

    calls = bind(Function, {"size": Call(breaker=None, backoff="1ms", **declared)})
    return Caller(calls), calls


def test_questions_that_are_asked_together_are_answered_one_by_one() -> None:
    asked: list[list[str]] = []

    def ask(questions: list[str]) -> list[int]:
        asked.append(questions)
        return [len(each) for each in questions]

    caller, calls = sizes_of(ask, batch=3, concurrency=1)
    events = [letter * size for size, letter in enumerate("abcdefg", 1)]
    outcomes, told = caller.ask(questions(calls, events))
    assert asked == [events[:3], events[3:6], events[6:]]
    decode = calls["size"].decode_answer
    assert [decode(each.answer) for each in outcomes.values()] == [1, 2, 3, 4, 5, 6, 7]
    assert (told["size"].questions, told["size"].attempts, told["size"].failures) == (7, 3, 0)


def test_what_fails_of_questions_asked_together_fails_for_all_and_is_asked_again() -> None:
    asked: list[list[str]] = []

    def ask(questions: list[str]) -> list[int]:
        asked.append(questions)
        if len(asked) == 1:
            raise ConnectionError("no route")
        return [1] * (len(questions) - ("short" in questions))

    caller, calls = sizes_of(ask, batch=2, concurrency=1, attempts=2)
    outcomes, told = caller.ask(questions(calls, ["a", "b", "c", "short"]))
    assert asked.count(["a", "b"]) == asked.count(["c", "short"]) == 2
    assert [each.why for each in outcomes.values() if each.answer is None] == 2 * [
        "ValueError: it gave 1 answers to 2 questions (2 attempts)"
    ]
    assert (told["size"].questions, told["size"].attempts, told["size"].failures) == (4, 4, 2)
