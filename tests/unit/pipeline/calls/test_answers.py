"""Questions and answers of a declared function."""

from dataclasses import dataclass
from typing import Any

import pytest

from catchwater.pipeline.calls.answers import (
    AnswerMissing,
    Answers,
    Outcome,
    bind,
    questions,
)
from catchwater.pipeline.calls.policy import Call
from catchwater.pipeline.functions.declare import call_mistakes


@dataclass
class Event:
    card: str
    amount: float


@dataclass
class Question:
    card: str


@dataclass
class Score:
    risk: float


class Scored:
    def ask_score(self, e: Event) -> Question | None:
        if e.card == "poison":
            raise KeyError(e.card)
        return Question(e.card) if e.amount > 100 else None

    def call_score(self, question: Question) -> Score:
        if question.card == "down":
            raise ConnectionError("no route")
        return Score(len(question.card))


def answers_to(events: list[Event], call: Call | None = None) -> Answers:
    calls = bind(Scored, {"score": call or Call()})
    asked = questions(calls, events)
    return Answers(calls, {key: calls[key[0]].answer(q) for key, q in asked.items()})


def test_equal_questions_are_one_and_small_amounts_ask_none():
    calls = bind(Scored, {"score": Call()})
    events = [Event("a", 200), Event("b", 5), Event("a", 300), Event("c", 101)]
    assert list(questions(calls, events).values()) == [Question("a"), Question("c")]


def test_an_answer_has_its_type_and_is_the_events_own():
    answers = answers_to([Event("abc", 200)])
    first, second = (answers.of("score", Event("abc", 200)) for _ in range(2))
    assert first == Score(3)
    assert first is not second
    assert answers.of("score", Event("abc", 1)) is None


def test_a_failed_call_goes_by_its_policy():
    event = Event("down", 200)
    assert answers_to([event], Call(on_failure="none")).of("score", event) is None
    dead = answers_to([event], Call(on_failure="dead-letter"))
    with pytest.raises(AnswerMissing, match="was not answered: ConnectionError: no route"):
        dead.of("score", event)


def test_an_event_whose_question_raises_meets_the_error_in_its_handler():
    answers = answers_to([Event("poison", 200), Event("a", 200)])
    with pytest.raises(KeyError, match="poison"):
        answers.of("score", Event("poison", 200))
    assert answers.of("score", Event("a", 200)) == Score(1)


def test_an_answer_that_is_not_what_it_says_is_a_failure():
    class Wrong(Scored):
        def call_score(self, question: Question) -> Score:
            return "high"  # type: ignore[return-value]

    outcome = bind(Wrong, {"score": Call()})["score"].answer(Question("a"))
    assert outcome.answer is None
    assert "Expected `object`, got `str`" in outcome.why


def test_a_test_may_answer_in_the_endpoints_place():
    call = bind(Scored, {"score": Call()})["score"]
    call.call = lambda question: Score(0.5)
    answer = call.answer(Question("a")).answer
    assert answer is not None
    assert call.decode_answer(answer) == Score(0.5)


def test_an_answer_may_be_none():
    class Nothing(Scored):
        def call_score(self, question: Question) -> Score | None:  # type: ignore[override]
            return None

    calls = bind(Nothing, {"score": Call()})
    outcome = calls["score"].answer(Question("a"))
    assert outcome == Outcome(b"\xc0")
    key = "score", calls["score"].encode_question(Question("a"))
    assert Answers(calls, {key: outcome}).of("score", Event("a", 200)) is None


def test_a_question_that_depends_on_more_than_the_event_is_found_out():
    class Moody(Scored):
        asked = 0

        def ask_score(self, e: Event) -> Question | None:
            self.asked += 1
            return Question(f"{e.card}{self.asked}")

    calls = bind(Moody, {"score": Call()})
    asked = questions(calls, [Event("a", 200)])
    answers = Answers(calls, {key: calls["score"].answer(q) for key, q in asked.items()})
    with pytest.raises(LookupError, match="must depend on nothing but the event"):
        answers.of("score", Event("a", 200))


def test_an_undeclared_call_has_no_answer():
    with pytest.raises(LookupError, match="there is no call 'fraud'"):
        Answers({}, {}).of("fraud", Event("a", 1))


class NoCall:
    def ask_score(self, e: Event) -> None: ...


class Untyped(Scored):
    def call_score(self, question):  # type: ignore[no-untyped-def]
        return 1


@pytest.mark.parametrize(
    ("target", "calls", "words"),
    [
        (Scored, {"price": Call()}, "the call 'price' needs a method ask_price"),
        (NoCall, {"score": Call()}, "the call 'score' needs a method call_score"),
        (Untyped, {"score": Call()}, "call_score must say what it returns"),
        (Scored, {"score": Call(attempts=-1)}, "the call 'score': attempts=-1 must be"),
        (Scored, {"a b": Call()}, "must be named like a variable"),
        (len, {"score": Call()}, "needs a class"),
    ],
)
def test_a_wrong_declaration_is_named(target: Any, calls: Any, words: str):
    assert words in next(call_mistakes(target, calls))


def test_a_right_one_passes():
    assert [*call_mistakes(Scored, {"score": Call()})] == []
    assert [*call_mistakes(len, {})] == []
