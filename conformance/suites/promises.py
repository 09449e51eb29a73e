"""What a run of a foreign program must leave behind, as plain functions of what was seen.

Each gives what breaks the promise, empty if nothing does.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

Place = tuple[int, int]
"""Partition and offset."""


class Acknowledged(NamedTuple):
    """A record as its producer was told of it; `value` is the number of its sending."""

    key: str
    value: int
    place: Place


def lost(acknowledged: Iterable[Acknowledged], read: Mapping[Place, int]) -> list[Acknowledged]:
    """Records that were acknowledged and do not stand where that was said."""
    return [record for record in acknowledged if read.get(record.place) != record.value]


def twice(read: Mapping[Place, int]) -> list[int]:
    """Values that stand at more than one place."""
    return [value for value, times in Counter(read.values()).items() if times > 1]


def disordered(acknowledged: Iterable[Acknowledged]) -> list[tuple[Acknowledged, Acknowledged]]:
    """Neighbours of one key in the log that were sent the other way round, or lie apart."""
    by_key: dict[str, list[Acknowledged]] = defaultdict(list)
    for record in sorted(acknowledged, key=lambda record: record.place):
        by_key[record.key].append(record)
    return [
        (one, other)
        for records in by_key.values()
        for one, other in pairwise(records)
        if one.value >= other.value or one.place[0] != other.place[0]
    ]


def backward(samples: Iterable[Mapping[int, int]]) -> list[tuple[int, int, int]]:
    """Partition, position before and position after, wherever a position moved back or was gone."""
    before: dict[int, int] = {}
    found = []
    for sample in samples:
        found += [
            (partition, position, sample.get(partition, -1))
            for partition, position in before.items()
            if sample.get(partition, -1) < position
        ]
        before = {**before, **sample}
    return found


def miscounted(updates: Iterable[tuple[str, int]], wanted: Mapping[str, int]) -> list[str]:
    """Words whose counts, in the order of the log, are not 1, 2, ... to the count wanted."""
    counts: dict[str, list[int]] = defaultdict(list)
    for word, count in updates:
        counts[word].append(count)
    words = sorted(counts.keys() | wanted.keys())
    return [w for w in words if counts[w] != list(range(1, wanted.get(w, 0) + 1))]


def missing(lines: Iterable[str], wanted: int) -> list[int]:
    """Which of the lines `line 0`, `line 1`, ... to the number wanted are not there."""
    there = set(lines)
    return [number for number in range(wanted) if f"line {number}" not in there]
