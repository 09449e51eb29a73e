"""The expiry journal of a table: which of its keys to look at once the watermark has passed.

Whether an entry has expired is decided from its own time wherever it is read; the journal only
bounds the store. It is made of pages of keys by a sixteenth of the lifetime, so an entry costs no
index entry of its own, and is deleted at most that much too late.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from catchwater.pipeline.state import ShardState, Table, pack_time

_STEPS = 16
_PAGE_KEYS = 1024


class Journal:
    """The keys of one table that an epoch wrote, by when they are to be looked at."""

    def __init__(self, table: Table, ttl_ms: int) -> None:
        self._table = table
        self._ttl_ms = ttl_ms
        self._step_ms = max(ttl_ms // _STEPS, 1)
        self._steps: defaultdict[int, list[bytes]] = defaultdict(list)

    def written(self, keys: Iterable[bytes], times: Iterable[int]) -> None:
        """Keys whose lifetime began at these times (ms)."""
        ttl_ms, step_ms, steps = self._ttl_ms, self._step_ms, self._steps
        for key, at in zip(keys, times, strict=True):
            steps[(at + ttl_ms) // step_ms].append(key)

    def store(self, state: ShardState) -> None:
        """Put the pages into the shard's state; once an epoch."""
        version = state.version.to_bytes(8, "big")
        for step, keys in self._steps.items():
            due = pack_time((step + 1) * self._step_ms)
            for page, start in enumerate(range(0, len(keys), _PAGE_KEYS)):
                entry = due + bytes([self._table]) + version + page.to_bytes(4, "big")
                data = msgspec.msgpack.encode(keys[start : start + _PAGE_KEYS])
                state.put(Table.EXPIRY, entry, data)


def take_due(state: ShardState, watermark_ms: int) -> dict[Table, list[bytes]]:
    """Per table the keys whose time has come; their pages are deleted."""
    due: dict[Table, list[bytes]] = {Table.RECORD: [], Table.SEEN: []}
    for entry, page in state.below(Table.EXPIRY, pack_time(watermark_ms + 1)):
        state.delete(Table.EXPIRY, entry)
        due[Table(entry[8])] += msgspec.msgpack.decode(page, type=list[bytes])
    return due
