"""Events packed by shard and unpacked again, and the labels Spark spreads evenly."""

import io
import json
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import Context, Keyed, Out, function, keyed
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.pack import (
    BLOCK_EVENTS,
    RecordKeyDiffers,
    Records,
    hottest,
    pack,
    pack_run,
    pack_table,
    read_blocks,
    read_events,
    read_table,
)
from catchwater.pipeline.rows import shard_labels, spark_hash
from catchwater.state.keys import shard_of, stored_key
from catchwater.values import registry
from catchwater.values import registry as registries
from catchwater.values.events import event_values
from catchwater.values.settings import Registry, ValueFormat, ValueSettings
from catchwater.wire.columns import HEADERS_TYPE


@dataclass
class Event:
    card: str
    at: int


@dataclass
class State:
    n: int = 0


@function(name="f", key="card", event_time="at")
class F(Keyed[Event, State, Event]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Event]:
        return None


SPEC = spec_of(F)


def packed(events, shards=4, *, with_keys=True, spec=SPEC):
    values = pa.array([msgspec.json.encode(event) for event in events], pa.binary())
    keys = pa.array([event.card.encode() for event in events], pa.binary())
    offsets = pa.array(range(100, 100 + len(events)), pa.int64())
    return pack(spec, keys if with_keys else None, values, offsets, origin="t-3", shards=shards)


def test_the_hash_is_sparks():
    """As `SELECT hash(0), hash(1), hash(-1)` answers."""
    assert [spark_hash(n) for n in (0, 1)] == [933211791, -559580957]


