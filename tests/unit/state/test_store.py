"""A shard's local entries: whatever happens to them, they give what is committed, or refuse."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.unit.state.rolling import Failing, small_units

from catchwater.clock import ManualClock
from catchwater.objects.base import StoreUnavailable
from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore
from catchwater.state.entries import DictEntries, Table
from catchwater.state.local import LocalEntries, Meta
from catchwater.state.log import StateLog
from catchwater.state.parts import ShardDamaged
from catchwater.state.roll import EMPTY, Position
from catchwater.state.store import (
    ShardStore,
    ShardStoreFailed,
    read_boot_id,
    read_rebuilding,
)

KEYS = st.binary(min_size=1, max_size=3)
CHANGES = st.lists(
    st.tuples(st.sampled_from(Table), KEYS, st.none() | st.binary(max_size=4)), max_size=8
)


class NeverRead(MemoryStore):
    """A store that is not read."""

    def get_upto(self, key, offset, max_bytes):
        raise AssertionError("the local entries should have been enough")


def tables_of(state):
    return [dict(state.committed.scan(table)) for table in Table]


def put(state, **entries):
    for key, value in entries.items():
        state.put(Table.RECORD, key.encode(), value.encode())


class ShardMachine(RuleBasedStateMachine):
    """The log and a dict go on; the local entries crash, are lost or fall behind."""

    @initialize()
    def start(self):
        self.patched = small_units()
        self.patched.start()
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "shard"
        self.objects = Failing(MemoryStore())
        self.log = StateLog(self.objects, "state", "f", 0)
        self.model = DictEntries()
        self.at = EMPTY
        self.attempt = 0
        self.boot = "boot"
        self.store = None

    def teardown(self):
        self._close()
        shutil.rmtree(self.root)
        self.patched.stop()

    def _close(self):
        if self.store is not None:
            self.store.close()
        self.store = None

    def _attempt(self, changes):
        """Run an epoch on what is committed; gives where it leads, and the changes."""
        self.attempt += 1
        if self.store is None:
            self.store = ShardStore.open(self.directory, "f", 0, self.boot)
        state = self.store.begin(self.at, self.log)
        assert tables_of(state) == list(self.model.tables)
        for table, key, value in changes:
            if value is None:
                state.delete(table, key)
            else:
                state.put(table, key, value)
        logged = self.store.finish(f"attempt{self.attempt}")
        return logged.at, state.changes

    @rule(changes=CHANGES)
    def an_epoch_is_committed(self, changes):
        self.at, made = self._attempt(changes)
        self.model.apply(made)

    @rule(changes=CHANGES)
    def an_attempt_fails_after_it_was_finished(self, changes):
        self._attempt(changes)

    @rule(changes=CHANGES, step=st.integers(0, 4), done=st.booleans())
    def an_attempt_fails_at_a_write(self, changes, step, done):
        self.objects.fail_at, self.objects.done = step, done
        with suppress(StoreUnavailable):
            self._attempt(changes)
        self.objects.fail_at = None

    @rule(changes=CHANGES)
    def an_epoch_is_committed_by_another_machine(self, changes):
        here, self.store = self.store, None
        there, self.directory = self.directory, self.root / "another"
        self.an_epoch_is_committed(changes)
        self._close()
        self.store, self.directory = here, there

    @rule()
    def the_log_is_opened_anew(self):
        self.log = StateLog(self.objects, "state", "f", 0)

    @rule()
    def what_nobody_needs_is_swept(self):
        self.log.sweep([self.at])

    @rule()
    def the_worker_dies(self):
        self._close()

    @rule()
    def the_disk_is_lost(self):
        self._close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @rule()
    def the_directory_is_wiped_under_an_open_store(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    @rule()
    def the_machine_restarts(self):
        self._close()
        self.boot += "'"

    @rule(keep=st.integers(0, 40))
    def what_is_pending_is_torn(self, keep):
        pending = self.directory / "pending"
        if pending.exists():
            self._close()
            pending.write_bytes(pending.read_bytes()[:keep])

    @rule(keep=st.integers(0, 5000))
    def the_store_is_overwritten(self, keep):
        self._close()
        data = self.directory / "data.mdb"
        if data.exists():
            data.write_bytes(b"\xff" * keep)

    @rule(pages=st.integers(1, 20))
    def the_store_is_cut_short(self, pages):
        self._close()
        data = self.directory / "data.mdb"
        if data.exists():
            os.truncate(data, min(4096 * pages, data.stat().st_size))

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
def objects():
    return MemoryStore()


@pytest.fixture
def log(objects):
    return StateLog(objects, "state", "f", 0)


@pytest.fixture
def store(tmp_path):
    opened = ShardStore.open(tmp_path / "shard", "f", 0, "boot")
    yield opened
    opened.close()


def reopened(tmp_path, function="f", shard=0, boot="boot"):
    return closing(ShardStore.open(tmp_path / "shard", function, shard, boot))


def epoch(store, log, at, token, **entries):
    """One epoch with these records; gives where it leads."""
    put(store.begin(at, log), **entries)
    return store.finish(token).at


def records_of(store, log, at):
    return tables_of(store.begin(at, log))[Table.RECORD]


def test_the_committed_epoch_is_applied_from_the_local_copy_alone(store, log, tmp_path):
    one = epoch(store, log, EMPTY, "x", a="1")
    state = store.begin(one, log)
    assert state.get_many(Table.RECORD, [b"a", b"b"]) == {b"a": b"1"}
    assert (state.get(Table.RECORD, b"a"), state.get(Table.RECORD, b"b")) == (b"1", None)
    two = store.finish("y").at
    store.close()
    unread = StateLog(NeverRead(), "state", "f", 0)
    with reopened(tmp_path) as again:
        assert records_of(again, unread, two) == {b"a": b"1"}
        assert again.read_bytes == 0


def test_an_attempt_that_was_not_committed_leaves_no_trace(store, log):
    epoch(store, log, EMPTY, "lost", a="1")
    assert not any(tables_of(store.begin(EMPTY, log)))


def test_a_store_that_is_behind_reads_only_the_changes_since(store, log, tmp_path):
    at = epoch(store, log, EMPTY, "first", **{f"{i:06}": "v" * 99 for i in range(10_000)})
    at = epoch(store, log, at, "second", a="1")
    with closing(ShardStore.open(tmp_path / "another", "f", 0, "boot")) as another:
        for token in "xyz":
            at = epoch(another, log, at, token, **{token: "new"})
        assert another.read_bytes == 0
        expected = records_of(another, log, at)
    fresh = StateLog(log._store, "state", "f", 0)
    assert records_of(store, fresh, at) == expected
    assert 0 < store.read_bytes < 5000


@pytest.mark.parametrize("other", [("g", 0, "boot"), ("f", 1, "boot"), ("f", 0, "b2")])
def test_a_store_of_another_function_shard_or_boot_is_not_trusted(
    store, log, objects, tmp_path, other
):
    at = epoch(store, log, epoch(store, log, EMPTY, "x", a="1"), "y", b="2")
    store.close()
    with reopened(tmp_path, *other) as again:
        if other[:2] == ("f", 0):
            fresh = StateLog(objects, "state", "f", 0)
            assert records_of(again, fresh, at) == {b"a": b"1", b"b": b"2"}
            assert again.read_bytes > 0
        else:
            with pytest.raises(ShardDamaged, match=r"missing|it is"):
                again.begin(at, StateLog(objects, "state", *other[:2]))


def test_without_a_boot_id_only_what_this_process_made_is_trusted(log, objects, tmp_path):
    with reopened(tmp_path, boot="") as first:
        at = epoch(first, log, epoch(first, log, EMPTY, "x", a="1"), "y")
        unread = StateLog(NeverRead(), "state", "f", 0)
        assert records_of(first, unread, at) == {b"a": b"1"}
    with reopened(tmp_path, boot="") as second:
        fresh = StateLog(objects, "state", "f", 0)
        assert records_of(second, fresh, at) == {b"a": b"1"}
        assert second.read_bytes > 0


def test_the_running_boot_has_a_name():
    assert read_boot_id() == read_boot_id() != ""


def test_a_position_that_was_never_logged_is_refused_and_the_store_goes_on(store, log):
    at = epoch(store, log, EMPTY, "x", a="1")
    for never in (Position(3, "z"), Position(1, "z")):
        with pytest.raises(ShardDamaged, match="missing"):
            store.begin(never, log)
    assert records_of(store, log, at) == {b"a": b"1"}


def test_a_rebuild_that_breaks_off_is_begun_anew(store, log, objects, tmp_path, monkeypatch):
    monkeypatch.setattr("catchwater.state.store._BATCH_ENTRIES", 10)
    at = EMPTY
    for number in range(5):
        entries = {f"{number}-{i}": "v" for i in range(20)}
        at = epoch(store, log, at, f"t{number}", **entries)
    expected = records_of(store, log, at)
    shutil.rmtree(tmp_path / "shard")
    key = log.objects_of(at)[3]
    data = objects.get(key)
    objects.delete(key)
    fresh = StateLog(objects, "state", "f", 0)
    with reopened(tmp_path) as again:
        for _ in range(2):
            with pytest.raises(ShardDamaged):
                again.begin(at, fresh)
    objects.put(key, [data])
    with reopened(tmp_path) as again:
        assert records_of(again, fresh, at) == expected


def test_the_map_grows_with_the_state(store, log):
    value = "v" * 1000
    at = epoch(store, log, EMPTY, "x", **{f"{i:06}": value for i in range(80_000)})
    assert store.begin(at, log).committed.count() == 80_000
    assert store.size_bytes() > 80_000_000
    at = store.finish("y").at
    store.close()
    shutil.rmtree(store._directory)
    with closing(ShardStore.open(store._directory, "f", 0, "boot")) as again:
        committed = again.begin(at, log).committed
        assert committed.count() == 80_000
        assert committed.get(Table.RECORD, b"079999") == value.encode()


def test_a_map_that_another_process_made_larger_is_taken_over(store, log, tmp_path):
    at = epoch(store, log, EMPTY, "x", a="1")
    code = f"""
