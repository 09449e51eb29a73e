"""What the driver does within an epoch, and after it.

**Within**, `EpochWriter` is Spark's `foreachBatch`: before Spark commits, it commits to the sinks
and then writes the ledger's entry, so an entry means that the epoch's outputs are visible. The
entry commits the state: it has the position of every shard.

**After**, `Upkeep` follows one step behind Spark's commits. It chooses the restore points and sets
their pins, then writes the contract that promises them, then deletes what none of them needs:
entries of the ledger, objects of the state logs, endpoints' answers, and what sinks have kept. It
measures how fast the pipeline goes (`PaceMeter`) and how long a restore took (`RestoreWatch`), of
which `recovery.estimate` says how long the next one takes.

The driver may be killed between any two steps: the epoch is repeated, and so is the upkeep.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.calls.journal import Journal
from catchwater.pipeline.process.poison import PoisonLimitReached
from catchwater.pipeline.rows import Manifest
from catchwater.pipeline.run.versions import rollback_from
from catchwater.recovery import checkpoint, contract, handover, pins, progress, remote
from catchwater.recovery.contract import Contract, Tails, Terms
from catchwater.recovery.estimate import (
    LEAST_NEAR_S,
    Estimate,
    Pace,
    RestoreSample,
    Tail,
    add_sample,
    load_samples,
    near_of,
    offsets_read,
)
from catchwater.recovery.folder import held
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SinkEpoch,
    numbered,
    parts_ms,
    read_offset,
)
from catchwater.recovery.points import Choice, PointPolicy, thin
from catchwater.recovery.savepoint.store import settle_claim
from catchwater.replay.control import Control
from catchwater.sinks.base import EpochDiffers, EpochMissing, Sink, Staged, epoch_checksum
from catchwater.state.log import StateLog
from catchwater.verdicts import spelled_s

_log = logging.getLogger("catchwater.pipeline")

LOOK_EVERY_S = 0.5
"""Asking and telling the log costs a good part of what a short epoch does."""
SWEEP_EVERY_S = 10.0
"""Listing a store costs more than the garbage that a few epochs leave."""

PINS_EVERY_S = 30.0
"""How often pins are checked where restore points are chosen by time and none is new."""

WARN_EVERY_S = 60.0
"""A breach of a budget is said when it begins, and again so often while it lasts."""

Logs = Mapping[tuple[int, int], StateLog]
"""(stage, shard) → its state log."""


class EpochTorn(CatchwaterError):
    """Spark's batch, our offsets and the shards' answers do not belong to one epoch."""

    exit_code = 5


class EpochWriter:
    """One pipeline's `foreachBatch`."""

    def __init__(
        self,
        ledger: Ledger,
        sinks: Mapping[str, Sink],
        manifests: int,
        clock: Clock,
        *,
        poison_limit: int | None = None,
        collected_ms: Callable[[], float] = lambda: 0.0,
        place: Callable[[Any, int], Any] = lambda rows, epoch: rows,
    ) -> None:
        """`manifests`: how many an epoch has, one for each shard of each stage.

        `poison_limit`: with more poisoned records, over all epochs, no epoch is committed.
        `collected_ms`: how long the JVM has stood still to collect garbage so far.
        `place`: makes the manifests of the rows that Spark gives, unless they are these.
        """
        self._collected_ms = collected_ms
        self._place = place
        self._poison_limit = poison_limit
        self._ledger = ledger
        self._sinks = sinks
        self._manifests = manifests
        self._clock = clock
        self.failure: CatchwaterError | None = None
        """What made an epoch fail here; Spark itself only keeps its text."""

    def __call__(self, rows: Any, epoch: int) -> None:
        """Run the epoch and write it, once."""
        began_s, collected_ms = self._clock.monotonic_s(), self._collected_ms()
        try:
            answers = self._place(rows, epoch).collect()
            found = [msgspec.msgpack.decode(row.blob, type=Manifest) for row in answers]
            run_ms = (self._clock.monotonic_s() - began_s) * 1000
            found.sort(key=lambda each: (each.shard.stage, each.shard.shard))
            self._write(epoch, found, round(run_ms, 1), self._collected_ms() - collected_ms)
        except CatchwaterError as error:
            self.failure = error
            raise

    def _commit(
        self, epoch: int, manifests: Sequence[Manifest], took_ms: dict[str, float]
    ) -> dict[str, SinkEpoch]:
        """Write the outputs, and how long each sink took; of an epoch that another driver leads,
        only keep them to compare.
        """
        staged = {
            name: [each.staged[name] for each in manifests if name in each.staged]
            for name in self._sinks
        }
        if handover.is_shadow(self._ledger.checkpoint, epoch):
            for name, sink in self._sinks.items():
                sink.truth.record(epoch, staged[name], self._clock.now_ms())
            led = handover.leaders_entry(self._ledger.checkpoint, epoch)
            return led.sinks if led else {}
        written = {}
        for name, sink in self._sinks.items():
            began_s = self._clock.monotonic_s()
            remote.hold(self._ledger.checkpoint)
            try:
                written[name] = sink.commit(epoch, staged[name])
            except EpochMissing as missing:
                written[name] = self._forgotten(name, epoch, staged[name], missing)
            took_ms[name] = round((self._clock.monotonic_s() - began_s) * 1000, 1)
        return written

    def _forgotten(
        self, name: str, epoch: int, staged: Sequence[Staged], missing: EpochMissing
    ) -> SinkEpoch:
        """What the sink made of an epoch that runs again, and of which it has no mark any more.

        A restore may go back farther than sinks keep marks. Raises `missing` where the sink never
        had the epoch, and `EpochDiffers`.
        """
        recorded = self._ledger.recorded_sinks(epoch).get(name)
        newest = self._sinks[name].last_epoch()
        if recorded is None or newest is None or newest < epoch:
            raise missing
        if recorded.checksum != epoch_checksum(staged):
            raise EpochDiffers(
                f"The sink {name!r} was given epoch {epoch} with checksum {recorded.checksum}; "
                f"this run of the epoch gave {epoch_checksum(staged)}.",
                hint="The function is not deterministic: what it is given again must have the same "
                "outputs.",
            )
        return recorded

    def _write(
        self, epoch: int, manifests: Sequence[Manifest], run_ms: float, gc_ms: float
    ) -> None:
        end = read_offset(self._ledger.checkpoint / "offsets" / str(epoch))
        if end.epoch != epoch or len(manifests) != self._manifests:
            raise EpochTorn(
                f"Spark ran batch {epoch}; its offsets end epoch {end.epoch}, and "
                f"{len(manifests)} of {self._manifests} shards answered. Nothing was committed.",
                hint="Restore a checkpoint: catchwater recovery restore FILE --checkpoint N.",
            )
        base = self._ledger.base(epoch)
        shards = [manifest.shard for manifest in manifests]
        poisoned = (base.poisoned if base else 0) + sum(each.poisoned for each in shards)
        if self._poison_limit is not None and poisoned > self._poison_limit:
            raise PoisonLimitReached(
                f"The pipeline has met {poisoned} records it cannot handle, {self._poison_limit} "
                f"are allowed; epoch {epoch} was not committed.",
                hint="Correct the function or its event class, or raise poison_limit.",
            )
        # From here on the epoch's end is fixed, also for a driver that repeats it elsewhere.
        remote.publish(self._ledger.checkpoint, ask=True)
        sink_ms: dict[str, float] = {}
        written = self._commit(epoch, manifests, sink_ms)
        seen = dict(base.seen) if base else {}
        for shard in shards:
            for origin, at in shard.max_event_times.items() if shard.stage == 0 else ():
                seen[origin] = max(at, seen.get(origin, at))
        self._ledger.write(
            EpochEntry(
                epoch=epoch,
                start=base.end if base else self._ledger.start_of(epoch),
                end=end,
                shards=shards,
                sinks=written,
                finished_ms=self._clock.now_ms(),
                seen=seen,
                poisoned=poisoned,
                run_ms=run_ms,
                sink_ms=sink_ms,
                gc_ms=gc_ms,
            )
        )
        remote.publish(self._ledger.checkpoint)


