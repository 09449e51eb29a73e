"""One function over one shard's events of one epoch: the semantics of the pipeline, and no more.

An epoch first takes over what has changed in tables, then fires the timers that are due, those of
the watermark before those of the clock, each in the order (time, key hash, name), then handles the
events in the order given. What is older than the epoch says is late; an id seen for the key less
than `dedup_ttl` before the watermark is a duplicate. Watermark and clock stand still within it.

An event below the watermark that is not late, or that the policy lets through, counts as written
at the watermark; so does the id of a late one that goes somewhere. An event too far ahead of its
record's timestamp is poison: it would move the watermark, and make all others late.

Events may come in blocks, each with all events of its keys: a block's records fit into the
processor's cache, an epoch's do not. What comes out lies in the order of the log all the same.

If anything raises, nothing of the epoch is kept and it is run again carefully: event by event. An
event that raises leaves no trace, and is poison. So is an event whose handler another thread ends
because it takes too long (`progress`): the handler may have been anywhere, so the careful pass
begins anew, and passes over the event.

Pure: entries, events and times come in as arguments.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

from catchwater.pipeline.functions.spec import FunctionSpec, Poison, Retraction, encode_named
from catchwater.pipeline.process import poison as bad
from catchwater.pipeline.process.batch import (
    Answers,
    Batch,
    Poisoned,
    Processed,
    TableBatch,
    TableRows,
    Times,
)
from catchwater.pipeline.process.context import EpochContext
from catchwater.pipeline.process.live import (
    TIMER_TABLES,
    LiveRecords,
    SeenIds,
    store_timers,
    timer_entry,
    timer_of,
    timers_of,
)
from catchwater.pipeline.process.poison import TIMER, Cause, HandlerTimeout, Progress
from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
from catchwater.state.expiry import take_due
from catchwater.state.keys import HASH_BYTES, EventRefused
from catchwater.state.records import NEVER, Record, coarse

EXPIRED_AT_ONCE = 2_000
"""Of so many keys an epoch deletes what has expired, and of four for each of its events: more than
an event can write. The rest waits for the next epoch. What has expired is gone for handlers,
whether or not it has been deleted."""

_BEFORE_ALL_EVENTS = -1
"""The place of what timers put out."""

YEAR_9999_MS = 253_402_300_799_999
"""No event is later: one that is would move the watermark beyond all others for ever."""
_MANY_YOUNG = 100_000
_YOUNG_OF_A_RECORD = 3
"""How many new objects remain, beside the epoch's records (a state and two dicts each), before they
are looked through."""


def process(
    spec: FunctionSpec,
    state: ShardState,
    batches: Iterable[Batch],
    times: Times,
    *,
    blocks: Iterable[Iterable[Batch]] | None = None,
    tables: Iterable[TableBatch] = (),
    poison: Poison | None = None,
    answers: Answers | None = None,
    progress: Progress | None = None,
    chained: bool = False,
) -> Processed:
    """Do what the module says, and leave the changes in `state`, which must have none yet.

    `batches` and `tables` are gone through again if anything raises: give lists, or what begins
    anew. `blocks` are the same events for the first pass. `poison` stands for what the function
    declares. `progress` is kept up to date for the watchdog. `chained`: the events are outputs of
    another function, and no records of a topic. Raises EventFailed, PoisonLimitReached.
    """
    progress = progress or Progress()
    given = (spec, state, times, poison or spec.poison, answers, progress, chained)
    try:
        if not progress.careful:
            return _Epoch(*given).run(tables, (batches,) if blocks is None else blocks)
    except HandlerTimeout:
        progress.context = None
    except Exception as error:  # a handler is the user's, and may raise anything
        if not bad.is_poison(error):
            raise
    while True:
        for changed in state.changes:
            changed.clear()
        try:
            return _CarefulEpoch(*given).run(tables, (batches,))
        except HandlerTimeout as timeout:
            cause, progress.context = progress.cause(), None  # it is not interrupted again
            if cause is None or cause in progress.known:
                raise  # not a handler's: there is nothing to pass over
            progress.blame(cause, bad.describe(timeout, spec.target))


@contextmanager
def _collecting_young_only() -> Iterator[Callable[[int], object]]:
    """Look for reference cycles among new objects, where more remain than so many records have.

    A block's records all live to its end, and a batch's events to the batch's: walking them again
    and again costs a third of the time. What a handler leaves in cycles remains, and is found.
    """

    def collect(records: int) -> None:
        if gc.get_count()[0] > _MANY_YOUNG + _YOUNG_OF_A_RECORD * records:
            gc.collect(0)

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield collect
    finally:
        if was_enabled:
            gc.enable()


class _Rows(NamedTuple):
    """Side by side: what the loop needs of each event."""

    keys: Sequence[bytes]
    events: Sequence[Any]
    times: Sequence[int]
    records: list[Record[Any]]
    indexes: Sequence[int]
    """In the batch."""

    def only(self, kept: list[int]) -> "_Rows":
        """The rows of these indexes."""
        return _Rows(*([column[i] for i in kept] for column in self))  # type: ignore[arg-type]


class _Epoch:
    """One pass over an epoch."""

    def __init__(
        self,
        spec: FunctionSpec,
        state: ShardState,
        times: Times,
        poison: Poison,
        answers: Answers | None,
        progress: Progress,
        chained: bool,
    ) -> None:
        self._spec = spec
        self._state = state
        self._watermark, self._late_before, self._clock = times
        self._poison = poison
        self._on_event, self._on_timer = spec.handlers()
        self._live = LiveRecords(spec, state)
        self._seen = SeenIds(state, spec.dedup_ttl_ms, self._watermark)
        self._tables = TableRows(spec, state)
        self._context = EpochContext(
            spec, self._watermark, self._clock, self._tables, answers, chained
        )
        self._progress = progress
        progress.context = self._context
        self.done = Processed()
        self._keys: list[bytes] = []
        """The keys whose records the current block has asked for."""
        self._in_blocks = False
        self._places: list[int] = []
        """Side by side with the outputs, as long as they lie in the order of the blocks."""
        self._late_places: list[int] = []
        self._poisoned: list[tuple[int, Poisoned]] = []
        """What was found in blocks, by place: taken in the order of the log, when all is found."""

    def run(self, tables: Iterable[TableBatch], blocks: Iterable[Iterable[Batch]]) -> Processed:
        """The whole epoch."""
        with _collecting_young_only() as collect:
            for rows in tables:
                self._take_poisoned(rows.poisoned)
                self._tables.apply(rows)
            self._fire_due(Table.TIMER, self._watermark)
            self._fire_due(Table.CLOCK_TIMER, self._clock)
            self._forget_expired()
            for block in blocks:
                for batch in block:
                    self._take_poisoned_of(batch)
                    self.done.events += len(batch.keys) + len(batch.poisoned)
                    self._handle(batch)
                    collect(len(self._live.records))
                self._end_block()
            if self._in_blocks:
                self._put_in_log_order()
            self._delete_expired()
            self._store()
        return self.done

    def _fire_due(self, table: Table, until: int) -> None:
        """Fire all that is due; a timer set meanwhile for later than the one that set it, too.

        One set for the same time or before waits for the next epoch: no handler can go in circles.
        """
        end = pack_time(until + 1)
        due = [entry for entry, _ in self._state.committed.scan(table, until=end)]
        queued = set(due)
        heapify(due)
        self._live.load(timer_of(entry)[1] for entry in due)
        while due:
            at, key, name = timer_of(heappop(due))
            timers = timers_of(self._live.records[key], table)
            if timers.get(name) != at:
                continue
            self._fire(table, at, key, name)
            for other, then in timers_of(self._live.records[key], table).items():
                entry = timer_entry(then, key, other)
                if at < then <= until and entry not in queued:
                    queued.add(entry)
                    heappush(due, entry)

    def _fire(self, table: Table, at: int, key: bytes, name: str) -> None:
        by_clock = table is Table.CLOCK_TIMER
        now = self._watermark if by_clock else at
        record, context = self._live.records[key], self._context
        self._live.entries.now = now
        context.stored_key, context.record = key, record
        context.cause = (at, name, "clock") if by_clock else (at, name)
        context.cancel_timer(name)
        self._live.forget_expired({key: record}, now)
        record.written = max(record.written, *self._noted([now]))
        done = self.done
        done.outputs.extend(self._on_timer(name, at, record.state, context) or ())
        context.cause = None
        new = len(done.outputs) - len(done.output_keys)
        done.output_keys.extend([key] * new)
        self._places.extend([_BEFORE_ALL_EVENTS] * new)
        done.timers += 1

    def _forget_expired(self) -> None:
        """From here on no state that a handler meets is expired."""
        self._live.entries.now = self._watermark
        self._live.forget_expired(self._live.records, self._watermark)

    def _delete_expired(self) -> None:
        """Delete what the journal says is due and has expired, as much of it as an epoch may."""
        most = EXPIRED_AT_ONCE + 4 * self.done.events
        due = take_due(self._state, self._watermark, most)
        self._seen.delete_expired(due[Table.SEEN])
        self._live.delete_expired(due[Table.RECORD], self._watermark)
        self._live.delete_expired_entries(due[Table.ENTRY])

    def _handle(self, batch: Batch) -> None:
        """Handle one batch of events."""
        self._find(batch.keys if batch.new_keys is None else batch.new_keys)
        if not batch.keys:
            return
        spec = self._context.input = self._spec.input(batch.input)
        times = list(map(spec.event_time_of, batch.events))
        records = list(map(self._live.records.__getitem__, batch.keys))
        rows = _Rows(batch.keys, batch.events, times, records, range(len(times)))
        latest = max(times)
        if latest > YEAR_9999_MS:
            raise EventRefused(
                f"Its event time {latest} is beyond the year 9999: {spec.event_time!r} must be "
                "milliseconds since 1970."
            )
        if spec.max_future_ms is not None:
            if batch.oldest_ms <= 0 or latest > batch.oldest_ms + spec.max_future_ms:
                _refuse_future(times, batch.timestamps, spec.max_future_ms)
        late: set[int] = set()
        if min(times) < self._watermark:
            rows, late = self._without_dropped(rows, spec)
        if spec.dedup is not None:
            rows = self._without_duplicates(rows, spec)
        if late and spec.late_sink is not None:
            rows = self._without_put_aside(rows, late, batch, spec)
        self._progress.batch = self._context.batch = batch
        self._run(rows, batch.places)
        seen = self.done.max_event_times
        for origin, last in batch.latest(times).items():
            seen[origin] = max(last, seen.get(origin, NEVER))

    def _find(self, keys: Sequence[bytes]) -> None:
        """Make the records of these keys live."""
        self._keys += keys
        self._live.forget_expired(self._live.load(keys), self._watermark)

    def _without_dropped(self, rows: _Rows, spec: FunctionSpec) -> tuple[_Rows, set[int]]:
        """The rows at the times they count as, and which are late; without those, if they go."""
        open_until = map(self._spec.open_until, rows.times)
        late = {i for i, until in enumerate(open_until) if until < self._late_before}
        rows = rows._replace(times=[max(at, self._watermark) for at in rows.times])
        if spec.late_sink is None:
            self.done.late += len(late)
        if late and spec.late == "drop":
            rows = rows.only([i for i in rows.indexes if i not in late])
        return rows, late

    def _without_put_aside(
        self, rows: _Rows, late: set[int], batch: Batch, spec: FunctionSpec
    ) -> _Rows:
        """Late events to where they go; a late duplicate is a duplicate, and gone already."""
        aside = [row for row, i in enumerate(rows.indexes) if i in late]
        if spec.dedup is not None:
            (written,) = self._noted([self._watermark])
            for row in aside:
                rows.records[row].written = max(rows.records[row].written, written)
        gone = [rows.indexes[row] for row in aside]
        self.done.late += len(gone)
        self._late_places += gone if batch.places is None else [batch.places[i] for i in gone]
        self.done.late_events += [
            Poisoned(
                batch.origin_of(i),
                int(batch.offsets[i]),
                batch.keys[i][HASH_BYTES:],
                batch.values[i],
                f"it is late: its event time is {spec.event_time_of(batch.events[i])}, "
                f"the watermark {self._watermark}",
            )
            for i in gone
        ]
        return rows.only([row for row, i in enumerate(rows.indexes) if i not in late])

    def _without_duplicates(self, rows: _Rows, spec: FunctionSpec) -> _Rows:
        ids = list(map(spec.id_of, rows.events))
        kept = self._seen.fresh(rows.keys, ids, rows.times, rows.records)
        if len(kept) == len(rows.times):
            return rows
        self.done.duplicates += len(rows.times) - len(kept)
        return rows.only(kept)

    def _run(self, rows: _Rows, place_of: Sequence[int] | None) -> None:
        """The loop that decides what an event costs."""
        on_event, context = self._on_event, self._context
        outputs, output_keys, places = self.done.outputs, self.done.output_keys, self._places
        if not rows.times:
            return
        columns = rows._replace(times=self._noted(rows.times))
        for key, event, at, record, index in zip(*columns, strict=True):
            if at > record.written:
                record.written = at
            context.stored_key, context.cause, context.record = key, event, record
            context.index = index
            given = on_event(event, record.state, context)
            if given:
                outputs.extend(given)
                new = len(outputs) - len(output_keys)
                if new:
                    output_keys.extend([key] * new)
                    places.extend([index if place_of is None else place_of[index]] * new)
        context.cause = None

    def _noted(self, times: Sequence[int]) -> Sequence[int]:
        """What records are to know of these times: see `Record.written`. There is at least one."""
        if not self._spec.writes_are_coarse:
            return times
        first, last = coarse(min(times)), coarse(max(times))
        return [last] * len(times) if first == last else list(map(coarse, times))

    def _take_poisoned(self, found: Iterable[Poisoned]) -> None:
        for each in found:
            bad.apply_policy(self._spec, self._poison, self.done, each)

    def _take_poisoned_of(self, batch: Batch) -> None:
        if batch.places is None:
            self._take_poisoned(batch.poisoned)
        else:
            self._in_blocks = True
            self._poisoned += zip(batch.poisoned_places, batch.poisoned, strict=True)

    def _end_block(self) -> None:
        """Encode what came out and what changed, as long as the processor's cache has it."""
        done = self.done
        fresh = done.outputs[len(done.values) :]
        self._spec.check_outputs(fresh)
        done.values += map(self._spec.encode_output, fresh)
        self._store_records(self._keys)
        self._keys = []

    def _put_in_log_order(self) -> None:
        """What came out of blocks, as if there were none."""
        done, places, late = self.done, self._places, self._late_places
        for of, columns in (
            (places, [done.outputs, done.output_keys, done.values]),
            (late, [done.late_events]),
        ):
            order = sorted(range(len(of)), key=of.__getitem__)
            for column in columns:
                column[:] = map(column.__getitem__, order)
        found = sorted(self._poisoned, key=itemgetter(0))
        self._take_poisoned(each for _, each in found)

    def _store_records(self, keys: Iterable[bytes]) -> None:
        """Put records that changed into the shard's state, with their timers, and forget them."""
        state, changed = self._state, self._context.timers_before
        records = self._live.pop(keys)
        self._seen.store(records)
        self._live.store(records)
        for key in filter(records.__contains__, list(changed)):
            record, before = records[key], changed.pop(key)
            for table, then in zip(TIMER_TABLES, before, strict=True):
                store_timers(state, table, key, then, timers_of(record, table))

    def _store(self) -> None:
        """Put what is left into the shard's state: records of timers, journal pages."""
        done, state = self.done, self._state
        self._store_records(list(self._live.records))
        for key, before in self._context.timers_before.items():  # their records have expired
            for table, then in zip(TIMER_TABLES, before, strict=True):
                store_timers(state, table, key, then, {})
        self._seen.store_journal()
        done.keys = self._live.store_journals()
        if self._spec.output_id:
            kinds = map(type, done.outputs)
            done.retractions = [i for i, kind in enumerate(kinds) if kind is Retraction]
        firsts = (state.first(Table.TIMER), state.first(Table.EXPIRY))
        done.next_due_ms = min((unpack_time(f) for f in firsts if f is not None), default=None)
        first = state.first(Table.CLOCK_TIMER)
        done.next_due_clock_ms = None if first is None else unpack_time(first)


