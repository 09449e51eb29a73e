"""What a pin is worth, by what it holds and what is there."""

from dataclasses import replace

from catchwater.catalog.rows import Pin
from catchwater.log.keep.pins import (
    holding,
    in_force,
    judged,
    lost_offsets,
    lowest,
    sentence,
    with_states,
)

NOW = 1_000_000


def pin(
    offset: int,
    lease: int | None = None,
    place: tuple[str, int] = ("t", 0),
    max_bytes: int | None = None,
    state: str = "reserved",
) -> Pin:
    return Pin(f"{offset}", "me", {place: offset}, lease, 0, max_bytes, state)


def test_the_lowest_pin_in_force_counts() -> None:
    pins = [pin(30), pin(10, NOW), pin(20, NOW + 1), pin(5, None, ("t", 1)), pin(1, NOW - 1)]
    assert lowest(in_force(pins, NOW)) == {("t", 0): 20, ("t", 1): 5}


def test_a_lost_pin_is_in_force_no_more_and_stays_lost() -> None:
    lost = pin(5, state="lost")
    assert in_force([lost], NOW) == []
    assert judged(lost, {("t", 0): 0}, 0) == "lost"


def test_the_states_are_those_of_postgresqls_slots() -> None:
    capped = pin(5, max_bytes=100)
    starts = {("t", 0): 5}
    assert judged(capped, starts, 0) == "reserved"
    assert judged(capped, starts, 100) == "extended"
    assert judged(capped, starts, 101) == "unreserved"
    assert judged(pin(5), starts, 1 << 40) == "extended"
    assert judged(capped, {("t", 0): 6}, 0) == "lost"
    assert judged(capped, {}, 0) == "lost", "its topic is gone"


def test_deletion_stops_at_a_pin_over_its_cap_once_but_not_twice() -> None:
    first, second = pin(5, max_bytes=1), pin(6, max_bytes=1, state="unreserved")
    states = {"5": "unreserved", "6": "unreserved"}
    assert holding([first, second], states) == [first]
    assert holding([second], {"6": "extended"}) == [second], "it was moved on, or its cap raised"


def test_what_is_lost_is_named_by_place_and_offsets() -> None:
    torn = Pin("p/1", "p", {("a", 0): 5, ("a", 1): 5, ("b", 0): 1}, None, 0, None, "lost")
    starts = {("a", 0): 5, ("a", 1): 9}
    assert lost_offsets(torn, starts) == {("a", 1): (5, 9), ("b", 0): (1, None)}
    assert sentence(torn, starts, 0) == (
        "The pin p/1 of p is lost: a-1 offsets 5 to 8 are gone, b-0 is gone. "
        "What it was set for cannot be restored."
    )


def test_only_new_states_are_told() -> None:
    pins = [pin(1), pin(2)]
    changed = with_states(pins, {"1": "reserved", "2": "extended"})
    assert changed == [replace(pins[1], state="extended")]
    assert sentence(changed[0], {}, 7) == (
        "The pin 2 of me holds back 7 bytes that retention would delete."
    )
    assert "nothing back" in sentence(pins[0], {}, 0)
