"""An epoch that is handled block by block gives what it gives in the order of the log."""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import Context, Keyed, MapState, Out, function, map_state
from catchwater.pipeline import pack as pack_module
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import Poison
from catchwater.pipeline.pack import pack, read_blocks, read_events
from catchwater.pipeline.process import live as live_module
from catchwater.pipeline.process.batch import Times
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.poison import EventFailed, Progress
from catchwater.state.entries import DictEntries, ShardState, Table


@dataclass
class Event:
    key: str
    id: str
    at: int
    do: str = ""


@dataclass
class Order(Event):
    order: int = 0


@dataclass
class State:
    seen: list[str] = field(default_factory=list)
    times: MapState[str, int] = map_state(ttl="30ms")


class Traced(Keyed[Event | Order, State, str]):
    """Tells all it sees, and does what events say."""

    def on_event(self, e: Event | Order, s: State, ctx: Context) -> Out[str]:
        if e.do == "raise":
            raise ValueError(e.id)
        s.seen = [*s.seen[-5:], e.id]
        s.times[e.id] = e.at
        if e.do == "timer":
            ctx.timer(e.id, e.at + 15)
        if e.do != "silent":
            yield f"{type(e).__name__} {ctx.key} {e.at} {s.seen} {dict(s.times.items())}"
            yield f"{ctx.random.random()}"

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
        s.seen.append(name)
        if len(name) < 3:
            ctx.timer(name + "+", at + 20)
        return [f"timer {name} {at} {s.seen}"]


@pytest.fixture
def small(monkeypatch):
    """Blocks of two events, and records that keep three ids."""
    monkeypatch.setattr(pack_module, "BLOCK_EVENTS", 2)
    monkeypatch.setattr(live_module, "IN_RECORD", 3)
    monkeypatch.setattr(live_module, "KEPT", 1)


def declared(state_ttl="25ms", late="process", **more: Any):
    declare = function(
        name="traced", key={"events": "key", "orders": "key"}, event_time="at",
        inputs={"events": Event, "orders": Order}, watermark="0s", state_ttl=state_ttl, late=late,
        dedup="id", dedup_ttl="40ms", poison="dead-letter", max_future=None, **more,
    )  # fmt: skip
    return spec_of(declare(type("Declared", (Traced,), {"__orig_bases__": Traced.__orig_bases__})))


EVENTS = st.builds(
    Order, st.sampled_from("abcdefgh"), st.sampled_from("pqrstuvw"), st.integers(0, 60),
    st.sampled_from(["", "", "silent", "timer"]),
)  # fmt: skip
VALUES = st.one_of(EVENTS.map(msgspec.json.encode), EVENTS.map(msgspec.json.encode), st.just(b"?"))
PARTS = st.lists(
    st.tuples(st.sampled_from(["events-0", "events-1", "orders-0"]), st.lists(VALUES, max_size=9)),
    max_size=6,
)


def blobs_of(spec, parts, with_keys=False):
    """The parts as a shard of one gets them; offsets go on from part to part."""
    blobs, offset = [], 0
    for origin, values in parts:
        offsets = pa.array(range(offset, offset + len(values)), pa.int64())
        offset += len(values)
        keys = pa.array([b"a"] * len(values), pa.binary()) if with_keys else None
        column = pa.array(values, pa.binary())
        found = pack(
            spec, keys, column, offsets, origin=origin, shards=1, input=origin.partition("-")[0]
        )
        blobs += [blob for _, blob in found]
    return blobs


class Side:
    """A shard's epochs, by blocks or not."""

    def __init__(self, spec, by_blocks):
        self.spec, self.by_blocks = spec, by_blocks
        self.entries, self.version = DictEntries(), 0

    def epoch(self, blobs, watermark):
        self.version += 1
        state = ShardState(self.entries, self.version)
        done = process(
            self.spec,
            state,
            list(read_events(self.spec, blobs)),
            Times(watermark, watermark, 0),
            blocks=read_blocks(self.spec, blobs) if self.by_blocks else None,
        )
        self.entries.apply(state.changes)
        return done


@pytest.mark.usefixtures("small")
@given(st.lists(PARTS, max_size=5), st.sampled_from(["drop", "process", "dead-letter"]))
@settings(max_examples=60, deadline=None)
def test_blocks_give_the_same_outputs_in_the_same_order_and_the_same_entries(epochs, late):
    spec = declared(late=late)
    one, other = Side(spec, False), Side(spec, True)
    for number, parts in enumerate(epochs):
        blobs = blobs_of(spec, parts)
        assert one.epoch(blobs, 13 * number) == other.epoch(blobs, 13 * number)
        for table in set(Table) - {Table.EXPIRY}:
            assert one.entries.tables[table] == other.entries.tables[table]
        assert due_of(one.entries) == due_of(other.entries)


