"""Which events a key has seen: ids with their event times, for `dedup_ttl` before the watermark.

They lie in the key's record; a key with many has all but the latest in a table of their own, so
that no record grows with its traffic.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
from catchwater.state.expiry import Journal
from catchwater.state.keys import encode_key
from catchwater.state.records import NEVER, Record

IN_RECORD = 64
KEPT = 32
"""A record with more ids than the one keeps as many as the other; the rest go to the table."""

_LONGEST_ID_BYTES = 128
_AFTER_ANY_ID = bytes([255]) * (_LONGEST_ID_BYTES + 2)


class SeenIds:
    """The ids that the keys of one shard have seen, in one epoch."""

    def __init__(self, state: ShardState, ttl_ms: int, watermark_ms: int) -> None:
        self._state = state
        self._oldest = watermark_ms - ttl_ms
        """What was seen at this time or before is forgotten."""
        self._journal = Journal(Table.SEEN, ttl_ms)
        self._has_grown = False

    def fresh(
        self,
        keys: Sequence[bytes],
        ids: Sequence[Any],
        times: Sequence[int],
        records: Sequence[Record[Any]],
    ) -> list[int]:
        """Of events side by side, the indexes of those not seen before; now they are."""
        oldest = self._oldest
        self._has_grown = True
        spilled = self._spilled(keys, ids, records)
        kept = []
        for i, (event_id, at, record) in enumerate(zip(ids, times, records, strict=True)):
            seen = record.seen
            if seen.get(event_id, NEVER) <= oldest and i not in spilled:
                seen[event_id] = at
                kept.append(i)
        return kept

    def delete_expired(self, keys: Iterable[bytes]) -> None:
        """Delete what these stored keys have seen too long ago, out of the table."""
        for key in keys:
            for entry, seen_at in self._state.committed.scan(Table.SEEN, key, key + _AFTER_ANY_ID):
                if unpack_time(seen_at) <= self._oldest:
                    self._state.delete(Table.SEEN, entry)

    def store(self, records: Mapping[bytes, Record[Any]]) -> None:
        """Move the older ids of keys with many out of their records."""
        if not self._has_grown:
            return
        for key, record in records.items():
            if len(record.seen) > IN_RECORD:
                self._spill(key, record)
        self._journal.store(self._state)

    def _spill(self, key: bytes, record: Record[Any]) -> None:
        by_age = sorted(record.seen.items(), key=itemgetter(1))
        kept, moved = by_age[-KEPT:], by_age[:-KEPT]
        moved = [(event_id, at) for event_id, at in moved if at > self._oldest]
        record.seen = dict(kept)
        if moved:
            record.spilled = max(record.spilled, moved[-1][1])
            entries = ((_seen_entry(key, i), pack_time(at)) for i, at in moved)
            self._state.put_many(Table.SEEN, entries)
            self._journal.written([key] * len(moved), [at for _, at in moved])

    def _spilled(
        self, keys: Sequence[bytes], ids: Sequence[Any], records: Sequence[Record[Any]]
    ) -> set[int]:
        """Which are known from the table and have not expired, by index."""
        asked = {
            i: _seen_entry(keys[i], ids[i])
            for i, record in enumerate(records)
            if record.spilled > self._oldest
        }
        if not asked:
            return set()
        found = self._state.get_many(Table.SEEN, list(asked.values()))
        known = {entry for entry, at in found.items() if unpack_time(at) > self._oldest}
        return {i for i, entry in asked.items() if entry in known}


def _seen_entry(key: bytes, event_id: Any) -> bytes:
    data = encode_key(event_id)
    if len(data) > _LONGEST_ID_BYTES:
        data = blake2b(data, digest_size=32).digest()
    return key + data + bytes([len(data)])
