"""Deltas and snapshots as bytes: they come back, and a broken or missing one is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.delta import (
    EMPTY,
    Position,
    ShardDamaged,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
    restore,
)
from catchwater.state.entries import DictEntries, Table, no_changes

ONE = Position(1, "x")


def entries_of(*tables):
    entries = DictEntries()
    for table, found in zip(Table, tables, strict=False):
        entries.tables[table].update(found)
    return entries


def restored(*parts, deltas=()):
    entries = DictEntries()
    for _, changes in restore("f", parts, deltas):
        entries.apply(changes)
    return entries.tables


def changes_of(**entries):
    changes = no_changes()
    changes[Table.RECORD].update({key.encode(): value for key, value in entries.items()})
    return changes


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.binary(), st.none() | st.binary()), min_size=4, max_size=4))
def test_a_delta_comes_back(changed):
    data = encode_delta("f", EMPTY, ONE, tuple(changed))
    delta = decode_delta(data)
    assert (delta.function, delta.base, delta.to, delta.changes) == ("f", EMPTY, ONE, changed)
    assert encode_delta("f", EMPTY, ONE, tuple(changed)) == data


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.binary(), st.binary()), min_size=4, max_size=4),
    st.integers(1, 50),
)
def test_a_snapshot_comes_back_whatever_its_chunks(tables, chunk_bytes):
    chunks = list(encode_snapshot("f", ONE, entries_of(*tables), chunk_bytes=chunk_bytes))
    assert list(restored(*chunks)) == tables


def test_an_empty_snapshot_still_says_where_it_was_taken():
    (chunk,) = encode_snapshot("f", ONE, DictEntries())
    assert [at for at, _ in restore("f", [chunk], [])] == [ONE]


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:5], lambda d: d[:20] + b"?"])
def test_damaged_bytes_are_refused(damage):
    data = encode_delta("f", EMPTY, ONE, changes_of(a=b"1" * 50))
    with pytest.raises(ShardDamaged):
        decode_delta(damage(data))


def test_a_snapshot_with_a_missing_foreign_or_repeated_chunk_is_refused():
    entries = entries_of({b"a": b"1", b"b": b"2", b"c": b"3"})
    one, two, three = encode_snapshot("f", ONE, entries, chunk_bytes=1)
    foreign = list(encode_snapshot("f", Position(1, "y"), entries, chunk_bytes=1))[1]
    for parts in [(one, two), (one, three), (two, three), (one, one), (one, foreign, three)]:
        with pytest.raises(ShardDamaged):
            list(decode_snapshot("f", parts))
    with pytest.raises(ShardDamaged):
        list(decode_snapshot("g", [one, two, three]))


def test_deltas_follow_a_snapshot_and_what_it_contains_is_skipped():
    first = encode_delta("f", EMPTY, ONE, changes_of(a=b"1", b=b"2"))
    second = encode_delta("f", ONE, Position(2, "y"), changes_of(b=None, c=b"3"))
    (snapshot,) = encode_snapshot("f", ONE, entries_of({b"a": b"1", b"b": b"2"}))
    for parts in ((), (snapshot,)):
        assert restored(*parts, deltas=(first, second))[0] == {b"a": b"1", b"c": b"3"}
    with pytest.raises(ShardDamaged, match="from version 1 does not follow version 0"):
        restored(deltas=(second,))
