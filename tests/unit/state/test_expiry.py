"""The expiry journal: all that was written comes up, a sixteenth of its life late at most."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.entries import DictEntries, ShardState, Table, unpack_time
from catchwater.state.expiry import Journal, take_due


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(1, 1000))
def test_what_was_written_comes_up_after_it_expired_and_soon(times, ttl):
    entries = DictEntries()
    state = ShardState(entries, 1)
    journal = Journal(Table.SEEN, ttl)
    keys = [b"key %d" % i for i in range(len(times))]
    journal.written(keys, times)
    journal.store(state)
    entries.apply(state.changes)
    came = {}
    for due in sorted({unpack_time(entry) for entry in entries.tables[Table.EXPIRY]}):
        state = ShardState(entries, 2)
        assert not take_due(state, due - 1, 10**9)[Table.SEEN]
        found = take_due(state, due, 10**9)
        entries.apply(state.changes)
        assert not found[Table.RECORD]
        came.update(dict.fromkeys(found[Table.SEEN], due))
    assert not entries.tables[Table.EXPIRY]
    for key, at in zip(keys, times, strict=True):
        assert at + ttl <= came[key] <= at + ttl + max(ttl // 16, 1)


@pytest.mark.parametrize("most", [1, 1024, 2500])
def test_what_comes_up_is_taken_a_part_at_a_time_and_all_of_it(most):
    entries, keys = DictEntries(), [b"%d" % i for i in range(5000)]
    state = ShardState(entries, 1)
    for table, own in ((Table.RECORD, keys[:2000]), (Table.ENTRY, keys[2000:])):
        journal = Journal(table, 1600)
        journal.written(own, [5] * len(own))
        journal.store(state)
    entries.apply(state.changes)
    found = []
    while any(entries.tables):
        state = ShardState(entries, 2)
        due = take_due(state, 10_000, most)
        part = [key for own in due.values() for key in own]
        assert min(most, 5000 - len(found)) <= len(part) < most + 1024
        found += part
        entries.apply(state.changes)
    assert found == keys


def test_many_keys_are_kept_in_pages_and_each_once():
    state = ShardState(DictEntries(), 7)
    journal = Journal(Table.RECORD, 1600)
    keys = [b"%d" % i for i in range(3000)]
    journal.written(keys + keys, [5] * 6000)
    journal.store(state)
    assert len(state.changes[Table.EXPIRY]) == 3
