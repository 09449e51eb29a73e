"""A shard's local store: whatever happens to it, it gives what Spark committed, or refuses."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from catchwater.state.delta import EMPTY, Position, ShardDamaged, encode_delta
from catchwater.state.entries import DictEntries, Table, no_changes
from catchwater.state.store import Logged, ShardStore, ShardStoreFailed, read_boot_id

KEYS = st.binary(min_size=1, max_size=3)
CHANGES = st.lists(
    st.tuples(st.sampled_from(Table), KEYS, st.none() | st.binary(max_size=4)), max_size=8
)


def nothing():
    return Logged([], [])


def never():
    raise AssertionError("the local store should have been enough")


def tables_of(state):
    return [dict(state.committed.scan(table)) for table in Table]


def put(state, **entries):
    for key, value in entries.items():
        state.put(Table.RECORD, key.encode(), value.encode())


class ShardMachine(RuleBasedStateMachine):
    """Spark's checkpoint and a dict go on; the local store crashes, is lost or falls behind."""

    @initialize()
    def start(self):
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "shard"
        self.model = DictEntries()
        self.at = EMPTY
        self.snapshot, self.deltas = [], []
        self.attempt = 0
        self.boot = "boot"
        self.store = None

    def teardown(self):
        self._close()
        shutil.rmtree(self.root)

    def _close(self):
        if self.store is not None:
            self.store.close()
        self.store = None

    def _attempt(self, changes, snapshot=False):
        """Run an epoch on what is committed; gives the delta, its token and the changes."""
        self.attempt += 1
        if self.store is None:
            self.store = ShardStore.open(self.directory, "f@1", "0", self.boot)
        load = lambda: Logged(iter(self.snapshot), iter(self.deltas))  # noqa: E731
        state = self.store.begin(self.at.version, self.at.token, load)
        assert tables_of(state) == list(self.model.tables)
        for table, key, value in changes:
            if value is None:
                state.delete(table, key)
            else:
                state.put(table, key, value)
        token = f"attempt {self.attempt}"
        delta = self.store.finish(token)
        if snapshot:
            self.snapshot, self.deltas = list(self.store.snapshot(chunk_bytes=5)), []
        return delta, token, state.changes

    @rule(changes=CHANGES, snapshot=st.booleans())
    def an_epoch_is_committed(self, changes, snapshot):
        delta, token, made = self._attempt(changes, snapshot)
        self.deltas.append(delta)
        self.at = Position(self.at.version + 1, token)
        self.model.apply(made)

    @rule(changes=CHANGES)
    def an_attempt_fails_after_it_was_finished(self, changes):
        self._attempt(changes)

    @rule()
    def the_worker_dies(self):
        self._close()

    @rule()
    def the_disk_is_lost(self):
        self._close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @rule()
    def the_machine_restarts(self):
        self._close()
        self.boot += "'"

    @rule(keep=st.integers(0, 40))
    def the_pending_delta_is_torn(self, keep):
        self._close()
        pending = self.directory / "pending"
        if pending.exists():
            pending.write_bytes(pending.read_bytes()[:keep])

    @rule(keep=st.integers(0, 5000))
    def the_store_is_overwritten(self, keep):
        self._close()
        data = self.directory / "data.mdb"
        if data.exists():
            data.write_bytes(b"\xff" * keep)

    @rule()
    def an_older_copy_of_the_store_comes_back(self):
        self._close()
        if self.directory.exists():
            old = self.root / "old"
            if old.exists():
                shutil.rmtree(self.directory)
                shutil.copytree(old, self.directory)
            else:
                shutil.copytree(self.directory, old)


TestShardEqualsADict = ShardMachine.TestCase
TestShardEqualsADict.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.fixture
def store(tmp_path):
    opened = ShardStore.open(tmp_path / "shard", "f@1", "0", "boot")
    yield opened
    opened.close()


def test_the_committed_epoch_is_applied_from_the_local_copy_alone(store, tmp_path):
    put(store.begin(0, "", nothing), a="1")
    store.finish("x")
    state = store.begin(1, "x", never)
    assert state.get_many(Table.RECORD, [b"a", b"b"]) == {b"a": b"1"}
    store.finish("y")
    store.close()
    again = ShardStore.open(tmp_path / "shard", "f@1", "0", "boot")
    assert tables_of(again.begin(2, "y", never))[Table.RECORD] == {b"a": b"1"}
    again.close()


def test_an_attempt_that_was_not_committed_leaves_no_trace(store):
    put(store.begin(0, "", nothing), a="1")
    store.finish("lost")
    state = store.begin(0, "", never)
    assert not any(tables_of(state))


@pytest.mark.parametrize("other", [("g@1", "0", "boot"), ("f@1", "1", "boot"), ("f@1", "0", "b2")])
def test_a_store_of_another_function_shard_or_boot_is_not_trusted(store, tmp_path, other):
    put(store.begin(0, "", nothing), a="1")
    delta = store.finish("x")
    store.begin(1, "x", never)
    store.close()
    loads = []

    def load():
        loads.append(1)
        return Logged([], [delta])

    again = ShardStore.open(tmp_path / "shard", *other)
    if other[0] == "f@1":
        assert tables_of(again.begin(1, "x", load))[Table.RECORD] == {b"a": b"1"}
    else:
        with pytest.raises(ShardDamaged, match="does not follow"):
            again.begin(1, "x", load)
    assert loads == [1]
    again.close()


