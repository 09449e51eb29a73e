"""Retention: a partition's log start moves up over whole runs that are too old or too many.

It never passes a pin that holds (`pins.py` says which do), and the state that each pin comes to is
stored and logged; one whose lease is over is removed. The bytes go later, by the sweeper.

`doomed` and `log_start_after` are pure. `Retention` is used on the log's event loop; what blocks
runs in threads.
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from catchwater.catalog.rows import PartitionKey, PartitionRow, Pin, PinState, RunRow, Topic
from catchwater.log.core import Core
from catchwater.log.keep.leases import PINS
from catchwater.log.keep.pins import (
    Place,
    holding,
    in_force,
    judged,
    lapsed,
    lowest,
    sentence,
    with_states,
)
from catchwater.log.topic_settings import Policy

_LOG = logging.getLogger(__name__)
_LOUD: Mapping[PinState, int] = {"lost": logging.ERROR, "unreserved": logging.WARNING}


def doomed(
    runs: Iterable[RunRow], partition: PartitionRow, policy: Policy, now_ms: int
) -> Iterator[RunRow]:
    """The runs, oldest first, that the policy alone would delete."""
    kept_bytes = partition.bytes
    for run in runs:
        if not policy.deletes(run, kept_bytes, now_ms):
            return
        yield run
        kept_bytes -= run.byte_size


def log_start_after(doomed: Iterable[RunRow], log_start: int, pinned: int | None) -> int:
    """Where a partition begins once these runs are gone, as far as they may go.

    The run that holds the `pinned` offset stays, and all after it.
    """
    for run in doomed:
        if pinned is not None and run.last_offset >= pinned:
            break
        log_start = run.last_offset + 1
    return log_start


@dataclass
class _Finding:
    """What a pass has found, of the places that pins hold or whose oldest runs may go."""

    keys: dict[Place, PartitionKey] = field(default_factory=dict)
    log_starts: dict[Place, int] = field(default_factory=dict)
    doomed: dict[Place, list[RunRow]] = field(default_factory=dict)
    held_bytes: dict[str, int] = field(default_factory=dict)
    """Pin -> bytes that would go but for it."""


class Retention:
    """Applies the topics' policies."""

    def __init__(
        self,
        core: Core,
        default: Policy,
        steady: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """Inside `steady()` no pin is set: it is seen here, or set after, against the new start."""
        self._core = core
        self._default = default
        self._steady = steady

    async def apply(self) -> int:
        """Trim every partition that has something to delete; return how many were trimmed."""
        now_ms = self._core.clock.now_ms()
        async with self._steady():
            pins = await asyncio.to_thread(self._core.catalog.pins)
            for pin in lapsed(pins, now_ms):
                await wrap_future(self._core.catalog.release_pin(pin.id))
            force = [pin for pin in in_force(pins, now_ms) if self._is_known(pin)]
            found = await asyncio.to_thread(self._look, list(self._core.topics), force, now_ms)
            states = {p.id: judged(p, found.log_starts, found.held_bytes[p.id]) for p in force}
            floors = lowest(holding(force, states))
            log_starts = {
                place: log_start_after(runs, found.log_starts[place], floors.get(place))
                for place, runs in found.doomed.items()
            }
            wanted = {
                found.keys[place]: log_start
                for place, log_start in log_starts.items()
                if log_start > found.log_starts[place]
            }
            if wanted:
                await self._core.trim(wanted, PINS)
            found.log_starts |= log_starts
            await self._report(force, found)
            return len(wanted)

    def _is_known(self, pin: Pin) -> bool:
        """Whether we can judge it: a topic we lack is gone, unless another broker just made it."""
        known = all(self._core.topics.get(topic) for topic, _ in pin.positions)
        return known or self._core.committer.in_memory

    async def _report(self, pins: list[Pin], found: _Finding) -> None:
        """Store and log what the pins have come to."""
        states = {p.id: judged(p, found.log_starts, found.held_bytes[p.id]) for p in pins}
        changed = with_states(pins, states)
        if changed:
            await wrap_future(self._core.catalog.set_pin_states({p.id: p.state for p in changed}))
        for pin in changed:
            news = sentence(pin, found.log_starts, found.held_bytes[pin.id])
            _LOG.log(_LOUD.get(pin.state, logging.INFO), "%s", news)

    def _look(self, topics: list[Topic], pins: list[Pin], now_ms: int) -> _Finding:
        found = _Finding(held_bytes={pin.id: 0 for pin in pins})
        holders: dict[Place, list[Pin]] = {}
        for pin in pins:
            for place in pin.positions:
                holders.setdefault(place, []).append(pin)
        for topic in topics:
            policy = self._default.of(topic)
            keys = [(topic.id, index) for index in range(topic.partitions)]
            for row in self._core.committer.partitions(keys):
                place = topic.name, row.partition
                may_go = not policy.deletes_nothing(row, now_ms)
                if may_go or place in holders:
                    found.keys[place], found.log_starts[place] = row[:2], row.log_start
                if may_go:
                    runs = list(doomed(self._runs(row[:2]), row, policy, now_ms))
                    found.doomed[place] = runs
                    for pin in holders.get(place, ()):
                        offset = pin.positions[place]
                        held = sum(run.byte_size for run in runs if run.last_offset >= offset)
                        found.held_bytes[pin.id] += held
        return found

    def _runs(self, key: PartitionKey) -> Iterator[RunRow]:
        """All runs of the partition, a few at a time: most often only the first is looked at."""
        offset = 0
        while runs := self._core.catalog.runs(key, offset, limit=100):
            yield from runs
            offset = runs[-1].last_offset + 1
