"""What a handler's context tells: the same again whenever the input is the same."""

from dataclasses import dataclass

import pytest

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.process.context import EpochContext
from catchwater.pipeline.process.poison import EventFailed
from catchwater.testing import Harness


@dataclass
class Event:
    key: str
    part: int
    id: str
    at: int


@dataclass
class State:
    drawn: float = 0.0


def dice(dedup):
    @function(name="dice", key=("key", "part"), event_time="at", watermark="5ms", dedup=dedup)
    class Dice(Keyed[Event, State, tuple]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[tuple]:
            s.drawn = ctx.random.random()
            ctx.timer("later", e.at + 3)
            yield ctx.key, ctx.watermark, ctx.now, s.drawn, ctx.random.random()

        def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[tuple]:
            return [(ctx.key, name, at, ctx.random.random())]

    return Dice


EVENTS = [Event("a", 1, "x", 10), Event("a", 2, "x", 11), Event("a", 1, "y", 12)]


def test_key_watermark_and_clock_are_the_epochs():
    harness = Harness(dice("id"), now=77)
    (first, *_), *_ = [harness.send(*EVENTS)]
    assert first[:3] == (("a", 1), 0, 77)
    assert harness.watermark == 7


def test_draws_depend_on_key_and_event_only():
    for dedup in ("id", None):
        together, apart = Harness(dice(dedup)), Harness(dice(dedup))
        drawn = [out[3:] for out in together.send(*EVENTS)]
        assert drawn == [out[3:] for event in reversed(EVENTS) for out in apart.send(event)][::-1]
        assert len({draw for pair in drawn for draw in pair}) == 6


def test_timers_draw_the_same_on_replay():
    one, other = Harness(dice("id")), Harness(dice("id"))
    for harness in (one, other):
        harness.send(*EVENTS)
    assert one.advance_watermark(50) == other.advance_watermark(50)
    one.crash_and_restore(at=0)


@pytest.mark.parametrize(
    ("name", "at", "words"), [("n" * 101, 5, "over 100 bytes"), ("n", 5.5, "not 5.5")]
)
def test_a_timer_that_cannot_be_stored_is_refused_where_it_is_set(name, at, words):
    @function(name="wrong", key="key", event_time="at")
    def wrong(e: Event, s: State, ctx: Context) -> Out[str]:
        ctx.timer(name, at)
        return None

    with pytest.raises(EventFailed, match=words):
        Harness(wrong).send(EVENTS[0])


def test_a_cancelled_timer_is_forgotten():
    @function(name="cancel", key="key", event_time="at")
    class Cancel(Keyed[Event, State, str]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
            ctx.timer("a", 20)
            ctx.timer("b", 30)
            ctx.cancel_timer("a")
            ctx.cancel_timer("unknown")

        def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
            ctx.cancel_timer("c")
            return [f"{name}@{at}"]

    harness = Harness(Cancel)
    harness.send(EVENTS[0])
    assert harness.advance_watermark(100) == ["b@30"]


@function(name="places", key="key", event_time="at", watermark="5ms", late="process")
class Places(Keyed[Event, State, tuple]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[tuple]:
        if e.id == "timer":
            ctx.timer("later", e.at)
        yield e.id, ctx.topic, ctx.partition, ctx.offset, ctx.timestamp

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[tuple]:
        yield (ctx.offset,)


def test_an_event_knows_the_record_it_came_in():
    harness = Harness(Places)
    assert harness.send(Event("a", 1, "x", 10), Event("b", 1, "y", 11)) == [
        ("x", "events", 0, 0, None),
        ("y", "events", 0, 1, None),
    ]
    assert harness.send(Event("a", 1, "z", 12), timestamp=12) == [("z", "events", 0, 2, 12)]
    harness.check_replay(orders=20)
    harness.crash_and_restore(event=2)


@function(name="headed", key="key", event_time="at", watermark="5ms", headers=True)
class Headed(Keyed[Event, State, tuple]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[tuple]:
        if e.id == "timer":
            ctx.timer("later", e.at)
        elif e.id == "bad":
            raise ValueError(e.id)
        yield e.id, dict(ctx.headers)

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[tuple]:
        yield (ctx.headers,)


def test_an_event_has_its_records_headers_if_the_function_says_that_it_reads_them():
    harness = Harness(Headed)
    traced = [("trace", b"7f"), ("empty", None)]
    assert harness.send(Event("a", 1, "x", 10), headers=traced) == [
        ("x", {"trace": b"7f", "empty": None})
    ]
    assert harness.send(Event("a", 1, "y", 11)) == [("y", {})]
    harness.check_replay(orders=5)
    harness.crash_and_restore(event=1)
    with pytest.raises(EventFailed, match="LookupError: a timer has no headers"):
        harness.send(Event("a", 1, "timer", 12), Event("a", 1, "z", 90))


def test_headers_of_a_function_that_did_not_say_so_are_an_error_that_says_how():
    @function(name="silent", key="key", event_time="at")
    class Silent(Keyed[Event, State, tuple]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[tuple]:
            yield (ctx.headers,)

    with pytest.raises(EventFailed, match="'silent' reads no headers: declare headers=True"):
        Harness(Silent).send(Event("a", 1, "x", 10))


def test_headers_stay_with_their_event_where_a_bad_one_is_looked_for():
    @function(name="careful", key="key", event_time="at", headers=True, poison="skip")
    class Careful(Headed):
        pass

    harness = Harness(Careful)
    events = [Event("a", 1, each, 10) for each in ("x", "bad", "y")]
    assert harness.send(*events, headers=[("trace", b"7f")]) == [
        ("x", {"trace": b"7f"}), ("y", {"trace": b"7f"}),
    ]  # fmt: skip
    assert len(harness.poisoned) == 1


def test_a_timer_came_in_none():
    harness = Harness(Places)
    with pytest.raises(EventFailed, match="LookupError: a timer has no offset"):
        harness.send(Event("a", 1, "timer", 10), Event("a", 1, "x", 90))


def test_nor_did_what_the_function_before_put_out():
    context = EpochContext(spec_of(Places), 0, 0, None, None, chained=True)
    context.cause = EVENTS[0]
    with pytest.raises(LookupError, match="in a chain only the first function's events"):
        assert context.topic