@pytest.mark.parametrize("shards", [1, 2, 4, 7, 64, 100, 256])
def test_labels_spread_evenly_over_every_divisor_of_64(shards):
    labels = shard_labels(shards)
    assert len(set(labels)) == shards
    for partitions in (1, 2, 4, 8, 16, 32, 64):
        load = Counter(spark_hash(label) % partitions for label in labels)
        assert max(load.values()) <= -(-shards // partitions)


def test_a_shard_keeps_its_label_when_others_are_added():
    assert shard_labels(100)[:64] == shard_labels(64)


@settings(deadline=None)
@given(
    st.lists(st.builds(Event, st.text(max_size=3), st.integers(0, 9))),
    st.integers(1, 9),
    st.booleans(),
)
def test_every_events_comes_out_once_in_its_shard_and_in_log_order(events, shards, with_keys):
    blobs = packed(events, shards, with_keys=with_keys)
    found = []
    for shard, blob in blobs:
        (batch,) = read_events(SPEC, [blob])
        assert (batch.origin, batch.input, batch.poisoned) == ("t-3", "", ())
        assert list(batch.offsets) == sorted(batch.offsets)
        for key, event, value in zip(batch.keys, batch.events, batch.values, strict=True):
            assert key == stored_key(event.card.encode()) == SPEC.stored_key_of(event)
            assert int.from_bytes(key[:8], "big") * shards >> 64 == shard == shard_of(key, shards)
            assert value == msgspec.json.encode(event)
        found += zip(batch.offsets, batch.events, strict=True)
    assert [event for _, event in sorted(found, key=lambda pair: pair[0])] == events
    assert len({shard for shard, _ in blobs}) == len(blobs)


def test_the_same_batch_gives_the_same_bytes():
    events = [Event(f"c{i % 9}", i) for i in range(50)]
    assert packed(events) == packed(events)


def test_batches_of_a_run_give_what_each_gives_alone():
    """Also where keys are missing, too long, or only in the JSON; they have keys in common."""
    values = [b'{"card":"a","at":1}', b'{"card":"b","at":2}', b"?", b'{"card":"a","at":4}']
    column, offsets = pa.array(values, pa.binary()), pa.array(range(4), pa.int64())
    for keys in ([b"a", b"b", b"a", b"a"], [b"c", None, b"k" * 300, b"a"], None):
        batches = [
            Records(
                None if keys is None else pa.array(keys, pa.binary()).slice(at, 3),
                column.slice(at, 3),
                offsets.slice(at, 3),
            )
            for at in (0, 1)
        ]
        together = list(pack_run(SPEC, batches, origin="t-3", shards=4))
        assert together == [pack(SPEC, *each, origin="t-3", shards=4) for each in batches]


def read_all(packed, spec=SPEC):
    """The good events and the poisoned records of blobs."""
    batches = list(read_events(spec, [blob for _, blob in packed]))
    good = sorted(
        (int(offset), event)
        for batch in batches
        for offset, event in zip(batch.offsets, batch.events, strict=True)
    )
    poisoned = sorted(each for batch in batches for each in batch.poisoned)
    return [event for _, event in good], poisoned


@pytest.mark.parametrize("events", [7, 1, 3 * BLOCK_EVENTS])
def test_headers_travel_with_their_records_for_a_function_that_reads_them(events):
    spec = replace(SPEC, headers=True)
    told = [None if n % 3 == 0 else [("n", str(n).encode()), ("none", None)][: n % 3]
            for n in range(events)]  # fmt: skip
    values = [
        b"{" if n == 4 else msgspec.json.encode(Event(f"c{n % 40}", n)) for n in range(events)
    ]
    records = Records(
        pa.array([f"c{n % 40}".encode() for n in range(events)], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(range(events), pa.int64()),
        headers=pa.array(told, HEADERS_TYPE),
    )
    bare = records._replace(headers=None, offsets=pa.array(range(events, 2 * events), pa.int64()))
    found = {}
    for shard in range(4):
        blobs = [
            blob
            for packed in pack_run(spec, [records, bare], origin="t-3", shards=4)
            for where, blob in packed
            if where == shard
        ]
        for block in read_blocks(spec, blobs):
            for batch in block:
                offsets = map(int, batch.offsets)
                found |= dict(zip(offsets, batch.headers or [()] * len(batch.keys), strict=True))
    assert found == {
        n: tuple(told[n] or ()) if n < events else () for n in range(2 * events) if n % events != 4
    }
    # Others carry none.
    (blob, *_) = (blob for _, blob in packed_run_of(records))
    assert read_names(blob) == ["key", "value", "offset", "timestamp"]


def packed_run_of(records):
    return next(pack_run(SPEC, [records], origin="t-3", shards=1))


def read_names(blob):
    with pa.ipc.open_stream(blob) as reader:
        return reader.schema.names


def test_the_first_batch_names_the_keys_of_all_and_a_key_is_one_object():
    """Also where a batch of poison comes first, or an event of its own cannot be decoded."""
    bad = pa.array([b"?"], pa.binary())
    (poison,) = pack(SPEC, None, bad, pa.array([1], pa.int64()), origin="t-0", shards=1)
    (spoilt,) = pack(SPEC, pa.array([b"z"]), bad, pa.array([2], pa.int64()), origin="t-0", shards=1)
    events = [[Event(f"c{i % 7}", i) for i in part] for part in (range(5), range(5, 20))]
    blobs = [poison, spoilt, *(each for part in events for each in packed(part, 1))]
    found = list(read_events(SPEC, [blob for _, blob in blobs]))
    assert [list(batch.events) for batch in found] == [[], [], *events]
    assert [len(batch.poisoned) for batch in found] == [1, 1, 0, 0]
    keys = [stored_key(key) for key in (b"z", *(b"c%d" % i for i in range(7)))]
    assert [batch.new_keys for batch in found] == [(), keys, [], []]
    assert {id(key) for batch in found for key in batch.keys} <= set(map(id, found[1].new_keys))


def test_an_event_that_cannot_be_decoded_is_set_apart_with_place_key_and_value():
    values = pa.array([b'{"card":"a","at":1}', b'{"card":"b","at":"x"}', b"?"], pa.binary())
    offsets = pa.array([7, 8, 9], pa.int64())
    keys = pa.array([b"a", b"b", b"b"], pa.binary())
    good, poisoned = read_all(pack(SPEC, keys, values, offsets, origin="t-0", shards=2))
    assert good == [Event("a", 1)]
    assert [(p.origin, p.offset, p.key, p.value) for p in poisoned] == [
        ("t-0", 8, b"b", b'{"card":"b","at":"x"}'), ("t-0", 9, b"b", b"?"),
    ]  # fmt: skip
    assert "Expected `int`" in poisoned[0].error


def test_an_event_whose_key_cannot_be_found_is_set_apart():
    values = pa.array([b'{"card":"a","at":1}', b'{"at":1}', b"?", None], pa.binary())
    offsets = pa.array([7, 8, 9, 10], pa.int64())
    good, poisoned = read_all(pack(SPEC, None, values, offsets, origin="t-0", shards=2))
    assert good == [Event("a", 1)]
    assert [(p.offset, p.key, p.value) for p in poisoned] == [
        (8, None, b'{"at":1}'), (9, None, b"?"), (10, None, b""),
    ]  # fmt: skip
    assert "missing required field `card`" in poisoned[0].error


def test_a_record_without_key_or_value_is_set_apart():
    offsets = pa.array([7, 8], pa.int64())
    values = pa.array([b'{"card":"a","at":1}', None], pa.binary())
    keys = pa.array([b"a", None], pa.binary())
    good, (poisoned,) = read_all(pack(SPEC, keys, values, offsets, origin="t-0", shards=1))
    assert (good, poisoned.offset, poisoned.error) == ([Event("a", 1)], 8, "it has no key")
    keys = pa.array([b"a", b"b"], pa.binary())
    good, (poisoned,) = read_all(pack(SPEC, keys, values, offsets, origin="t-0", shards=1))
    assert (good, poisoned.offset, poisoned.key) == ([Event("a", 1)], 8, b"b")


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_key_that_does_not_fit_is_set_apart(with_keys):
    good, (poisoned,) = read_all(packed([Event("k" * 300, 1), Event("k", 2)], with_keys=with_keys))
    assert good == [Event("k", 2)]
    assert "has 300 bytes" in poisoned.error


def test_only_bad_records_make_only_poison():
    values = pa.array([b"?"] * 5, pa.binary())
    offsets = pa.array(range(5), pa.int64())
    good, poisoned = read_all(pack(SPEC, None, values, offsets, origin="t-0", shards=3))
    assert (good, len(poisoned)) == ([], 5)


@dataclass
class Price:
    item: Decimal
    at: int


@function(name="p", key="item", event_time="at")
class P(Keyed[Price, State, Event]):
    def on_event(self, e: Price, s: State, ctx: Context) -> Out[Event]:
        return None


def test_records_keys_that_are_equal_are_one_key():
    spec = spec_of(P)
    values = pa.array([b'{"item":"1.50","at":1}', b'{"item":"1.5","at":2}'] * 2, pa.binary())
    keys = pa.array([b"1.50", b"1.5", b"x", b"NaN"], pa.binary())
    offsets = pa.array(range(4), pa.int64())
    given = pack(spec, keys, values, offsets, origin="t-0", shards=1)
    batch, poison = read_events(spec, [blob for _, blob in given])
    assert list(batch.keys) == [stored_key(b"1.5")] * 2 == [*map(spec.stored_key_of, batch.events)]
    assert [each.offset for each in poison.poisoned] == [2, 3]


def test_records_under_another_key_than_the_functions_are_refused_by_name():
    """`recordKeyIsFunctionKey` was believed: such an event met another key's state."""
    events = [b'{"card":"a","at":1}', b'{"card":"b","at":2}', b"?", b'{"card":"c","at":3}']
    keys = pa.array([b"a", b"b", b"x", b"shop-7"], pa.binary())
    values, offsets = pa.array(events, pa.binary()), pa.array(range(40, 44), pa.int64())
    blobs = [blob for _, blob in pack(SPEC, keys, values, offsets, origin="my-t-3", shards=1)]
    with pytest.raises(RecordKeyDiffers) as refused:
        list(read_events(SPEC, blobs))
    text = str(refused.value)
    assert "topic my-t, partition 3, offset 43" in text
    assert "b'shop-7'" in text and "(card) is 'c'" in text
    assert "recordKeyIsFunctionKey" in refused.value.hint and refused.value.exit_code == 2


@pytest.mark.parametrize("key", [b"\xff", b""])
def test_record_keys_that_are_no_text_are_refused_too(key):
    with pytest.raises(RecordKeyDiffers):
        one = pa.array([key], pa.binary()), pa.array([b'{"card":"a","at":1}'], pa.binary())
        found = pack(SPEC, *one, pa.array([7], pa.int64()), origin="t-0", shards=1)
        list(read_events(SPEC, [blob for _, blob in found]))


@dataclass
class Order:
    buyer: str
    at: int


@function(
    name="two", inputs={"events": Event, "orders": Order},
    key={"events": "card", "orders": "buyer"}, event_time="at",
    tables={"cards": Event, "buyers": keyed(Order)},
)  # fmt: skip
class Two(Keyed[Event | Order, State, Event]):
    def on_event(self, e: Event | Order, s: State, ctx: Context) -> Out[Event]:
        return None


def test_each_input_has_its_own_class_and_key():
    spec = spec_of(Two)
    values = pa.array([b'{"buyer":"b","at":1}'], pa.binary())
    offsets = pa.array([7], pa.int64())
    (only,) = pack(spec, None, values, offsets, origin="o-0", shards=1, input="orders")
    (batch,) = read_events(spec, [only.blob])
    assert (batch.input, batch.events, batch.keys) == (
        "orders", [Order("b", 1)], [stored_key(b"b")],
    )  # fmt: skip


def test_a_broadcast_tables_rows_go_to_every_shard_and_a_keyed_ones_to_its_keys():
    spec = spec_of(Two)
    keys = pa.array([b"a", b"b", b"a", b"c", None, b"d"], pa.binary())
    rows = [b'{"card":"a","at":1}', b'{"card":"b","at":1}', None, b"?", b"{}",
            b'{"card":"d","at":4}']  # fmt: skip
    offsets = pa.array(range(6), pa.int64())
    given = pack_table(
        spec, "cards", keys, pa.array(rows, pa.binary()), offsets, origin="c-0", shards=3
    )
    whole = [read_table(blob) for _, blob in given]
    assert [shard for shard, _ in given][:3] == [0, 1, 2]
    for batch in whole[:3]:
        assert (batch.name, list(batch.keys), list(batch.values)) == (
            "cards", [b"a", b"b", b"d"], [None, rows[1], rows[5]],
        )  # fmt: skip
    assert [(each.origin, each.offset) for each in whole[3].poisoned] == [("c-0", 3), ("c-0", 4)]
    rows = [b'{"buyer":"a","at":1}'] * 6
    given = pack_table(
        spec, "buyers", keys, pa.array(rows, pa.binary()), offsets, origin="c-0", shards=3
    )
    found = {key: shard for shard, blob in given[:-1] for key in read_table(blob).keys}
    assert found == {key: shard_of(stored_key(key), 3) for key in (b"a", b"b", b"c", b"d")}


def test_a_typed_row_is_kept_as_json_and_one_that_cannot_be_read_is_poison():
    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "Card", "fields": [
        {"name": "card", "type": "string"}, {"name": "at", "type": "long"},
        {"name": "more", "type": "int"}]}  # fmt: skip
    values = event_values(ValueSettings(ValueFormat.AVRO, json.dumps(schema)), None)
    spec = replace(spec_of(Two), table_values={"cards": values})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"card": "a", "at": 5, "more": 1})
    rows = pa.array([out.getvalue(), None, b'{"card":"c","at":1}'], pa.binary())
    keys, offsets = pa.array([b"a", b"b", b"c"], pa.binary()), pa.array(range(3), pa.int64())
    given = pack_table(spec, "cards", keys, rows, offsets, origin="c-0", shards=1)
    good, bad = [read_table(blob) for _, blob in given]
    assert list(good.values) == [b'{"card":"a","at":5}', None]
    assert spec.tables["cards"].decode_row(good.values[0]).at == 5
    assert [each.offset for each in bad.poisoned] == [2]