def due_of(entries):
    """Which keys are looked at when: in what order their pages name them does not matter."""
    return sorted(
        (entry[:9], sorted(msgspec.msgpack.decode(page)))
        for entry, page in entries.tables[Table.EXPIRY].items()
    )


@pytest.mark.usefixtures("small")
@given(PARTS)
@settings(max_examples=60, deadline=None)
def test_a_block_has_all_events_of_its_keys_in_log_order_and_says_where_they_stand(parts):
    spec = declared()
    blobs = blobs_of(spec, parts)
    whole = list(read_events(spec, blobs))
    blocks = [list(block) for block in read_blocks(spec, blobs)]
    if sum(len(batch.keys) for batch in whole) <= 4:
        assert repr(blocks) == repr([whole])
        return
    owner: dict[bytes, int] = {}
    found, poisoned = [], []
    for number, block in enumerate(blocks):
        keys = [key for batch in block for key in batch.keys]
        assert all(owner.setdefault(key, number) == number for key in keys)
        named = [key for batch in block for key in batch.new_keys or ()]
        assert named == sorted(set(named)) and set(keys) <= set(named)
        for batch in block:
            assert list(batch.places) == sorted(batch.places)
            origins = [batch.origin_of(i) for i in range(len(batch.keys))]
            found += zip(batch.places, batch.events, origins, batch.offsets, batch.values)  # noqa: B905
            poisoned += zip(batch.poisoned_places, batch.poisoned, strict=True)
    expected = [
        (event, batch.origin, offset, value)
        for batch in whole
        for event, offset, value in zip(batch.events, batch.offsets, batch.values, strict=True)
    ]
    assert [tuple(rest) for _, *rest in sorted(found, key=lambda row: row[0])] == expected
    assert [each for _, each in sorted(poisoned, key=lambda row: row[0])] == [
        *chain(*(batch.poisoned for batch in whole))
    ]


def value(key, number, do=""):
    return msgspec.json.encode(Order(key, f"{number}", number, do))


@pytest.mark.usefixtures("small")
def test_what_fails_is_what_would_fail_in_the_order_of_the_log():
    """Also where the first bad event lies in a later block than another."""
    spec = declared()
    for bad in ({3: "?", 9: "raise"}, {3: "raise", 9: "?"}, {9: "?", 3: "?"}):
        values = [
            b"?" if bad.get(i) == "?" else value("abcdefgh"[i % 8], i, bad.get(i, ""))
            for i in range(16)
        ]
        blobs = blobs_of(spec, [("events-0", values)])
        said = []
        for blocks in (None, read_blocks(spec, blobs)):
            with pytest.raises(EventFailed) as failed:
                process(
                    spec, ShardState(DictEntries(), 1), list(read_events(spec, blobs)),
                    Times(0, 0, 0), blocks=blocks, poison=Poison("fail"),
                )  # fmt: skip
            said.append(str(failed.value))
        assert said[0] == said[1]


@pytest.mark.usefixtures("small")
def test_what_is_handled_in_a_block_is_known_from_beside_by_its_partition_and_offset():
    spec, seen = declared(), []
    progress = Progress()

    class Looks(Traced):
        def on_event(self, e, s, ctx):
            seen.append((e.id, progress.cause()))
            return ()

    declare = function(
        name="looks", key={"events": "key", "orders": "key"}, event_time="at",
        inputs={"events": Event, "orders": Order},
    )  # fmt: skip
    spec = spec_of(declare(type("L", (Looks,), {"__orig_bases__": Traced.__orig_bases__})))
    parts = [(f"events-{p}", [value("abcdefgh"[i], 8 * p + i) for i in range(8)]) for p in (0, 1)]
    blobs = blobs_of(spec, parts)
    process(
        spec, ShardState(DictEntries(), 1), (), Times(0, 0, 0),
        blocks=read_blocks(spec, blobs), progress=progress,
    )  # fmt: skip
    assert len(seen) == 16
    for identity, cause in seen:
        number = int(identity)
        assert (cause.origin, cause.offset) == (f"events-{number // 8}", number)
        assert cause.key == b"abcdefgh"[number % 8 : number % 8 + 1]


@pytest.mark.usefixtures("small")
def test_an_id_that_is_seen_again_in_the_epoch_that_forgets_it_stays_known():
    """A block had moved it out of its record before what has expired was deleted."""
    side = Side(declared(), True)
    ids = {0: "pqrs", 50: "ptuv", 55: "p"}
    found = []
    for watermark, seen in ids.items():
        events = [Order("a", identity, watermark + n) for n, identity in enumerate(seen)]
        events += [Order(other, "x", watermark) for other in "bcdefgh"]
        values = list(map(msgspec.json.encode, events))
        found.append(side.epoch(blobs_of(side.spec, [("events-0", values)]), watermark))
    assert [done.duplicates for done in found] == [0, 0, 8]
