"""Changes over committed entries read as if they were committed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.entries import DictEntries, ShardState, Table, pack_time, unpack_time

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
    first = state.first(Table.SEEN)
    entries.apply(state.changes)
    assert found == entries.tables[Table.SEEN] == entries.get_many(Table.SEEN, keys)
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
