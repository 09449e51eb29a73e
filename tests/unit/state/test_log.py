"""The log of a shard: what was committed is read back, or the broken object is named."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.state.rolling import Failing, small_units

from catchwater.objects.base import StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.state import log as log_module
from catchwater.state.entries import DictEntries, Table, key_of, no_changes, prefix_of
from catchwater.state.frame import EntryTooLarge
from catchwater.state.keys import stored_key
from catchwater.state.log import StateLog
from catchwater.state.parts import ShardDamaged
from catchwater.state.roll import EMPTY, Position

KEYS = st.integers(0, 60).map(lambda n: b"key %02d" % n)
CHANGES = st.lists(
    st.tuples(st.sampled_from(Table), KEYS, st.none() | st.binary(min_size=5, max_size=30)),
    max_size=12,
)


class StaleListing(MemoryStore):
    """A store whose listings may be old: they may show what is gone, and miss what is new."""

    shown = None

    def list(self, prefix):
        return iter(self.shown) if self.shown is not None else super().list(prefix)


def changes_of(pairs):
    changes = no_changes()
    for table, key, value in pairs:
        changes[table][key] = value
    return changes


def entries_of(log, at):
    entries = DictEntries()
    for changes in log.read(at):
        entries.apply(changes)
    return entries


def copy_of(entries):
    return [dict(table) for table in entries.tables]


class LogMachine(RuleBasedStateMachine):
    """Epochs, attempts that fail at any step or count for nothing, and sweeps beside a dict."""

    @initialize()
    def start(self):
        self.patched = small_units()
        self.patched.start()
        self.memory = StaleListing()
        self.store = Failing(self.memory)
        self.log = self.opened()
        self.model = DictEntries()
        self.at = EMPTY
        self.attempt = 0
        self.kept = {EMPTY: copy_of(self.model)}

    def teardown(self):
        self.patched.stop()

    def opened(self):
        return StateLog(self.store, "state", "f", 3)

    def append(self, pairs):
        self.attempt += 1
        to = Position(self.at.version + 1, f"attempt-{self.attempt}")
        changes = changes_of(pairs)
        logged = self.log.append(self.at, to, changes, self.model)
        assert logged.at == to
        return to, changes

    def commit(self, to, changes):
        self.model.apply(changes)
        self.at = to
        self.kept[to] = copy_of(self.model)

    @rule(pairs=CHANGES)
    def an_epoch_is_committed(self, pairs):
        self.commit(*self.append(pairs))

    @rule(pairs=CHANGES)
    def an_attempt_counts_for_nothing(self, pairs):
        self.append(pairs)

    @rule(first=CHANGES, second=CHANGES)
    def another_attempt_writes_before_the_first_is_committed(self, first, second):
        to, changes = self.append(first)
        self.append(second)
        self.commit(to, changes)

    @rule(pairs=CHANGES, step=st.integers(0, 4), done=st.booleans())
    def an_attempt_crashes_between_two_steps(self, pairs, step, done):
        self.store.fail_at, self.store.done = step, done
        try:
            self.append(pairs)
        except StoreUnavailable:
            self.log = self.opened()
        self.store.fail_at = None

    @rule()
    def the_log_is_opened_anew(self):
        self.log = self.opened()

    @rule(retain=st.integers(1, 5), limit=st.integers(1, 20), stale=st.booleans())
    def what_nobody_needs_is_swept(self, retain, limit, stale):
        self.kept = dict(list(self.kept.items())[-retain:])
        deleted = self.log.sweep(self.kept, limit)
        assert deleted <= limit
        if stale and self.memory.shown is None:
            self.memory.shown = list(self.memory.list("state/"))
        else:
            self.memory.shown = None

    @rule(back=st.integers(1, 4))
    def an_older_position_is_gone_back_to(self, back):
        self.kept = dict(list(self.kept.items())[:-back]) or self.kept
        self.at = list(self.kept)[-1]
        self.model = DictEntries()
        self.model.apply(tuple(self.kept[self.at]))

    @invariant()
    def every_kept_position_reads_as_it_was(self):
        fresh = self.opened()
        for at, expected in list(self.kept.items())[-3:]:
            assert list(entries_of(fresh, at).tables) == expected
            assert all(self.memory.size(key) for key in fresh.objects_of(at))


TestLogEqualsADict = LogMachine.TestCase
TestLogEqualsADict.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.fixture
def small():
    with small_units():
        yield


@pytest.fixture
def history(small):
    """A store with some epochs of a shard, its last position, and what it holds there."""
    store, model = MemoryStore(), DictEntries()
    log, at = StateLog(store, "state", "f", 3), EMPTY
    for epoch in range(24):
        changes = no_changes()
        for n in range(6):
            changes[Table(n)][b"key %02d" % ((epoch * 7 + n) % 40)] = b"value of %02d" % epoch
        changes[Table.RECORD][b"key %02d" % (epoch // 2)] = None
        to = Position(at.version + 1, f"t{epoch}")
        log.append(at, to, changes, model)
        model.apply(changes)
        at = to
    return store, at, model


def read_all(store, at, function="f", shard=3):
    return entries_of(StateLog(store, "state", function, shard), at).tables


def needed(store, at):
    keys = StateLog(store, "state", "f", 3).objects_of(at)
    kinds = {key.rpartition(".")[2].partition("-")[0]: key for key in keys}
    assert set(kinds) == {"chunk", "merged", "delta"}
    return kinds


def damaged(store, at, key):
    with pytest.raises(ShardDamaged) as error:
        read_all(store, at)
    assert error.value.key == key and key in str(error.value)
    return error.value


def test_a_sweep_asks_for_so_many_positions_at_a_time_and_deletes_when_it_knows_all(
    small, monkeypatch
):
    store, model = MemoryStore(), DictEntries()
    log, at, kept = StateLog(store, "state", "f", 3), EMPTY, []
    for epoch in range(12):
        changes = changes_of([(0, b"key", b"value of %02d" % epoch)])
        to = Position(at.version + 1, f"t{epoch}")
        log.append(at, to, changes, model)
        model.apply(changes)
        at = to
        kept.append(at)
    kept = kept[6:]
    monkeypatch.setattr(log_module, "LEARN_STEP", 4)
    fresh = StateLog(store, "state", "f", 3)
    assert fresh.sweep(kept) == 0
    assert fresh.sweep(kept) > 0
    assert {info.key for info in store.list("state/")} == {
        key for position in kept for key in fresh.objects_of(position)
    }


def test_version_and_token_alone_open_a_shard(history):
    store, at, model = history
    assert read_all(store, at) == model.tables
    with pytest.raises(ShardDamaged, match=r"0024-other\.delta cannot be used: it is missing"):
        read_all(store, Position(at.version, "other"))


@pytest.mark.parametrize("kind", ["chunk", "merged", "delta"])
def test_an_object_that_was_cut_is_named_wherever_it_was_cut(history, kind):
    store, at, _ = history
    key = needed(store, at)[kind]
    data = store.get(key)
    for size in range(len(data)):
        store.put(key, [data[:size]])
        damaged(store, at, key)
    store.put(key, [data, b"x"])
    damaged(store, at, key)


@pytest.mark.parametrize("kind", ["chunk", "merged", "delta"])
def test_an_object_with_a_flipped_bit_is_named_wherever_it_was_flipped(history, kind):
    store, at, _ = history
    key = needed(store, at)[kind]
    data = store.get(key)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        store.put(key, [flipped])
        damaged(store, at, key)


def test_a_missing_object_names_the_checkpoint_to_go_back_to(history):
    store, at, _ = history
    for key in StateLog(store, "state", "f", 3).objects_of(at):
        data = store.get(key)
        store.delete(key)
        error = damaged(store, at, key)
        version = int(key.rpartition("/")[2][:20])
        assert error.needed_from == version
        assert f"--checkpoint {version - 2}" in error.hint or version == 1
        store.put(key, [data])


def test_an_object_in_the_place_of_another_is_named(history):
    store, at, _ = history
    keys = StateLog(store, "state", "f", 3).objects_of(at)
    for key, other in zip(keys, [*keys[1:], keys[0]], strict=True):
        data = store.get(key)
        store.put(key, [store.get(other)])
        damaged(store, at, key)
        store.put(key, [data])


def test_the_log_of_another_function_or_shard_is_refused(history):
    store, at, _ = history
    for key in StateLog(store, "state", "f", 3).objects_of(at):
        store.put(key.replace("/00003/", "/00004/"), [store.get(key)])
    for function, shard in (("g", 3), ("f", 4)):
        with pytest.raises(ShardDamaged, match="cannot be used: it is"):
            read_all(store, at, function, shard)


def test_two_attempts_at_a_version_are_never_mixed(small):
    store, model = MemoryStore(), DictEntries()
    log, at = StateLog(store, "state", "f", 3), EMPTY
    for epoch in range(1, 30):
        mine = changes_of([(Table.RECORD, b"key %d" % (epoch % 5), b"mine %02d" % epoch)])
        theirs = changes_of([(Table.SEEN, b"key", b"theirs"), (Table.RECORD, b"key 0", None)])
        other = StateLog(store, "state", "f", 3)
        to = Position(epoch, "mine")
        for writer, token, changes in ((log, "mine", mine), (other, "theirs", theirs)):
            writer.append(at, Position(epoch, token), changes, model)
        model.apply(mine)
        at = to
        assert read_all(store, at) == model.tables


def test_a_sweep_that_cannot_tell_what_is_needed_deletes_nothing(history):
    store, at, _ = history
    before = [info.key for info in store.list("state/")]
    with pytest.raises(ShardDamaged):
        StateLog(store, "state", "f", 3).sweep([at, Position(7, "never")])
    assert [info.key for info in store.list("state/")] == before


def test_a_sweep_leaves_what_a_running_attempt_may_have_written_and_what_is_not_ours(history):
    store, at, _ = history
    log = StateLog(store, "state", "f", 3)
    for name in (f"{at.version:020}-other.delta", f"{at.version + 1:020}-x.chunk-0", "notes.txt"):
        store.put(f"state/00003/{name}", [b"here"])
    store.put(f"state/00003/{at.version - 1:020}-lost.delta", [b"garbage"])
    deleted = log.sweep([at])
    left = {info.key for info in store.list("state/")}
    assert left >= set(log.objects_of(at)) and len(left) == len(log.objects_of(at)) + 3
    assert deleted > 0 and log.sweep([at]) == 0


def test_merging_reads_nothing_as_long_as_the_log_stays_open(small):
    store = NeverRead()
    log, at, model = StateLog(store, "state", "f", 3), EMPTY, DictEntries()
    for epoch in range(30):
        to = Position(epoch + 1, "t")
        changes = changes_of([(Table.RECORD, b"key", b"%d" % epoch)])
        log.append(at, to, changes, model)
        model.apply(changes)
        at = to
    assert any(".merged" in info.key for info in store.list("state/"))


class DeltaFirst(MemoryStore):
    """A store in which other objects are not there before the epoch's own is on its way."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()
        self.others = 0
        self.fails = ""

    def put(self, key, parts):
        if key.endswith(".delta"):
            self.begun.set()
        else:
            self.others += 1
            assert self.begun.wait(60), "it waited for the others"
        if self.fails and self.fails in key:
            raise StoreUnavailable(f"{key}: no answer")
        return super().put(key, parts)


