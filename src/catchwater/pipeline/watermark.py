"""When an epoch runs without input, and how far event time has come by then. Pure.

The watermark is the largest event time less the declared delay: the least over the partitions that
still have something unread, so that one that is read faster does not make the others' events late;
where all are read to their end, the furthest. It never goes back, and stands still within an epoch.

With an idle timeout, a watermark that no input moves goes on with the clock from then on.

A later stage of a chain runs at the watermark of as many epochs before: what the timers of the
stage before put out is as old as that watermark at most, so nothing is late by being chained.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from catchwater.recovery.ledger import EpochEntry, SourceOffset
from catchwater.replay.options import Offsets

FIRST_WATERMARK_MS = 0
"""The watermark before any event was seen, as in the harness."""


@dataclass(frozen=True)
class EventTime:
    """What the functions of a chain declare of time."""

    delay_ms: int
    stages: int = 1
    idle_timeout_ms: int | None = None

    def advance(
        self, begin: SourceOffset, seen: Mapping[str, int], unread: Offsets, idle_ms: int
    ) -> list[int]:
        """The watermarks of the epoch after `begin`, newest first.

        `seen`: the largest event time by origin; `unread`: the partitions that have more than
        `begin` has read; `idle_ms`: for how long there has been no input.
        """
        behind = [seen.get(f"{topic}-{partition}") for topic, partition in unread]
        watermark_ms = begin.watermark_ms
        if seen and None not in behind:
            least = min((at for at in behind if at is not None), default=max(seen.values()))
            watermark_ms = max(watermark_ms, least - self.delay_ms)
        if seen and self.idle_timeout_ms is not None and not unread:
            passed_ms = max(0, idle_ms - self.idle_timeout_ms)
            watermark_ms = max(watermark_ms, max(seen.values()) - self.delay_ms + passed_ms)
        return [watermark_ms, *map(begin.watermark_of, range(self.stages - 1))]

    def is_due(self, last: EpochEntry, watermark_ms: int, clock_ms: int) -> bool:
        """Whether some shard waits for this watermark, or for this time.

        A later stage that waits for it is not there yet, but gets there by as many more epochs.
        """
        due_clock_ms = last.next_due_clock_ms
        if due_clock_ms is not None and due_clock_ms <= clock_ms:
            return True
        due_ms = self._next_due_ms(last)
        return due_ms is not None and due_ms <= watermark_ms

    def due_at_ms(self, begin: SourceOffset, last: EpochEntry) -> int | None:
        """By which clock `is_due` says yes after `begin` if no input comes; None: never."""
        due_ms = self._next_due_ms(last)
        times = [last.next_due_clock_ms]
        if due_ms is not None and last.seen and self.idle_timeout_ms is not None:
            behind_ms = due_ms - (max(last.seen.values()) - self.delay_ms)
            times.append(begin.input_ms + self.idle_timeout_ms + behind_ms)
        return min((at for at in times if at is not None), default=None)

    def _next_due_ms(self, last: EpochEntry) -> int | None:
        """The least watermark that a shard of some stage waits for."""
        due = map(last.next_due_ms, range(self.stages))
        return min((at for at in due if at is not None), default=None)
