"""A function run on a list of events: no Spark, no JVM, no network.

It runs the very code that runs on Spark (`process`, the state log) over a store in memory. Every
`send` is an epoch; after it the watermark follows the events as it does in production, and what
came due is fired. `crash_and_restore` and `check_replay` then ask what a restore asks: does the
function give the same again, in any epochs and any interleaving of keys?
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from random import Random  # noqa: TID251  (only its type; drawn from a seeded clock)
from typing import Any, NamedTuple

from catchwater.clock import Clock
from catchwater.config import duration_ms
from catchwater.objects.memory import MemoryStore
from catchwater.pipeline.calls.answers import Answers, Outcome, bind, questions
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.schema import compare, describe
from catchwater.pipeline.functions.spec import FunctionSpec, Headers
from catchwater.pipeline.process.batch import (
    Batch,
    Poisoned,
    Processed,
    TableBatch,
    Times,
    decode_all,
)
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.live import read_record
from catchwater.state.entries import Changes, DictEntries, ShardState
from catchwater.state.keys import HASH_BYTES, encode_key, stored_key
from catchwater.state.log import StateLog
from catchwater.state.roll import EMPTY, Position

NO_TIMESTAMP = -1


class ReplayMismatch(AssertionError):
    """The same events gave something else when they were handled again."""


class _Row(NamedTuple):
    """One event as it was sent."""

    input: str
    key: bytes
    event: Any
    offset: int
    value: bytes
    timestamp: int
    headers: Headers


@dataclass(frozen=True)
class _Step:
    """One epoch: what went in."""

    batches: Sequence[Batch]
    tables: Sequence[TableBatch]
    times: Times
    answers: Answers | None

    def rows(self) -> list[_Row]:
        """The events that could be decoded, one by one."""
        return [
            _Row(batch.input, *row)
            for batch in self.batches
            for row in zip(
                batch.keys,
                batch.events,
                batch.offsets,
                batch.values,
                batch.timestamps,
                batch.headers,
                strict=True,
            )
        ]


@dataclass(frozen=True)
class _Done:
    """One epoch: what came out."""

    step: _Step
    processed: Processed
    changes: Changes
    version: int
    at: Position


class Harness:
    """One function with its state, and what happened since it was made (or since `run`)."""

    def __init__(self, target: Callable[..., Any], *, now: int = 0) -> None:
        """`now` is the processing clock (ms) that the function sees as `ctx.now`."""
        self._take(spec_of(target))
        self._entries = DictEntries()
        self._version = 0
        self._sent = 0
        self._done: list[_Done] = []
        self._answers: dict[str, Callable[[Any], Any]] = {}
        self._last = Processed()
        self._begin_log()
        self.watermark = 0
        """Event time, ms; advanced by events, `advance_watermark` and `advance_time`."""
        self.now = now
        self.late = 0
        """Events that came behind the watermark."""
        self.late_events: list[Poisoned] = []
        """Those of them that would go to the dead letters or a sink, by the function's `late`."""
        self.duplicates = 0
        """Events dropped because their id had been seen."""
        self.poisoned: list[Poisoned] = []
        """Records that could not be handled, if the function's policy lets them pass."""

    def _take(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._calls = bind(spec.target, spec.calls)

    def send(
        self,
        *events: Any,
        input: str | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> list[Any]:
        """Handle the events as one epoch; gives its outputs and those of timers it made due.

        Events travel through JSON, as they do in production; bytes are taken as they are. Of
        several inputs an event's is known by its class, or `input` says it. `timestamp` is that of
        their records, ms, from which `max_future` counts; without one it bounds nothing. `headers`
        are those of each of their records. Raises
        EventFailed if an event cannot be handled and the function's policy is to fail.
        """
        done = self._epoch(self._step(events, input, timestamp, tuple(headers)))
        return done.outputs + self._tick_if_due()

    def run(self, events: Iterable[Any], batch: int = 10_000) -> list[Any]:
        """Handle many events in epochs of `batch`, fast; gives all outputs.

        The events are not kept: `crash_and_restore` and `check_replay` look back to here only.
        """
        outputs: list[Any] = []
        source = iter(events)
        while part := list(islice(source, batch)):
            outputs += self._epoch(self._step(part), keep=False).outputs
        outputs += self._tick_if_due(keep=False)
        self._begin_log()
        return outputs

    def table(self, name: str, rows: Mapping[Any, Any]) -> list[Any]:
        """Change rows of a declared table, in an epoch of its own; None deletes one.

        Gives the outputs of timers that were due. Raises LookupError if there is no such table.
        """
        if name not in self._spec.tables:
            raise LookupError(f"function {self._spec.name!r} declares no table {name!r}")
        table = self._spec.tables[name]
        encode = self._spec.encode_key if table.keyed else encode_key
        values = [None if row is None else self._spec.encode_output(row) for row in rows.values()]
        for value in values:
            if value is not None:
                table.decode_row(value)
        batch = TableBatch(name, list(map(encode, rows)), values)
        return self._epoch(replace(self._step(()), tables=[batch])).outputs

    def answer(self, call: str, answer: Callable[[Any], Any]) -> None:
        """From now on a declared call is answered by this function of its question.

        What it raises is a failure of the endpoint. Raises LookupError if there is no such call.
        """
        if call not in self._calls:
            raise LookupError(f"function {self._spec.name!r} declares no call {call!r}")
        self._answers[call] = answer

    def advance_watermark(self, to: int) -> list[Any]:
        """Move the watermark forward to an event time (ms); gives the outputs of due timers."""
        if to < self.watermark:
            raise ValueError(f"the watermark is at {self.watermark} and never goes back to {to}")
        self.watermark = to
        return self._epoch(self._step(())).outputs

    def advance_time(self, duration: str) -> list[Any]:
        """Let time pass, say "31d", for clock and watermark; gives the outputs of due timers."""
        self.now += duration_ms(duration)
        return self.advance_watermark(self.watermark + duration_ms(duration))

    def upgrade(self, target: Callable[..., Any]) -> None:
        """Go on with another version of the function, on the state as it is.

        `crash_and_restore` and `check_replay` then look back to here only. Raises ValueError if a
        start would be refused: for another function, an older version, or state it cannot read.
        """
        spec = spec_of(target)
        if spec.name != self._spec.name or spec.version < self._spec.version:
            raise ValueError(
                f"{spec.name!r} version {spec.version} does not follow {self._spec.name!r} "
                f"version {self._spec.version}"
            )
        mended = self._spec.version != spec.version and self._spec.version in spec.migrations()
        for problem in compare(describe(self._spec), describe(spec)):
            if not (mended and problem.migratable):
                raise ValueError(
                    f"version {spec.version} cannot read the state there is: {problem}"
                )
        self._take(spec)
        self._begin_log()

    def state(self, key: Any) -> Any:
        """The state of a key (a tuple if the key has several fields); None if it has none.

        TypeError for a key of another type.
        """
        try:
            stored = stored_key(self._spec.encode_key(key))
        except TypeError:
            raise TypeError(f"{key!r} is no key of {self._spec.name!r}: {self._spec.key}") from None
        record = read_record(self._spec, ShardState(self._entries, 0), stored, self.watermark)
        ttl_ms = self._spec.state_ttl_ms
        if record is None or (ttl_ms is not None and record.written + ttl_ms <= self.watermark):
            return None
        return record.state

    def crash_and_restore(self, at: int | None = None, *, event: int | None = None) -> None:
        """Lose everything, restore what was logged by the first `at` epochs, replay the rest.

        Without `at` the last epoch's state is restored and nothing is left to replay. `event`
        crashes after so many of the events sent, in the middle of their epoch. Raises
        ReplayMismatch if an epoch gives other outputs or another state than the first time.
        """
        kept = len(self._done) if at is None else at
        if event is not None:
            kept = self._crash_after(event)
        if not 0 <= kept <= len(self._done):
            raise ValueError(f"there are {len(self._done)} epochs to restore, not {kept}")
        self._restore_before(kept)
        for number, before in enumerate(self._done[kept:], kept + 1):
            done, changes = self._process(before.step, before.version)
            if done != before.processed or not _same(changes, before.changes):
                raise ReplayMismatch(
                    f"Epoch {number}, replayed after a restore at {kept}, gave {done.outputs!r} "
                    f"and not {before.processed.outputs!r}, or left another state: the function "
                    "depends on something besides its events and its state."
                )
            self._entries.apply(changes)

    def _crash_after(self, events: int) -> int:
        """Handle so many events of the epoch in which they end, for nothing; gives its index."""
        before = 0
        for index, done in enumerate(self._done):
            rows = done.step.rows()
            if events <= before + len(rows):
                self._restore_before(index)
                step = replace(done.step, batches=_batches(rows[: events - before]))
                self._process(step, done.version)
                return index
            before += len(rows)
        raise ValueError(f"there were {before} events, not {events}")

    def check_replay(self, orders: int = 50, seed: int = 0) -> None:
        """Handle the events again in other epochs and other interleavings of their keys.

        The order within a key stays, and so does the watermark each event met: what else the
        function depends on is its own fault. Raises ReplayMismatch if any key's outputs differ.
        """
        expected = _by_key(done.processed for done in self._done)
        random = Clock(seed).random
        for order in range(orders):
            found = _by_key(self._replay(random))
            for key in expected.keys() | found.keys():
                if expected.get(key, []) != found.get(key, []):
                    raise ReplayMismatch(
                        f"Order {order} (seed {seed}) of the same events gave key "
                        f"{self._spec.decode_key(key[HASH_BYTES:])!r} the outputs "
                        f"{found.get(key, [])!r} and not {expected.get(key, [])!r}."
                    )

    def vectors(self) -> list[dict[str, Any]]:
        """What was sent and what came out, epoch by epoch, as plain data to run elsewhere."""
        return [
            {
                "events": [(each.input, each.value.decode()) for each in done.step.rows()],
                "watermark_ms": done.step.times.watermark_ms,
                "clock_ms": done.step.times.clock_ms,
                "outputs": [value.decode() for value in done.processed.values],
                "late": done.processed.late,
                "duplicates": done.processed.duplicates,
                "poisoned": [each.value.decode() for each in done.processed.poisoned],
            }
            for done in self._done
        ]

    def _replay(self, random: Random) -> Iterator[Processed]:
        """The steps since the base once more, cut and interleaved anew."""
        there = self._entries
        self._restore_before(0)
        version = self._base_version
        try:
            for step in _joined([done.step for done in self._done]):
                tables = step.tables
                for part in _cut(_interleaved(step.rows(), random), random):
                    version += 1
                    cut = replace(step, batches=_batches(part), tables=tables)
                    done, changes = self._process(cut, version)
                    self._entries.apply(changes)
                    yield done
                    tables = ()
        finally:
            self._entries = there

    def _step(
        self,
        events: Sequence[Any],
        input: str | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> _Step:
        """The epoch that these events begin."""
        written = NO_TIMESTAMP if timestamp is None else timestamp
        if input is not None or not self._spec.inputs:
            batches = [self._batch(input or "", events, written, headers)] if events else []
        else:
            parts = groupby(events, self._input_of)
            batches = [self._batch(name, list(part), written, headers) for name, part in parts]
        times = Times(self.watermark, self.watermark, self.now)
        return _Step(batches, (), times, self._answered(batches))

    def _batch(self, input: str, events: Sequence[Any], timestamp: int, headers: Headers) -> Batch:
        """Events of one input as the operator would get them."""
        spec, encode = self._spec.input(input), self._spec.encode_output
        values = [event if isinstance(event, bytes) else encode(event) for event in events]
        offsets: Sequence[int] = range(self._sent, self._sent + len(values))
        self._sent += len(values)
        origin = f"{input or 'events'}-0"
        decoded, errors = decode_all(spec.decode_event, values)
        keys, refused = decode_all(spec.stored_key_of, decoded)
        poisoned = []
        if errors or refused:
            good = [i for i in range(len(values)) if i not in errors]
            errors |= {good[i]: error for i, error in refused.items()}
            decoded = [event for i, event in enumerate(decoded) if i not in refused]
            poisoned = [
                Poisoned(origin, offsets[i], None, values[i], f"it cannot be read: {error}")
                for i, error in sorted(errors.items())
            ]
            good = [i for i in range(len(values)) if i not in errors]
            offsets, values = [offsets[i] for i in good], [values[i] for i in good]
        times, those = [timestamp] * len(keys), [headers] * len(keys)
        return Batch(
            keys, decoded, origin, offsets, values, input, poisoned, timestamps=times, headers=those
        )

    def _input_of(self, event: Any) -> str:
        if not self._spec.inputs:
            return ""
        found = [name for name, each in self._spec.inputs.items() if each.event_type is type(event)]
        if len(found) != 1:
            raise ValueError(
                f"say which input {event!r} is of: send(…, input=…), one of "
                + ", ".join(self._spec.inputs)
            )
        return found[0]

    def _answered(self, batches: Sequence[Batch]) -> Answers | None:
        if not self._calls:
            return None
        outcomes: dict[tuple[str, bytes], Outcome] = {}
        events = [event for batch in batches for event in batch.events]
        for key, question in questions(self._calls, events).items():
            name, _ = key
            if name not in self._answers:
                raise LookupError(
                    f"nobody answers {name!r}: say what it gives, harness.answer({name!r}, …)"
                )
            call = self._calls[name]
            call.call = self._answers[name]
            outcomes[key] = call.answer(question)
        return Answers(self._calls, outcomes)

    def _epoch(self, step: _Step, *, keep: bool = True) -> Processed:
        self._version += 1
        done, changes = self._process(step, self._version)
        if keep:
            base = self._done[-1].at if self._done else self._base
            at = Position(base.version + 1, f"epoch-{self._version}")
            self._log.append(base, at, changes, self._entries)
            self._done.append(_Done(step, done, changes, self._version, at))
        self._entries.apply(changes)
        self.late += done.late
        self.duplicates += done.duplicates
        self.late_events += done.late_events
        self.poisoned += done.poisoned
        self._last = done
        for at_ms in done.max_event_times.values():
            self.watermark = max(self.watermark, at_ms - self._spec.watermark_ms)
        return done

    def _tick_if_due(self, *, keep: bool = True) -> list[Any]:
        due, due_clock = self._last.next_due_ms, self._last.next_due_clock_ms
        by_watermark = due is not None and due <= self.watermark
        if not by_watermark and (due_clock is None or due_clock > self.now):
            return []
        return self._epoch(self._step(()), keep=keep).outputs

    def _process(self, step: _Step, version: int) -> tuple[Processed, Changes]:
        """Run an epoch on the entries as they are, which stay so."""
        state = ShardState(self._entries, version)
        done = process(
            self._spec, state, step.batches, step.times, tables=step.tables, answers=step.answers
        )
        return done, state.changes

    def _begin_log(self) -> None:
        """Log the state as it is, with nothing before it."""
        self._store = MemoryStore()
        self._log = StateLog(self._store, "state", self._spec.name, 0)
        self._base, self._base_version = Position(1, "base"), self._version
        whole: Changes = tuple(dict(table) for table in self._entries.tables)
        self._log.append(EMPTY, self._base, whole, DictEntries())
        self._done.clear()

    def _restore_before(self, index: int) -> None:
        """On a machine that knows nothing, the state before the epoch of this index."""
        at = self._done[index - 1].at if index else self._base
        self._entries = DictEntries()
        for changes in StateLog(self._store, "state", self._spec.name, 0).read(at):
            self._entries.apply(changes)


def _batches(rows: Sequence[_Row]) -> list[Batch]:
    """One batch for each run of events of one input."""
    found = []
    for input, part in groupby(rows, lambda row: row.input):
        _, keys, events, offsets, values, times, headers = zip(*part, strict=True)
        origin = f"{input or 'events'}-0"
        found.append(
            Batch(keys, events, origin, offsets, values, input, timestamps=times, headers=headers)
        )
    return found


def _same(one: Changes, other: Changes) -> bool:
    """Whether the same was changed in the same order."""
    return [list(table.items()) for table in one] == [list(table.items()) for table in other]


def _by_key(given: Iterable[Processed]) -> dict[bytes, list[Any]]:
    found = defaultdict(list)
    for done in given:
        for key, output in zip(done.output_keys, done.outputs, strict=True):
            found[key].append(output)
    return dict(found)


def _joined(steps: Sequence[_Step]) -> Iterator[_Step]:
    """Steps of the same times as one, as long as no table changes and nobody is asked."""
    waiting: _Step | None = None
    for step in steps:
        if (
            waiting is not None
            and step.times == waiting.times
            and not step.tables
            and step.answers is waiting.answers is None
        ):
            waiting = replace(waiting, batches=[*waiting.batches, *step.batches])
            continue
        if waiting is not None:
            yield waiting
        waiting = step
    if waiting is not None:
        yield waiting


def _interleaved(rows: Sequence[_Row], random: Random) -> list[_Row]:
    """The events in another order that keeps the order of each key."""
    queues = defaultdict(list)
    for each in reversed(rows):
        queues[each.key].append(each)
    turns = [each.key for each in rows]
    random.shuffle(turns)
    return [queues[key].pop() for key in turns]


def _cut(rows: list[_Row], random: Random) -> Iterator[list[_Row]]:
    """The events in batches of random sizes; one empty batch if there are none."""
    start = 0
    while True:
        size = random.randint(1, max(len(rows), 1))
        yield rows[start : start + size]
        start += size
        if start >= len(rows):
            return
