"""The records an epoch has touched: decoded once, encoded once at its end.

State outlives its last write by `state_ttl`. A write is an event or timer handled, whether or not
it changed the state: that alone does not depend on where epochs begin.

Where timers lie: in the key's record by name, and in a table of the shard by due time.

Which events a key has seen: ids with their event times, for `dedup_ttl` before the watermark.

They lie in the key's record; a key with many has all but the latest in a table of their own, so
that no record grows with its traffic.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from itertools import filterfalse
from operator import itemgetter
from typing import Any

import msgspec

from catchwater.pipeline.functions.entries import (
    Declared,
    EntryState,
    EpochEntries,
    Place,
    to_record,
)
from catchwater.pipeline.functions.spec import FunctionSpec, Nothing, encode_named
from catchwater.state.entries import ShardState, Table, key_of, pack_time, prefix_of, unpack_time
from catchwater.state.expiry import Journal
from catchwater.state.keys import encode_key
from catchwater.state.records import NEVER, Record, new_record

TIMER_TABLES = (Table.TIMER, Table.CLOCK_TIMER)


def timers_of(record: Record[Any], table: Table) -> dict[str, int]:
    """The record's timers that lie in this table: due time by name."""
    return record.timers if table is Table.TIMER else record.clock_timers or {}


def timer_entry(at: int, key: bytes, name: str) -> bytes:
    """The key of a timer's entry: entries lie in the order (time, key hash, name)."""
    return pack_time(at) + key + name.encode() + len(key).to_bytes(2, "big")


def timer_of(entry: bytes) -> tuple[int, bytes, str]:
    """(time, stored key, name) of an entry of a timer table."""
    end = 8 + int.from_bytes(entry[-2:], "big")
    return unpack_time(entry), entry[8:end], entry[end:-2].decode()


