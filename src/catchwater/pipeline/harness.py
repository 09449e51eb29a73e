"""A function run on a list of events: no Spark, no JVM, no network.

It runs the very code that runs on Spark (`process`, deltas, snapshots) over a store in memory.
Every `send` is an epoch; after it the watermark follows the events as it does in production, and
what came due is fired. `crash_and_restore` and `check_replay` then ask what a restore asks: does
the function give the same again, whatever the epochs and the interleaving of keys?
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from random import Random  # noqa: TID251  (only its type; drawn from a seeded clock)
from typing import Any

from catchwater.clock import Clock
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.durations import duration_ms
from catchwater.pipeline.process.batch import Batch, Processed, Times
from catchwater.pipeline.process.epoch import process
from catchwater.pipeline.process.live import read_record
from catchwater.state import delta as log
from catchwater.state.delta import EMPTY, Position
from catchwater.state.entries import DictEntries, ShardState
from catchwater.state.keys import stored_key


class ReplayMismatch(AssertionError):
    """The same events gave something else when they were handled again."""


@dataclass(frozen=True)
class _Step:
    """One epoch as it was."""

    events: Sequence[Any]
    watermark_ms: int
    clock_ms: int
    outputs: list[Any]
    output_keys: list[bytes]
    delta: bytes


class Harness:
    """One function with its state, and what happened since it was made (or since `run`)."""

    def __init__(self, target: Callable[..., Any], *, now: int = 0) -> None:
        """`now` is the processing clock (ms) that the function sees as `ctx.now`."""
        self._spec = spec_of(target)
        self._to_json = self._spec.encode_output
        self._entries = DictEntries()
        self._at = EMPTY
        self._base: list[bytes] = []
        self._steps: list[_Step] = []
        self._next_due: int | None = None
        self.watermark = 0
        """Event time, ms; advanced by events, `advance_watermark` and `advance_time`."""
        self.now = now
        self.late = 0
        """Events that came behind the watermark."""
        self.duplicates = 0
        """Events dropped because their id had been seen."""

    def send(self, *events: Any) -> list[Any]:
        """Handle the events as one epoch; gives its outputs and those of timers it made due.

        Events travel through JSON, as they do in production; msgspec.ValidationError if one is
        not what its class says.
        """
        decoded = [self._spec.decode_event(self._to_json(event)) for event in events]
        done = self._epoch(decoded)
        return done.outputs + self._tick_if_due()

    def run(self, events: Iterable[Any], batch: int = 10_000) -> list[Any]:
        """Handle many events in epochs of `batch`, fast; gives all outputs.

        The events are not kept: `crash_and_restore` and `check_replay` look back to here only.
        """
        outputs: list[Any] = []
        source = iter(events)
        while part := list(islice(source, batch)):
            outputs += self._epoch(part, keep=False).outputs
        if self._next_due is not None and self._next_due <= self.watermark:
            outputs += self._epoch([], keep=False).outputs
        self._steps.clear()
        self._base = self._snapshot()
        return outputs

    def advance_watermark(self, to: int) -> list[Any]:
        """Move the watermark forward to an event time (ms); gives the outputs of due timers."""
        if to < self.watermark:
            raise ValueError(f"the watermark is at {self.watermark} and never goes back to {to}")
        self.watermark = to
        return self._epoch([]).outputs

    def advance_time(self, duration: str) -> list[Any]:
        """Let time pass, say "31d", for clock and watermark; gives the outputs of due timers."""
        self.now += duration_ms(duration)
        return self.advance_watermark(self.watermark + duration_ms(duration))

    def state(self, key: Any) -> Any:
        """The state of a key (a tuple if the key has several fields); None if it has none."""
        stored = stored_key(self._spec.encode_key(key))
        record = read_record(self._spec, ShardState(self._entries, 0), stored)
        ttl_ms = self._spec.state_ttl_ms
        if record is None or (ttl_ms is not None and record.written + ttl_ms <= self.watermark):
            return None
        return record.state

    def crash_and_restore(self, at: int | None = None) -> None:
        """Lose everything, restore what was logged by the first `at` epochs, replay the rest.

        Without `at` the last epoch's state is restored and nothing is left to replay. Raises
        ReplayMismatch if an epoch gives other outputs or another state than the first time.
        """
        kept = len(self._steps) if at is None else at
        if not 0 <= kept <= len(self._steps):
            raise ValueError(f"there are {len(self._steps)} epochs to restore, not {kept}")
        self._restore(self._base, [step.delta for step in self._steps[:kept]])
        self._restore(self._snapshot(), [])
        for number, step in enumerate(self._steps[kept:], kept + 1):
            done, delta = self._process(step.events, step.watermark_ms, step.clock_ms)
            if (done.outputs, delta) != (step.outputs, step.delta):
                raise ReplayMismatch(
                    f"Epoch {number}, replayed after a restore at {kept}, gave {done.outputs!r} "
                    f"and not {step.outputs!r}, or left another state: the function depends on "
                    "something besides its events and its state."
                )

    def check_replay(self, orders: int = 50, seed: int = 0) -> None:
        """Handle the events again in other epochs and other interleavings of their keys.

        The order within a key stays, and so does the watermark each event met: what else the
        function depends on is its own fault. Raises ReplayMismatch if any key's outputs differ.
        """
        expected = _by_key((step.output_keys, step.outputs) for step in self._steps)
        random = Clock(seed).random
        for order in range(orders):
            found = _by_key((done.output_keys, done.outputs) for done in self._replay(random))
            for key in expected.keys() | found.keys():
                if expected.get(key, []) != found.get(key, []):
                    raise ReplayMismatch(
                        f"Order {order} (seed {seed}) of the same events gave key "
                        f"{self._spec.decode_key(key[8:])!r} the outputs {found.get(key, [])!r} "
                        f"and not {expected.get(key, [])!r}."
                    )

    def _replay(self, random: Random) -> Iterator[Processed]:
        """The steps since the base once more, cut and interleaved anew."""
        there = self._entries, self._at
        self._restore(self._base, [])
        try:
            for (watermark, clock), steps in groupby(
                self._steps, lambda step: (step.watermark_ms, step.clock_ms)
            ):
                events = [event for step in steps for event in step.events]
                for part in _cut(self._interleaved(events, random), random):
                    yield self._process(part, watermark, clock)[0]
        finally:
            self._entries, self._at = there

    def _interleaved(self, events: list[Any], random: Random) -> list[Any]:
        """The events in another order that keeps the order of each key."""
        queues = defaultdict(list)
        for event in reversed(events):
            queues[self._spec.key_of(event)].append(event)
        turns = [self._spec.key_of(event) for event in events]
        random.shuffle(turns)
        return [queues[key].pop() for key in turns]

    def _epoch(self, events: Sequence[Any], *, keep: bool = True) -> Processed:
        watermark, clock = self.watermark, self.now
        done, delta = self._process(events, watermark, clock, logged=keep)
        if keep:
            outputs, keys = done.outputs, done.output_keys
            self._steps.append(_Step(events, watermark, clock, outputs, keys, delta))
        self.late += done.late
        self.duplicates += done.duplicates
        self._next_due = done.next_due_ms
        delay = self._spec.watermark_ms
        for at in done.max_event_times.values():
            self.watermark = max(self.watermark, at - delay)
        return done

    def _tick_if_due(self) -> list[Any]:
        if self._next_due is None or self._next_due > self.watermark:
            return []
        return self._epoch([]).outputs

    def _process(
        self, events: Sequence[Any], watermark: int, clock: int, *, logged: bool = True
    ) -> tuple[Processed, bytes]:
        state = ShardState(self._entries, self._at.version + 1)
        keys = list(map(self._spec.stored_key_of, events))
        values = list(map(self._to_json, events))
        batch = Batch(keys, events, "harness-0", range(len(events)), values)
        done = process(self._spec, state, [batch], Times(watermark, watermark, clock))
        to = Position(state.version, f"epoch {state.version}")
        delta = log.encode_delta(self._spec.name, self._at, to, state.changes) if logged else b""
        self._entries.apply(state.changes)
        self._at = to
        return done, delta

    def _snapshot(self) -> list[bytes]:
        return list(log.encode_snapshot(self._spec.name, self._at, self._entries))

    def _restore(self, chunks: list[bytes], deltas: list[bytes]) -> None:
        self._entries, self._at = DictEntries(), EMPTY
        for at, changes in log.restore(self._spec.name, chunks, deltas):
            self._entries.apply(changes)
            self._at = at


def _by_key(given: Iterable[tuple[list[bytes], list[Any]]]) -> dict[bytes, list[Any]]:
    found = defaultdict(list)
    for keys, outputs in given:
        for key, output in zip(keys, outputs, strict=True):
            found[key].append(output)
    return dict(found)


def _cut(events: list[Any], random: Random) -> Iterator[list[Any]]:
    """The events in batches of random sizes; one empty batch if there are none."""
    start = 0
    while True:
        size = random.randint(1, max(len(events), 1))
        yield events[start : start + size]
        start += size
        if start >= len(events):
            return
