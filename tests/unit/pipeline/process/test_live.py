"""States kept entry by entry, timers of both kinds and bad events, held to plain lists and dicts.

Every epoch runs on entries that were copied as bytes, so each is also a restart; events come late,
twice and out of order.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import (
    Context,
    Keyed,
    ListState,
    MapState,
    Out,
    ValueState,
    function,
    list_state,
    map_state,
    value_state,
)
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.process.batch import Batch, Times
from catchwater.pipeline.process.epoch import process
from catchwater.state.entries import DictEntries, ShardState, Table
from catchwater.state.keys import stored_key

LIST_TTL, MAP_TTL, VALUE_TTL, MOST = 20, 15, 10, 3
WORDS = ("a", "b", "c")


@dataclass(frozen=True)
class Event:
    key: str
    id: str
    at: int
    do: str = ""
    word: str = "a"
    due: int = 0


@dataclass
class State:
    count: int = 0
    told: list[str] = field(default_factory=list)
    recent: ListState[str] = list_state(ttl=f"{LIST_TTL}ms", max=MOST)
    all: ListState[tuple[str, int]] = list_state()
    fading: MapState[str, int] = map_state(ttl=f"{MAP_TTL}ms")
    lasting: MapState[tuple[str, int], list[int]] = map_state()
    last: ValueState[dict[str, int]] = value_state(ttl=f"{VALUE_TTL}ms")


def shown(s) -> str:
    """All that can be seen of a state, of the real one as of the model's."""
    found = [
        s.count, s.told, list(s.recent), len(s.recent), s.recent[-1] if len(s.recent) else None,
        list(s.all)[-2:], len(s.all), list(s.fading.items()), len(s.fading), "b" in s.fading,
        list(s.lasting.items()), len(s.lasting), s.last.get(),
    ]  # fmt: skip
    return repr(found)


def append(e, s, ctx):
    s.recent.append(e.id)
    s.all.append((e.id, e.at))


def extend(e, s, ctx):
    s.recent.extend([e.id, e.word])
    s.recent.append(e.word)


def put(e, s, ctx):
    s.fading[e.word] = e.at
    s.lasting[e.word, len(s.fading)] = [e.at]


def pop(e, s, ctx):
    s.told.append(repr(s.fading.pop(e.word, None)))
    s.lasting.pop((e.word, 1), None)


def default(e, s, ctx):
    s.told.append(repr(s.fading.setdefault(e.word, e.at)))


def clear(e, s, ctx):
    s.fading.clear()
    s.all.clear()
    s.last.clear()


def value(e, s, ctx):
    s.last.set({e.word: e.at})


def boom(e, s, ctx):
    for step in (append, put, clear, value):
        step(e, s, ctx)
    ctx.timer("a", e.due)
    ctx.cancel_timer("b")
    raise RuntimeError(f"event {e.id}")


CHANGES = {
    "append": append, "extend": extend, "set": put, "pop": pop, "default": default,
    "clear": clear, "value": value, "boom": boom, "": lambda e, s, ctx: None,
    "timer": lambda e, s, ctx: ctx.timer(e.word, e.due),
    "clock": lambda e, s, ctx: ctx.timer(e.word, e.due, clock=True),
    "cancel": lambda e, s, ctx: ctx.cancel_timer(e.word),
}  # fmt: skip


def change(e: Event, s, ctx) -> None:
    """What an event does to a state, of the real one as of the model's."""
    s.count += 1
    CHANGES[e.do](e, s, ctx)