def store_timers(
    state: ShardState, table: Table, key: bytes, before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    """Bring the table to what the record's timers have become."""
    for name, at in before.items():
        if now.get(name) != at:
            state.delete(table, timer_entry(at, key, name))
    for name, at in now.items():
        if before.get(name) != at:
            state.put(table, timer_entry(at, key, name), b"")


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
        fresh = self._state.changes[Table.SEEN]
        for key in keys:
            for entry, seen_at in self._state.committed.scan(Table.SEEN, key, key + _AFTER_ANY_ID):
                # One that the epoch itself has put there was seen again since.
                if unpack_time(seen_at) <= self._oldest and entry not in fresh:
                    self._state.delete(Table.SEEN, entry)

    def store(self, records: Mapping[bytes, Record[Any]]) -> None:
        """Move the older ids of keys with many out of their records."""
        if not self._has_grown:
            return
        for key, record in records.items():
            if len(record.seen) > IN_RECORD:
                self._spill(key, record)

    def store_journal(self) -> None:
        """Note what went to the table, for when it expires; once an epoch."""
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


_ENCODE = msgspec.msgpack.Encoder(enc_hook=to_record).encode


class LiveRecords:
    """The live records of one shard in one epoch, by stored key."""

    def __init__(self, spec: FunctionSpec, state: ShardState) -> None:
        self._spec = spec
        self._state = state
        self._codec = spec.record_codec
        self._fields = [(field, name.encode() + b"\0") for name, field in spec.entry_fields.items()]
        self._stored: dict[bytes, bytes] = {}
        """The bytes that live records were decoded from; a live record without is new."""
        self._open = _open_fields(spec.state_type)
        self._stateless = spec.state_type is Nothing
        self._journal = Journal(Table.RECORD, spec.record_ttl_ms or 0)
        self._new: dict[bytes, int] = {}
        """Keys that had no record before the epoch, and when they were written."""
        self.records: dict[bytes, Record[Any]] = {}
        self.entries = EpochEntries(state)
        self.deleted = 0

    def load(self, keys: Iterable[bytes]) -> dict[bytes, Record[Any]]:
        """Make records live, a new one for an unknown key; gives those that were stored."""
        live = self.records
        missing = list(dict.fromkeys(filterfalse(live.__contains__, keys)))
        if not missing:
            return {}
        found = self._state.get_many(Table.RECORD, missing)
        self._stored.update(found)
        loaded = self._codec.decode_many(found)
        live.update(loaded)
        if len(found) < len(missing):
            new_state = self._spec.state_type
            for key in missing:
                if key not in live:
                    live[key] = new_record(new_state())
        if self._fields:
            for key in missing:
                self._bind(key, live[key])
        return loaded

    def forget_expired(self, records: Mapping[bytes, Record[Any]], now: int) -> None:
        """Give each whose state has expired at this event time (ms) a new one."""
        ttl = self._spec.state_ttl_ms
        if ttl is None:
            return
        for key, record in records.items():
            if NEVER < record.written <= now - ttl:
                for field, _ in self._fields:
                    getattr(record.state, field.name).clear()
                record.state = self._spec.state_type()
                if self._fields:
                    self._bind(key, record)

    def delete_expired(self, keys: Iterable[bytes], watermark_ms: int) -> None:
        """Delete those of these records that have expired; of the others look again later.

        A key with timers still to come keeps its record.
        """
        ttl_ms = self._spec.record_ttl_ms or 0
        self.load(keys)
        for key in keys:
            record = self.records[key]
            written = max((record.written, *(at - ttl_ms for at in record.timers.values())))
            if record.clock_timers:
                written = max(written, watermark_ms)
            if written + ttl_ms > watermark_ms:
                self._journal.written([key], [written])
            else:
                for field, _ in self._fields:
                    getattr(record.state, field.name).clear()
                self._state.delete(Table.RECORD, key)
                del self.records[key], self._stored[key]
                self.deleted += 1

    def delete_expired_entries(self, keys: Iterable[bytes]) -> None:
        """Delete what has expired of the entries of these stored keys."""
        for key in keys:
            for field, tail in self._fields:
                if field.ttl_ms is not None:
                    Place(self.entries, prefix_of(key) + tail, field, new_record(None)).expire()

    def save(self, key: bytes) -> bytes:
        """A live record's bytes; TypeError if its state holds what cannot be stored and read."""
        record = self.records[key]
        if self._open:
            self._refuse_undeclared(record.state)
        encode_named(_ENCODE, record.state, "state")
        saved = self._encode(record)
        self._codec.check((saved,))
        return saved

    def restore(self, key: bytes, saved: bytes) -> None:
        """Put a live record back to what it was."""
        before, record = self._codec.decode(saved), self.records[key]
        for name in record.__struct_fields__:
            setattr(record, name, getattr(before, name))
        if self._fields:
            self._bind(key, record)

    def pop(self, keys: Iterable[bytes]) -> dict[bytes, Record[Any]]:
        """The live records among these keys, which are live no longer."""
        live = self.records
        return {key: live.pop(key) for key in keys if key in live}

    def store(self, records: Mapping[bytes, Record[Any]]) -> None:
        """Put what has changed of records that were live into the shard's state."""
        encode = self._encode if self._fields else self._codec.encode
        stored, changed = self._stored, {}
        for key, record in records.items():
            before = stored.pop(key, None)
            if record.written != NEVER and not (self._stateless and _is_empty(record)):
                data = encode(record)
                if before != data:
                    changed[key] = data
                    if before is None:
                        self._new[key] = record.written
        self._codec.check(changed.values())
        for key in changed if self._open else ():
            self._refuse_undeclared(records[key].state)
        self._state.put_many(Table.RECORD, changed.items())

    def store_journals(self) -> int:
        """Note what was written, for when it expires; gives by how many records there are more."""
        if self._spec.record_ttl_ms is not None:
            self._journal.written(self._new, self._new.values())
        self._journal.store(self._state)
        self._store_journal_of_entries()
        return len(self._new) - self.deleted

    def _store_journal_of_entries(self) -> None:
        """Note whose entries were written, for when they expire."""
        journals = {
            name: Journal(Table.ENTRY, field.ttl_ms, series)
            for series, (name, field) in enumerate(self._spec.entry_fields.items())
            if field.ttl_ms is not None
        }
        if not journals:
            return
        for entry, value in self._state.changes[Table.ENTRY].items():
            key = key_of(Table.ENTRY, entry)
            assert key is not None, "an entry is one key's"
            start = len(key) + 1
            name = entry[start : entry.index(b"\0", start)].decode()
            if value is not None and name in journals:
                journals[name].written((key,), (unpack_time(value),))
        for journal in journals.values():
            journal.store(self._state)

    def _encode(self, record: Record[Any]) -> bytes:
        for field, _ in self._fields:
            if not isinstance(getattr(record.state, field.name), EntryState):
                raise TypeError(
                    f"the state's field {field.name!r} was replaced; change what is in it instead"
                )
        return self._codec.encode(record)

    def _refuse_undeclared(self, state: Any) -> None:
        """TypeError if something was set on a state that is no field of it: it would be lost."""
        given = vars(state)
        if len(given) != len(self._open):
            for name in given.keys() - self._open:
                if not (name.startswith("_") or hasattr(type(state), name)):
                    raise TypeError(
                        f"{name!r} was set on the state, but is no field of "
                        f"{type(state).__name__}, and would not be kept: declare it"
                    )

    def _bind(self, key: bytes, record: Record[Any]) -> None:
        """Give a record's list, map and value states their places."""
        prefix = prefix_of(key)
        for field, tail in self._fields:
            held = getattr(record.state, field.name)
            place = Place(self.entries, prefix + tail, field, record)
            bound = field.kind(place)
            setattr(record.state, field.name, bound)
            given = held.given if isinstance(held, EntryState) else held
            if given is not None and not isinstance(given, Declared):
                bound.fill(given)


def _is_empty(record: Record[Any]) -> bool:
    """Whether a record without state has nothing else to keep either."""
    return not (record.seen or record.timers or record.clock_timers)


def _open_fields(state_type: Any) -> frozenset[str]:
    """The fields of a dataclass whose objects take any attribute; of all others nothing."""
    if not is_dataclass(state_type) or not getattr(state_type, "__dictoffset__", 0):
        return frozenset()
    return frozenset(each.name for each in fields(state_type))


def read_record(
    spec: FunctionSpec, state: ShardState, key: bytes, now: int = 0
) -> Record[Any] | None:
    """The record of a stored key, if there is one.

    Its list, map and value states show what has not expired at `now` (event time, ms).
    """
    live = LiveRecords(spec, state)
    live.entries.now = now
    return live.load([key]).get(key)
