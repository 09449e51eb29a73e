"""A Catchwater log whose brokers are down: what they would answer, from the catalog itself.

Takes the place of the client (which partitions, from where to where) and of the control API (where
the bytes lie), with the plans of the broker's own code. Opens the catalog anew for every question.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from catchwater.clock import Clock
from catchwater.log.core import RangeMissing
from catchwater.log.read import planner
from catchwater.log.read.offline import opened
from catchwater.replay.control import Plan, TransactionOpen
from catchwater.replay.plan import Aborted, Missing, OffsetRange, PlanRange
from catchwater.wire.client import EARLIEST, LATEST, Cluster
from catchwater.wire.fields import TopicPartition

_NO_LEADER = -1


class Archive:
    """The log of the catalog at `catalog_url`; raises what `offline.opened` raises."""

    def __init__(self, catalog_url: str, objects_url: str, clock: Clock) -> None:
        self._place = (catalog_url, objects_url, clock)

    def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """The partitions of these topics, or of all; none has a leader."""
        with opened(*self._place) as log:
            found = log.partitions()
        leaders = {key: _NO_LEADER for key in found if topics is None or key[0] in topics}
        return Cluster(None, {}, leaders)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """As `Client.list_offsets`."""
        offsets = {}
        with opened(*self._place) as log:
            for (topic, partition), when in wanted.items():
                first, end = log.span(topic, partition, read_committed=read_committed)
                if when in (EARLIEST, LATEST):
                    offsets[topic, partition] = first if when == EARLIEST else end
                else:
                    found = log.first_at(topic, partition, when)
                    is_there = found is not None and found < end
                    offsets[topic, partition] = found if found is not None and is_there else -1
        return offsets

    def plan(self, wanted: Sequence[OffsetRange], *, read_committed: bool = False) -> Plan:
        """As `Control.plan`; a transaction that is open stays so, and is not waited for."""
        topic = wanted[0].topic
        ranges = [(each.partition, each.start, each.end) for each in wanted]
        with opened(*self._place) as log:
            try:
                fields = log.fields(topic)
                if not read_committed:
                    return Plan(_ranges(topic, log.plan(topic, ranges)), fields=fields)
                found = log.plan_committed(topic, ranges)
            except RangeMissing as refusal:
                return Plan((), tuple(Missing(topic, *gap) for gap in refusal.missing))
        for each in wanted:
            if each.end > found.last_stable[each.partition]:
                raise TransactionOpen(
                    f"Offsets up to {each.end - 1} of {topic}-{each.partition} are wanted, but a "
                    f"transaction is open since offset {found.last_stable[each.partition]}.",
                    hint="End before it, or read once a broker has ended it.",
                )
        aborted = tuple(Aborted(topic, *row[1:]) for row in found.aborted)
        return Plan(_ranges(topic, found.ranges), aborted=aborted, fields=fields)

    def close(self) -> None:
        """Nothing is held open."""


def _ranges(topic: str, planned: Iterable[planner.PlanRange]) -> tuple[PlanRange, ...]:
    return tuple(PlanRange.from_json(topic, asdict(each)) for each in planned)
