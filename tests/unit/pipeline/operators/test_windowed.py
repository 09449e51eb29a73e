"""Windowed aggregation against a plain loop, and each of its rules on its own."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.pipeline.operators.models import in_fixed_windows, in_sessions
from tests.unit.pipeline.operators.shop import (
    KEYED,
    Counting,
    Session,
    Sliding,
    Strict,
    Total,
    Tumbling,
    Visit,
)
from tests.unit.pipeline.operators.streams import SEEDS, is_empty, play, shuffled

from catchwater import Keyed, Retraction, function
from catchwater.operators import Windowed, session, tumbling
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.testing import Harness


def visits(draw: random.Random) -> list[Visit]:
    return [
        Visit(
            f"u{draw.randrange(3)}",
            str(i),
            draw.randrange(i * 300, i * 300 + 2_000),
            draw.randrange(5),
        )
        for i in range(400)
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("windowed", [Tumbling, Sliding, Strict])
def test_fixed_windows_give_what_a_plain_loop_gives(windowed: type[Counting], seed: int) -> None:
    draw = random.Random(seed)
    harness = Harness(windowed)
    epochs, outputs = play(harness, draw, shuffled(draw, visits(draw)))
    expected, late = in_fixed_windows(windowed, epochs)
    assert sorted(outputs) == sorted(expected)
    assert harness.late == late > 0
    assert is_empty(harness)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sessions_give_what_a_plain_loop_gives(seed: int) -> None:
    draw = random.Random(seed)
    harness = Harness(Session)
    epochs, outputs = play(harness, draw, shuffled(draw, visits(draw)))
    expected, late = in_sessions(epochs)
    assert sorted(outputs) == sorted(expected)
    assert harness.late == late > 0
    assert is_empty(harness)


def totals(outputs: list[Total]) -> list[tuple[int, int, int]]:
    return [(each.start, each.end, each.pages) for each in outputs]


def test_a_window_gives_its_result_when_the_watermark_reaches_its_end() -> None:
    h = Harness(Strict)
    h.send(Visit("u", "1", 1_000), Visit("u", "2", 9_999), Visit("u", "3", 10_000))
    assert h.advance_watermark(9_999) == []
    assert totals(h.advance_watermark(10_000)) == [(0, 10_000, 2)]
    assert totals(h.advance_watermark(90_000)) == [(10_000, 20_000, 1)]


def test_an_event_behind_the_watermark_is_not_late_while_a_window_of_its_is_open() -> None:
    h = Harness(Strict)
    h.advance_watermark(8_000)
    h.send(Visit("u", "1", 1_000))
    assert (totals(h.advance_watermark(10_000)), h.late) == ([(0, 10_000, 1)], 0)
    assert (h.send(Visit("u", "2", 9_000)), h.late) == ([], 1)


def test_a_late_event_gives_the_result_again_until_the_window_is_dropped() -> None:
    h = Harness(Tumbling)  # windows from 3 to 13 s, kept until 33 s
    h.send(Visit("u", "1", 4_000))
    assert totals(h.advance_watermark(13_000)) == [(3_000, 13_000, 1)]
    assert totals(h.send(Visit("u", "2", 5_000, 3))) == [(3_000, 13_000, 4)]
    h.advance_watermark(32_999)
    assert totals(h.send(Visit("u", "3", 6_000))) == [(3_000, 13_000, 5)]
    assert len(h.state("u").ended_accs) == 1
    h.advance_watermark(33_000)
    assert len(h.state("u").ended_accs) == 0
    assert (h.send(Visit("u", "4", 7_000)), h.late) == ([], 1)


def test_a_window_that_only_late_events_reach_is_opened_for_them() -> None:
    h = Harness(Tumbling)
    h.advance_watermark(20_000)
    assert totals(h.send(Visit("u", "1", 4_000))) == [(3_000, 13_000, 1)]


def test_events_less_than_the_gap_apart_are_one_session() -> None:
    h = Harness(Session)
    h.send(*(Visit("u", str(at), at) for at in (1_000, 4_999, 8_999)))
    assert totals(h.advance_watermark(50_000)) == [(1_000, 8_999, 2), (8_999, 12_999, 1)]


def test_an_event_between_two_sessions_makes_them_one() -> None:
    h = Harness(Session)
    h.send(*(Visit("u", str(at), at) for at in (1_000, 7_000, 4_000)))
    assert totals(h.advance_watermark(50_000)) == [(1_000, 11_000, 3)]


def test_a_late_event_that_connects_sessions_gives_the_whole_again() -> None:
    h = Harness(Session)
    h.send(Visit("u", "1", 1_000), Visit("u", "2", 7_000))
    assert totals(h.advance_watermark(11_000)) == [(1_000, 5_000, 1), (7_000, 11_000, 1)]
    assert totals(h.send(Visit("u", "3", 4_000))) == [(1_000, 11_000, 3)]


@function(name="upserted", **KEYED, output_id=("user", "start"))
class Upserted(Counting):
    window = session("4s")
    allowed_lateness = "1h"


def total(start: int, end: int, ids: list[str]) -> Total:
    return Total("u", start, end, len(ids), ids)


def test_a_session_that_a_late_event_begins_earlier_takes_its_result_back() -> None:
    """An upserting sink kept the row of the old start beside the new one."""
    h = Harness(Upserted)
    h.send(Visit("u", "1", 5_000), Visit("u", "2", 7_000))
    given = total(5_000, 11_000, ["1", "2"])
    assert h.advance_watermark(11_000) == [given]
    merged = total(2_000, 11_000, ["0", "1", "2"])
    assert h.send(Visit("u", "0", 2_000)) == [Retraction(given), merged]
    # Within the session nothing is superseded: the result replaces the one before.
    assert h.send(Visit("u", "3", 6_000)) == [total(2_000, 11_000, ["0", "1", "2", "3"])]
    h.crash_and_restore(at=1)
    h.check_replay()


def test_sessions_that_become_one_take_both_results_back_though_it_is_open_again() -> None:
    h = Harness(Upserted)
    h.send(Visit("u", "1", 1_000), Visit("u", "2", 7_000))
    first, second = h.advance_watermark(11_000)
    h.send(Visit("u", "9", 14_500))
    assert h.send(Visit("u", "3", 4_000), Visit("u", "4", 10_600)) == [
        Retraction(first),
        Retraction(second),
        total(1_000, 11_000, ["1", "2", "3"]),
        Retraction(total(1_000, 11_000, ["1", "2", "3"])),
    ]
    assert h.advance_watermark(18_500) == [total(1_000, 18_500, ["1", "2", "3", "4", "9"])]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_upserting_table_holds_the_sessions_of_a_plain_loop(seed: int) -> None:
    """With late events, some in the middle of others, duplicates, crashes and replays."""
    draw = random.Random(seed)
    visits = [
        Visit(f"u{draw.randrange(3)}", str(i), draw.randrange(i * 1_000, i * 1_000 + 5_000), i % 5)
        for i in range(300)
    ]
    harness = Harness(Upserted)
    _, outputs = play(harness, draw, shuffled(draw, visits))
    table: dict[tuple[str, int], Total] = {}
    for each in outputs:
        if isinstance(each, Retraction):
            gone = table.pop((each.output.user, each.output.start))
            assert gone == each.output, "what is taken back is what was there"
        else:
            table[each.user, each.start] = each
    taken = [Retraction in set(map(type, outputs)), harness.late]
    assert taken == [True, 0], "the stream is too tame"
    assert sorted(table.values()) == sessions_of(visits)


def sessions_of(visits: list[Visit]) -> list[Total]:
    """Each user's visits less than 4 s apart, whenever they came."""
    found: list[Total] = []
    for e in sorted(visits, key=lambda e: (e.user, e.at)):
        last = found[-1] if found else None
        if last is None or (last.user, last.end > e.at) != (e.user, True):
            found.append(Total(e.user, e.at, e.at + 4_000, 0, []))
        total = found[-1]
        total.end, total.pages, total.ids = e.at + 4_000, total.pages + e.pages, [*total.ids, e.id]
    return sorted(replace(each, ids=sorted(each.ids)) for each in found)


