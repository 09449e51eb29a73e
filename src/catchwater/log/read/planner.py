"""Where ranges of offsets lie in storage, for readers that fetch the bytes themselves.

The same for a broker, over its live states, and for readers of a catalog without one. Used on the
event loop; what blocks runs in the reader's threads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catchwater.catalog.rows import AbortedRow, PartitionKey
from catchwater.catalog.topics import Topics
from catchwater.log.core import RangeMissing
from catchwater.log.read.reader import PlanRange, Reader
from catchwater.log.read.stable import Stability
from catchwater.log.write.sequence import PartitionState

__all__ = ["CommittedPlan", "PlanRange", "Planner"]


@dataclass(frozen=True, slots=True)
class CommittedPlan:
    """Where the stable part of ranges lies, for readers of committed records only."""

    ranges: list[PlanRange]
    aborted: list[AbortedRow]
    """The aborted transactions with records or marker in the stable part, by place."""
    last_stable: dict[int, int]
    """By partition: the offset before which the plan ends, also where more was asked for."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans over what these hold at the moment of asking."""

    topics: Topics
    states: Mapping[PartitionKey, PartitionState]
    reader: Reader
    stability: Stability

    async def plan(
        self, topic: str, ranges: Iterable[tuple[int, int, int]], most: int = 2**31
    ) -> list[PlanRange]:
        """Where the bytes of (partition, start, end) lie, end exclusive.

        Raises `TopicUnknown`, or `RangeMissing` with every offset that is not there; `PlanTooLarge`
        where they lie in more than `most` places.
        """
        topic_id = self.topics.find(topic).id
        planned: list[PlanRange] = []
        missing: list[tuple[int, int, int]] = []
        for partition, start, end in ranges:
            key = (topic_id, partition)
            state = self.states[key]
            below = (start, min(end, state.log_start))
            above = (max(start, state.high_watermark), end)
            missing += [(partition, *gap) for gap in (below, above) if gap[0] < gap[1]]
            at, last = max(start, state.log_start), min(end, state.high_watermark)
            while at < last:
                found = await self.reader.plan(key, at, last, most - len(planned))
                planned += found
                at = found[-1].last_offset + 1 if found else at
                if at < last:
                    goes_on = min(await self.reader.next_stored(key, at), last)
                    missing.append((partition, at, goes_on))
                    at = goes_on
        if missing:
            raise RangeMissing(topic, sorted(missing))
        return planned

    async def plan_committed(
        self, topic: str, ranges: Iterable[tuple[int, int, int]], most: int = 2**31
    ) -> CommittedPlan:
        """As `plan`, up to the last stable offset; what lies beyond is not there yet, not missing.

        Raises what `plan` raises.
        """
        topic_id = self.topics.find(topic).id
        wanted = list(ranges)
        stable = {
            partition: await self.stability.last_stable_offset((topic_id, partition))
            for partition in sorted({partition for partition, *_ in wanted})
        }
        bounded = []
        for partition, start, end in wanted:
            # What was never written stays missing, as it is to readers of everything.
            is_written = end <= self.states[topic_id, partition].high_watermark
            bounded.append((partition, start, min(end, stable[partition]) if is_written else end))
        found = await self.plan(topic, bounded, most)
        aborted = {
            row
            for partition, start, end in bounded
            for row in await self.stability.aborted((topic_id, partition), start, end)
        }
        by_place = sorted(aborted, key=lambda row: (row.partition, row.first_offset))
        return CommittedPlan(found, by_place, stable)
