"""The expiry journal: at whose entries to look once the watermark has passed a time.

Whether an entry has expired is decided from its own time wherever it is read; the journal only
bounds the store. It is made of pages of stored keys by a sixteenth of the lifetime, so an entry
costs no index entry of its own, and comes up at most that much too late. What comes up is taken in
parts: neither memory nor the time an epoch takes may depend on how much expires at one moment.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from catchwater.state.entries import ShardState, Table, pack_time

PAGE_KEYS = 1024
_STEPS = 16


class Journal:
    """The keys whose entries in one table an epoch wrote, by the time they are to be looked at."""

    def __init__(self, table: Table, ttl_ms: int, series: int = 0) -> None:
        """Journals of one table with different lifetimes need different `series`, below 256."""
        self._table = table
        self._first_page = series << 24
        self._ttl_ms = ttl_ms
        self._step_ms = max(ttl_ms // _STEPS, 1)
        self._steps: defaultdict[int, dict[bytes, None]] = defaultdict(dict)

    def written(self, keys: Iterable[bytes], times: Iterable[int]) -> None:
        """Stored keys, and when (ms) an entry of theirs was written."""
        ttl_ms, step_ms, steps = self._ttl_ms, self._step_ms, self._steps
        for key, at in zip(keys, times, strict=True):
            steps[(at + ttl_ms) // step_ms][key] = None

    def store(self, state: ShardState) -> None:
        """Put the pages into the shard's state; once an epoch."""
        for step, stored_keys in self._steps.items():
            keys = list(stored_keys)
            due_and_table = pack_time((step + 1) * self._step_ms) + bytes([self._table])
            starts = range(0, len(keys), PAGE_KEYS)
            for number, start in enumerate(starts, self._first_page):
                some = keys[start : start + PAGE_KEYS]
                state.put(Table.EXPIRY, *page_of(due_and_table, state.version, number, some))


def page_of(
    due_and_table: bytes, version: int, number: int, keys: list[bytes]
) -> tuple[bytes, bytes]:
    """A page as an entry of `Table.EXPIRY`: its key and its value."""
    entry = due_and_table + version.to_bytes(8, "big") + number.to_bytes(4, "big")
    return entry, msgspec.msgpack.encode(keys)


def take_due(state: ShardState, watermark_ms: int, most: int) -> dict[Table, dict[bytes, None]]:
    """Per table the stored keys whose time has come, each once; their pages are deleted.

    Once there are `most` of them the other pages stay, for the next epoch: they say that they are
    due.
    """
    due: dict[Table, dict[bytes, None]] = {Table.RECORD: {}, Table.SEEN: {}, Table.ENTRY: {}}
    pages = state.committed.scan(Table.EXPIRY, until=pack_time(watermark_ms + 1))
    for entry, page in pages:
        state.delete(Table.EXPIRY, entry)
        keys = msgspec.msgpack.decode(page, type=list[bytes])
        due[Table(entry[8])].update(dict.fromkeys(keys))
        if sum(map(len, due.values())) >= most:
            break
    return due
