"""A function that asks an endpoint: what hangs is cut, a replay asks nobody."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from tests.e2e.conftest import PipelineHere
from tests.e2e.stub_endpoint import FUNCTION, Stub, stub_endpoint

from catchwater.demo.card_risk import Txn
from catchwater.pipeline.calls.answers import bind, questions
from catchwater.pipeline.calls.ask import Caller
from catchwater.pipeline.calls.policy import Breaker, Call

TOGETHER = 4_000
"""Events an epoch."""
TIMEOUT_S = 4
"""A call's: long enough for the stub to answer on a machine that others keep busy."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_endpoint() as made:
        yield made


def test_a_call_to_an_endpoint_that_hangs_for_a_minute_is_cut_on_time(stub: Stub) -> None:
    class Function:
        def ask_score(self, e: str) -> str:
            return e

        def call_score(self, question: str) -> str:
            with urlopen(f"{stub.url}/{question}", timeout=60) as answer:
                return str(answer.read().decode())

    stub.hanging = {"slow"}
    calls = bind(Function, {"score": Call(timeout=f"{TIMEOUT_S}s", attempts=2, backoff="100ms")})
    began = time.monotonic()
    with stalls() as stalled_s:
        outcomes, _ = Caller(calls).ask(questions(calls, ["slow", "quick"]))
    took = time.monotonic() - began
    assert 2 * TIMEOUT_S <= took, "not too early"
    assert took <= 1.2 * (2 * TIMEOUT_S + 0.1) + sum(stalled_s), "not too late, for this machine"
    assert sorted(outcome.why for outcome in outcomes.values()) == [
        "", f"no answer within {1000 * TIMEOUT_S} ms (2 attempts)",
    ]  # fmt: skip
    first, second = stub.asked["slow"]
    assert second - first >= TIMEOUT_S / 2, "the first one may have come late"


def test_an_endpoint_that_refuses_is_asked_as_often_and_as_seldom_as_declared(stub: Stub) -> None:
    class Function:
        def ask_score(self, e: str) -> str:
            return e

        def call_score(self, question: str) -> str:
            with urlopen(f"{stub.url}/{question}", timeout=60) as answer:
                return str(answer.read().decode())

    stub.failing = {"no"}
    declared_s = (0.2, 0.4, 0.5)
    call = Call(timeout="60s", attempts=4, backoff="200ms", max_backoff="500ms", breaker=None)
    calls = bind(Function, {"score": call})
    with stalls() as stalled_s:
        outcomes, told = Caller(calls).ask(questions(calls, ["no"]))
    assert [outcome.why for outcome in outcomes.values()] == [
        "HTTPError: HTTP Error 500: Internal Server Error (4 attempts)"
    ]
    waits = [second - first for first, second in pairwise(stub.asked["no"])]
    assert (len(waits), told["score"].attempts, told["score"].failures) == (3, 4, 1)
    for waited, declared in zip(waits, declared_s, strict=True):
        # What is asked may come late, by itself or by a machine that others keep busy.
        assert 0.8 * declared - 0.05 - sum(stalled_s) <= waited
        assert waited <= 1.2 * declared + 0.1 + sum(stalled_s)


@contextmanager
def stalls() -> Iterator[list[float]]:
    """For how long this process, asleep for a hundredth of a second, was not woken: each time."""
    found: list[float] = []
    over = threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not over.wait(0.01):
            now = time.monotonic()
            if now - before > 0.03:
                found.append(now - before)
            before = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def large(cards: Any) -> list[Txn]:
    decode = msgspec.json.Decoder(Txn).decode
    events = (decode(event.value) for event in cards.scenario.events())
    return [event for event in events if event.amount > 500]


