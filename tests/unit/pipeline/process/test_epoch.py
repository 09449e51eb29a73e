"""The semantics of an epoch, held to a plain model that knows nothing of stores."""

import weakref
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.process import epoch as epoch_module
from catchwater.pipeline.process import live as seen_module
from catchwater.pipeline.process.batch import Batch, Processed, Times
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.live import read_record
from catchwater.state.entries import DictEntries, ShardState, Table
from catchwater.state.keys import encode_key, stored_key
from catchwater.state.records import coarse

DEDUP_TTL, STATE_TTL = 40, 25


@dataclass(frozen=True)
class Event:
    key: str
    id: str
    at: int
    do: str = "count"
    timer: str = "t"
    due: int = 0


@dataclass
class State:
    seen: list[str] = field(default_factory=list)


class Tracer(Keyed[Event, State, str]):
    """Tells all it sees: what it was called with, and what its state was."""

    def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
        yield f"{ctx.key} {e.id}@{e.at} {s.seen}"
        s.seen.append(e.id)
        if e.do == "timer":
            ctx.timer(e.timer, e.due)
        if e.do == "cancel":
            ctx.cancel_timer(e.timer)

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
        s.seen.append(name)
        if len(s.seen) % 2:
            ctx.timer(name, at + 7)
        return [f"{ctx.key} timer {name}@{at} {s.seen}"]


def traced(late="drop", state_ttl=f"{STATE_TTL}ms", dedup="id"):
    target = type("Traced", (Tracer,), {"__orig_bases__": Tracer.__orig_bases__})
    declare = function(
        name="trace", key="key", event_time="at", late=late, state_ttl=state_ttl,
        dedup=dedup, dedup_ttl=f"{DEDUP_TTL}ms",
    )  # fmt: skip
    return spec_of(declare(target))


class Model:
    """One function, as the documentation says it works, over plain dicts."""

    def __init__(self, spec):
        self.spec = spec
        self.states, self.written, self.timers, self.seen = {}, {}, {}, {}
        self.outputs, self.count = [], Counter()

    def epoch(self, events, watermark):
        self.outputs = []
        while due := self._due(watermark):
            at, _, name, key = due[0]
            del self.timers[key, name]
            state = self._state(key, at, at)
            state.append(name)
            if len(state) % 2:
                self.timers[key, name] = at + 7
            self.outputs.append(f"{key} timer {name}@{at} {state}")
        for event in events:
            self._event(event, watermark)

    def _due(self, watermark):
        return sorted(
            (at, stored_key(key.encode()), name, key)
            for (key, name), at in self.timers.items()
            if at <= watermark
        )

    def _state(self, key, now, at):
        if self.spec.state_ttl_ms and self.written.get(key, now) + STATE_TTL <= now:
            self.states.pop(key, None)
        self.written[key] = max(self.written.get(key, at), at)
        return self.states.setdefault(key, [])

    def _event(self, event, watermark):
        if event.at < watermark:
            self.count["late"] += 1
            if self.spec.late == "drop":
                return
        at = max(event.at, watermark)
        identity = event.key, event.id
        if identity in self.seen and self.seen[identity] + DEDUP_TTL > watermark:
            self.count["duplicates"] += 1
            return
        self.seen[identity] = at
        state = self._state(event.key, watermark, at)
        self.outputs.append(f"{event.key} {event.id}@{event.at} {state}")
        state.append(event.id)
        if event.do == "timer":
            self.timers[event.key, event.timer] = event.due
        if event.do == "cancel":
            self.timers.pop((event.key, event.timer), None)


class Shard:
    """A shard in memory that commits every epoch."""

    def __init__(self, spec):
        self.spec, self.entries, self.version = spec, DictEntries(), 0
        self.count = Counter()

    def epoch(self, events, watermark, cut=3) -> Processed:
        self.version += 1
        state = ShardState(self.entries, self.version)
        batches = []
        for start in range(0, len(events), cut):
            part = events[start : start + cut]
            keys = [self.spec.stored_key_of(e) for e in part]
            values = [self.spec.encode_output(e) for e in part]
            offsets = range(start, start + len(part))
            batches.append(Batch(keys, part, "t-0", offsets, values))
        done = process(self.spec, state, batches, Times(watermark, watermark, 0))
        self.entries.apply(state.changes)
        self.count.update(late=done.late, duplicates=done.duplicates)
        return done

    def record(self, key):
        return read_record(self.spec, ShardState(self.entries, 0), stored_key(encode_key(key)))