class Everything(Keyed[Event, State, str]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
        yield f"{ctx.key} {e.id}@{e.at} {shown(s)}"
        change(e, s, ctx)

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
        yield f"{ctx.key} timer {name}@{at} {shown(s)}"
        s.recent.append(name)
        s.lasting[name, 0] = [at]
        if name == "c":
            raise RuntimeError("a timer")


def declared(state_ttl=None, poison="skip"):
    target = type("Everything2", (Everything,), {"__orig_bases__": Everything.__orig_bases__})
    declare = function(
        name="all", key="key", event_time="at", dedup="id", dedup_ttl="40ms", poison=poison,
        state_ttl=state_ttl,
    )  # fmt: skip
    return spec_of(declare(target))


class Fading:
    """Values with the times they were written, as a list or dict of those still alive."""

    def __init__(self, owner, ttl, most=None):
        self.owner, self.ttl, self.most, self.kept = owner, ttl, most, {}
        self.number = 0

    def alive(self):
        now, ttl = self.owner.now, self.ttl
        return {k: v for k, (at, v) in sorted(self.kept.items()) if ttl is None or at + ttl > now}

    def put(self, key, value):
        self.kept[key] = self.owner.written, value

    def clear(self):
        self.kept = {}


class ModelList(Fading):
    def append(self, value):
        self.kept = {k: self.kept[k] for k in self.alive()}
        self.number += 1
        self.put(self.number, value)
        if self.most and len(self.kept) > self.most:
            del self.kept[min(self.kept)]

    def extend(self, values):
        for value in values:
            self.append(value)

    def __iter__(self):
        return iter(self.alive().values())

    def __len__(self):
        return len(self.alive())

    def __getitem__(self, i):
        return list(self)[i]


class ModelMap(Fading):
    def items(self):
        return self.alive().items()

    def __contains__(self, key):
        return key in self.alive()

    def __len__(self):
        return len(self.alive())

    def __setitem__(self, key, value):
        self.put(key, value)

    def pop(self, key, default):
        found = self.alive().get(key, default)
        self.kept.pop(key, None)
        return found

    def setdefault(self, key, value):
        if key not in self:
            self[key] = value
        return self.alive()[key]


class ModelValue(Fading):
    def get(self):
        return self.alive().get("own")

    def set(self, value):
        self.put("own", value)


class ModelKey:
    """What one key has; `now` and `written` as the documentation says."""

    def __init__(self):
        self.now, self.written = 0, None
        self.timers, self.clocks, self.seen = {}, {}, {}
        self.reset()

    def reset(self):
        self.count, self.told = 0, []
        self.recent, self.all = ModelList(self, LIST_TTL, MOST), ModelList(self, None)
        self.fading, self.lasting = ModelMap(self, MAP_TTL), ModelMap(self, None)
        self.last = ModelValue(self, VALUE_TTL)

    def at(self, now, written, state_ttl):
        if state_ttl and self.written is not None and self.written + state_ttl <= now:
            self.reset()
        self.now = now
        self.written = written if self.written is None else max(self.written, written)

    def timer(self, name, at, clock=False):
        self.cancel_timer(name)
        (self.clocks if clock else self.timers)[name] = at

    def cancel_timer(self, name):
        self.timers.pop(name, None)
        self.clocks.pop(name, None)


class Model:
    def __init__(self, state_ttl):
        self.keys, self.state_ttl, self.poisoned = {}, state_ttl, 0
        self.late = self.duplicates = 0

    def epoch(self, events, times):
        outputs = []
        for by_clock, until in ((False, times.watermark_ms), (True, times.clock_ms)):
            due = sorted(
                (at, stored_key(key.encode()), name, key)
                for key, has in self.keys.items()
                for name, at in (has.clocks if by_clock else has.timers).items()
                if at <= until
            )
            for at, _, name, key in due:
                outputs += self._timer(key, name, at, times.watermark_ms if by_clock else at)
        for event in events:
            outputs += self._event(event, times)
        return outputs

    def _timer(self, key, name, at, now):
        has = self.keys[key]
        has.cancel_timer(name)
        if name == "c":
            self.poisoned += 1
            return []
        has.at(now, now, self.state_ttl)
        output = f"{key} timer {name}@{at} {shown(has)}"
        has.recent.append(name)
        has.lasting[name, 0] = [at]
        return [output]

    def _event(self, event, times):
        if event.at < times.late_before_ms:
            self.late += 1
            return []
        has = self.keys.setdefault(event.key, ModelKey())
        at = max(event.at, times.watermark_ms)
        if event.id in has.seen and has.seen[event.id] + 40 > times.watermark_ms:
            self.duplicates += 1
            return []
        if event.do == "boom":
            self.poisoned += 1
            return []
        has.seen[event.id] = at
        has.at(times.watermark_ms, at, self.state_ttl)
        output = f"{event.key} {event.id}@{event.at} {shown(has)}"
        change(event, has, has)
        return [output]


@st.composite
def histories(draw, bad=True):
    """(events, times) of epochs; a timer lies ahead of watermark and clock, and of all before."""
    found, watermark, clock = [], 0, 1000
    dos = sorted({*CHANGES} if bad else {*CHANGES} - {"boom"})
    for _ in range(draw(st.integers(1, 7))):
        before, watermark = watermark, watermark + draw(st.sampled_from((0, 0, 3, 8, 12, 30)))
        clock += draw(st.sampled_from((0, 5, 20)))
        rows = draw(
            st.lists(
                st.tuples(
                    st.sampled_from("xy"), st.integers(0, 9), st.integers(-4, 15),
                    st.sampled_from(dos), st.sampled_from(WORDS), st.integers(1, 25),
                ),
                max_size=12,
            )
        )  # fmt: skip
        events = [
            Event(k, f"{i}", max(watermark + at, 0), do, word, due + (
                clock if do == "clock" else max(watermark, watermark + at)))
            for k, i, at, do, word, due in rows
        ]  # fmt: skip
        late_before = draw(st.sampled_from((watermark, before)))
        found.append((events, Times(watermark, late_before, clock)))
    return found


def run(spec, entries, version, events, times, cut):
    state = ShardState(entries, version)
    batches = []
    for start in range(0, len(events), cut):
        part = events[start : start + cut]
        keys = [spec.stored_key_of(e) for e in part]
        values = [spec.encode_output(e) for e in part]
        batches.append(Batch(keys, part, "t-0", range(start, start + len(part)), values))
    done = process(spec, state, batches, times)
    after = DictEntries()
    after.tables = tuple(dict(table) for table in entries.tables)
    after.apply(state.changes)
    return done, after


@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(1, 4), st.sampled_from((None, 25)))
def test_all_kinds_of_state_equal_plain_lists_and_dicts(history, cut, state_ttl):
    spec = declared(f"{state_ttl}ms" if state_ttl else None)
    model, entries, count = Model(state_ttl), DictEntries(), 0
    late = duplicates = poisoned = 0
    for version, (events, times) in enumerate(history, 1):
        expected = model.epoch(events, times)
        done, entries = run(spec, entries, version, events, times, cut)
        assert done.outputs == expected
        late, duplicates = late + done.late, duplicates + done.duplicates
        poisoned, count = poisoned + len(done.poisoned), count + done.keys
        assert (late, duplicates, poisoned) == (model.late, model.duplicates, model.poisoned)
        assert count == len(entries.tables[Table.RECORD])
        clocks = [at for has in model.keys.values() for at in has.clocks.values()]
        assert done.next_due_clock_ms == min(clocks, default=None)