def test_a_row_whose_schema_cannot_be_had_is_nobodys_fault(monkeypatch):
    pytest.importorskip("fastavro")
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)
    values = event_values(ValueSettings(ValueFormat.AVRO), Registry("http://127.0.0.1:1"))
    spec = replace(spec_of(Two), table_values={"cards": values})
    rows, keys = pa.array([b"\0\0\0\0\1x"], pa.binary()), pa.array([b"a"], pa.binary())
    with pytest.raises(registries.SchemaUnavailable, match="schema id 1"):
        pack_table(spec, "cards", keys, rows, pa.array([0]), origin="c-0", shards=1)


@pytest.mark.parametrize("table", ["cards", "buyers"])
def test_a_row_whose_key_no_state_can_have_is_poison_and_says_so(table):
    keys = pa.array([b"k" * 255, b"k" * 256], pa.binary())
    rows = pa.array([b'{"card":"a","buyer":"a","at":1}'] * 2, pa.binary())
    given = pack_table(
        spec_of(Two), table, keys, rows, pa.array([5, 6], pa.int64()), origin="c-0", shards=1
    )
    good, bad = [read_table(blob) for _, blob in given]
    assert list(good.keys) == [b"k" * 255]
    assert [each.offset for each in bad.poisoned] == [6]
    assert "has 256 bytes; state is kept for keys of at most 255" in bad.poisoned[0].error


