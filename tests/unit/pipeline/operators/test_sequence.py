"""How steps are put together, and what has been found of them is looked up."""

import pytest

from catchwater.pipeline.operators.pattern import Match, begin


def always(e: object, found: object) -> bool:
    return True


def test_steps_follow_each_other_as_they_were_said() -> None:
    pattern = begin("a", always).unless(any).then("b", always).times(3).next("c", always)
    a, b, c = pattern.steps
    assert [(s.name, s.strict, s.count, s.unless) for s in (a, b, c)] == [
        ("a", False, 1, ()),
        ("b", False, 3, (any,)),
        ("c", True, 1, ()),
    ]
    assert pattern.unless_before_next == ()


def test_the_events_of_a_step_are_found_by_its_name() -> None:
    steps = begin("a", always).then("b", always).times(2).then("c", always).steps
    found = Match(steps, [(0, "x"), (1, "y"), (1, "z")])
    assert (found["a"], found["b"], found.all("b"), list(found)) == (
        "x",
        "z",
        ["y", "z"],
        ["x", "y", "z"],
    )
    assert "b" in found and "c" not in found
    assert found.all("c") == []
    with pytest.raises(KeyError, match="c"):
        found["c"]


def test_steps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="two steps named 'a'"):
        begin("a", always).then("a", always)
    with pytest.raises(ValueError, match="step 'a' cannot take 0 events"):
        begin("a", always).times(0)
