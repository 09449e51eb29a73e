"""Events packed by shard and unpacked again, and the labels Spark spreads evenly."""

from collections import Counter
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.pack import (
    EventUndecodable,
    decode_events,
    pack,
    shard_labels,
    spark_hash,
    unpack,
)
from catchwater.state.keys import KeyTooLong, stored_key


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
    labels = shard_labels(shards)
    return pack(spec, keys if with_keys else None, values, offsets, origin="t-3", labels=labels)


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
    labels = shard_labels(shards)
    found = []
    for label, blob in blobs:
        unpacked = unpack(blob)
        assert unpacked.origin == "t-3"
        offsets = unpacked.offsets.to_pylist()
        assert offsets == sorted(offsets)
        decoded = decode_events(SPEC, unpacked)
        for key, event in zip(unpacked.keys, decoded, strict=True):
            assert key == stored_key(event.card.encode()) == SPEC.stored_key_of(event)
            shard = int.from_bytes(key[:8], "big") * shards >> 64
            assert labels[shard] == label
        found += zip(offsets, decoded, strict=True)
    assert [event for _, event in sorted(found, key=lambda pair: pair[0])] == events
    assert len({label for label, _ in blobs}) == len(blobs)


def test_the_same_batch_gives_the_same_bytes():
    events = [Event(f"c{i % 9}", i) for i in range(50)]
    assert packed(events) == packed(events)


def test_a_bad_event_is_named_by_topic_partition_and_offset():
    values = pa.array([b'{"card":"a","at":1}', b'{"card":"b","at":"x"}', b"?"], pa.binary())
    offsets = pa.array([7, 8, 9], pa.int64())
    with pytest.raises(EventUndecodable, match="at t-0, offset 9, cannot be read as Event"):
        pack(SPEC, None, values, offsets, origin="t-0", labels=[0])
    keys = pa.array([b"a", b"b", b"b"], pa.binary())
    (only,) = pack(SPEC, keys, values, offsets, origin="t-0", labels=[0])
    with pytest.raises(EventUndecodable, match=r"offset 8, .* Expected `int`"):
        decode_events(SPEC, unpack(only.blob))


def test_a_record_without_key_or_value_is_named():
    offsets = pa.array([7, 8], pa.int64())
    values = pa.array([b'{"card":"a","at":1}', None], pa.binary())
    with pytest.raises(EventUndecodable, match=r"offset 8, .* it has no key"):
        keys = pa.array([b"a", None], pa.binary())
        pack(SPEC, keys, values, offsets, origin="t-0", labels=[0])
    with pytest.raises(EventUndecodable, match="offset 8"):
        pack(SPEC, None, values, offsets, origin="t-0", labels=[0])


def test_a_key_that_does_not_fit_is_refused_before_it_is_stored():
    with pytest.raises(KeyTooLong):
        packed([Event("k" * 300, 1)])


def test_text_columns_are_taken_as_bytes():
    offsets = pa.array([7], pa.int64())
    (only,) = pack(
        SPEC, pa.array(["a"]), pa.array(['{"card":"a","at":1}']), offsets, origin="t-0", labels=[5]
    )
    assert (only.label, decode_events(SPEC, unpack(only.blob))) == (5, [Event("a", 1)])