from pathlib import Path
from catchwater.state.local import LocalEntries
from catchwater.state.entries import Table, no_changes
local = LocalEntries(Path({str(tmp_path / "shard")!r}))
changes = no_changes()
changes[Table.SEEN].update((b"%06d" % i, bytes(1000)) for i in range(80_000))
local.write(lambda txn: local.apply(txn, changes))
local.write(local.clear)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    unread = StateLog(NeverRead(), "state", "f", 0)
    assert records_of(store, unread, at) == {b"a": b"1"}


def test_the_file_stays_small_while_another_process_has_it_open_and_one_was_killed(
    store, log, tmp_path
):
    at = epoch(store, log, EMPTY, "x", **{f"{i:04}": "v" * 500 for i in range(2000)})
    at = epoch(store, log, at, "y")
    code = f"""
import os
import sys
from pathlib import Path
from catchwater.objects.memory import MemoryStore
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore
from catchwater.state.roll import Position
store = ShardStore.open(Path({str(tmp_path / "shard")!r}), "f", 0, "boot")
store.begin(Position(2, "y"), StateLog(MemoryStore(), "state", "f", 0))
if sys.argv[1] == "finish":
    store.finish("theirs")
    print("finished", flush=True)
    sys.stdin.read()
os._exit(9)
"""
    python = [sys.executable, "-c", code]
    with subprocess.Popen(
        [*python, "finish"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as idle:
        assert idle.stdout.readline()
        assert subprocess.run([*python, "die"], check=False, timeout=60).returncode == 9
        for number in range(60):
            entries = {f"{i:04}": f"{number:0500}" for i in range(0, 2000, 5)}
            at = epoch(store, log, at, f"e{number}", **entries)
        assert store.size_bytes() < 6_000_000
        idle.stdin.close()
        idle.wait(timeout=60)


def test_scans_are_ordered_and_bounded(store, log):
    at = epoch(store, log, EMPTY, "x", a="1", b="2", c="3")
    committed = store.begin(at, log).committed
    assert list(committed.scan(Table.RECORD, b"aa", b"c")) == [(b"b", b"2")]
    assert list(committed.scan(Table.TIMER)) == []


def test_an_attempt_in_another_process_cannot_mislead_this_one(tmp_path):
    url = tmp_path / "objects"
    log = StateLog(LocalStore(url), "state", "f", 0)
    with reopened(tmp_path) as store:
        ours = epoch(store, log, EMPTY, "ours", a="ours")
        code = f"""
from pathlib import Path
from catchwater.clock import ManualClock
from catchwater.objects.base import StoreUnavailable
from catchwater.objects.local import LocalStore
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore
from catchwater.state.entries import Table
from catchwater.state.roll import EMPTY
log = StateLog(LocalStore(Path({str(url)!r})), "state", "f", 0)
store = ShardStore.open(Path({str(tmp_path / "shard")!r}), "f", 0, "boot")
store.begin(EMPTY, log).put(Table.RECORD, b"a", b"theirs")
store.begin(store.finish("theirs").at, log)
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        assert records_of(store, log, ours) == {b"a": b"ours"}


def test_two_stores_of_one_directory_bring_each_other_no_harm(store, log, tmp_path):
    first = epoch(store, log, EMPTY, "x", a="1")
    code = f"""
from pathlib import Path
from catchwater.objects.memory import MemoryStore
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore
from catchwater.state.roll import Position
store = ShardStore.open(Path({str(tmp_path / "shard")!r}), "f", 0, "boot")
store.begin(Position(1, "x"), StateLog(MemoryStore(), "state", "f", 0))
assert store.read_bytes == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert records_of(store, log, first) == {b"a": b"1"}


def test_processes_that_take_turns_read_nothing_but_what_the_other_kept(store, log, tmp_path):
    code = f"""
import sys
from pathlib import Path
from catchwater.objects.memory import MemoryStore
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore
from catchwater.state.entries import Table
from catchwater.state.roll import EMPTY, Position
log = StateLog(MemoryStore(), "state", "f", 0)
store = ShardStore.open(Path({str(tmp_path / "shard")!r}), "f", 0, "boot")
for line in sys.stdin:
    version, token = line.split()
    state = store.begin(Position(int(version), token), log)
    assert store.read_bytes == 0
    state.put(Table.RECORD, version.encode(), b"there")
    print(store.finish("there" + version).at.token, flush=True)
"""
    unread = StateLog(NeverRead(), "state", "f", 0)
    at = epoch(store, unread, EMPTY, "here0", **{"0": "here"})
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        for _ in range(6):
            other.stdin.write(f"{at.version} {at.token}\n")
            other.stdin.flush()
            at = Position(at.version + 1, other.stdout.readline().strip())
            at = epoch(store, unread, at, f"here{at.version}", **{str(at.version): "here"})
        other.stdin.close()
        assert other.wait(timeout=60) == 0
    found = records_of(store, unread, at)
    assert found == {b"%d" % n: b"there" if n % 2 else b"here" for n in range(at.version)}


@pytest.mark.parametrize("entries", [3, 3_000])
def test_what_is_pending_is_found_where_more_was_pending_before(store, log, tmp_path, entries):
    at = epoch(store, log, EMPTY, "x", **{f"{i:05}": os.urandom(8).hex() for i in range(entries)})
    at = epoch(store, log, at, "y", a="1")
    larger = (tmp_path / "shard" / "pending").stat().st_size
    at = epoch(store, log, at, "z", a="2")
    assert larger < 20_000
    store.close()
    unread = StateLog(NeverRead(), "state", "f", 0)
    with reopened(tmp_path) as again:
        assert records_of(again, unread, at)[b"a"] == b"2"


@pytest.mark.parametrize("torn", [b"", b"\0" * 7, b"CWS1" * 100, b"\0" * 7 + b"\xff" * 300])
def test_what_was_kept_by_halves_or_otherwise_is_in_the_log(store, log, tmp_path, torn):
    at = epoch(store, log, EMPTY, "x", a="1")
    store.close()
    (tmp_path / "shard" / "pending").write_bytes(torn)
    with reopened(tmp_path) as again:
        assert records_of(again, log, at) == {b"a": b"1"}


def test_changes_that_cannot_be_kept_are_in_the_log(store, log, tmp_path):
    put(store.begin(EMPTY, log), a="1")
    (tmp_path / "shard" / "pending").mkdir()
    at = store.finish("x").at
    store.close()
    with reopened(tmp_path) as again:
        assert records_of(again, log, at) == {b"a": b"1"}


def test_a_store_that_does_not_say_what_it_is_is_emptied(store, log, tmp_path):
    at = epoch(store, log, epoch(store, log, EMPTY, "x", a="1"), "y")
    store.close()
    with lmdb.open(str(tmp_path / "shard"), max_dbs=len(Table) + 1, sync=False) as env:
        with env.begin(write=True) as txn:
            txn.put(b"meta", b"\xc1", db=env.open_db(b"meta", txn))
    note_as_ours(tmp_path / "shard")
    with reopened(tmp_path) as again:
        assert records_of(again, log, at) == {b"a": b"1"}


def note_as_ours(directory):
    """Pretend that the store was left as it is."""
    found = (directory / "data.mdb").stat()
    (directory / "stamp").write_text(f"{found.st_mtime_ns} {found.st_size}")


@pytest.mark.parametrize("size", [1, 4096])
def test_a_store_that_anybody_changed_is_not_opened(store, log, objects, tmp_path, size):
    at = epoch(store, log, EMPTY, "x", **{f"{i:04}": "value" for i in range(500)})
    expected = records_of(store, log, at)
    store.close()
    data = tmp_path / "shard" / "data.mdb"
    for place in range(0, data.stat().st_size, 4000):
        with data.open("r+b") as file:
            file.seek(place)
            file.write(b"\x5a" * size)
        with reopened(tmp_path) as again:
            fresh = StateLog(objects, "state", "f", 0)
            assert records_of(again, fresh, at) == expected
            assert again.read_bytes > 0


def test_a_store_that_fails_while_it_is_read_is_named_and_left_to_nobody(
    store, log, tmp_path, monkeypatch
):
    at = epoch(store, log, EMPTY, "x", a="1")
    committed = store.begin(at, log).committed
    store._txn.abort()
    for read in (
        lambda: committed.get(Table.RECORD, b"a"),
        lambda: committed.get_many(Table.RECORD, [b"a"]),
        lambda: list(committed.scan(Table.RECORD)),
    ):
        with pytest.raises(ShardStoreFailed, match="cannot be read"):
            read()
    assert not (tmp_path / "shard").exists()
    assert records_of(store, log, at) == {b"a": b"1"}


def test_a_full_disk_is_named(store, log, monkeypatch):
    at = epoch(store, log, EMPTY, "x", a="1")

    def full(_local, _change):
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("catchwater.state.local.LocalEntries.write", full)
        with pytest.raises(ShardStoreFailed, match="No space left") as error:
            store.begin(at, log)
        assert "free space" in error.value.hint
    assert records_of(store, log, at) == {b"a": b"1"}


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ShardStoreFailed, match="cannot be opened"):
        ShardStore.open(tmp_path / "file" / "shard", "f", 0, "boot")


def test_a_store_may_be_closed_twice(store):
    store.close()
    store.close()


def test_what_is_pending_counts_only_where_it_leads_on_from(store, log):
    one = epoch(store, log, EMPTY, "x", a="1")
    two = epoch(store, log, one, "y", b="2")
    assert records_of(store, log, EMPTY) == {}
    assert records_of(store, log, two) == {b"a": b"1", b"b": b"2"}
    assert records_of(store, log, one) == {b"a": b"1"}


class Killed(Exception):
    """The process ends here."""


def replace_write(monkeypatch, number, instead):
    """Let the write of this number, from 0, be something else."""
    written = LocalEntries.write
    writes = count()

    def write(local, change):
        if next(writes) == number:
            instead(local)
        else:
            written(local, change)

    monkeypatch.setattr(LocalEntries, "write", write)


def kill(_local):
    raise Killed


def test_entries_on_their_way_to_one_attempt_are_not_led_on_to_another(
    store, log, tmp_path, monkeypatch
):
    monkeypatch.setattr("catchwater.state.store._BATCH_ENTRIES", 10)
    base = epoch(store, log, EMPTY, "x", a="1")
    many = {f"{i:02}": "mine" for i in range(20)}
    many_more = {f"{i:02}": "mine" for i in range(20, 40)}
    with closing(ShardStore.open(tmp_path / "another", "f", 0, "boot")) as another:
        mine = epoch(another, log, epoch(another, log, base, "mine", **many), "on", **many_more)
        theirs = epoch(another, log, base, "theirs", b="2")
    store.begin(base, log)
    with monkeypatch.context() as patched:
        replace_write(patched, 1, kill)
        with pytest.raises(Killed):
            store.begin(mine, log)
    store.close()
    with reopened(tmp_path) as again:
        assert records_of(again, log, theirs) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("number", [1, 2])
def test_entries_that_another_attempt_moves_meanwhile_are_not_mixed_with_ours(
    store, log, tmp_path, monkeypatch, number
):
    monkeypatch.setattr("catchwater.state.store._BATCH_ENTRIES", 10)
    base = at = epoch(store, log, EMPTY, "x", a="1")
    store.begin(base, log)
    with closing(ShardStore.open(tmp_path / "another", "f", 0, "boot")) as another:
        for token in "bcd":
            at = epoch(another, log, at, token, **{f"{token}{i:02}": "v" for i in range(20)})
        expected = records_of(another, log, at)

    def move(local):
        def change(txn):
            local.clear(txn)
            local.put_meta(txn, Meta(2, "f", 0, "boot", EMPTY))

        written(local, change)

    written = LocalEntries.write
    replace_write(monkeypatch, number, move)
    assert records_of(store, log, at) == expected


def test_how_far_a_shard_is_read_is_noted_beside_it(tmp_path):
    """Whoever waits for a large state can see it come."""
    objects, clock = MemoryStore(), ManualClock()
    log = StateLog(objects, "cards", "cards", 0)
    first = ShardStore.open(tmp_path / "a", "cards", 0, "boot")
    at = EMPTY
    for n in range(3):
        state = first.begin(at, log)
        put(state, **{f"key-{n}": "x" * 1000})
        at = first.finish(f"t{n}").at
    first.close()
    assert read_rebuilding(tmp_path / "b") is None
    other = ShardStore.open(tmp_path / "b", "cards", 0, "boot")
    other._clock = clock
    log = StateLog(objects, "cards", "cards", 0)  # of another machine, which has read nothing
    seen = []
    read = log.read

    def slowly(wanted):
        for changes in read(wanted):
            clock.advance(600)
            yield changes
            seen.append(read_rebuilding(tmp_path / "b"))

    log.read = slowly
    other.begin(at, log)
    other.close()
    size = log.roll_of(at).size_bytes
    assert [note.bytes for note in seen] == [size] * len(seen)
    assert all(0 < note.read_bytes for note in seen) and seen
    done = read_rebuilding(tmp_path / "b")
    assert (done.read_bytes, done.bytes) == (size, size)
    assert done.at_ms - done.began_ms == 600 * len(seen)