def test_text_columns_are_taken_as_bytes():
    offsets = pa.array([7], pa.int64())
    (only,) = pack(
        SPEC, pa.array(["a"]), pa.array(['{"card":"a","at":1}']), offsets, origin="t-0", shards=1
    )
    (batch,) = read_events(SPEC, [only.blob])
    assert batch.events == [Event("a", 1)]


def test_the_key_and_the_event_of_an_avro_value_are_read_and_what_is_none_is_poison():
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "card", "type": "string"}, {"name": "at", "type": "long"}]
    schema = {"type": "record", "name": "E", "fields": fields}
    values = event_values(ValueSettings(ValueFormat.AVRO, json.dumps(schema)), None)
    spec = replace(SPEC, values=values)
    written = []
    for card in "abc":
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"card": card, "at": 5})
        written.append(out.getvalue())
    written.append(b"\xff")
    blobs = pack(
        spec, None, pa.array(written), pa.array(range(4), pa.int64()), origin="t-3", shards=1
    )
    batches = list(read_events(spec, [blob.blob for blob in blobs]))
    assert [event for batch in batches for event in batch.events] == [Event(c, 5) for c in "abc"]
    [poisoned] = [found for batch in batches for found in batch.poisoned]
    assert (poisoned.offset, poisoned.value) == (3, b"\xff"), "a dead letter is what came"


