"""One shard's entries as a micro-batch sees them: what is committed, and what it has changed.

Four tables of bytes. The committed side is a dict in the harness and LMDB in the operator; the
changes lie over it until the batch is committed, and are what a delta is made of.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol


class Table(IntEnum):
    """The tables of a shard; every key starts with, or holds, a stored key."""

    RECORD = 0
    """stored key → record (state, timers, last write)"""
    TIMER = 1
    """due (8 bytes), stored key length (2 bytes), stored key, timer name → nothing"""
    SEEN = 2
    """stored key, event id, id length (1 byte) → event time (8 bytes)"""
    EXPIRY = 3
    """due (8 bytes), table (1 byte), version (8 bytes), page (4 bytes) → keys to look at then"""


Changes = tuple[dict[bytes, bytes | None], ...]
"""Per table: key → new value, or None where the entry was deleted."""


class Entries(Protocol):
    """The committed entries of a shard."""

    def get_many(self, table: Table, keys: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
        """The entries that exist among these keys."""

    def scan(self, table: Table, until: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, those below `until` if it is given."""


class ShardState:
    """Committed entries under the changes of the running epoch."""

    def __init__(self, committed: Entries, version: int) -> None:
        self.version = version
        """The version that committing the changes will make."""
        self.changes: Changes = tuple({} for _ in Table)
        self._committed = committed