@pytest.mark.parametrize("fails", ["", ".chunk", ".merged", ".delta"])
def test_an_epochs_objects_are_put_side_by_side_and_none_may_fail(small, fails):
    store, model = DeltaFirst(), DictEntries()
    log, at = StateLog(store, "state", "f", 3), EMPTY
    failures = 0
    for epoch in range(30):
        store.begun.clear()
        to = Position(epoch + 1, "t")
        rows = range(1 if epoch < 15 else 9)
        changes = changes_of((Table.RECORD, b"key %02d" % n, b"%030d" % epoch) for n in rows)
        try:
            store.fails = fails
            log.append(at, to, changes, model)
        except StoreUnavailable:
            failures += 1
            store.fails = ""
            log.append(at, to, changes, model)
        model.apply(changes)
        at = to
    assert store.others > 3
    assert bool(failures) == bool(fails)
    assert entries_of(StateLog(store, "state", "f", 3), at).tables == model.tables


class NeverRead(MemoryStore):
    """A store that is not read."""

    def get_upto(self, key, offset, max_bytes):
        raise AssertionError("what was written just now is known")


def test_changes_since_an_earlier_position_are_told_from_those_of_another_way(history):
    store, at, _ = history
    log = StateLog(store, "state", "f", 3)
    before = log.roll_of(at).pieces[-2].last
    (only,) = log.read_since(before, at)
    assert only[Table.TIMER] == {b"key 02": b"value of 23"}
    assert list(log.read_since(at, at)) == []
    assert log.read_since(Position(before.version, "another"), at) is None
    assert log.read_since(Position(1, "t0"), at) is None