class _CarefulEpoch(_Epoch):
    """An epoch in which something raises: one event, one timer at a time, undone if it does."""

    def _handle(self, batch: Batch) -> None:
        for i, key in enumerate(batch.keys):
            here = slice(i, i + 1)
            one = Batch(
                batch.keys[here],
                batch.events[here],
                batch.origin,
                batch.offsets[here],
                batch.values[here],
                batch.input,
                timestamps=batch.timestamps[here],
                headers=batch.headers[here],
            )
            self._find(one.keys)
            cause = Cause(batch.origin, int(batch.offsets[i]), key[HASH_BYTES:])
            self._try(cause, key, batch.values[i], partial(super()._handle, one))

    def _fire(self, table: Table, at: int, key: bytes, name: str) -> None:
        cause = Cause(TIMER + name, at, key[HASH_BYTES:])
        if not self._try(cause, key, b"", partial(super()._fire, table, at, key, name)):
            self._context.stored_key, self._context.record = key, self._live.records[key]
            self._context.cancel_timer(name)

    def _try(self, cause: Cause, key: bytes, value: bytes, handle: Callable[[], None]) -> bool:
        """Whether it was handled; it is poison if not."""
        error, text = None, self._progress.known.get(cause)
        if text is None:
            if self._progress.note is not None:
                self._progress.note(cause)
            error = self._attempt(key, handle)
            if error is None:
                return True
            text = bad.describe(error, self._spec.target)
        found, may_quote = Poisoned(*cause, value, text), error is not None
        bad.apply_policy(self._spec, self._poison, self.done, found, may_quote=may_quote)
        return False

    def _attempt(self, key: bytes, handle: Callable[[], None]) -> Exception | None:
        """Do it, or do nothing and return what it raises."""
        done, state = self.done, self._state
        mark, saved, given = state.mark(), self._live.save(key), len(done.outputs)
        counted, late = (done.late, done.duplicates, done.timers), len(done.late_events)
        try:
            handle()
            self._live.save(key)
            self._spec.check_outputs(done.outputs[given:])
            for output in done.outputs[given:]:
                encode_named(self._spec.encode_output, output, "output")
        except Exception as error:  # a handler is the user's, and may raise anything
            if not bad.is_poison(error):
                raise
            self._context.cause = None
            state.rollback(mark)
            self._live.restore(key, saved)
            del done.outputs[given:], done.output_keys[given:], done.late_events[late:]
            del self._places[given:], self._late_places[late:]
            done.late, done.duplicates, done.timers = counted
            return error
        return None


def _refuse_future(times: Sequence[int], timestamps: Sequence[int], bound_ms: int) -> None:
    """EventRefused for the first event that lies so far ahead of its record."""
    for at, timestamp in zip(times, map(int, timestamps), strict=False):
        if 0 < timestamp < at - bound_ms:
            raise EventRefused(
                f"Its event time {at} lies {at - timestamp} ms ahead of its record's timestamp "
                f"{timestamp}, and max_future is {bound_ms} ms: later events would all be late."
            )
