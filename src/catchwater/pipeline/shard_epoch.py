"""One stage of a chain on one machine: a shard's rows of an epoch in, rows out. No Spark.

A shard begins where the ledger says that its state stands (the head row carries it), processes the
epoch, writes the changes to its state log under a fresh token, stages its outputs, and reports all
of that in a manifest. Nobody refers to what it wrote until the driver has written the manifest into
the ledger, so an attempt that fails, is repeated or runs beside another changes nothing.

Local stores stay open in a process between epochs. Another process may use the same directory, and
anyone may delete it: the store itself sees to standing where the ledger wants it.
"""

import platform
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.calls.answers import Answers, bind
from catchwater.pipeline.calls.ask import Calls
from catchwater.pipeline.calls.journal import Journal
from catchwater.pipeline.calls.policy import override
from catchwater.pipeline.functions.spec import HANDLER_TIMEOUT_MS, FunctionSpec, Poison
from catchwater.pipeline.pack import hottest, pack, read_blocks, read_events, read_table
from catchwater.pipeline.process.batch import Batch, Poisoned, Processed, Times
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.poison import Progress
from catchwater.pipeline.rows import (
    DRIVER,
    EVENTS,
    PER_PART,
    Head,
    Manifest,
    Row,
    by_shard,
    head_of,
    shard_labels,
)
from catchwater.pipeline.run.config import DEAD_LETTER
from catchwater.pipeline.run.versions import FunctionCode
from catchwater.pipeline.watchdog import watched
from catchwater.pipeline.workers import Doing, notes
from catchwater.recovery.folder import key_part
from catchwater.recovery.ledger import CallEpoch, ShardEpoch
from catchwater.sinks.base import RETRACTS_ID_HEADER, OutputRecord, Stager
from catchwater.sinks.epochs import store_at
from catchwater.state.entries import ShardState
from catchwater.state.keys import HASH_BYTES
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore, read_boot_id

T = TypeVar("T")

JOURNAL = "calls"
"""The folder of the call journals in the checkpoint's store."""

_WRITERS = 4
_AHEAD_BYTES = 4 << 20
"""Shards are computed beyond the one that is being written, whose changes are held in memory: one,
and more as long as the events of all of them take so many bytes."""


@dataclass(frozen=True)
class Stage:
    """One function of a chain, and where its state and outputs go; pickles."""

    index: int
    code: FunctionCode
    shards: int
    objects: str
    """URL of the object store that holds the state logs."""
    folder: str
    """This stage's state logs in it."""
    function: str
    """The name that its state is known by."""
    local: str
    """Where this machine keeps its copies of the stage's shards."""
    stagers: Mapping[str, Stager]
    retracting: frozenset[str] = frozenset()
    """The sinks among them that take retractions as well."""
    next: FunctionCode | None = None
    """The function that takes the outputs; None: the last one of the chain."""
    dead_letters: Stager | None = None
    late: Stager | None = None
    """Of the sink that takes this function's late events; None: they are not kept apart, or go to
    the dead letters."""
    poison: Poison | None = None
    """None: as the function declares."""
    handler_timeout_ms: int = HANDLER_TIMEOUT_MS
    calls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By call: what is to be other than the function declares."""

    def log(self, shard: int) -> StateLog:
        """The state log of one of its shards."""
        return StateLog(store_at(self.objects), self.folder, self.function, shard)

    @property
    def journal(self) -> Journal:
        """What the function's endpoints have answered."""
        return Journal(store_at(self.objects), JOURNAL, key_part(self.function))