def test_a_schema_that_cannot_be_had_is_nobodys_poison(monkeypatch):
    pytest.importorskip("fastavro")
    monkeypatch.setattr(registry, "PATIENCE_S", 0.0)
    values = event_values(ValueSettings(ValueFormat.AVRO), Registry("http://127.0.0.1:1"))
    spec = replace(SPEC, values=values)
    value = pa.array([b"\0\0\0\0\7x"])
    with pytest.raises(registry.SchemaUnavailable):
        pack(spec, None, value, pa.array([0], pa.int64()), origin="t-3", shards=1)
    keys = pa.array([b"a"])
    [blob] = pack(spec, keys, value, pa.array([0], pa.int64()), origin="t-3", shards=1)
    with pytest.raises(registry.SchemaUnavailable):
        list(read_events(spec, [blob.blob]))


def blobs_of(cards: list[str]) -> list[bytes]:
    """Two batches of events of these cards, in one shard."""
    values = [msgspec.json.encode(Event(card, at)) for at, card in enumerate(cards)]
    half = len(values) // 2
    found = []
    for part in (values[:half], values[half:]):
        offsets = pa.array(range(len(part)), pa.int64())
        packed = pack(SPEC, None, pa.array(part, pa.binary()), offsets, origin="t-0", shards=1)
        found += [blob for _, blob in packed]
    return found


def test_the_key_with_the_most_events_is_found_and_counted_exactly() -> None:
    even = [f"card-{n}" for n in range(2_000)]
    assert hottest(SPEC, blobs_of(["hot"] * 500 + even)) == ("hot", 500)
    assert hottest(SPEC, blobs_of(even)) == ("", 0)
    assert hottest(SPEC, blobs_of(["only"] * 200)) == ("only", 200)
    assert hottest(SPEC, []) == hottest(SPEC, blobs_of(["few"] * 10)) == ("", 0)
    broken = pack(SPEC, None, pa.array([b"no json"], pa.binary()), pa.array([0]), origin="t-0",
                  shards=1)  # fmt: skip
    assert hottest(SPEC, [*blobs_of(["hot"] * 150), broken[0].blob]) == ("hot", 150)
