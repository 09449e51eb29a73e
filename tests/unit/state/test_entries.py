"""Changes over committed entries read as if they were committed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.entries import (
    DictEntries,
    ShardState,
    Table,
    key_of,
    pack_time,
    prefix_of,
    unpack_time,
)
from catchwater.state.keys import shard_of, stored_key

KEYS = st.sampled_from([bytes([n]) for n in b"abcdefg"])
TABLES = st.dictionaries(KEYS, st.binary(max_size=2))
CHANGED = st.dictionaries(KEYS, st.none() | st.binary(max_size=2))
TIMES = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(TABLES, CHANGED)
def test_an_overlay_reads_as_what_it_will_be(committed, changed):
    entries = DictEntries()
    entries.tables[Table.SEEN].update(committed)
    state = ShardState(entries, 1)
    for key, value in changed.items():
        if value is None:
            state.delete(Table.SEEN, key)
        else:
            state.put(Table.SEEN, key, value)
    keys = [bytes([n]) for n in b"abcdefg"]
    found = state.get_many(Table.SEEN, keys)
    singly = {key: state.get(Table.SEEN, key) for key in keys}
    first = state.first(Table.SEEN)
    entries.apply(state.changes)
    assert found == entries.tables[Table.SEEN] == entries.get_many(Table.SEEN, keys)
    assert {key: value for key, value in singly.items() if value is not None} == found
    assert first == min(found, default=None)
    assert not state.get_many(Table.TIMER, keys)


@settings(deadline=None)
@given(TABLES, st.binary(max_size=1), st.none() | KEYS)
def test_scans_are_ordered_and_bounded(committed, start, until):
    entries = DictEntries()
    entries.tables[Table.TIMER].update(committed)
    expected = sorted(
        item
        for item in committed.items()
        if item[0] >= start and (until is None or item[0] < until)
    )
    assert list(entries.scan(Table.TIMER, start, until)) == expected


@settings(deadline=None)
@given(TIMES, TIMES)
def test_packed_times_sort_as_times_do(one, other):
    assert unpack_time(pack_time(one)) == one
    assert (pack_time(one) < pack_time(other)) == (one < other)


@settings(deadline=None)
@given(CHANGED, st.lists(CHANGED, max_size=4), st.data())
def test_a_rollback_leaves_what_was_changed_before_its_mark(before, epochs, data):
    state = ShardState(DictEntries(), 1)
    make_changes(state, before)
    marks = []
    for changed in epochs:
        marks.append((state.mark(), dict(state.changes[Table.SEEN])))
        make_changes(state, changed)
    while marks:
        at = data.draw(st.integers(0, len(marks) - 1))
        mark, expected = marks[at]
        state.rollback(mark)
        assert state.changes[Table.SEEN] == expected
        make_changes(state, {b"a": b"again"})
        del marks[at:]


def make_changes(state, changed):
    for key, value in changed.items():
        if value is None:
            state.delete(Table.SEEN, key)
        elif len(value) == 1:
            state.put_many(Table.SEEN, [(key, value)])
        else:
            state.put(Table.SEEN, key, value)


@settings(deadline=None)
@given(st.binary(max_size=255).map(stored_key), st.binary(max_size=9), st.integers(1, 300))
def test_the_place_of_an_entry_says_whose_it_is(key, rest, shards):
    due, length = pack_time(5), len(key).to_bytes(2, "big")
    assert key_of(Table.RECORD, key) == key
    assert key_of(Table.TIMER, due + key + rest + length) == key
    assert key_of(Table.CLOCK_TIMER, due + key + rest + length) == key
    assert key_of(Table.SEEN, key + rest + bytes([len(rest)])) == key
    assert key_of(Table.ENTRY, prefix_of(key) + rest) == key
    assert key_of(Table.JOINED, prefix_of(key) + rest) == key
    assert key_of(Table.EXPIRY, due + bytes(13)) is key_of(Table.SHARED, rest) is None
    assert 0 <= shard_of(key, shards) < shards