def run_stage(stage: Stage, rows: Sequence[Row], clock: Clock = SYSTEM) -> Iterator[Row]:
    """Run the stage's shards that are among the rows; what is for later stages passes through.

    One shard is computed at a time; what those before leave is made durable meanwhile.
    """
    began_s = clock.monotonic_s()
    spec = stage.code.load()
    yield from (row for row in rows if row.stage != stage.index)
    own = by_shard(row for row in rows if row.stage == stage.index)
    waiting: deque[tuple[Callable[[], list[Row]], int]] = deque()
    with closing(_Stores(stage)) as stores, ThreadPoolExecutor(_WRITERS) as writers:
        for shard, of_shard in own.items():
            run = _Shard(stage, spec, shard, clock)
            size_bytes = sum(len(row.blob) for row in of_shard)
            waiting.append((run(of_shard, stores, writers, began_s), size_bytes))
            while len(waiting) > 1 and sum(size for _, size in waiting) > _AHEAD_BYTES:
                yield from waiting.popleft()[0]()
        for written, _ in waiting:
            yield from written()


class _Shard:
    """One shard in one epoch."""

    def __init__(self, stage: Stage, spec: FunctionSpec, shard: int, clock: Clock) -> None:
        self._stage = stage
        self._spec = spec
        self._shard = shard
        self._clock = clock

    def __call__(
        self, rows: Sequence[Row], stores: "_Stores", writers: Executor, began_s: float
    ) -> Callable[[], list[Row]]:
        """Compute the epoch, and let it be written; the rows for others, once it is."""
        head = head_of(rows)
        taking_s = self._clock.monotonic_s()
        store, log = stores.take(self._shard)
        loading_s = self._clock.monotonic_s()
        state = store.begin(head.base, log)
        loaded_s = self._clock.monotonic_s()
        restore_s, read_bytes = loaded_s - loading_s, store.read_bytes
        done, calls, spent = self._process(head, state, rows)
        logged = writers.submit(store.finish, self._clock.token())
        records = self._records(done, head)
        results = [each for each in records if not each.retracts] if done.retractions else records
        staged = {
            name: writers.submit(
                stager.stage,
                head.epoch,
                self._shard,
                records if name in self._stage.retracting else results,
            )
            for name, stager in self._stage.stagers.items()
        }
        for name, stager, records_aside in self._aside(done):
            place = self._stage.index * self._stage.shards + self._shard
            letters = [self._letter(each, head) for each in records_aside]
            staged[name] = writers.submit(stager.stage, head.epoch, place, letters)
        forwarded = list(self._forward(results))

        def written() -> list[Row]:
            waiting_s = self._clock.monotonic_s()
            state, outputs = logged.result(), {name: each.result() for name, each in staged.items()}
            durable_s = self._clock.monotonic_s()
            stores.give_back(self._shard)
            entry = ShardEpoch(
                shard=self._shard,
                stage=self._stage.index,
                version=state.at.version,
                token=state.at.token,
                **_counts(done),
                state_bytes=state.state_bytes,
                delta_bytes=state.delta_bytes,
                written_bytes=state.written_bytes,
                keys=head.keys + done.keys,
                rebuilt_bytes=read_bytes,
                restore_s=round(restore_s, 4),
                operator_ms=round(1000 * (durable_s - began_s), 2),
                state_ms=round(1000 * (loaded_s - taking_s + durable_s - waiting_s), 2),
                calls=calls,
                host=platform.node(),
                **spent,
            )
            manifest = Manifest(entry, outputs)
            blob = msgspec.msgpack.encode(manifest)
            return [*forwarded, Row(rows[0].label, DRIVER, self._shard, 0, blob)]

        return written

    def _process(
        self, head: Head, state: ShardState, rows: Sequence[Row]
    ) -> tuple[Processed, dict[str, CallEpoch], dict[str, Any]]:
        """What came of the events, what was asked meanwhile, and where the time went."""
        tables = [read_table(row.blob) for row in rows[1:] if row.sequence < EVENTS]
        blobs = [row.blob for row in rows[1:] if row.sequence >= EVENTS]
        batches = _Events(self._spec, blobs, self._clock)
        asking_s = self._clock.monotonic_s()
        answers, calls = self._answers(head, batches)
        asked_s = self._clock.monotonic_s() - asking_s - batches.decode_s
        batches.decode_s = 0.0  # what was decoded to ask
        handling_s, cpu_s, reads = self._clock.monotonic_s(), thread_time(), _disk_reads()
        with self._watched(head) as progress:
            done = process(
                self._spec,
                state,
                batches,
                Times(head.watermark_ms, head.watermark_ms, head.clock_ms),
                blocks=batches.blocks(),
                tables=tables,
                poison=self._stage.poison,
                answers=answers,
                progress=progress,
                chained=self._stage.index > 0,
            )
        hot_key, hot_events = hottest(self._spec, batches.blobs)
        spent = {
            "hot_key": hot_key,
            "hot_events": hot_events,
            "handle_ms": round(1000 * (self._clock.monotonic_s() - handling_s), 2),
            "decode_ms": round(1000 * batches.decode_s, 2),
            "cpu_ms": round(1000 * (thread_time() - cpu_s), 2),
            "calls_ms": round(1000 * asked_s, 2) if calls else 0.0,
            "disk_reads": _disk_reads() - reads,
        }
        return done, calls, spent

    @contextmanager
    def _watched(self, head: Head) -> Iterator[Progress]:
        """Bound each call of a handler, and do not try again an event that ended its process."""
        stage, box = self._stage, notes()
        progress = Progress()
        doing = Doing(stage.function, stage.index, self._shard, head.epoch)
        if box is not None:
            before = box.before(doing)
            progress.careful = bool(before)
            progress.known = {
                each.doing.cause: each.blame or f"the process that handled it {each.how}."
                for each in before
                if each.doing and each.doing.cause
            }
            progress.note = lambda cause: box.write(replace(doing, cause=cause))
            progress.spread = lambda cause, text: box.blame(replace(doing, cause=cause), text)
            box.write(doing)
        try:
            with watched(progress, stage.function, stage.handler_timeout_ms):
                yield progress
        finally:
            if box is not None:
                box.write(None)

    def _answers(
        self, head: Head, batches: Iterable[Batch]
    ) -> tuple[Answers | None, dict[str, CallEpoch]]:
        """What the function's endpoints say to the epoch's events."""
        if not self._spec.calls:
            return None, {}
        calls = _CALLS.get(self._stage.code)
        if calls is None:
            declared = {
                name: override(call, self._stage.calls.get(name, {}))
                for name, call in self._spec.calls.items()
            }
            calls = Calls(bind(self._spec.target, declared), self._stage.journal, self._clock)
            _CALLS[self._stage.code] = calls
        events = (event for batch in batches for event in batch.events)
        return calls.answers(head.epoch, self._shard, events)

    def _records(self, done: Processed, head: Head) -> list[OutputRecord]:
        """The outputs under the key they came from, stamped with the epoch's clock."""
        records = [
            OutputRecord(key[HASH_BYTES:], value, head.clock_ms)
            for key, value in zip(done.output_keys, done.values, strict=True)
        ]
        identity = ",".join(self._spec.output_id).encode()
        for at in done.retractions:
            records[at] = records[at]._replace(headers=((RETRACTS_ID_HEADER, identity),))
        return records

    def _aside(self, done: Processed) -> Iterator[tuple[str, Stager, Sequence[Poisoned]]]:
        """Events that were not handled, by the sink that takes them."""
        stage, late_sink = self._stage, self._spec.late_sink
        if stage.dead_letters is not None:
            late = done.late_events if late_sink == DEAD_LETTER else ()
            yield DEAD_LETTER, stage.dead_letters, [*done.poisoned, *late]
        if stage.late is not None and late_sink is not None:
            yield late_sink, stage.late, done.late_events

    def _letter(self, poisoned: Poisoned, head: Head) -> OutputRecord:
        """A record as it came, with where it came from and why it was not handled."""
        topic, _, partition = poisoned.origin.rpartition("-")
        place = {
            "topic": topic or poisoned.origin,
            "partition": partition if topic else "",
            "offset": str(poisoned.offset),
            "error": poisoned.error,
            "function": self._stage.function,
        }
        headers = tuple((name, text.encode()) for name, text in place.items())
        return OutputRecord(poisoned.key or b"", poisoned.value, head.clock_ms, headers)

    def _forward(self, records: Sequence[OutputRecord]) -> Iterator[Row]:
        """The outputs as events of the next stage, by its shards; it learns of no retraction."""
        stage = self._stage
        if stage.next is None or not records:
            return
        labels = shard_labels(stage.shards)
        packed = pack(
            stage.next.load(),
            None,
            pa.array([record.value for record in records], pa.binary()),
            pa.array(range(len(records)), pa.int64()),
            pa.array([record.timestamp_ms for record in records], pa.int64()),
            origin=f"{stage.function}-{self._shard}",
            shards=stage.shards,
        )
        sequence = EVENTS + self._shard * PER_PART
        for shard, blob in packed:
            yield Row(labels[shard], stage.index + 1, shard, sequence, blob)


