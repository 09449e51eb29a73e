"""Chunks with changes merged into them say what they say one after the other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.entries import DictEntries, Table, no_changes
from catchwater.state.overlay import merged

KEYS = st.integers(0, 30).map(lambda n: b"%02d" % n)
CHANGES = st.lists(
    st.dictionaries(
        st.tuples(st.sampled_from([Table.RECORD, Table.TIMER]), KEYS),
        st.none() | st.binary(max_size=2),
        max_size=6,
    ),
    max_size=6,
)
ENTRIES = st.dictionaries(st.tuples(st.sampled_from(Table), KEYS), st.binary(max_size=2))


def blocks_of(pairs, size):
    for at in range(0, len(pairs), size):
        block = no_changes()
        for (table, key), value in pairs[at : at + size]:
            block[table][key] = value
        yield block


@settings(deadline=None)
@given(ENTRIES, CHANGES, st.integers(1, 8), st.integers(0, 20))
def test_nothing_is_lost_and_what_is_in_order_stays_so(entries, changes, size, limit):
    chunks = sorted(entries.items())
    pieces = [pair for piece in changes for pair in piece.items()]
    expected, found = DictEntries(), DictEntries()
    for block in (*blocks_of(chunks, size), *blocks_of(pieces, 1)):
        expected.apply(block)
    last = [b""] * len(Table)
    appended = len(list(blocks_of(chunks, size))) + 1
    given = merged(blocks_of(chunks, size), blocks_of(pieces, 1), limit)
    for number, block in enumerate(given):
        found.apply(block)
        for table in Table:
            if number < appended and block[table]:
                assert None not in block[table].values()
                assert min(block[table]) > last[table]
                last[table] = max(block[table])
    assert found.tables == expected.tables
