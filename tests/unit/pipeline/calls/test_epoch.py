"""An epoch that is run again meets the answers of the first time."""

from typing import Any

import pytest

from catchwater.objects.base import StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.pipeline.calls.answers import CallFailed, bind
from catchwater.pipeline.calls.ask import Calls
from catchwater.pipeline.calls.journal import Journal
from catchwater.pipeline.calls.policy import Call


class Endpoint:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.down: set[str] = set()

    def __call__(self, question: str) -> str:
        self.asked.append(question)
        if question in self.down:
            raise ConnectionError("no route")
        return f"{question}, the {len(self.asked)}th"


def calls_of(endpoint: Endpoint, store: MemoryStore, call: Call | None = None) -> Calls:
    """As a fresh process has them."""

    class Function:
        def ask_it(self, e: str) -> str | None:
            return e or None

        def call_it(self, question: str) -> str:
            return endpoint(question)

    calls = bind(Function, {"it": call or Call(attempts=1)})
    return Calls(calls, Journal(store, "calls", "f"))


def of(answers: Any, *events: str) -> list[Any]:
    return [answers.of("it", event) for event in events]


def test_a_repeated_epoch_gets_the_same_answers_and_asks_nobody():
    endpoint, store = Endpoint(), MemoryStore()
    first, counts = calls_of(endpoint, store).answers(3, 0, ["a", "b", ""])
    again, nothing = calls_of(endpoint, store).answers(3, 0, ["a", "b", ""])
    assert of(first, "a", "b", "") == of(again, "a", "b", "")
    assert len(endpoint.asked) == counts["it"].attempts == 2
    assert nothing == {}
    other, _ = calls_of(endpoint, store).answers(4, 0, ["a"])
    assert of(other, "a") == ["a, the 3th"]


def test_a_failure_that_lets_the_epoch_go_on_is_kept_too():
    endpoint, store = Endpoint(), MemoryStore()
    endpoint.down = {"b"}
    call = Call(attempts=1, on_failure="none")
    calls_of(endpoint, store, call).answers(3, 0, ["a", "b"])
    endpoint.down.clear()
    again, _ = calls_of(endpoint, store, call).answers(3, 0, ["a", "b"])
    assert of(again, "a", "b") == ["a, the 1th", None] or of(again, "a") == ["a, the 2th"]
    assert len(endpoint.asked) == 2


def test_an_epoch_that_failed_asks_only_what_was_not_answered():
    endpoint, store = Endpoint(), MemoryStore()
    endpoint.down = {"b"}
    with pytest.raises(CallFailed, match="'it' was not answered for 1 questions of this epoch"):
        calls_of(endpoint, store).answers(3, 0, ["a", "b", "c"])
    endpoint.down.clear()
    calls_of(endpoint, store).answers(3, 0, ["a", "b", "c"])
    assert sorted(endpoint.asked) == ["a", "b", "b", "c"]


def test_no_answer_is_used_that_could_not_be_written_down():
    class Down(MemoryStore):
        def put_if_absent(self, key: str, parts: Any) -> int:
            raise StoreUnavailable("the store is down")

    endpoint = Endpoint()
    with pytest.raises(StoreUnavailable):
        calls_of(endpoint, Down()).answers(3, 0, ["a"])


def test_an_epoch_without_questions_reads_and_writes_nothing():
    class Untouched(MemoryStore):
        def get(self, key: str) -> bytes:
            raise AssertionError("it was read")

    store = Untouched()
    answers, counts = calls_of(Endpoint(), store).answers(3, 0, ["", ""])
    assert (of(answers, ""), counts) == ([None], {})
    assert not list(store.list(""))