@dataclass
class _Events:
    """An epoch's events, decoded as often as one goes through them.

    Only a batch of them lives at a time: it fits into the processor's cache, an epoch does not.
    """

    spec: FunctionSpec
    blobs: Sequence[bytes]
    clock: Clock
    decode_s: float = 0.0
    """How long decoding took so far."""

    def __iter__(self) -> Iterator[Batch]:
        return self._timed(read_events(self.spec, self.blobs))

    def blocks(self) -> Iterator[Iterator[Batch]]:
        """The same by blocks of keys."""
        return map(self._timed, self._timed(read_blocks(self.spec, self.blobs)))

    def _timed(self, made: Iterator[T]) -> Iterator[T]:
        while True:
            began_s = self.clock.monotonic_s()
            try:
                each = next(made)
            except StopIteration:
                return
            finally:
                self.decode_s += self.clock.monotonic_s() - began_s
            yield each


_CALLS: dict[FunctionCode, Calls] = {}
"""What this process asks, with its threads and breakers."""


class _Open(NamedTuple):
    """A shard's store and the log it follows."""

    store: ShardStore
    log: StateLog
    home: tuple[str, str, str]
    """Where the log lies, and whose it is."""


_STORES: dict[Path, _Open] = {}
"""By directory: what this process keeps open between epochs."""


