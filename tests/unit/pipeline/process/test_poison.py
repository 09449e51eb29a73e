"""Events that cannot be handled: what is said of them, what is undone, when it is too much."""

import traceback
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import Poison
from catchwater.pipeline.process.batch import Batch, Poisoned, Times
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.poison import (
    Cause,
    EventFailed,
    HandlerTimeout,
    PoisonLimitReached,
    Progress,
    without_payload,
)
from catchwater.state.entries import DictEntries, ShardState
from catchwater.state.keys import EventRefused
from catchwater.state.parts import ShardDamaged
from catchwater.testing import Harness


@dataclass
class Event:
    card: str
    at: int
    amount: float = 1.0


@dataclass
class State:
    n: int = 0
    ratio: float = 0.0


def divides(poison="fail", limit=None):
    @function(name="divides", key="card", event_time="at", poison=poison, poison_limit=limit)
    class Divides(Keyed[Event, State, str]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
            s.n += 1
            ctx.timer("later", e.at + 1_000)
            yield f"{e.card} {s.n}"
            s.ratio = 1 / e.amount  # the line that is named
            yield f"{e.card} {s.ratio}"

        def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
            s.n += 100
            if s.ratio == 0.5:
                raise LookupError("no such thing")
            return [f"{ctx.key} timer"]

    return Divides


def run(target, events, poison=None, progress=None):
    spec = spec_of(target)
    batch = Batch(
        [spec.stored_key_of(e) for e in events],
        events,
        "payments-3",
        range(100, 100 + len(events)),
        [spec.encode_output(e) for e in events],
    )
    state = ShardState(DictEntries(), 1)
    return process(spec, state, [batch], Times(0, 0, 0), poison=poison, progress=progress)


def test_failing_names_place_key_error_and_the_line_in_the_users_file():
    with pytest.raises(EventFailed) as failed:
        run(divides(), [Event("a", 5), Event("c1", 6, 0.0)])
    text = str(failed.value)
    assert "Function 'divides' cannot handle the event at payments-3, offset 101, key #" in text
    assert "ZeroDivisionError: float division by zero, in on_event" in text
    assert __file__ in text and "s.ratio = 1 / e.amount" in text
    assert "c1" not in text


class Ours(NamedTuple):
    text: str
    key: bytes | None
    value: bytes
    shown: str


MARKED = b'{"user": "alice-marker", "amount": 7345, "note": ["x"]}'


@pytest.mark.parametrize(
    "said",
    [
        Ours("ValueError: invalid literal: 'alice-marker'", None, MARKED,
             "ValueError: invalid literal: '…'"),
        Ours("KeyError: 'amount'", None, MARKED, "KeyError: 'amount'"),
        Ours("ValueError: 7345 of alice-marker", None, MARKED, "ValueError: … of …"),
        Ours("ValueError: 'x' and axe", None, MARKED, "ValueError: '…' and axe"),
        Ours("LookupError: k-7", b"k-7", b"", "LookupError: …"),
        Ours("ValueError: b'plain secret'", None, b"plain secret", "ValueError: b'…'"),
        Ours("ValueError: secret here", None, b"plain secret", "ValueError: … here"),
    ],
)  # fmt: skip
def test_a_message_quotes_nothing_of_the_record(said: Ours) -> None:
    assert without_payload(said.text, said.key, said.value) == said.shown


def test_the_error_that_stops_a_pipeline_has_neither_key_nor_value() -> None:
    event = Event("-".join(("alice", "marker")), 6, 0.0)  # not as it stands in this line
    with pytest.raises(EventFailed) as failed:
        run(divides(), [event])
    shown = "".join(traceback.format_exception(failed.value))
    assert "alice-marker" not in shown and "ZeroDivisionError" in shown


def test_a_skipped_event_leaves_nothing_but_its_record_in_the_letters():
    done = run(
        divides("skip"), [Event("a", 5), Event("a", 6, 0.0), Event("a", 7), Event("b", 8, 0)]
    )
    assert done.outputs == ["a 1", "a 1.0", "a 2", "a 1.0"]
    assert (done.events, done.keys, done.max_event_times) == (4, 1, {"payments-3": 7})
    assert [(p.origin, p.offset, p.key) for p in done.poisoned] == [
        ("payments-3", 101, b"a"), ("payments-3", 103, b"b"),
    ]  # fmt: skip
    assert done.poisoned[0].value == b'{"card":"a","at":6,"amount":0.0}'


def test_where_all_are_bad_the_epoch_ends_all_the_same():
    done = run(divides("dead-letter"), [Event(f"c{i}", i, 0.0) for i in range(500)])
    assert (len(done.poisoned), done.events, done.outputs) == (500, 500, [])


def test_each_event_is_tried_twice_at_most():
    tried = []

    @function(name="f", key="card", event_time="at", poison="skip")
    def counts(e: Event, s: State, ctx: Context) -> Out[str]:
        tried.append(e.at)
        if e.at % 10 == 0:
            raise ValueError("ten")

    run(counts, [Event("a", i) for i in range(1, 100)])
    assert len(tried) <= 2 * 99


def test_a_limit_stops_the_pipeline_at_the_next_bad_event():
    events = [Event("a", i, 0.0) for i in range(5)]
    assert len(run(divides("skip", 5), events).poisoned) == 5
    with pytest.raises(PoisonLimitReached, match=r"more than 4 .* payments-3, offset 104, key #"):
        run(divides("skip", 4), events)


def test_the_pipelines_file_stands_for_the_declaration():
    assert len(run(divides(), [Event("a", 1, 0.0)], Poison("skip")).poisoned) == 1


def test_a_timer_that_raises_is_undone_and_does_not_come_again():
    h = Harness(divides("skip"))
    h.send(Event("a", 5, 2.0), Event("b", 5, 1.0))
    assert h.advance_watermark(5_000) == ["b timer"]
    assert (h.state("a").n, h.advance_watermark(9_000)) == (1, [])
    (letter,) = h.poisoned
    assert letter[:4] == ("timer later", 1_005, b"a", b"")
    h.crash_and_restore(at=0)
    with pytest.raises(EventFailed, match=r"cannot handle the timer later of 1005, key #\w+: Look"):
        h = Harness(divides())
        h.send(Event("a", 5, 2.0))
        h.advance_watermark(5_000)


def test_an_output_and_a_state_that_cannot_be_stored_are_the_events_fault():
    @function(name="f", key="card", event_time="at", poison="skip")
    class Unstorable(Keyed[Event, State, object]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[object]:
            if e.at == 2:
                s.n = object()
            return [object() if e.at == 1 else e.at]

    done = run(Unstorable, [Event("a", at) for at in range(4)])
    assert (done.outputs, [p.offset for p in done.poisoned]) == ([0, 3], [101, 102])
    assert "object cannot be encoded" in done.poisoned[0].error


def test_records_that_could_not_be_decoded_are_poison_too():
    spec = spec_of(divides("skip"))
    bad = Poisoned("t-0", 7, None, b"?", "it is no JSON")
    batch = Batch((), (), "t-0", (), (), poisoned=[bad])
    done = process(spec, ShardState(DictEntries(), 1), [batch], Times(0, 0, 0))
    assert (done.poisoned, done.events) == ([bad], 1)
    with pytest.raises(EventFailed, match="at t-0, offset 7: it is no JSON"):
        process(spec_of(divides()), ShardState(DictEntries(), 1), [batch], Times(0, 0, 0))


def test_the_machinerys_own_errors_are_nobodys_poison():
    @function(name="f", key="card", event_time="at", poison="skip")
    def breaks(e: Event, s: State, ctx: Context) -> Out[str]:
        if e.at == 1:
            raise ShardDamaged("object", 1, "its checksum does not match")
        raise EventRefused("Without that it cannot be done.")

    done = run(breaks, [Event("a", 2)])
    assert done.poisoned[0].error.startswith("Without that it cannot be done, in breaks, ")
    with pytest.raises(ShardDamaged):
        run(breaks, [Event("a", 1)])


def test_the_innermost_line_of_another_file_is_named_where_the_functions_own_is_not_known():
    @function(name="f", key="card", event_time="at", poison="skip")
    class Keeps(Keyed[Event, State, str]):
        on_event = eval("lambda self, e, s, ctx: 1 / 0")

    assert (
        "ZeroDivisionError: division by zero, in <lambda>"
        in run(Keeps, [Event("a", 1)]).poisoned[0].error
    )


def test_what_is_known_to_end_badly_is_poison_and_is_not_tried_again():
    progress = Progress(careful=True, known={Cause("payments-3", 101, b"c"): "it killed us."})
    noted = []
    progress.note = noted.append
    events = [Event("a", 5), Event("c", 6), Event("a", 7)]
    done = run(divides("skip"), events, progress=progress)
    assert done.outputs == ["a 1", "a 1.0", "a 2", "a 1.0"]
    assert [(p.offset, p.error) for p in done.poisoned] == [(101, "it killed us.")]
    assert [cause.offset for cause in noted] == [100, 102]
    with pytest.raises(EventFailed, match=r"offset 101, key #\w+: it killed us"):
        run(divides(), events, progress=progress)


def test_a_handler_that_is_ended_from_beside_is_poison_wherever_it_was():
    seen = []

    @function(name="endless", key="card", event_time="at", poison="skip")
    class Endless(Keyed[Event, State, str]):
        def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
            s.n += 1
            ctx.timer("later", e.at)
            if e.amount == 0:
                seen.append(progress.cause())
                raise HandlerTimeout("it had not ended after 60 s")
            return [f"{e.card} {s.n}"]

    progress = Progress()
    spread = []
    progress.spread = lambda cause, text: spread.append(cause)
    done = run(Endless, [Event("a", 5), Event("a", 6, 0.0), Event("a", 7)], progress=progress)
    cause = Cause("payments-3", 101, b"a")
    assert seen == [cause, cause], "once among others, and once with care"
    assert done.outputs == ["a 1", "a 2"]
    assert [p.offset for p in done.poisoned] == [101] and spread == [cause]
    assert "HandlerTimeout: it had not ended after 60 s, in on_event" in done.poisoned[0].error


def test_no_handler_runs_between_handlers():
    progress = Progress()
    run(divides("skip"), [Event("a", 5), Event("c", 6, 0.0)], progress=progress)
    assert progress.cause() is None
