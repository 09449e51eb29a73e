"""Functions of one event: map, filter, flat_map, and that they keep nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from catchwater.operators import filter, flat_map, map
from catchwater.pipeline.functions.declare import DeclarationError, spec_of
from catchwater.testing import Harness


@dataclass
class Line:
    id: str
    at: int
    text: str = ""


@dataclass
class Word:
    word: str
    at: int


@map(key="id", event_time="at")
def shouted(e: Line) -> Word:
    """In capitals."""
    return Word(e.text.upper(), e.at)


@filter(key="id", event_time="at", name="some", late="process")
def not_empty(e: Line) -> bool:
    return bool(e.text)


@flat_map(key="id", event_time="at", dedup="id", dedup_ttl="1s", watermark="0s")
def words(e: Line) -> Iterator[Word]:
    for word in e.text.split():
        yield Word(word, e.at)


LINE, EMPTY = Line("1", 5, "a b"), Line("2", 6)


def test_map_filter_and_flat_map() -> None:
    assert Harness(shouted).send(LINE) == [Word("A B", 5)]
    assert Harness(not_empty).send(LINE, EMPTY) == [LINE]
    assert Harness(words).send(LINE, EMPTY) == [Word("a", 5), Word("b", 5)]


def test_they_are_declared_as_any_function_is() -> None:
    assert (spec_of(shouted).name, spec_of(not_empty).name) == ("shouted", "some")
    assert spec_of(not_empty).late == "process"
    assert (spec_of(words).event_type, spec_of(words).output_type) == (Line, Word)
    assert shouted.__doc__ == "In capitals." and shouted.__module__ == __name__


def test_what_keeps_no_state_leaves_no_record() -> None:
    harness = Harness(shouted)
    harness.send(*(Line(str(n), n) for n in range(100)))
    assert not any(harness._entries.tables) and harness.state("1") is None
    harness.crash_and_restore(at=0)


def test_ids_are_kept_and_end() -> None:
    harness = Harness(words)
    assert len(harness.send(LINE, LINE)) == 2 and harness.duplicates == 1
    assert harness.state("1") is not None
    harness.advance_time("2s")
    assert harness.state("1") is None
    harness.check_replay(orders=5)


def test_a_function_of_something_else_is_refused_with_the_shape_that_is_wanted() -> None:
    def untyped(e: Any):  # type: ignore[no-untyped-def]
        return e

    def two(e: Line, more: int) -> Line:
        return e

    for wrong in (untyped, two):
        with pytest.raises(DeclarationError, match=r"@map takes a function of one event.*-> Made"):
            map(key="id", event_time="at")(wrong)
    with pytest.raises(DeclarationError, match="'nothing' is not a field of Line"):
        map(key="nothing", event_time="at")(not_shouted)


def not_shouted(e: Line) -> Word:
    return Word(e.text, e.at)