@st.composite
def epochs(draw):
    """(events, watermark) of epochs; timers may lie anywhere, in the past of their event too."""
    found, watermark = [], 0
    for _ in range(draw(st.integers(1, 8))):
        watermark += draw(st.sampled_from((0, 0, 3, 10, 30, 60)))
        rows = draw(
            st.lists(
                st.tuples(
                    st.sampled_from("abc"), st.integers(0, 5), st.integers(-5, 20),
                    st.sampled_from(("count", "count", "timer", "cancel")),
                    st.sampled_from("tu"), st.integers(1, 40),
                ),
                max_size=12,
            )
        )  # fmt: skip
        events = [
            Event(k, str(i), max(watermark + at, 0), do, t, max(watermark, watermark + at) + due)
            for k, i, at, do, t, due in rows
        ]
        found.append((events, watermark))
    return found


@settings(max_examples=150, deadline=None)
@given(epochs(), st.integers(1, 5), st.sampled_from(("drop", "process")), st.booleans())
def test_epochs_equal_the_plain_model(history, cut, late, tiny):
    spec = traced(late)
    model, shard = Model(spec), Shard(spec)
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(seen_module, "IN_RECORD", 2)
            patch.setattr(seen_module, "KEPT", 1)
        for events, watermark in history:
            model.epoch(events, watermark)
            done = shard.epoch(events, watermark, cut)
            assert done.outputs == model.outputs
            assert shard.count["late"] == model.count["late"]
            assert shard.count["duplicates"] == model.count["duplicates"]
            due = min(model.timers.values(), default=None)
            assert due is None or done.next_due_ms <= due
    for key, state in model.states.items():
        if model.written[key] + STATE_TTL > history[-1][1]:
            assert shard.record(key).written == model.written[key]
            assert shard.record(key).state.seen == state


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**24), min_size=1), st.integers(1, 5), st.booleans())
def test_where_nothing_expires_a_write_is_noted_coarsely_and_alike_in_all_epochs(
    times, cut, one_epoch
):
    shard = Shard(traced(state_ttl=None, dedup=None, late="process"))
    events = [Event("a", "1", at) for at in times]
    for some in [events] if one_epoch else [[event] for event in events]:
        shard.epoch(some, 0, cut)
    written = shard.record("a").written
    assert max(times) <= written < max(times) + 2**22
    assert written == coarse(max(times))


@pytest.mark.parametrize(("state_ttl", "changes"), [(None, 0), ("1h", 1)])
def test_an_event_that_changes_nothing_leaves_the_record_alone_where_nothing_expires(
    state_ttl, changes
):
    def look(e: Event, s: State, ctx: Context) -> Out[str]:
        return [str(len(s.seen))]

    declare = function(name="look", key="key", event_time="at", state_ttl=state_ttl)
    shard = Shard(spec_of(declare(look)))
    shard.epoch([Event("a", "1", 5)], 0)
    before = dict(shard.entries.tables[Table.RECORD])
    shard.epoch([Event("a", "2", 9)], 0)
    after = shard.entries.tables[Table.RECORD]
    assert sum(before[key] != data for key, data in after.items()) == changes


def test_what_a_handler_leaves_in_cycles_is_found_within_the_epoch(monkeypatch):
    monkeypatch.setattr(epoch_module, "_MANY_YOUNG", 10)
    left = []

    class Knot:
        pass

    def tie(e: Event, s: State, ctx: Context) -> Out[str]:
        knot = Knot()
        knot.itself = knot
        left.append(weakref.ref(knot))
        return [str(sum(each() is not None for each in left))]

    shard = Shard(spec_of(function(name="tie", key="key", event_time="at")(tie)))
    done = shard.epoch([Event("a", str(n), 5) for n in range(100)], 0, cut=20)
    assert max(map(int, done.outputs)) <= 40