def test_without_a_boot_id_nothing_local_is_trusted(tmp_path):
    for _ in range(2):
        opened = ShardStore.open(tmp_path / "shard", "f@1", "0", "")
        state = opened.begin(0, "", nothing)
        put(state, a="1")
        delta = opened.finish("x")
        opened.begin(1, "x", never)
        opened.close()
    opened = ShardStore.open(tmp_path / "shard", "f@1", "0", "")
    loaded = opened.begin(1, "x", lambda: Logged([], [delta]))
    assert tables_of(loaded)[Table.RECORD] == {b"a": b"1"}
    opened.close()


def test_the_running_boot_has_a_name():
    assert read_boot_id() == read_boot_id() != ""


def test_what_spark_holds_must_lead_to_what_it_committed(store):
    put(store.begin(0, "", nothing), a="1")
    delta = store.finish("x")
    with pytest.raises(ShardDamaged, match="lead to version 0"):
        store.begin(3, "z", nothing)
    with pytest.raises(ShardDamaged, match="committed at version 3"):
        store.begin(3, "z", lambda: Logged([], [delta]))
    assert tables_of(store.begin(1, "x", lambda: Logged([], [delta])))[0] == {b"a": b"1"}


def test_a_delta_of_another_attempt_is_refused(store):
    other = encode_delta("f@1", Position(1, "other"), Position(2, "y"), no_changes())
    put(store.begin(0, "", nothing), a="1")
    delta = store.finish("x")
    with pytest.raises(ShardDamaged, match="from version 1 does not follow version 1"):
        store.begin(2, "y", lambda: Logged([], [delta, other]))


def test_the_map_grows_with_the_state(store):
    state = store.begin(0, "", nothing)
    value = "v" * 1000
    put(state, **{f"{i:06}": value for i in range(80_000)})
    delta = store.finish("x")
    state = store.begin(1, "x", never)
    assert len(dict(state.committed.scan(Table.RECORD))) == 80_000
    assert store.size_bytes() > 80_000_000
    store.finish("y")
    chunks = list(store.snapshot())
    assert len(chunks) > 15
    store.close()
    shutil.rmtree(store._directory)
    again = ShardStore.open(store._directory, "f@1", "0", "boot")
    state = again.begin(1, "x", lambda: Logged(chunks, [delta]))
    assert len(dict(state.committed.scan(Table.RECORD))) == 80_000
    again.close()


def test_scans_are_ordered_and_bounded(store):
    put(store.begin(0, "", nothing), a="1", b="2", c="3")
    store.finish("x")
    committed = store.begin(1, "x", never).committed
    assert list(committed.scan(Table.RECORD, b"aa", b"c")) == [(b"b", b"2")]
    assert list(committed.scan(Table.TIMER)) == []


def test_an_attempt_in_another_process_cannot_mislead_this_one(store, tmp_path):
    put(store.begin(0, "", nothing), a="ours")
    delta = store.finish("ours")
    code = f"""
from pathlib import Path
from catchwater.state.store import Logged, ShardStore
from catchwater.state.entries import Table
store = ShardStore.open(Path({str(tmp_path / "shard")!r}), "f@1", "0", "boot")
store.begin(0, "", lambda: Logged([], [])).put(Table.RECORD, b"a", b"theirs")
store.finish("theirs")
store.begin(1, "theirs", lambda: Logged([], []))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    state = store.begin(1, "ours", lambda: Logged([], [delta]))
    assert tables_of(state)[Table.RECORD] == {b"a": b"ours"}


def test_a_delta_that_cannot_be_kept_is_named(store, tmp_path):
    put(store.begin(0, "", nothing), a="1")
    shutil.rmtree(tmp_path / "shard")
    with pytest.raises(ShardStoreFailed, match="cannot be written"):
        store.finish("x")


def test_a_store_that_does_not_say_what_it_is_is_emptied(store, tmp_path):
    put(store.begin(0, "", nothing), a="1")
    delta = store.finish("x")
    store.begin(1, "x", never)
    store.close()
    with lmdb.open(str(tmp_path / "shard"), max_dbs=len(Table) + 1, sync=False) as env:
        with env.begin(write=True) as txn:
            txn.put(b"meta", b"\xc1", db=env.open_db(b"meta", txn))
    again = ShardStore.open(tmp_path / "shard", "f@1", "0", "boot")
    state = again.begin(1, "x", lambda: Logged([], [delta]))
    assert tables_of(state)[Table.RECORD] == {b"a": b"1"}
    again.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ShardStoreFailed, match="cannot be opened"):
        ShardStore.open(tmp_path / "file" / "shard", "f@1", "0", "boot")
