"""List, map and value states as a user meets them."""

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

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
from catchwater.testing import Harness


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Event:
    key: str
    at: int
    code: str = ""


@dataclass
class Basket:
    items: ListState[Item] = list_state(max=3)
    prices: MapState[str, float] = map_state()
    seen: MapState[str, int] = map_state(ttl="10s")
    last: ValueState[Item] = value_state(ttl="10s")


def evaluated(state_type=Basket):
    """A function whose events are Python expressions of state and context: what a user can do."""

    @function(name="evaluated", key="key", event_time="at", watermark="1s")
    class Evaluated(Keyed[Event, state_type, str]):
        def on_event(self, e: Event, s, ctx: Context) -> Out[str]:
            return [repr(eval(e.code, {"s": s, "ctx": ctx, "Item": Item}))]

    return Evaluated


def outputs(*codes, state_type=Basket, at=1_000):
    return Harness(evaluated(state_type)).send(*(Event("k", at, code) for code in codes))


def test_a_list_is_used_as_a_list():
    found = outputs(
        "list(s.items), len(s.items), bool(s.items)",
        "s.items.append(Item('a'))", "s.items.extend([Item('b'), Item('c')])",
        "len(s.items), s.items[-1].name, s.items[0].name, [i.name for i in s.items[1:]]",
        "s.items.append(Item('d'))",
        "s.items == [Item('b'), Item('c'), Item('d')]", "s.items != []", "s.items",
        "s.items.clear()", "s.items == []",
    )  # fmt: skip
    assert [found[i] for i in (0, 3, 5, 6, 9)] == [
        "([], 0, False)", "(3, 'c', 'a', ['b', 'c'])", "True", "True", "True",
    ]  # fmt: skip
    assert found[7].startswith("ListState([Item(name='b'")


def test_a_map_is_used_as_a_dict():
    found = outputs(
        "s.prices.get('x'), s.prices.get('x', 1.0), 'x' in s.prices, len(s.prices)",
        "s.prices.update({'b': 2.0, 'a': 1.0, 'c': 3.0})", "s.prices.__setitem__('a', 1.5)",
        "list(s.prices), list(s.prices.values()), s.prices['b'], len(s.prices)",
        "s.prices.pop('b'), s.prices.pop('b', None), s.prices.setdefault('d', 4.0)",
        "s.prices.__delitem__('a')", "s.prices == {'c': 3.0, 'd': 4.0}", "s.prices",
        "s.prices.clear()", "len(s.prices), dict(s.prices.items())",
    )  # fmt: skip
    assert [found[i] for i in (0, 3, 4, 6, 7, 9)] == [
        "(None, 1.0, False, 0)", "(['a', 'b', 'c'], [1.5, 2.0, 3.0], 2.0, 3)",
        "(2.0, None, 4.0)", "True", "MapState({'c': 3.0, 'd': 4.0})", "(0, {})",
    ]  # fmt: skip


@pytest.mark.parametrize("code", ["s.prices['no']", "s.prices.pop('no')", "s.items[0]"])
def test_what_is_not_there_raises_as_dict_and_list_do(code):
    error = "IndexError" if "items" in code else "KeyError"
    with pytest.raises(Exception, match=f"{error}: "):
        outputs(code)


def test_a_value_is_set_and_forgotten():
    found = outputs(
        "s.last.get()", "s.last.set(Item('a', 2.0))", "s.last.get().price", "s.last",
        "s.last == Item('a', 2.0)", "s.last.clear()", "s.last.get()",
    )  # fmt: skip
    assert found[::2] == ["None", "2.0", "True", "None"]


def test_a_map_may_be_changed_while_it_is_gone_through():
    found = outputs(
        "s.prices.update({'a': 1.0, 'b': 2.0, 'c': 3.0})",
        "[(k, s.prices.pop('b', None)) for k in s.prices]", "dict(s.prices.items())",
    )  # fmt: skip
    assert found[1:] == ["[('a', 2.0), ('c', None)]", "{'a': 1.0, 'c': 3.0}"]


def test_entries_expire_by_event_time_and_begin_anew_when_set():
    h = Harness(evaluated())
    h.send(Event("k", 1_000, "s.seen.update({'a': 1, 'b': 2}), s.last.set(Item('x'))"))
    h.send(Event("k", 6_000, "s.seen.__setitem__('b', 3)"))
    h.advance_watermark(10_999)
    assert h.state("k").seen == {"a": 1, "b": 3}
    h.advance_watermark(11_000)
    assert (h.state("k").seen, h.state("k").last.get()) == ({"b": 3}, None)
    h.advance_watermark(16_000)
    assert (h.state("k").seen, len(h.state("k").seen)) == ({}, 0)
    h.crash_and_restore(at=0)


