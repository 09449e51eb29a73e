"""One shard's entries as an epoch sees them: what is committed, under what the epoch changed.

Eight tables of bytes. The committed side is a dict in the harness and LMDB in the operator; the
changes lie over it until the epoch is committed, and are what its delta is made of. But for the
broadcast tables, every entry holds stored keys (`keys`), so a shard can be split by ranges of the
key's hash.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol

from catchwater.state.keys import HASH_BYTES

MAX_ENTRY_KEY_BYTES = 511
"""LMDB's limit for the key of an entry; values may be as large as a state object's frame."""


class Table(IntEnum):
    """The tables of a shard, and the layout of their entries."""

    RECORD = 0
    """stored key → record: last write, timers, state"""
    TIMER = 1
    """due (8 bytes), stored key, timer name, length of the stored key (2) → nothing"""
    SEEN = 2
    """stored key, event id, length of the id (1) → event time (8)"""
    EXPIRY = 3
    """due (8), table (1), version (8), page (4) → msgpack array of stored keys, or of what else of
    that table begins with a key's hash"""
    ENTRY = 4
    """`prefix_of` stored key, name of the state's field, NUL, entry key (msgpack) → written (8),
    msgpack value: the entries of list, map and value states"""
    CLOCK_TIMER = 5
    """as TIMER, due in processing time"""
    JOINED = 6
    """`prefix_of` stored key, table name → row of a table that has the function's key"""
    SHARED = 7
    """table name, NUL, key → row of a table that every shard holds whole"""


Changes = tuple[dict[bytes, bytes | None], ...]
"""Per table: key → new value, or None where the entry was deleted."""


class Entries(Protocol):
    """The committed entries of a shard."""

    def count(self) -> int:
        """How many entries there are, in all tables."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The entry of this key, if there is one."""

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""

    def scan(
        self, table: Table, start: bytes = b"", until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, from `start` and below `until`."""


def no_changes() -> Changes:
    """Changes to build on: an empty dict for each table."""
    return tuple({} for _ in Table)


FIRST_MS, LAST_MS = -(2**63), 2**63 - 1
"""The times that can be stored."""


def pack_time(at_ms: int) -> bytes:
    """A time as 8 bytes that sort as times do; from `FIRST_MS` to `LAST_MS`."""
    return (at_ms + 2**63).to_bytes(8, "big")


def unpack_time(data: bytes) -> int:
    """The time that the first 8 bytes hold, ms."""
    return int.from_bytes(data[:8], "big") - 2**63


def prefix_of(stored_key: bytes) -> bytes:
    """What the entries of one key begin with where more follows: hash, length (1), key.

    The length in front keeps one key's entries from those of another with the same hash.
    """
    size = len(stored_key) - HASH_BYTES
    return stored_key[:HASH_BYTES] + bytes((size,)) + stored_key[HASH_BYTES:]


def key_of(table: Table, entry: bytes) -> bytes | None:
    """The stored key that an entry belongs to, by its place alone.

    None where it belongs to no single one: a page of the expiry journal has many, a row of a
    SHARED table is every shard's.
    """
    if table is Table.RECORD:
        return entry
    if table is Table.SEEN:
        return entry[: -1 - entry[-1]]
    if table in (Table.TIMER, Table.CLOCK_TIMER):
        return entry[8 : 8 + int.from_bytes(entry[-2:], "big")]
    if table in (Table.ENTRY, Table.JOINED):
        start = HASH_BYTES + 1
        return entry[:HASH_BYTES] + entry[start : start + entry[HASH_BYTES]]
    return None


_ABSENT = object()


class ShardState:
    """Committed entries under the changes of the running epoch."""

    def __init__(self, committed: Entries, version: int) -> None:
        self.version = version
        """The version that committing the changes will make."""
        self.changes = no_changes()
        self.committed = committed
        """For scans, which an epoch makes before it changes anything."""
        self._undo: list[tuple[Table, bytes, object]] | None = None
        """What the changes since the first mark replaced, in order; None: nobody asked for it."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The entry of this key, if there is one."""
        changed = self.changes[table]
        if key in changed:
            return changed[key]
        return self.committed.get(table, key)

    def get_many(self, table: Table, keys: list[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""
        found = self.committed.get_many(table, keys)
        changed = self.changes[table]
        if changed:
            for key in filter(changed.__contains__, keys):
                value = changed[key]
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Set an entry."""
        if self._undo is not None:
            self._remember(table, key)
        self.changes[table][key] = value

    def put_many(self, table: Table, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Set entries."""
        if self._undo is not None:
            entries = list(entries)
            for key, _ in entries:
                self._remember(table, key)
        self.changes[table].update(entries)

    def delete(self, table: Table, key: bytes) -> None:
        """Delete an entry, if there is one."""
        if self._undo is not None:
            self._remember(table, key)
        self.changes[table][key] = None

    def mark(self) -> int:
        """A point to which `rollback` can go back; from the first one on, changes cost more."""
        if self._undo is None:
            self._undo = []
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo all changes made since the mark; it and those before it stay good."""
        undo = self._undo
        assert undo is not None and mark <= len(undo), "rollback belongs after mark"
        while len(undo) > mark:
            table, key, before = undo.pop()
            if before is _ABSENT:
                del self.changes[table][key]
            else:
                self.changes[table][key] = before  # type: ignore[assignment]

    def _remember(self, table: Table, key: bytes) -> None:
        assert self._undo is not None
        self._undo.append((table, key, self.changes[table].get(key, _ABSENT)))

    def first(self, table: Table) -> bytes | None:
        """The lowest key of a table."""
        changed = self.changes[table]
        lowest = min((key for key, value in changed.items() if value is not None), default=None)
        for key, _ in self.committed.scan(table, until=lowest):
            if key not in changed:
                return key
        return lowest


class DictEntries:
    """Committed entries in memory: the harness's store, and the model the others are held to."""

    def __init__(self) -> None:
        self.tables: tuple[dict[bytes, bytes], ...] = tuple({} for _ in Table)
        self._order: dict[Table, list[bytes]] = {}

    def count(self) -> int:
        """How many entries there are, in all tables."""
        return sum(map(len, self.tables))

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The entry of this key, if there is one."""
        return self.tables[table].get(key)

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""
        entries = self.tables[table]
        return {key: entries[key] for key in keys if key in entries}

    def scan(
        self, table: Table, start: bytes = b"", until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, from `start` and below `until`."""
        entries = self.tables[table]
        if table not in self._order:
            self._order[table] = sorted(entries)
        order = self._order[table]
        for at in range(bisect_left(order, start), len(order)):
            key = order[at]
            if until is not None and key >= until:
                return
            yield key, entries[key]

    def apply(self, changes: Changes) -> None:
        """Commit an epoch's changes."""
        for table, changed in zip(Table, changes, strict=True):
            if not changed:
                continue
            entries = self.tables[table]
            self._order.pop(table, None)
            for key, value in changed.items():
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