def test_without_an_output_id_nothing_is_taken_back() -> None:
    h = Harness(Session)
    h.send(Visit("u", "1", 5_000))
    h.advance_watermark(9_000)
    assert totals(h.send(Visit("u", "0", 2_000))) == [(2_000, 9_000, 2)]


def test_a_version_with_other_windows_cannot_read_the_state() -> None:
    h = Harness(Strict)
    later = function(name="strict", **KEYED)
    h.upgrade(later(derived(window=tumbling("10s"), allowed_lateness="1h")))
    with pytest.raises(ValueError, match="window"):
        h.upgrade(later(derived(window=tumbling("20s"))))


def derived(**members: object) -> type[Counting]:
    return type("Derived", (Counting,), members)


def refusals() -> Iterator[tuple[type, dict[str, str], str]]:
    fixed = {"window": tumbling("1m")}
    yield derived(), {}, r"say window = tumbling\(...\)"
    yield derived(window="1m"), {}, r"say window = tumbling\(...\)"
    yield derived(window=session("1m"), merge=Windowed.merge), {}, r"sessions need a merge\(a, b\)"
    yield derived(**fixed, allowed_lateness="a bit"), {}, "'a bit' is not a duration"
    yield derived(**fixed), {"late": "process"}, "taken by allowed_lateness, not by late"
    yield derived(**fixed), {"state_ttl": "1h"}, "declare it without state_ttl"


@pytest.mark.parametrize(("target", "declaration", "reason"), list(refusals()))
def test_a_declaration_that_could_not_work_is_refused(
    target: type[Keyed], declaration: dict[str, str], reason: str
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        function(name="visits", **KEYED, **declaration)(target)


def test_the_types_must_be_given_and_be_records() -> None:
    with pytest.raises(DeclarationError, match=r"write Windowed\[Event, Acc, Out\]"):

        @function(name="visits", **KEYED)
        class Untyped(Windowed):
            window = tumbling("1m")

    with pytest.raises(DeclarationError, match="the accumulator <class 'int'> must be a dataclass"):

        @function(name="visits", **KEYED)
        class OfNumbers(Windowed[Visit, int, int]):
            window = tumbling("1m")

    with pytest.raises(DeclarationError, match="needs a default for every field"):

        @function(name="visits", **KEYED)
        class OfVisits(Windowed[Visit, Visit, Total]):
            window = tumbling("1m")
