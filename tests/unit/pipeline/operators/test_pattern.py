"""Sequences of events: against regular expressions, against a plain loop, and rule by rule."""

import random
import re
from collections.abc import Iterator

import pytest
from tests.unit.pipeline.operators import models
from tests.unit.pipeline.operators.shop import KEYED, AThenB, Letter, Word, Words, is_
from tests.unit.pipeline.operators.streams import SEEDS, is_empty, play, shuffled

from catchwater import Context, Out, function
from catchwater.operators import Match, Pattern, begin
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.testing import Harness

a_then_b = begin("a", is_("a")).then("b", is_("b"))


def words(steps: object, **members: object) -> type[Words]:
    declared = function(name="words", **KEYED)
    return declared(type("Declared", (Words,), {"steps": steps} | members))


def spell(text: str, steps: object, **members: object) -> tuple[list[str], list[str]]:
    """What is found in letters one second apart: matches, and what has timed out in the end."""
    h = Harness(words(steps, **members))
    letters = [Letter("k", str(i), 1000 * i, letter) for i, letter in enumerate(text)]
    matches = h.send(*letters)
    assert all(word.complete for word in matches)
    rest = h.advance_watermark(1_000_000)
    assert is_empty(h)
    return [word.text for word in matches], [word.text for word in rest]


@pytest.mark.parametrize(
    ("text", "steps", "matches", "rest"),
    [
        ("axb", a_then_b, ["ab"], []),
        ("ab" "b", a_then_b, ["ab"], []),
        ("aab", a_then_b, ["ab"], []),  # after a match nothing that began before it is left
        ("abab", a_then_b, ["ab", "ab"], []),
        ("aa", a_then_b, [], ["a", "a"]),
        ("axb", begin("a", is_("a")).next("b", is_("b")), [], []),
        ("aab", begin("a", is_("a")).next("b", is_("b")), ["ab"], []),
        ("axaxa", begin("a", is_("a")).times(3), ["aaa"], []),
        ("abxb", a_then_b.times(2), ["abb"], []),
        ("abxbb", begin("a", is_("a")).next("b", is_("b")).times(2), [], []),
        ("abbxb", begin("a", is_("a")).next("b", is_("b")).times(2), ["abb"], []),
        ("axb", begin("a", is_("a")).unless(is_("x")).then("b", is_("b")), [], []),
        ("xab", begin("a", is_("a")).unless(is_("x")).then("b", is_("b")), ["ab"], []),
        ("ayb", begin("a", is_("a")).unless(is_("x")).then("b", is_("b")), ["ab"], []),
        ("a", begin("a", is_("a")), ["a"], []),
    ],
)  # fmt: skip
def test_steps_mean_what_the_documentation_says(
    text: str, steps: object, matches: list[str], rest: list[str]
) -> None:
    assert spell(text, steps) == (matches, rest)


def test_an_event_that_is_both_awaited_and_excluded_ends_the_match() -> None:
    steps = begin("a", is_("a")).unless(is_("b")).then("b", is_("b"))
    assert spell("ab", steps) == ([], [])


def test_a_condition_may_look_at_what_was_found_before() -> None:
    rising = begin("low", lambda e, found: True).then(
        "high", lambda e, found: e.text > found["low"].text
    )
    assert spell("cbca", rising) == (["bc"], ["a"])


def test_the_oldest_partial_match_comes_first() -> None:
    steps = begin("a", lambda e, found: e.text in "ab").then("b", is_("b")).then("c", is_("c"))
    assert spell("abbc", steps) == (["abc"], [])


def test_while_there_are_as_many_as_allowed_none_begins() -> None:
    to_the_end = begin("any", lambda e, found: e.text != "!").then("end", is_("!"))
    assert spell("abc!", to_the_end, max_partial=1) == (["a!"], [])
    assert spell("abc", to_the_end, max_partial=2) == ([], ["a", "b"])
    pair = begin("a", is_("a")).next("b", is_("b"))
    assert spell("aab", pair, max_partial=1) == (["ab"], [])  # one that ends makes room at once


