"""One shard's entries as an epoch sees them: what is committed, under what the epoch changed.

Four tables of bytes. The committed side is a dict in the harness and LMDB in the operator; the
changes lie over it until the epoch is committed, and are what its delta is made of. Every key
holds a stored key (`encoding`), so a shard can be split by ranges of the key's hash.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol


class Table(IntEnum):
    """The tables of a shard, and how their entries are laid out."""

    RECORD = 0
    """stored key → record: last write, timers, state"""
    TIMER = 1
    """due (8 bytes), stored key, timer name, length of the stored key (2) → nothing"""
    SEEN = 2
    """stored key, event id, length of the id (1) → event time (8)"""
    EXPIRY = 3
    """due (8), table (1), version (8), page (4) → msgpack array of stored keys"""


Changes = tuple[dict[bytes, bytes | None], ...]
"""Per table: key → new value, or None where the entry was deleted."""


class Entries(Protocol):
    """The committed entries of a shard."""

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""

    def scan(
        self, table: Table, start: bytes = b"", until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, from `start` and below `until`."""


def no_changes() -> Changes:
    """Changes to build on: an empty dict for each table."""
    return tuple({} for _ in Table)


def pack_time(at_ms: int) -> bytes:
    """A time as 8 bytes that sort as times do."""
    return (at_ms + 2**63).to_bytes(8, "big")


def unpack_time(data: bytes) -> int:
    """The time that the first 8 bytes hold, ms."""
    return int.from_bytes(data[:8], "big") - 2**63


class ShardState:
    """Committed entries under the changes of the running epoch."""

    def __init__(self, committed: Entries, version: int) -> None:
        self.version = version
        """The version that committing the changes will make."""
        self.changes = no_changes()
        self.committed = committed
        """For scans, which an epoch makes before it changes anything."""

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
        self.changes[table][key] = value

    def put_many(self, table: Table, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Set entries."""
        self.changes[table].update(entries)

    def delete(self, table: Table, key: bytes) -> None:
        """Delete an entry, if there is one."""
        self.changes[table][key] = None

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