@settings(deadline=None, max_examples=30)
@given(st.lists(CHANGES, min_size=1, max_size=25), st.integers(0, 60))
def test_one_key_is_found_without_reading_all_chunks(epochs, number):
    with small_units():
        store, model, at = MemoryStore(), DictEntries(), EMPTY
        log = StateLog(store, "state", "f", 3)
        for pairs in epochs:
            changes = no_changes()
            for table, key, value in pairs:
                if table in (Table.ENTRY, Table.JOINED):
                    key = prefix_of(stored_key(key)) + b"field"
                elif table is Table.SEEN:
                    key = stored_key(key) + b"id\x02"
                else:
                    key = stored_key(key)
                changes[table][key] = value
            to = Position(at.version + 1, "t")
            log.append(at, to, changes, model)
            model.apply(changes)
            at = to
        key = stored_key(b"key %02d" % number)
        found = DictEntries()
        for changes in StateLog(store, "state", "f", 3).read_key(key, at):
            found.apply(changes)
        for table in (Table.RECORD, Table.SEEN, Table.ENTRY, Table.JOINED):
            assert own(found, table, key) == own(model, table, key)


def own(entries, table, key):
    return {e: value for e, value in entries.tables[table].items() if key_of(table, e) == key}


def test_an_epoch_that_no_store_could_apply_is_not_logged():
    store = MemoryStore()
    changes = changes_of([(Table.SHARED, b"table\0" + bytes(600), b"row")])
    with pytest.raises(EntryTooLarge, match="of table SHARED has 606 bytes"):
        StateLog(store, "state", "f", 3).append(EMPTY, Position(1, "t"), changes, DictEntries())
    assert not list(store.list("state/"))
