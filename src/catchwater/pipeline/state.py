"""One shard's entries as an epoch sees them: what is committed, under what the epoch changed.

Four tables of bytes. The committed side is a dict in the harness and LMDB in the operator; the
changes lie over it until the epoch is committed, and are what its delta is made of. Every key
holds a stored key (`encoding`), so a shard can be split by ranges of the key's hash.
"""

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
    """due (8), table (1), version (8), page (4) → msgpack array of that table's keys"""


Changes = tuple[dict[bytes, bytes | None], ...]
"""Per table: key → new value, or None where the entry was deleted."""


class Entries(Protocol):
    """The committed entries of a shard."""

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""

    def scan(self, table: Table, until: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, those below `until` if it is given."""


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
        self._committed = committed

    def get_many(self, table: Table, keys: list[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""
        found = self._committed.get_many(table, keys)
        changed = self.changes[table]
        for key in changed.keys() & keys:
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

    def below(self, table: Table, until: bytes) -> list[tuple[bytes, bytes]]:
        """The entries whose keys are below `until`, in order."""
        found: dict[bytes, bytes | None] = dict(self._committed.scan(table, until))
        found.update((key, v) for key, v in self.changes[table].items() if key < until)
        return sorted((key, value) for key, value in found.items() if value is not None)

    def first(self, table: Table) -> bytes | None:
        """The lowest key of a table."""
        changed = self.changes[table]
        lowest = min((key for key, value in changed.items() if value is not None), default=None)
        for key, _ in self._committed.scan(table, lowest):
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

    def scan(self, table: Table, until: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, those below `until` if it is given."""
        entries = self.tables[table]
        if table not in self._order:
            self._order[table] = sorted(entries)
        for key in self._order[table]:
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