@settings(max_examples=30, deadline=None)
@given(histories(), st.integers(1, 4), st.integers(1, 4))
def test_where_batches_are_cut_does_not_matter(history, one, other):
    spec = declared("25ms")
    first = second = DictEntries()
    for version, (events, times) in enumerate(history, 1):
        given, first = run(spec, first, version, events, times, one)
        same, second = run(spec, second, version, events, times, other)
        assert same == given
        assert first.tables == second.tables


@settings(max_examples=30, deadline=None)
@given(histories(), st.integers(1, 4))
def test_an_undone_event_leaves_no_trace(history, cut):
    """The entries are, to the byte, what they would be had the bad events never been sent."""
    spec = declared()
    with_bad = without = DictEntries()
    for version, (events, times) in enumerate(history, 1):
        good = [event for event in events if event.do != "boom"]
        done, with_bad = run(spec, with_bad, version, events, times, cut)
        same, without = run(spec, without, version, good, times, cut)
        assert done.outputs == same.outputs
        assert with_bad.tables == without.tables


@settings(max_examples=15, deadline=None)
@given(histories())
def test_nothing_is_left_once_all_has_expired(history):
    spec = declared("25ms")
    entries = DictEntries()
    for version, (events, times) in enumerate(history, 1):
        _, entries = run(spec, entries, version, events, times, 3)
    watermark, clock = history[-1][1].watermark_ms, history[-1][1].clock_ms
    for step in range(1, 80):
        at = Times(watermark + 10 * step, watermark, clock + 10 * step)
        done, entries = run(spec, entries, 100 + step, [], at, 3)
    assert (done.next_due_ms, done.next_due_clock_ms) == (None, None)
    assert not any(entries.tables)


def test_entries_are_deleted_when_their_time_has_come_although_the_key_stays():
    spec = declared()
    events = [Event("x", f"{i}", i % 5, "set", WORDS[i % 3]) for i in range(9)]
    events += [Event("x", f"v{i}", 1, "value") for i in range(3)]
    _, entries = run(spec, DictEntries(), 1, events, Times(0, 0, 0), 3)
    count = len(entries.tables[Table.ENTRY])
    for step in range(1, 30):
        _, entries = run(spec, entries, 1 + step, [], Times(3 * step, 0, 0), 3)
    left = len(entries.tables[Table.ENTRY])
    lasting = [e for e in entries.tables[Table.ENTRY] if b"lasting" in e]
    assert count > left == len(lasting)


def test_a_key_is_undone_exactly_when_its_first_event_is_bad():
    spec = declared()
    done, entries = run(spec, DictEntries(), 1, [Event("x", "1", 5, "boom")], Times(0, 0, 0), 1)
    assert (done.keys, done.max_event_times, len(done.poisoned)) == (0, {}, 1)
    assert not any(entries.tables)


@pytest.mark.parametrize("field", ["recent", "fading", "last"])
def test_a_state_that_is_replaced_is_refused_by_name(field):
    @function(name="f", key="key", event_time="at", poison="skip")
    def replaces(e: Event, s: State, ctx: Context) -> Out[str]:
        setattr(s, field, {})

    spec = spec_of(replaces)
    done, _ = run(spec, DictEntries(), 1, [Event("x", "1", 5)], Times(0, 0, 0), 1)
    assert f"the state's field '{field}' was replaced" in done.poisoned[0].error