def test_time_is_over_when_within_has_passed_since_the_first_event() -> None:
    h = Harness(words(a_then_b))
    h.send(Letter("k", "1", 1_000, "a"))
    assert h.send(Letter("k", "2", 11_000, "b")) == []  # 10 s later is too late
    assert h.advance_watermark(10_999) == []
    assert h.send(Letter("k", "3", 10_999, "b")) == [Word("k", "ab", True)]
    h.send(Letter("k", "4", 12_000, "a"))
    assert h.advance_watermark(22_000) == [Word("k", "a", False)]


SHAPES = {
    "a.*?b": a_then_b,
    "ab": begin("a", is_("a")).next("b", is_("b")),
    "a[^b]*b[^b]*bc": a_then_b.times(2).next("c", is_("c")),
    "a[^xb]*b": begin("a", is_("a")).unless(is_("x")).then("b", is_("b")),
    "a[^a]*abb[^c]*c": begin("a", is_("a")).times(2).next("b", is_("b")).times(2)
    .then("c", is_("c")),
    "a[^bx]*b[^xc]*c": begin("a", is_("a")).unless(is_("x")).then("b", is_("b"))
    .unless(is_("x")).then("c", is_("c")),
}  # fmt: skip


def by_expression(text: str, shape: str) -> list[tuple[int, int]]:
    """Begin and end of every match: of those that are complete first, the one that began first."""
    found, start, end = [], 0, 1
    while end <= len(text):
        begins = (b for b in range(start, end) if re.fullmatch(shape, text[b:end]))
        if (first := next(begins, None)) is not None:
            found.append((first, end - 1))
            start = end
        end += 1
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_matches_are_those_of_a_regular_expression(shape: str) -> None:
    class Spans(Pattern[Letter, str]):
        steps = SHAPES[shape]
        within = "1d"

        def match(self, found: Match[Letter], ctx: Context) -> Out[str]:
            events = list(found)
            return [f"{events[0].id} {events[-1].id}"]

    draw = random.Random(shape)
    for _ in range(30):
        text = "".join(draw.choices("abcx", weights=(3, 3, 2, 1), k=60))
        h = Harness(function(name="spans", **KEYED)(Spans))
        spans = h.send(*(Letter("k", str(i), i, letter) for i, letter in enumerate(text)))
        assert spans == [f"{first} {last}" for first, last in by_expression(text, shape)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_patterns_give_what_a_plain_loop_gives(seed: int) -> None:
    draw = random.Random(seed)
    letters = [
        Letter(f"k{draw.randrange(9)}", str(i), i * 300, draw.choice("aaabbxcd"))
        for i in range(400)
    ]
    h = Harness(AThenB)
    epochs, outputs = play(h, draw, shuffled(draw, letters))
    assert sorted(outputs) == sorted(models.a_then_b(epochs))
    assert h.late > 0 and h.duplicates > 0 and {word.complete for word in outputs} == {True, False}
    assert is_empty(h)


def test_a_version_with_other_steps_cannot_read_the_state() -> None:
    h = Harness(words(a_then_b))
    h.upgrade(words(a_then_b, within="1m"))
    with pytest.raises(ValueError, match="steps"):
        h.upgrade(words(a_then_b.times(2)))


def refusals() -> Iterator[tuple[dict[str, object], str]]:
    yield {"steps": None}, r"say steps = begin\(...\).then\(...\)"
    yield {"steps": a_then_b.unless(is_("x"))}, r"unless\(...\) belongs before then or next"
    yield {"steps": a_then_b, "within": "soon"}, "'soon' is not a duration"
    yield {"steps": a_then_b, "max_partial": 0}, "max_partial=0 leaves no match to begin"


@pytest.mark.parametrize(("members", "reason"), list(refusals()))
def test_a_declaration_that_could_not_work_is_refused(
    members: dict[str, object], reason: str
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        words(**members)


def test_types_and_time_must_be_given() -> None:
    with pytest.raises(DeclarationError, match=r"write Pattern\[Event, Out\]"):
        function(name="words", **KEYED)(type("Untyped", (Pattern,), {}))
    with pytest.raises(DeclarationError, match="say within"):

        @function(name="words", **KEYED)
        class Endless(Pattern[Letter, Word]):
            steps = a_then_b

            def match(self, found: Match[Letter], ctx: Context) -> Out[Word]:
                return ()