@function(name="counting", key="key", event_time="at", watermark="1s")
class Counting(Keyed[Event, Basket, tuple[int, int]]):
    """Changes its map as it is told, and says its length beside what is in it, there and later."""

    def on_event(self, e: Event, s: Basket, ctx: Context) -> Out[tuple[int, int]]:
        before = len(s.seen)
        if e.code in s.seen and e.at % 2:
            del s.seen[e.code]
        else:
            s.seen[e.code] = e.at
        ctx.timer(f"after {before}", e.at + 7_000)
        return [(len(s.seen), sum(1 for _ in s.seen))]

    def on_timer(self, name: str, at: int, s: Basket, ctx: Context) -> Out[tuple[int, int]]:
        return [(len(s.seen), sum(1 for _ in s.seen))]


@pytest.mark.parametrize("seed", range(5))
def test_the_length_of_a_map_never_counts_what_has_expired(seed):
    draw, h, at = Random(seed), Harness(Counting), 0
    lengths = []
    for _ in range(80):
        at += draw.choice([0, 501, 3_000, 6_500, 12_000])
        keys = draw.choices("abc", k=draw.randrange(1, 5))
        lengths += h.send(*(Event("k", at + n, key) for n, key in enumerate(keys)))
    assert all(told == there for told, there in lengths)
    assert {told for told, _ in lengths} >= {0, 1, 2, 3}
    h.crash_and_restore(at=40)


def test_keys_of_a_map_may_be_tuples_and_anything_that_can_be_a_key():
    @dataclass
    class State:
        m: MapState[tuple[str, int], int] = map_state()

    found = outputs(
        "s.m.update({('b', 1): 1, ('a', 2): 2, ('a', 300): 3})", "list(s.m)", state_type=State
    )
    assert found[1] == "[('a', 2), ('a', 300), ('b', 1)]"


def test_a_key_that_is_too_long_is_refused_and_named():
    with pytest.raises(Exception, match=r"The key 'xxxx.* of a map state has 202 bytes"):
        outputs("s.prices.__setitem__('x' * 200, 1.0)")


def test_states_live_in_a_struct_too():
    class State(msgspec.Struct):
        n: int = 0
        prices: MapState[str, float] = map_state()

    assert outputs("s.prices.update({'a': 1.0})", "s.prices['a']", state_type=State)[1] == "1.0"


def test_outside_of_a_handler_they_say_where_they_can_be_used():
    with pytest.raises(RuntimeError, match="only where a handler is given its state"):
        len(MapState())
    assert (repr(ListState()), repr(ValueState())) == ("ListState()", "ValueState()")


def test_a_large_map_costs_only_what_is_touched():
    class Counting(DictEntries):
        asked = 0

        def get(self, table, key):
            self.asked += 1
            return super().get(table, key)

    spec = spec_of(evaluated())
    entries = Counting()

    def run(version, code):
        state = ShardState(entries, version)
        event = Event("k", 1_000, code)
        batch = Batch([spec.stored_key_of(event)], [event], "t-0", [0], [b""])
        done = process(spec, state, [batch], Times(0, 0, 0))
        entries.apply(state.changes)
        return done.outputs, state.changes

    run(1, "[s.prices.__setitem__(str(i), 1.0) for i in range(1000)] and None")
    entries.asked = 0
    given, changes = run(2, "s.prices.__setitem__('7', 2.0), s.prices['8'], len(s.prices)")
    assert given == ["(None, 1.0, 1000)"]
    assert entries.asked < 10
    assert len(changes[Table.ENTRY]) == 1
    given, changes = run(3, "s.prices.__setitem__('new', 2.0), len(s.prices)")
    assert (given, len(changes[Table.ENTRY])) == (["(None, 1001)"], 2)


@dataclass
class Old:
    spent: dict[str, float] = field(default_factory=dict)
    recent: list[int] = field(default_factory=list)
    last: int = 0


@dataclass
class New:
    spent: MapState[str, float] = map_state()
    recent: ListState[int] = list_state()
    last: ValueState[int] = value_state()


def version(number, state_type, namespace=None):
    def on_event(self, e, s, ctx):
        if number == 1:
            s.spent["a"], s.last = 5.0, 7
            s.recent.append(e.at)
        return [f"{dict(s.spent.items())} {list(s.recent)}"]

    members = {"on_event": on_event, **(namespace or {})}
    target = type("F", (Keyed,), members | {"__orig_bases__": (Keyed[Event, state_type, str],)})
    return function(name="f", version=number, key="key", event_time="at")(target)


def test_what_an_older_version_kept_in_its_record_is_taken_over():
    h = Harness(version(1, Old))
    h.send(Event("k", 1_000))
    h.upgrade(version(2, New))
    assert h.state("k") == New({"a": 5.0}, [1_000], 7)
    assert h.send(Event("k", 2_000)) == ["{'a': 5.0} [1000]"] == h.send(Event("k", 2_000))
    assert h.state("k").last.get() == 7
    h.crash_and_restore(at=0)


def test_a_migration_gives_plain_values_for_what_is_kept_entry_by_entry():
    def from_v1(old):
        return New({name: spent * 2 for name, spent in old["spent"].items()})

    h = Harness(version(1, Old))
    h.send(Event("k", 1_000))
    h.upgrade(version(3, New, {"from_v1": staticmethod(from_v1)}))
    assert h.send(Event("k", 2_000)) == ["{'a': 10.0} []"]