@settings(max_examples=60, deadline=None)
@given(epochs())
def test_nothing_is_left_once_all_has_expired(history):
    shard = Shard(traced())
    for events, watermark in history:
        shard.epoch(events, watermark)
    for step in range(200):
        done = shard.epoch([], history[-1][1] + 20 * step)
    assert done.next_due_ms is None
    assert not any(shard.entries.tables)


def test_what_expires_at_one_moment_is_deleted_over_some_epochs_and_gone_at_once(monkeypatch):
    monkeypatch.setattr(epoch_module, "EXPIRED_AT_ONCE", 10)
    shard = Shard(traced(dedup=None))
    for epoch in range(30):  # a page of the journal each
        shard.epoch([Event(f"k{epoch}-{n}", "1", 0) for n in range(5)], 0)
    later, left, told = 10 * STATE_TTL, 150, list[str]()
    while left:
        done = shard.epoch([Event("k29-4", f"{left}", later)], later)
        assert done.outputs == [f"k29-4 {left}@{later} {told}"]
        told.append(f"{left}")
        before, left = left, len(shard.entries.tables[Table.RECORD]) - 1
        assert 0 < before - left <= 10 + 4 + 5
        assert left == 0 or done.next_due_ms <= later
    assert done.next_due_ms > later


def test_what_expires_is_deleted_as_fast_as_it_may_come(monkeypatch):
    monkeypatch.setattr(epoch_module, "EXPIRED_AT_ONCE", 0)
    shard = Shard(traced(dedup=None))
    for epoch in range(60):
        at = epoch * STATE_TTL
        shard.epoch([Event(f"k{epoch}-{n}", "1", at) for n in range(50)], at)
        assert len(shard.entries.tables[Table.RECORD]) <= 4 * 50


@settings(max_examples=60, deadline=None)
@given(epochs(), st.integers(1, 5), st.integers(1, 5))
def test_where_batches_are_cut_does_not_matter_to_outputs_or_entries(history, one, other):
    first, second = Shard(traced()), Shard(traced())
    for events, watermark in history:
        done = first.epoch(events, watermark, one)
        assert second.epoch(events, watermark, other) == done
    assert first.entries.tables == second.entries.tables


def test_the_same_input_changes_the_same_entries_in_the_same_order():
    events = [Event(f"k{i % 7}", str(i), i, "timer", "t", i + 50) for i in range(100)]
    orders = []
    for _ in range(2):
        shard = Shard(traced())
        shard.epoch(events, 0, cut=10)
        orders.append([list(table.items()) for table in shard.entries.tables])
    assert orders[0] == orders[1]


def test_a_hot_key_keeps_few_ids_in_its_record():
    shard = Shard(traced(state_ttl=None))
    for start in range(0, 1000, 100):
        shard.epoch([Event("hot", str(i), 1) for i in range(start, start + 100)], 0)
    assert len(shard.record("hot").seen) <= 64
    assert len(shard.entries.tables[Table.SEEN]) >= 900
    done = shard.epoch([Event("hot", str(i), 1) for i in range(1000)], 0)
    assert done.duplicates == 1000


def test_an_id_of_any_length_is_known_again():
    shard = Shard(traced(state_ttl=None))
    events = [Event("k", str(i) * 500, 1) for i in range(100)]
    shard.epoch(events, 0)
    assert shard.epoch(events, 0).duplicates == 100


def test_outputs_know_the_key_they_came_from():
    shard = Shard(traced())
    done = shard.epoch([Event("a", "1", 1), Event("b", "2", 2)], 0)
    assert done.output_keys == [stored_key(b"a"), stored_key(b"b")]
    assert (done.events, done.max_event_times, done.keys) == (2, {"t-0": 2}, 2)


def test_a_timer_set_for_its_own_time_waits_for_the_next_epoch():
    class Circle(Keyed[Event, State, str]):
        def on_event(self, e, s, ctx):
            ctx.timer("again", 5)

        def on_timer(self, name, at, s, ctx):
            ctx.timer("again", at)
            return ["fired"]

    spec = spec_of(function(name="c", key="key", event_time="at")(Circle))
    shard = Shard(spec)
    assert shard.epoch([Event("a", "1", 9)], 0).next_due_ms == 5
    for _ in range(2):
        done = shard.epoch([], 10)
        assert (done.outputs, done.timers, done.next_due_ms) == (["fired"], 1, 5)
