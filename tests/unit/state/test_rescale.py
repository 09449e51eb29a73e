"""Shards written anew as another number of shards hold what a plain model holds."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.rolling import small_units

from catchwater.objects.memory import MemoryStore
from catchwater.state.entries import DictEntries, Table, key_of, no_changes, pack_time, prefix_of
from catchwater.state.keys import encode_key, shard_of, stored_key
from catchwater.state.log import StateLog
from catchwater.state.parts import ShardDamaged
from catchwater.state.rescale import ShardsApart, rewrite
from catchwater.state.roll import EMPTY, Position

SHARED = {b"table\0row": b"shared", b"table\0other": b"by all"}
KEYS = st.integers(0, 300).map(lambda n: stored_key(encode_key(n)))
EPOCHS = st.lists(
    st.lists(st.tuples(KEYS, st.booleans(), st.integers(0, 3)), max_size=25), min_size=1, max_size=6
)


def logs(store, folder, shards):
    return [StateLog(store, folder, "f", shard) for shard in range(shards)]


def changes_of(events, version):
    """What a made-up function leaves of one epoch in one shard: something in every table."""
    changes, pages = no_changes(), {}
    for key, deletes, due in events:
        timer = pack_time(due) + key + b"name" + len(key).to_bytes(2, "big")
        value = None if deletes else b"written by %d" % version
        changes[Table.RECORD][key] = value
        changes[Table.TIMER][timer] = changes[Table.CLOCK_TIMER][timer] = None if deletes else b""
        changes[Table.SEEN][key + b"id" + b"\x02"] = value
        changes[Table.ENTRY][prefix_of(key) + b"field\0key"] = value
        changes[Table.JOINED][prefix_of(key) + b"table"] = value
        pages.setdefault(due, []).append(key)
    for due, keys in pages.items():
        entry = pack_time(due) + bytes([Table.RECORD]) + version.to_bytes(8, "big") + bytes(4)
        changes[Table.EXPIRY][entry] = msgspec.msgpack.encode(keys)
    changes[Table.SHARED].update(SHARED)
    return changes


def run(store, folder, at, models, epochs):
    """Log the epochs on shards that stand somewhere; gives where they stand then."""
    shards = len(models)
    for events in epochs:
        for shard, log in enumerate(logs(store, folder, shards)):
            own = [event for event in events if shard_of(event[0], shards) == shard]
            to = Position(at[shard].version + 1, f"token-{shard}")
            changes = changes_of(own, to.version)
            log.append(at[shard], to, changes, models[shard])
            models[shard].apply(changes)
            at[shard] = to
    return at


def read(log, at):
    entries = DictEntries()
    for changes in log.read(at):
        entries.apply(changes)
    return entries


def whole(models):
    """All entries of all shards, and how often the journal names a key when."""
    entries, named = {}, Counter()
    for shard, model in enumerate(models):
        for table in Table:
            for key, value in model.tables[table].items():
                if table is Table.EXPIRY:
                    keys = msgspec.msgpack.decode(value, type=list[bytes])
                    assert all(shard_of(each, len(models)) == shard for each in keys)
                    named.update((key[:9], each) for each in keys)
                else:
                    owner = key_of(table, key)
                    assert owner is None or shard_of(owner, len(models)) == shard
                    entries[table, key] = value
        assert model.tables[Table.SHARED] == SHARED
    return entries, named


@settings(deadline=None, max_examples=40)
@given(EPOCHS, st.integers(1, 5), st.integers(1, 9), EPOCHS)
def test_any_number_of_shards_becomes_any_other_and_goes_on(epochs, before, after, more):
    with small_units():
        store = MemoryStore()
        old = [DictEntries() for _ in range(before)]
        at = run(store, "old", [EMPTY] * before, old, epochs)
        sources = list(zip(logs(store, "old", before), at, strict=True))
        positions = rewrite(sources, logs(store, "new", after))
        assert {position.version for position in positions} == {len(epochs)}
        new = [read(*each) for each in zip(logs(store, "new", after), positions, strict=True)]
        assert whole(new) == whole(old)
        positions = run(store, "new", positions, new, more)
        for log, position, model in zip(logs(store, "new", after), positions, new, strict=True):
            assert read(log, position).tables == model.tables
            log.sweep([position])
            assert read(log, position).tables == model.tables
        assert [read(*source).tables for source in sources] == [model.tables for model in old]


@pytest.mark.parametrize("shards", [3, 5, 6, 7])
def test_keys_at_the_bounds_of_shards_go_where_they_belong(shards):
    bounds = [-(-(shard << 32) // shards) for shard in range(1, shards)]
    hashes = [bound + away for bound in bounds for away in (-1, 0, 1)]
    keys = [each.to_bytes(4, "big") + bytes(4) + b"key" for each in hashes]
    store, old = MemoryStore(), [DictEntries()]
    at = run(store, "old", [EMPTY], old, [[(key, False, 1) for key in keys]])
    targets = logs(store, "new", shards)
    positions = rewrite([(logs(store, "old", 1)[0], at[0])], targets)
    assert whole([read(*each) for each in zip(targets, positions, strict=True)]) == whole(old)


def test_pages_of_the_journal_stay_pages():
    store = MemoryStore()
    keys = [stored_key(b"%d" % n) for n in range(5000)]
    old = [DictEntries(), DictEntries()]
    events = [[(key, False, 1) for key in keys[at : at + 500]] for at in range(0, 5000, 500)]
    at = run(store, "old", [EMPTY, EMPTY], old, events)
    (target,) = logs(store, "new", 1)
    positions = rewrite(list(zip(logs(store, "old", 2), at, strict=True)), [target])
    new = read(target, *positions)
    assert whole([new]) == whole(old)
    assert len(old[0].tables[Table.EXPIRY]) + len(old[1].tables[Table.EXPIRY]) == 20
    assert len(new.tables[Table.EXPIRY]) == 5


def test_shards_that_were_never_written_stay_so():
    store = MemoryStore()
    sources = [(log, EMPTY) for log in logs(store, "old", 2)]
    assert rewrite(sources, logs(store, "new", 3)) == [EMPTY] * 3


def test_shards_of_different_versions_are_refused():
    store = MemoryStore()
    models = [DictEntries(), DictEntries()]
    at = run(store, "old", [EMPTY, EMPTY], models, [[], []])
    sources = list(zip(logs(store, "old", 2), [at[0], Position(1, "token-1")], strict=True))
    with pytest.raises(ShardsApart, match=r"versions \[1, 2\]"):
        rewrite(sources, logs(store, "new", 1))


def test_a_damaged_source_is_named():
    store = MemoryStore()
    at = run(store, "old", [EMPTY], [DictEntries()], [[]])
    (source,) = logs(store, "old", 1)
    store.delete(source.objects_of(at[0])[0])
    with pytest.raises(ShardDamaged, match="old/00000/"):
        rewrite([(logs(store, "old", 1)[0], at[0])], logs(store, "new", 1))
