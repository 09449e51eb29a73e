"""How far a streaming query has come in each partition: behind, rate and time left.

Spark asks a Python source for no metrics of its own, but its progress carries the offsets at which
each micro-batch started and ended and where the log ended then; the rest follows from those. It
works for `format("catchwater")` and Spark's own Kafka source; other sources are left out.
Pure: it takes what `query.lastProgress`, `query.recentProgress` or a listener gives.

Counts offsets: where a transaction was aborted or a log compacted, fewer records than that came.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from catchwater.replay.offsets import behind, from_json
from catchwater.replay.options import Offsets

Progress = Mapping[str, Any]
"""Spark's StreamingQueryProgress, which is a dict, or what its `json` holds."""


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a query stands in one partition after its last micro-batch."""

    topic: str
    partition: int
    offset: int
    """The next that is read."""
    latest: int
    """Where the partition ended when the last micro-batch was planned."""
    behind: int
    """Records from `offset` to `latest`."""
    records_per_s: float | None
    """Over the micro-batches given; None while there is none with a known start."""
    eta_s: float | None
    """Seconds to `latest` at that rate, 0 if it is reached; None if the rate is 0 or not known."""
    source: int = 0
    """Which of the query's sources, counted from 0."""

    def __str__(self) -> str:
        rate = "" if self.records_per_s is None else f", {self.records_per_s:.0f} records/s"
        left = "" if self.eta_s is None else f", {self.eta_s:.0f} s to go"
        return f"{self.topic}-{self.partition}: {self.behind} behind{rate}{left}"


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one progress says of one source; `start` is None if Spark did not say it."""

    began_s: float
    ran_s: float
    start: Offsets | None
    end: Offsets
    latest: Offsets

    @property
    def behind(self) -> int:
        return sum(behind(self.end, self.latest).values())

    def took_s(self, following: "_Batch | None") -> float:
        """Its part of the time that reading takes; nothing if there was nothing to read.

        While something is left, the wait for the next trigger is part of it.
        """
        if self.behind and following is not None:
            return max(self.ran_s, following.began_s - self.began_s)
        return self.ran_s if self.behind or self.start != self.end else 0.0


def progress_of(progress: Progress | Sequence[Progress] | None) -> list[PartitionProgress]:
    """Every partition's progress, by source, topic and partition.

    Takes one progress, or several of one query from the oldest on, such as `recentProgress`, and
    gives the rate over all of them; None, as before the first micro-batch, gives an empty list.
    """
    steps = [progress] if isinstance(progress, Mapping) else list(progress or ())
    count = len(steps[-1]["sources"]) if steps else 0
    found = []
    for source in range(count):
        batches = [_batch(step, source) for step in steps]
        known = [each for each in batches if each is not None]
        if known and batches[-1] is not None:
            found += _of_source(source, known)
    return found


def _of_source(source: int, batches: Sequence[_Batch]) -> list[PartitionProgress]:
    read: dict[tuple[str, int], int] = {}
    took_s = 0.0
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        if batch.start is not None:
            took_s += batch.took_s(following)
            for key, count in behind(batch.start, batch.end).items():
                read[key] = read.get(key, 0) + count
    last = batches[-1]
    found = []
    for (topic, partition), left in sorted(behind(last.end, last.latest).items()):
        key = topic, partition
        rate = read.get(key, 0) / took_s if took_s > 0 else None
        eta_s = 0.0 if not left else left / rate if rate else None
        at = last.end.get(key, 0)
        found.append(
            PartitionProgress(topic, partition, at, last.latest[key], left, rate, eta_s, source)
        )
    return found


def _batch(progress: Progress, source: int) -> _Batch | None:
    """None if this is no source with offsets by topic and partition, or it has none yet."""
    of = progress["sources"][source]
    end = _offsets(of["endOffset"])
    if end is None:
        return None
    return _Batch(
        datetime.fromisoformat(progress["timestamp"]).timestamp(),
        int(progress["batchDuration"]) / 1000,
        _offsets(of["startOffset"]),
        end,
        _offsets(of["latestOffset"]) or end,
    )


def _offsets(given: Any) -> Offsets | None:
    """Of a JSON text, or of what it holds; other sources write numbers, lists or flat objects."""
    try:
        return from_json(json.loads(given) if isinstance(given, str) else given)
    except (ValueError, TypeError, AttributeError):
        return None
