"""One function over one shard's events of one epoch: the semantics of the pipeline, and no more.

An epoch first fires the timers that are due at its watermark, in the order (time, key hash,
name), then handles the events in the order given. What is older than the watermark is late; an id
seen for the key less than `dedup_ttl` before the watermark is a duplicate. The watermark stands
still within an epoch.

A key's record is decoded once per epoch and encoded once at its end. State outlives its last
write by `state_ttl`. A write is an event or timer handled, whether or not it changed the state:
that alone does not depend on where epochs begin. A late event that the policy lets through counts
as written at the watermark. The ids seen lie in the key's record; a key with many has all but the
latest in a table of their own, so that no record grows with its traffic.

Pure: entries, events and times come in as arguments.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.process.context import EpochContext
from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
from catchwater.state.expiry import Journal, take_due
from catchwater.state.records import NEVER, Record, new_record

Batch = tuple[Sequence[bytes], Sequence[Any]]
"""Stored keys and, side by side with them, decoded events; in log order."""

_SEEN_IN_RECORD = 64
_SEEN_KEPT = 32
"""A record with more ids than the one keeps as many as the other; the rest go to the SEEN table."""
_LONGEST_ID_BYTES = 128
_AFTER_ANY_ID = bytes([255]) * (_LONGEST_ID_BYTES + 2)


@dataclass
class Processed:
    """What an epoch of one shard gave."""

    outputs: list[Any] = field(default_factory=list)
    output_keys: list[bytes] = field(default_factory=list)
    """Side by side with the outputs: the stored key each came from."""
    events: int = 0
    """Events read, with the late and the duplicate ones."""
    late: int = 0
    duplicates: int = 0
    timers: int = 0
    """Timers fired."""
    max_event_time_ms: int | None = None
    next_due_ms: int | None = None
    """The watermark at which the shard wants an epoch even without input; None: never."""


def process(
    spec: FunctionSpec,
    state: ShardState,
    batches: Iterable[Batch],
    watermark_ms: int,
    clock_ms: int,
) -> Processed:
    """Fire what is due, handle the events, leave the changes in `state`; see the module."""
    epoch = _Epoch(spec, state, watermark_ms, clock_ms)
    with _collecting_young_only() as collect:
        epoch.fire_timers()
        epoch.delete_expired()
        for keys, events in batches:
            epoch.handle(keys, events)
            collect()
        epoch.store()
    return epoch.done


@contextmanager
def _collecting_young_only() -> Iterator[Callable[[], object]]:
    """Look for reference cycles among new objects only, when told to.

    An epoch's records all live to its end; walking them again and again costs a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: gc.collect(0)
    finally:
        if was_enabled:
            gc.enable()


def read_record(spec: FunctionSpec, state: ShardState, key: bytes) -> Record[Any] | None:
    """The record of a stored key, if there is one."""
    data = state.get_many(Table.RECORD, [key]).get(key)
    return None if data is None else spec.record_codec.decode(data)


class _Batch(NamedTuple):
    """Side by side: what the loop needs of each event."""

    keys: Sequence[bytes]
    events: Sequence[Any]
    times: list[int]
    records: list[Record[Any]]

    def only(self, kept: list[int]) -> "_Batch":
        """The rows of these indexes."""
        return _Batch(*([column[i] for i in kept] for column in self))  # type: ignore[arg-type]


