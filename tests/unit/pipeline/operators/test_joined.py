"""Stream–stream joins against all pairs there are, and each of their rules on its own."""

import random
from collections.abc import Iterator

import pytest
from tests.unit.pipeline.operators.models import all_pairs
from tests.unit.pipeline.operators.shop import KEYED, Order, Paid, Pair, Payment
from tests.unit.pipeline.operators.streams import SEEDS, is_empty, play, shuffled

from catchwater import function
from catchwater.operators import Joined
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.testing import Harness

declared = function(name="paid", inputs={"orders": Order, "payments": Payment}, **KEYED)


def paid(**members: object) -> type[Paid]:
    return declared(type("Declared", (Paid,), members))


def stream(draw: random.Random) -> list[Order | Payment]:
    return [
        draw.choice((Order, Payment))(
            f"c{draw.randrange(5)}",
            str(i),
            draw.randrange(i * 300, i * 300 + 2_000),
            draw.randrange(2),
        )
        for i in range(300)
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("before", "after", "how"),
    [(10_000, 10_000, "inner"), (0, 20_000, "outer"), (3_000, 1_000, "left"), (2_000, 0, "right")],
)
def test_joins_give_what_all_pairs_give(before: int, after: int, how: str, seed: int) -> None:
    draw = random.Random(seed)
    h = Harness(paid(before=f"{before}ms", after=f"{after}ms", how=how))
    epochs, outputs = play(h, draw, shuffled(draw, stream(draw)))
    assert sorted(outputs) == sorted(all_pairs(epochs, before, after, how))
    assert h.late > 0 and h.duplicates > 0
    assert is_empty(h)


def test_the_second_of_a_pair_makes_the_match_whichever_it_is() -> None:
    h = Harness(paid(within="10s"))
    assert h.send(Order("c", "o1", 1_000)) == []
    assert h.send(Payment("c", "p1", 2_000)) == [Pair("o1", "p1")]
    assert h.send(Order("c", "o2", 3_000)) == [Pair("o2", "p1")]
    assert h.send(Payment("d", "p2", 2_000)) == []


def test_both_ends_of_the_time_are_included() -> None:
    h = Harness(paid(before="1s", after="2s"))
    h.send(Order("c", "o", 5_000))
    payments = [Payment("c", str(at), at) for at in (3_999, 4_000, 7_000, 7_001)]
    assert h.send(*payments) == [Pair("o", "4000"), Pair("o", "7000")]


def test_an_event_is_kept_for_as_long_as_one_may_come_that_matches() -> None:
    h = Harness(paid(before="1s", after="2s", how="outer"))
    h.send(Order("c", "o", 5_000))
    assert h.advance_watermark(7_000) == []
    assert h.advance_watermark(7_001) == [Pair("o", "")]
    assert h.send(Payment("c", "p", 20_000)) == []
    assert h.advance_watermark(21_000) == []
    assert h.advance_watermark(21_001) == [Pair("", "p")]


def test_a_pair_that_gives_nothing_is_no_match() -> None:
    h = Harness(paid(within="1s", how="left"))
    assert h.send(Order("c", "o", 5_000, 100), Payment("c", "p", 5_000, 99)) == []
    assert h.advance_watermark(7_000) == [Pair("o", "")]


def refusals() -> Iterator[tuple[dict[str, object], dict[str, object], str]]:
    yield {}, {}, "say within, or else before or after"
    yield {"within": "1s", "after": "1s"}, {}, "say within, or else before or after"
    yield {"within": "shortly"}, {}, "'shortly' is not a duration"
    yield {"within": "1s", "how": "cross"}, {}, "how='cross' must be"
    yield {"within": "1s"}, {"late": "process"}, "a Joined never handles it"
    yield {"within": "1s"}, {"state_ttl": "1d"}, "declare it without state_ttl"
    swapped = {"inputs": {"payments": Payment, "orders": Order}}
    yield {"within": "1s"}, swapped, "the left one first"


@pytest.mark.parametrize(("members", "declaration", "reason"), list(refusals()))
def test_a_declaration_that_could_not_work_is_refused(
    members: dict[str, object], declaration: dict[str, object], reason: str
) -> None:
    target = type("Declared", (Paid,), members)
    usual = KEYED | {"name": "paid", "inputs": {"orders": Order, "payments": Payment}}
    with pytest.raises(DeclarationError, match=reason):
        function(**usual | declaration)(target)


def test_the_types_must_be_given_and_differ() -> None:
    with pytest.raises(DeclarationError, match=r"write Joined\[Left, Right, Out\]"):
        declared(type("Untyped", (Joined,), {"within": "1s"}))
    with pytest.raises(DeclarationError, match="need event classes of their own"):

        @declared
        class OfOne(Joined[Order, Order, Pair]):
            within = "1s"
