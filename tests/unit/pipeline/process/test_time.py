"""Events too far ahead of their record, and events that come late: where they go, what is kept."""

from dataclasses import dataclass

import pytest

from catchwater import Context, Keyed, Out, function
from catchwater.operators import Joined, Window, Windowed, session
from catchwater.pipeline.process.poison import EventFailed
from catchwater.testing import Harness

NOW = 1_700_000_000_000
DAY = 86_400_000
YEAR_2100 = 4_102_444_800_000


@dataclass
class Event:
    card: str
    at: int
    id: str = ""


@dataclass
class Other:
    card: str
    at: int


@dataclass
class State:
    n: int = 0


def counts(**declared):
    @function(**{"name": "counts", "key": "card", "event_time": "at", "watermark": "1s"} | declared)
    class Counts(Keyed[Event, State, str]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
            s.n += 1
            return [f"{e.card} {s.n}"]

    return Counts


def test_an_event_far_ahead_of_its_record_stops_the_pipeline_by_name():
    h = Harness(counts())
    h.send(Event("a", NOW + DAY), timestamp=NOW)
    with pytest.raises(EventFailed) as failed:
        h.send(Event("a", NOW), Event("b", YEAR_2100), timestamp=NOW)
    told = str(failed.value)
    assert "offset 2, key #" in told and "event time … lies" in told
    assert "ahead of its record's timestamp" in told and "max_future is 86400000 ms" in told


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_it_makes_no_later_event_late(policy):
    """The whole function was silent from then on: the watermark stood in the year 2100."""
    h = Harness(counts(poison=policy))
    h.send(Event("a", NOW), Event("b", NOW + DAY + 1), Event("a", NOW + 5), timestamp=NOW)
    h.send(Event("b", YEAR_2100), timestamp=NOW + 10)
    assert h.watermark == NOW + 5 - 1_000
    assert h.send(Event("a", NOW + 6), timestamp=NOW + 20) == ["a 3"]
    assert (h.late, [each.offset for each in h.poisoned]) == (0, [1, 3])
    h.crash_and_restore(at=0)
    h.crash_and_restore(event=2)
    h.check_replay(orders=10)


def test_the_bound_is_declared_and_what_has_no_timestamp_has_none():
    h = Harness(counts(max_future="1h", poison="skip"))
    h.send(Event("a", NOW + 3_600_001), Event("a", NOW + 3_600_000), timestamp=NOW)
    assert len(h.poisoned) == 1
    assert h.send(Event("a", YEAR_2100)) == ["a 2"]
    assert Harness(counts(max_future=None)).send(Event("a", YEAR_2100), timestamp=NOW) == ["a 1"]


def test_operators_are_guarded_as_well():
    @function(name="visits", key="card", event_time="at", watermark="1s", poison="skip")
    class Visits(Windowed[Event, State, str]):
        window = session("10s")

        def add(self, e: Event, acc: State, ctx: Context) -> None:
            acc.n += 1

        def merge(self, a: State, b: State) -> State:
            return State(a.n + b.n)

        def result(self, window: Window, acc: State, ctx: Context) -> Out[str]:
            yield f"{ctx.key} {acc.n}"

    h = Harness(Visits)
    h.send(Event("a", NOW), Event("b", YEAR_2100), timestamp=NOW)
    assert h.send(Event("a", NOW + 20_000), timestamp=NOW) == ["a 1"]
    assert (h.late, len(h.poisoned)) == (0, 1)


@pytest.mark.parametrize("late", ["dead-letter", "too-late"])
def test_late_events_are_kept_apart_each_once(late):
    h = Harness(counts(late=late, dedup="id"))
    h.send(Event("a", NOW, "1"), Event("b", NOW + 9_000, "2"))
    assert h.send(Event("a", NOW + 7_000, "3"), Event("c", NOW + 8_000, "4")) == ["c 1"]
    assert (h.late, h.duplicates) == (1, 0)
    # What came in time is no late event when it comes again, and a late one is one only once.
    assert h.send(Event("a", NOW, "1"), Event("a", NOW + 7_000, "3"), Event("z", NOW, "5")) == []
    assert (h.late, h.duplicates) == (2, 2)
    first, second = h.late_events
    assert (first.offset, first.key, second.offset, second.key) == (2, b"a", 6, b"z")
    assert b'"id":"3"' in first.value and b'"id":"5"' in second.value
    assert f"its event time is {NOW + 7_000}, the watermark {NOW + 8_000}" in first.error
    assert h.poisoned == []
    for crash in ({"at": 0}, {"event": 3}, {"event": 6}):
        h.crash_and_restore(**crash)
    h.check_replay(orders=20)


def test_a_late_event_is_the_duplicate_of_one_before_it_also_in_the_same_batch():
    """It was looked at first: the event in time was its duplicate, and was not handled."""
    h = Harness(counts(late="dead-letter", dedup="id"))
    h.send(Event("z", NOW + 5_000))
    assert h.send(Event("a", NOW + 5_000, "1"), Event("a", NOW, "1")) == ["a 1"]
    assert (h.late, h.duplicates, h.late_events) == (0, 1, [])


def test_a_late_event_beside_a_poisoned_one_is_kept_once():
    h = Harness(counts(late="dead-letter", poison="skip", dedup="id"))
    h.send(Event("a", NOW, "1"))
    h.send(b"{", Event("a", NOW - 5_000, "2"), Event("a", YEAR_2100, "3"), timestamp=NOW)
    assert (h.late, len(h.late_events), len(h.poisoned)) == (1, 1, 2)
    h.crash_and_restore(at=0)


def test_late_events_that_are_dropped_or_handled_go_nowhere():
    for late, outputs in (("drop", []), ("process", ["a 2"])):
        h = Harness(counts(late=late))
        h.send(Event("a", NOW))
        assert h.send(Event("a", NOW - 5_000)) == outputs
        assert (h.late, h.late_events) == (1, [])


def test_operators_give_their_late_events_too():
    @function(
        name="pairs", inputs={"left": Event, "right": Other}, key="card", event_time="at",
        watermark="1s", late="too-late",
    )  # fmt: skip
    class Pairs(Joined[Event, Other, str]):
        within = "1s"

        def match(self, left: Event, right: Other, ctx: Context) -> Out[str]:
            yield left.card

    h = Harness(Pairs)
    h.send(Event("a", NOW), Other("a", NOW))
    h.send(Other("a", NOW - 5_000))
    (late,) = h.late_events
    assert late.origin == "right-0" and (h.late, late.key) == (1, b"a")