class _Epoch:
    """The records an epoch has touched, decoded, and what it gave so far."""

    def __init__(
        self, spec: FunctionSpec, state: ShardState, watermark_ms: int, clock_ms: int
    ) -> None:
        self._spec = spec
        self._state = state
        self._watermark = watermark_ms
        self._on_event, self._on_timer = spec.handlers()
        self._codec = spec.record_codec
        self._live: dict[bytes, Record[Any]] = {}
        self._stored: dict[bytes, bytes] = {}
        """The bytes that live records were decoded from; a live record without is new."""
        self._seen_journal = Journal(Table.SEEN, spec.dedup_ttl_ms)
        self._record_journal = Journal(Table.RECORD, spec.record_ttl_ms or 0)
        self._context = EpochContext(spec, watermark_ms, clock_ms)
        self.done = Processed()

    def fire_timers(self) -> None:
        """Fire all that is due; a timer set meanwhile for later than the one that set it, too.

        One set for the same time or before waits for the next epoch: no handler can go in circles.
        """
        until = pack_time(self._watermark + 1)
        due = [entry for entry, _ in self._state.committed.scan(Table.TIMER, until=until)]
        queued = set(due)
        heapify(due)
        self._load(_timer_of(entry)[1] for entry in due)
        while due:
            at, key, name = _timer_of(heappop(due))
            record = self._live[key]
            if record.timers.get(name) != at:
                continue
            self._fire(at, key, name, record)
            for other, then in record.timers.items():
                entry = _timer_key(then, key, other)
                if at < then <= self._watermark and entry not in queued:
                    queued.add(entry)
                    heappush(due, entry)

    def _fire(self, at: int, key: bytes, name: str, record: Record[Any]) -> None:
        context = self._context
        context.stored_key, context.record, context.cause = key, record, (at, name)
        context.cancel_timer(name)
        self._forget_expired_state(record, at)
        record.written = max(record.written, at)
        self._give(key, self._on_timer(name, at, record.state, context))
        self.done.timers += 1

    def delete_expired(self) -> None:
        """Delete what the journal says is due and has expired; from here on no state is expired."""
        due = take_due(self._state, self._watermark)
        self._delete_seen(due[Table.SEEN])
        self._delete_records(due[Table.RECORD])
        for record in self._live.values():
            self._forget_expired_state(record, self._watermark)

    def _delete_seen(self, keys: Iterable[bytes]) -> None:
        oldest = pack_time(self._watermark - self._spec.dedup_ttl_ms)
        scan = self._state.committed.scan
        for key in keys:
            for entry, seen_at in scan(Table.SEEN, key, key + _AFTER_ANY_ID):
                if seen_at <= oldest:
                    self._state.delete(Table.SEEN, entry)

    def _delete_records(self, keys: Iterable[bytes]) -> None:
        """A key with timers still to come keeps its record, and is looked at again."""
        ttl_ms = self._spec.record_ttl_ms or 0
        self._load(keys)
        for key in keys:
            record = self._live[key]
            written = max((record.written, *(at - ttl_ms for at in record.timers.values())))
            if written + ttl_ms > self._watermark:
                self._record_journal.written([key], [written])
            else:
                self._state.delete(Table.RECORD, key)
                del self._live[key], self._stored[key]

    def handle(self, keys: Sequence[bytes], events: Sequence[Any]) -> None:
        """Handle one batch of events."""
        if not keys:
            return
        done = self.done
        done.events += len(keys)
        times = list(map(self._spec.event_time_of, events))
        done.max_event_time_ms = max(max(times), done.max_event_time_ms or NEVER)
        for record in self._load(keys):
            self._forget_expired_state(record, self._watermark)
        batch = _Batch(keys, events, times, list(map(self._live.__getitem__, keys)))
        if min(times) < self._watermark:
            batch = self._without_late(batch)
        if self._spec.dedup is not None:
            batch = self._without_duplicates(batch)
        self._run(batch)

    def _without_late(self, batch: _Batch) -> _Batch:
        open_until = map(self._spec.open_until, batch.times)
        kept = [i for i, until in enumerate(open_until) if until >= self._watermark]
        self.done.late += len(batch.times) - len(kept)
        if self._spec.late == "drop":
            batch = batch.only(kept)
        return batch._replace(times=[max(at, self._watermark) for at in batch.times])

    def _without_duplicates(self, batch: _Batch) -> _Batch:
        ids = list(map(self._spec.id_of, batch.events))
        oldest = self._watermark - self._spec.dedup_ttl_ms
        spilled = self._spilled_ids(batch, ids, oldest)
        kept = []
        for i, (event_id, at, record) in enumerate(
            zip(ids, batch.times, batch.records, strict=True)
        ):
            seen = record.seen
            if seen.get(event_id, NEVER) <= oldest and i not in spilled:
                seen[event_id] = at
                kept.append(i)
        if len(kept) == len(ids):
            return batch
        self.done.duplicates += len(ids) - len(kept)
        return batch.only(kept)

    def _spilled_ids(self, batch: _Batch, ids: list[Any], oldest: int) -> set[int]:
        """Which of a batch are known from the SEEN table and have not expired, by index."""
        asked = {
            i: self._seen_entry(batch.keys[i], ids[i])
            for i, record in enumerate(batch.records)
            if record.spilled > oldest
        }
        if not asked:
            return set()
        found = self._state.get_many(Table.SEEN, list(asked.values()))
        known = {entry for entry, at in found.items() if unpack_time(at) > oldest}
        return {i for i, entry in asked.items() if entry in known}

    def _seen_entry(self, key: bytes, event_id: Any) -> bytes:
        data = self._spec.encode_id(event_id)
        if len(data) > _LONGEST_ID_BYTES:
            data = blake2b(data, digest_size=32).digest()
        return key + data + bytes([len(data)])

    def _spill(self) -> None:
        """Move the older ids of keys with many out of their records, so that no record grows."""
        oldest = self._watermark - self._spec.dedup_ttl_ms
        for key, record in self._live.items():
            if len(record.seen) <= _SEEN_IN_RECORD:
                continue
            by_age = sorted(record.seen.items(), key=itemgetter(1))
            kept, moved = by_age[-_SEEN_KEPT:], by_age[:-_SEEN_KEPT]
            moved = [(event_id, at) for event_id, at in moved if at > oldest]
            record.seen = dict(kept)
            if moved:
                record.spilled = max(record.spilled, moved[-1][1])
                entries = ((self._seen_entry(key, i), pack_time(at)) for i, at in moved)
                self._state.put_many(Table.SEEN, entries)
                self._seen_journal.written([key] * len(moved), [at for _, at in moved])

    def _run(self, batch: _Batch) -> None:
        """The loop that decides what an event costs."""
        on_event, context = self._on_event, self._context
        outputs, output_keys = self.done.outputs, self.done.output_keys
        for key, event, at, record in zip(*batch, strict=True):
            if at > record.written:
                record.written = at
            context.stored_key, context.cause, context.record = key, event, record
            given = on_event(event, record.state, context)
            if given:
                outputs.extend(given)
                new = len(outputs) - len(output_keys)
                if new:
                    output_keys.extend([key] * new)

    def store(self) -> None:
        """Put the records, timers and journal pages that changed into the shard's state."""
        self._spill()
        written = {key: r for key, r in self._live.items() if r.written != NEVER}
        data = zip(written, map(self._codec.encode, written.values()), strict=True)
        stored = self._stored
        self._state.put_many(Table.RECORD, [kv for kv in data if stored.get(kv[0]) != kv[1]])
        if self._spec.record_ttl_ms is not None:
            new = [key for key in written if key not in stored]
            self._record_journal.written(new, [written[key].written for key in new])
        self._store_timers()
        self._seen_journal.store(self._state)
        self._record_journal.store(self._state)
        firsts = (self._state.first(Table.TIMER), self._state.first(Table.EXPIRY))
        self.done.next_due_ms = min((unpack_time(f) for f in firsts if f is not None), default=None)

    def _store_timers(self) -> None:
        for key, before in self._context.timers_before.items():
            record = self._live.get(key)
            now = record.timers if record is not None else {}
            for name, at in before.items():
                if now.get(name) != at:
                    self._state.delete(Table.TIMER, _timer_key(at, key, name))
            for name, at in now.items():
                if before.get(name) != at:
                    self._state.put(Table.TIMER, _timer_key(at, key, name), b"")

    def _give(self, key: bytes, given: Iterable[Any] | None) -> None:
        done = self.done
        done.outputs.extend(given or ())
        done.output_keys.extend([key] * (len(done.outputs) - len(done.output_keys)))

    def _load(self, keys: Iterable[bytes]) -> list[Record[Any]]:
        """Make records live, a new one for an unknown key; gives those that were stored."""
        live, decode = self._live, self._codec.decode
        missing = [key for key in dict.fromkeys(keys) if key not in live]
        found = self._state.get_many(Table.RECORD, missing)
        self._stored.update(found)
        loaded = {key: decode(data) for key, data in found.items()}
        live.update(loaded)
        if len(found) < len(missing):
            new_state = self._spec.state_type
            for key in missing:
                if key not in live:
                    live[key] = new_record(new_state())
        return list(loaded.values())

    def _forget_expired_state(self, record: Record[Any], now: int) -> None:
        ttl = self._spec.state_ttl_ms
        if ttl is not None and NEVER < record.written <= now - ttl:
            record.state = self._spec.state_type()


def _timer_key(at: int, key: bytes, name: str) -> bytes:
    return pack_time(at) + key + name.encode() + len(key).to_bytes(2, "big")


def _timer_of(entry: bytes) -> tuple[int, bytes, str]:
    """(time, stored key, name) of an entry of the timer table."""
    end = 8 + int.from_bytes(entry[-2:], "big")
    return unpack_time(entry), entry[8:end], entry[end:-2].decode()
