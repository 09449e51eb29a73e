"""A shard's local entries: whatever happens to them, they give what is committed, or refuse."""

import os
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

from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore
from catchwater.state.entries import DictEntries, Table
from catchwater.state.log import ShardDamaged, StateLog
from catchwater.state.roll import EMPTY, Position
from catchwater.state.store import ShardStore, ShardStoreFailed, read_boot_id

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
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "shard"
        self.objects = MemoryStore()
        self.log = StateLog(self.objects, "state", "f", 0)
        self.model = DictEntries()
        self.at = EMPTY
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