class Upkeep:
    """Pins, contracts and forgetting, one step behind Spark's commits."""

    def __init__(
        self,
        folder: Path,
        control: Control | None,
        tails: Callable[[Iterable[str]], Tails],
        terms: Terms,
        *,
        kept: PointPolicy,
        logs: Callable[[], Logs],
        sinks: Mapping[str, Sink],
        journals: Sequence[Journal],
        watch: "RestoreWatch | None",
        clock: Clock,
        since: Callable[[int], Mapping[tuple[str, int], int]] | None = None,
    ) -> None:
        """`since`: the input's offsets at a time, ms; None: the log has no pins."""
        self._folder = folder
        self._ledger = Ledger(folder)
        self._control = control
        self._tails = tails
        self._terms = terms
        self._kept = kept
        self._known: dict[int, checkpoint.Checkpoint] = {}
        """Epochs that are there, as far as they were read: their ends do not change."""
        self._pinned: tuple[list[int], float, int] = ([], 0.0, 0)
        """The points that were pinned last, when, and the clock of the oldest that could be."""
        self._since = since
        self._history_s: float | None = None
        """When the pin of the functions' history was set."""
        self._said_short = False
        self._open_logs = logs
        self._sinks = sinks
        self._journals = journals
        self._watch = watch
        self._meter = PaceMeter()
        self._clock = clock
        self.newest: Contract | None = None
        """What was last written here."""
        self._warned: tuple[list[str], float] = ([], 0.0)
        """Which budgets were said to be breached, and when."""
        self._done = checkpoint.last_commit(folder)
        self._swept_s = clock.monotonic_s()
        self._looked_s = 0.0

    def look(self, *, at_once: bool = False) -> list[EpochEntry]:
        """Do what is due for epochs that Spark has committed since; they are returned.

        Unless `at_once`, does nothing more than twice a second: short epochs are done together.
        """
        now_s = self._clock.monotonic_s()
        if not at_once and now_s - self._looked_s < LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        newest = checkpoint.last_commit(self._folder)
        if newest <= self._done:
            return []
        entries = [self._entry(epoch) for epoch in range(self._done + 1, newest + 1)]
        tails = self._tails(entries[-1].end.needed)
        self._measure(entries, tails)
        self._bind(entries, tails)
        release = self._control.release_pin if self._control else _nothing_to_release
        settle_claim(self._folder, newest, release, self._clock)
        self._done = newest
        return entries

    @cached_property
    def _logs(self) -> Logs:
        """The shards' state logs; opened by the first sweep, and no start waits for that."""
        return self._open_logs()

    def _entry(self, epoch: int) -> EpochEntry:
        entry = self._ledger.read(epoch)
        if entry is None:
            raise LedgerDamaged(f"Spark committed epoch {epoch}, and the ledger has no entry.")
        return entry

    def _measure(self, entries: Sequence[EpochEntry], tails: Tails) -> None:
        ends = {key: tail.high_watermark for key, tail in tails.items()}
        self._meter.look(ends, self._clock.now_ms())
        for entry in entries:
            self._meter.epoch_done(entry)
            if self._watch is None:
                continue
            sample = self._watch.epoch_done(entry, self._clock.monotonic_s(), ends)
            if sample is not None:
                ended = msgspec.structs.replace(sample, ended_ms=entry.finished_ms)
                add_sample(self._folder, ended)
                self._watch = None
                progress.end(self._folder)
        if self._watch is not None:
            progress.move_on(self._folder, ends)

    def _bind(self, entries: Sequence[EpochEntry], tails: Tails) -> None:
        choice = self._kept.choose(self._committed())
        oldest_clock_ms = self._pin(choice, tails)
        self._keep_history()
        points = {each.epoch for each in choice.points}
        kept = points | {epoch for epoch in self._known if epoch >= choice.whole_from}
        for entry in (*self._missed(kept, entries[0].epoch), *entries):
            if entry.epoch >= choice.whole_from or entry.epoch in points:
                pinned_by = choice.covering(entry.epoch)
                written = self._contract(entry, tails, oldest_clock_ms, pinned_by)
                contract.write_contract(self._folder, written)
                self.newest = written
        if self.newest is not None:
            self._warn(self.newest)
        self._warn_of_long_epochs(entries)
        holds = held(self._folder)
        thin(self._folder, self._kept, choice, holds)
        oldest = min([choice.points[0].epoch, *holds])
        contract.forget_contracts_before(self._folder, oldest)
        self._ledger.forget_before(oldest)
        remote.publish(self._folder)
        if self._clock.monotonic_s() - self._swept_s >= SWEEP_EVERY_S:
            self.sweep()

    def _committed(self) -> list[checkpoint.Checkpoint]:
        """The epochs that one could go back to, oldest first."""
        known = {
            epoch: self._known.get(epoch) or checkpoint.read_one(self._folder, epoch)
            for epoch in checkpoint.committed_epochs(self._folder)
        }
        self._known = {epoch: each for epoch, each in known.items() if each}
        return [*self._known.values()]

    def _pin(self, choice: Choice, tails: Tails) -> int:
        """Pin the restore points; the clock of the oldest that the log still has."""
        if self._control is None:
            return choice.points[0].end.clock_ms
        wanted, now_s = [each.epoch for each in choice.points], self._clock.monotonic_s()
        before, at_s, oldest_ms = self._pinned
        if wanted != before or now_s - at_s >= PINS_EVERY_S or not self._kept.every_ms:
            found = pins.hold(self._control, self._terms.pipeline, choice.points, tails)
            oldest_ms = found[0].end.clock_ms
            self._pinned = wanted, now_s, oldest_ms
        return oldest_ms

    def _keep_history(self) -> None:
        """Move the pin of what functions need of the past (`needs_history`) on with the clock."""
        needs_ms, now_s = self._terms.needs_history_ms, self._clock.monotonic_s()
        if self._control is None or self._since is None:
            return
        every_s = max(PINS_EVERY_S, needs_ms / 1000 / 100)
        if self._history_s is not None and (not needs_ms or now_s - self._history_s < every_s):
            return
        since = self._since(self._clock.now_ms() - needs_ms) if needs_ms else None
        pins.hold_history(self._control, self._terms.pipeline, since)
        self._history_s = now_s

    def _warn_of_long_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Say once that an epoch takes longer than restore points are to be apart."""
        longest = max(entries, key=lambda each: each.run_ms)
        if not self._kept.every_ms or self._said_short or longest.run_ms <= self._kept.every_ms:
            return
        self._said_short = True
        _log.warning(
            "checkpoints = %s is shorter than an epoch: epoch %d took %s. Every epoch is a restore "
            "point then; maxOffsetsPerTrigger makes epochs shorter.",
            spelled_s(self._kept.every_ms / 1000), longest.epoch, spelled_s(longest.run_ms / 1000),
        )  # fmt: skip

    def _missed(self, kept: Iterable[int], before: int) -> list[EpochEntry]:
        """Epochs for which the last driver died before it wrote their contracts."""
        if self.newest is not None:
            return []
        there = {*numbered(self._ledger.folder / "contracts", ".json")}
        missed = sorted(each for each in kept if each < before and each not in there)
        return [entry for each in missed if (entry := self._ledger.read(each))]

    def _contract(
        self, entry: EpochEntry, tails: Tails, oldest_clock_ms: int, pinned_by: int
    ) -> Contract:
        return contract.compute(
            entry,
            tails,
            self._terms,
            load_samples(self._folder),
            oldest_clock_ms=oldest_clock_ms,
            now_ms=self._clock.now_ms(),
            pace=self._meter.pace(),
            pinned_by=pinned_by,
        )

    def _warn(self, newest: Contract) -> None:
        """Say which budgets are breached, when that changes and once a minute."""
        found = [each for each in contract.budgets(newest) if each.verdict != "pass"]
        subjects, now_s = [each.subject for each in found], self._clock.monotonic_s()
        before, said_s = self._warned
        if subjects == before and now_s - said_s < WARN_EVERY_S:
            return
        for each in found:
            _log.warning("Checkpoint %d, %s: %s.", newest.epoch, each.subject, each.message)
        self._warned = subjects, now_s

    def sweep(self) -> None:
        """Delete what no entry of the ledger refers to and no running epoch can have written."""
        remote.publish(self._folder, ask=True)
        # An entry that Spark has not committed may be replaced by one with other tokens.
        committed = checkpoint.last_commit(self._folder)
        epochs = (epoch for epoch in self._ledger.epochs() if epoch <= committed)
        entries = [entry for epoch in epochs if (entry := self._ledger.read(epoch))]
        if not entries:
            return
        for (stage, shard), log in self._logs.items():
            log.sweep(entry.positions(stage)[shard] for entry in entries)
        # What runs again from an older restore point is compared with the ledger, not with these.
        now_ms, oldest = self._clock.now_ms(), self._ledger.recent(entries)[0].epoch
        if (back := rollback_from(self._folder, now_ms)) is not None:
            oldest = min(oldest, back)
        for sink in self._sinks.values():
            sink.sweep(oldest, now_ms)
        for journal in self._journals:
            journal.forget_before(entries[0].epoch)
        self._swept_s = self._clock.monotonic_s()


def _nothing_to_release(pin: str) -> None:
    """A log without pins."""


# --- how fast it goes -----------------------------------------------------------------------------

WINDOW_MS = 300_000
NOW_MS = 60_000
_LOOK_MS = 5_000
"""Ends of the log are remembered no more often than this."""
_LEAST_WORK_MS = 100.0
"""Less time in functions and sinks than this is the fixed cost of an epoch, with any content."""
_SATURATED_MS = 30_000
"""A pipeline that falls behind for less has met a burst."""
_BUSY, _KEPT_UP = 0.8, 0.95
_LEAST_SPAN_S = 0.05
"""Shorter spans are noise of the clock, not a rate."""


class _Ran(NamedTuple):
    """One epoch, as far as the pace goes."""

    ended_ms: int
    records: int
    busy_ms: int
    """How long it was under way."""
    work_ms: float
    """How long its functions and sinks took; 0: not measured."""


class PaceMeter:
    """Measures a running pipeline's pace over the last five minutes."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, dict[tuple[str, int], int]]] = deque()
        """When, and where the log ended; oldest first."""
        self._epochs: deque[_Ran] = deque()

    def look(self, tail: Tail, now_ms: int) -> None:
        """Where the log ends now."""
        if len(self._ends) > 1 and now_ms - self._ends[-2][0] < _LOOK_MS:
            self._ends.pop()
        self._ends.append((now_ms, dict(tail)))
        while len(self._ends) > 2 and self._ends[0][0] < now_ms - WINDOW_MS:
            self._ends.popleft()

    def epoch_done(self, entry: EpochEntry) -> None:
        """An epoch that was committed; in their order."""
        began_ms = entry.end.clock_ms  # an old one, where the epoch is a replayed one
        if self._epochs:
            began_ms = max(began_ms, self._epochs[-1].ended_ms)
        elif entry.run_ms:
            began_ms = max(began_ms, entry.finished_ms - round(entry.run_ms))
        busy_ms = max(1, entry.finished_ms - began_ms)
        parts = parts_ms(entry)
        work_ms = parts["function"] + parts["sinks"] if parts else 0.0
        if entry.total("rebuilt_bytes"):
            work_ms = 0.0  # and most of it was reading state
        self._epochs.append(_Ran(entry.finished_ms, offsets_read(entry), busy_ms, work_ms))
        while self._epochs[0].ended_ms < entry.finished_ms - WINDOW_MS:
            self._epochs.popleft()

    def pace(self) -> Pace:
        """As far as it is known."""
        input_per_s, longer_per_s = (self._input_per_s(each) for each in (NOW_MS, WINDOW_MS))
        if not self._epochs:
            return Pace(input_per_s, longer_per_s=longer_per_s)
        records = sum(each.records for each in self._epochs)
        busy_ms = sum(each.busy_ms for each in self._epochs)
        first = self._epochs[0]
        span_ms = self._epochs[-1].ended_ms - first.ended_ms + first.busy_ms
        kept_up = records >= _KEPT_UP * longer_per_s * span_ms / 1000
        return Pace(
            input_per_s=input_per_s,
            longer_per_s=longer_per_s,
            busy_per_s=1000 * records / busy_ms,
            saturated=not kept_up and span_ms >= _SATURATED_MS and busy_ms >= _BUSY * span_ms,
            kept_up=kept_up and span_ms >= _SATURATED_MS,
            interval_s=span_ms / 1000 / len(self._epochs),
            near_s=near_of(median(each.busy_ms for each in self._epochs)),
            work_per_s=self._work_per_s(),
        )

    def _work_per_s(self) -> float:
        read = [each for each in self._epochs if each.records]
        long = [each for each in read if each.work_ms >= _LEAST_WORK_MS]
        if not long or 2 * len(long) < len(read):
            return 0.0
        return 1000 * sum(each.records for each in long) / sum(each.work_ms for each in long)

    def _input_per_s(self, window_ms: int) -> float:
        if len(self._ends) < 2:
            return 0.0
        now_ms, now = self._ends[-1]
        # From the last look before the window: an idle pipeline has none in it.
        earlier = [each for each in self._ends if each[0] <= now_ms - window_ms]
        began_ms, before = earlier[-1] if earlier else self._ends[0]
        came = sum(max(0, now[key] - end) for key, end in before.items() if key in now)
        return 1000 * came / max(1, now_ms - began_ms)