class _Stores:
    """The stores that an epoch has taken; what it does not give back may be torn and is closed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._taken: dict[int, _Open] = {}

    def take(self, shard: int) -> tuple[ShardStore, StateLog]:
        """The shard's store and log, opened if this process has not done so yet."""
        stage, directory = self._stage, self._directory(shard)
        home = (stage.objects, stage.folder, stage.function)
        kept = _STORES.pop(directory, None)
        if kept is not None and kept.home != home:
            kept.store.close()  # the directory was another checkpoint's before
            kept = None
        if kept is None:
            store = ShardStore.open(directory, stage.function, shard, read_boot_id())
            kept = _Open(store, stage.log(shard), home)
        self._taken[shard] = kept
        return kept.store, kept.log

    def give_back(self, shard: int) -> None:
        """The shard's epoch is written: its store may go on to the next."""
        _STORES[self._directory(shard)] = self._taken.pop(shard)

    def close(self) -> None:
        """Close what was not given back."""
        for each in self._taken.values():
            each.store.close()

    def _directory(self, shard: int) -> Path:
        return Path(self._stage.local) / str(shard)


def _disk_reads() -> int:
    """Pages that this process had to wait for (getrusage(2), major faults)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _counts(done: Processed) -> dict[str, Any]:
    """What the ledger keeps of it."""
    return {
        "events": done.events,
        "outputs": len(done.outputs),
        "late": done.late,
        "duplicates": done.duplicates,
        "timers": done.timers,
        "poisoned": len(done.poisoned),
        "max_event_times": done.max_event_times,
        "next_due_ms": done.next_due_ms,
        "next_due_clock_ms": done.next_due_clock_ms,
    }