def scored(pipeline: Any, stub: Stub, **values: object) -> Any:
    """Let a pipeline over the card payments ask the stub."""
    name = pipeline.name
    code = {"url": stub.url, "timeout": f"{TIMEOUT_S}s", "breaker": "None"}
    code |= {"on_failure": "dead-letter"} | values
    (pipeline.folder / f"{name}.py").write_text(FUNCTION.format(**code))
    write_file = pipeline.write_file

    def with_dead_letters(trigger: str, **changes: object) -> Any:
        path = write_file(trigger, **changes)
        path.write_text(path.read_text() + f'\n[dead_letter]\ntopic = "{name}-dead"\n')
        return path

    pipeline.write_file = with_dead_letters
    pipeline.changes = {"function": f"{name}:Score", "epoch_events": TOGETHER}
    return pipeline


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "run", ["here", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_attempts_are_as_declared_then_the_event_is_a_dead_letter_and_a_replay_asks_nobody(
    run: str, make_pipeline: Callable[[str], Any], stub: Stub
) -> None:
    made = make_pipeline(f"asking_{run}")
    pipeline = scored(PipelineHere.like(made, None) if run == "here" else made, stub)
    events = large(pipeline.cards)
    by_count = [card for card, _ in Counter(event.card for event in events).most_common()]
    stub.hanging, stub.failing = {by_count[-1]}, {by_count[-2]}
    lost = stub.hanging | stub.failing
    assert pipeline.run_to_end(**pipeline.changes) == 0, pipeline.log

    rows = [msgspec.json.decode(row) for row in pipeline.rows.elements()]
    good = Counter(event.id for event in events if event.card not in lost)
    assert Counter(row["id"] for row in rows) == good
    dead = [
        msgspec.json.decode(row) for row in pipeline.cards.rows(f"{pipeline.name}-dead").elements()
    ]
    assert Counter(row["id"] for row in dead) == Counter(
        event.id for event in events if event.card in lost
    )

    told = [call for _, _, call in recorded_calls(pipeline)]
    assert sum(each.attempts for each in told) == stub.requests
    assert sum(each.failures for each in told) == sum(len(stub.asked[card]) for card in lost) / 2
    for card in lost:
        for first, second in list(pairwise(stub.asked[card]))[::2]:
            # The first one may have come late; a refusal is sent when it has come.
            assert second - first >= (TIMEOUT_S / 2 if card in stub.hanging else 0.08)

    # The last epoch is run again: the same rows, and nobody is asked.
    asked, before = stub.requests, pipeline.rows
    pipeline.delete_last_commit()
    pipeline.lose_local_state()
    assert pipeline.run_to_end(**pipeline.changes) == 0, pipeline.log
    assert pipeline.rows == before
    assert stub.requests == asked


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_open_breaker_spares_the_endpoint(
    make_pipeline: Callable[[str], Any], stub: Stub
) -> None:
    breaker = repr(Breaker(failures=5, within="1m", open_for="1h"))
    pipeline = scored(make_pipeline("breaking"), stub, breaker=breaker, on_failure="none")
    events = large(pipeline.cards)
    stub.failing = {event.card for event in events}
    assert pipeline.run_to_end(**pipeline.changes) == 0, pipeline.log
    rows = [msgspec.json.decode(row) for row in pipeline.rows.elements()]
    assert Counter(row["id"] for row in rows) == Counter(event.id for event in events)
    assert {row["score"] for row in rows} == {"unknown"}
    # Every worker process has a breaker of its own; what was under way at once may still ask.
    assert stub.requests <= 2 * (5 + 16)
    assert any(call.breaker == "open" for _, _, call in recorded_calls(pipeline))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_epoch_that_failed_for_an_answer_keeps_those_it_got(
    make_pipeline: Callable[[str], Any], stub: Stub
) -> None:
    pipeline = scored(make_pipeline("failing"), stub, on_failure="fail")
    events = large(pipeline.cards)
    lost = events[len(events) // 2].card
    stub.failing = {lost}
    assert pipeline.run_to_end(**pipeline.changes) == 1
    assert "The call 'score' was not answered" in pipeline.log
    answered = {card: len(times) for card, times in stub.asked.items() if card != lost}
    stub.failing = set()
    assert pipeline.run_to_end(**pipeline.changes) == 0, pipeline.log
    rows = [msgspec.json.decode(row) for row in pipeline.rows.elements()]
    assert Counter(row["id"] for row in rows) == Counter(event.id for event in events)
    told = sum(call.questions for _, _, call in recorded_calls(pipeline))
    repeated = sum(len(stub.asked[card]) - count for card, count in answered.items())
    assert repeated <= told, "only what no epoch had asked yet"


def recorded_calls(pipeline: Any) -> Iterator[tuple[int, int, Any]]:
    for epoch in pipeline.ledger.epochs():
        entry = pipeline.ledger.read(epoch)
        for shard in entry.shards:
            for call in shard.calls.values():
                yield epoch, shard.shard, call