_STEADY = 0.97
"""A lag is steady if an epoch leaves at least this share of what the epoch before it left."""


class RestoreWatch:
    """Watches the epochs of one start, from `began_s` (monotonic) on.

    `tail` is the log's end when the start has looked at it, at `looked_s`. An epoch always ends
    behind what came while it ran; so the restore is over when no more is left than comes in
    `near_s`, or when what is left is only that and has ceased to become less. `foretold` is what
    the contract had said of it, which is kept beside what it took.
    """

    def __init__(
        self,
        began_s: float,
        tail: Tail,
        tasks: int,
        *,
        looked_s: float | None = None,
        near_s: float = LEAST_NEAR_S,
        scheduling_s: float | None = None,
        detection_s: float | None = None,
        foretold: Estimate | None = None,
    ) -> None:
        self._began_s = began_s
        self._foretold = foretold
        self._tail = tail
        self._tasks = tasks
        self._looked_s = began_s if looked_s is None else looked_s
        self._near_s = near_s
        self._scheduling_s, self._detection_s = scheduling_s, detection_s
        self._first: EpochEntry | None = None
        self._first_end_s = 0.0
        self._records = 0
        self._before = (0, 0)
        """Behind the last epoch: what had come since the start, and what was left."""

    def epoch_done(
        self, entry: EpochEntry, now_s: float, tail: Tail | None = None
    ) -> RestoreSample | None:
        """Take an epoch that was committed; the sample, once it is near the log's end.

        `tail` is where the log ends now; None: where it ended at the start.
        """
        if self._first is None:
            self._first, self._first_end_s = entry, now_s
        else:
            self._records += offsets_read(entry)
        if not self._is_over(entry, now_s, self._tail if tail is None else tail):
            return None
        first = self._first
        state_s = sum(shard.restore_s for shard in first.shards) / self._tasks
        # What Spark did for it, beside rebuilding state; 0 where that was not measured.
        worked_s = (first.run_ms + sum(first.sink_ms.values())) / 1000 if first.run_ms else 0.0
        first_s = max(0.0, worked_s - state_s)
        startup_s = self._first_end_s - self._began_s - state_s - first_s
        rebuilt = first.total("rebuilt_bytes")
        return RestoreSample(
            epoch=first.epoch,
            startup_s=round(max(0.0, startup_s), 3),
            state_bytes=rebuilt,
            state_s=round(state_s, 3),
            replay_records=self._records,
            replay_s=round(now_s - self._first_end_s, 3),
            first_records=offsets_read(first) if first_s else 0,
            first_s=round(first_s, 3),
            scheduling_s=self._scheduling_s,
            detection_s=self._detection_s,
            estimated_s=self._estimated_s(rebuilt),
        )

    def _estimated_s(self, rebuilt_bytes: int) -> float | None:
        foretold = self._foretold
        if foretold is None:
            return None
        if rebuilt_bytes or foretold.with_local_s is None:
            return foretold.seconds
        return foretold.with_local_s

    def _is_over(self, entry: EpochEntry, now_s: float, tail: Tail) -> bool:
        came = sum(max(0, tail.get(key, end) - end) for key, end in self._tail.items())
        left = self._left(entry, {key: tail.get(key, end) for key, end in self._tail.items()})
        (came_before, left_before), self._before = self._before, (came, left)
        if self._left(entry, self._tail):
            return False
        input_per_s = came / max(now_s - self._looked_s, _LEAST_SPAN_S)
        if left <= input_per_s * self._near_s:
            return True
        return left <= came - came_before and _STEADY * left_before <= left <= left_before

    @staticmethod
    def _left(entry: EpochEntry, tail: Tail) -> int:
        offsets = entry.end.offsets
        return sum(
            max(0, end - offsets.get(topic, {}).get(str(partition), 0))
            for (topic, partition), end in tail.items()
        )
