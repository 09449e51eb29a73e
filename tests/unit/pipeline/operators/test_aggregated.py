"""Windows with declared aggregates: what they come to, merge to, and how they are declared."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import new_class
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import Context, Out, Retraction, function
from catchwater.operators import (
    Aggregated,
    Window,
    Windowed,
    count,
    max,
    mean,
    min,
    session,
    sum,
    top_k,
    tumbling,
)
from catchwater.pipeline.functions.declare import DeclarationError, spec_of
from catchwater.testing import Harness


@dataclass
class Payment:
    card: str
    id: str
    at: int
    cents: int
    weight: Decimal = Decimal(1)


def declared(**of: Any) -> Any:
    body = {"window": tumbling("1s"), **of}
    return new_class("Spent", (Aggregated[Payment],), exec_body=lambda space: space.update(body))


DECLARE = function(name="spent", key="card", event_time="at", watermark="0s")


@DECLARE
class Spent(Aggregated[Payment]):
    window = tumbling("1s")
    payments = count()
    cents = sum("cents")
    average = mean("cents")
    heavy = sum("weight")
    least = min("cents")
    most = max("cents")
    largest = top_k(2, by="cents")


def test_a_window_gives_what_all_its_events_come_to() -> None:
    harness = Harness(Spent)
    a, b, c = Payment("x", "a", 1, 5), Payment("x", "b", 2, 9), Payment("x", "c", 3, 9)
    assert harness.send(a, b, c) == []
    assert harness.advance_watermark(1000) == [
        Spent.Result("x", 0, 1000, 3, 23, 23 / 3, Decimal(3), 5, 9, [b, c])
    ]
    harness.crash_and_restore(at=0)


def test_a_result_is_known_by_its_key_and_start() -> None:
    spec = spec_of(Spent)
    assert spec.output_id == ("card", "start")
    assert spec.output_type is Spent.Result


def test_sessions_merge_and_take_back_what_they_were() -> None:
    @function(name="sessions", key="card", event_time="at", watermark="0s")
    class Sessions(Aggregated[Payment]):
        window = session("10ms")
        allowed_lateness = "1s"
        n = count()
        cents = mean("cents")
        least = min("cents")
        largest = top_k(1, by="cents")

    harness = Harness(Sessions)
    a, b, c = Payment("x", "a", 100, 4), Payment("x", "b", 115, 8), Payment("x", "c", 107, 6)
    one, two = (
        Sessions.Result("x", at, at + 10, 1, float(each.cents), each.cents, [each])
        for at, each in ((100, a), (115, b))
    )
    assert harness.send(a, b) + harness.advance_watermark(200) == [one, two]
    assert harness.send(c) == [
        Retraction(one), Retraction(two), Sessions.Result("x", 100, 125, 3, 6.0, 4, [b]),
    ]  # fmt: skip
    harness.check_replay(orders=20)


@dataclass
class Acc:
    n: int = 0
    cents: int = 0
    most: int | None = None


@dataclass
class Total:
    card: str
    start: int
    end: int
    n: int
    cents: int
    most: int


@function(name="by-hand", key="card", event_time="at", output_id=("card", "start"), watermark="5ms")
class ByHand(Windowed[Payment, Acc, Total]):
    window = session("7ms")
    allowed_lateness = "20ms"

    def add(self, e: Payment, acc: Acc, ctx: Context) -> None:
        acc.n += 1
        acc.cents += e.cents
        acc.most = e.cents if acc.most is None or e.cents > acc.most else acc.most

    def merge(self, a: Acc, b: Acc) -> Acc:
        most = [each for each in (a.most, b.most) if each is not None]
        return Acc(a.n + b.n, a.cents + b.cents, sorted(most)[-1] if most else None)

    def result(self, window: Window, acc: Acc, ctx: Context) -> Out[Total]:
        yield Total(ctx.key, window.start, window.end, acc.n, acc.cents, acc.most or 0)


@function(name="declared", key="card", event_time="at", watermark="5ms")
class Declared(Aggregated[Payment]):
    window = session("7ms")
    allowed_lateness = "20ms"
    n = count()
    cents = sum("cents")
    most = max("cents")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), min_size=1, max_size=25))
def test_what_is_declared_equals_what_is_written_by_hand(events: list[tuple[int, int]]) -> None:
    plain = [Harness(each) for each in (ByHand, Declared)]
    found: list[list[Any]] = [[], []]
    for index, (at, cents) in enumerate(events):
        for harness, outputs in zip(plain, found, strict=True):
            outputs += harness.send(Payment("x", str(index), at, cents))
    for harness, outputs in zip(plain, found, strict=True):
        outputs += harness.advance_watermark(1000)
    by_hand, given_ = ([_plain(each) for each in outputs] for outputs in found)
    assert by_hand == given_


def _plain(output: Any) -> Any:
    return ("not", vars(output.output)) if isinstance(output, Retraction) else vars(output)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: declared(), "say what to aggregate: n = count"),
        (lambda: declared(n=sum("card")), "'card' is not a number"),
        (lambda: declared(n=mean("price")), r"'price' is not a field of Payment \(card, id"),
        (lambda: declared(n=top_k(3, by="price")), "'price' is not a field of Payment"),
        (lambda: declared(n=top_k(0, by="cents")), r"top_k\(0\) keeps nothing"),
        (lambda: declared(start=count()), "the aggregate 'start' has the name of another field"),
        (lambda: declared(card=count()), "the aggregate 'card' has the name of another field"),
        (lambda: declared(n=count(), window=None), "say window = tumbling"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_where_it_is_declared(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        DECLARE(make())


def test_an_aggregate_that_a_version_adds_begins_at_nothing() -> None:
    harness = Harness(Spent)
    harness.send(Payment("x", "a", 1, 5))

    @function(name="spent", version=2, key="card", event_time="at", watermark="0s")
    class More(Spent):
        heaviest = max("weight")

    harness.upgrade(More)
    harness.send(Payment("x", "b", 2, 7))
    (result,) = harness.advance_watermark(1000)
    assert (result.payments, result.cents, result.heaviest) == (2, 12, Decimal(1))
