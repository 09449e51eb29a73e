"""Arithmetic on offsets: how much to admit, what is new, what is gone. Pure.

Offsets are those of the next record, so a partition read from a to b brings b - a offsets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from catchwater.config import CatchwaterError
from catchwater.replay.options import Offsets
from catchwater.replay.plan import Missing, OffsetRange, Slice, Task
from catchwater.wire.fields import TopicPartition

_HINT = (
    "Name offsets that are there, restore the missing ones, or set failOnDataLoss to false to go "
    "on without them."
)


class HistoryLost(CatchwaterError):
    """Offsets that a query must read are not in the log; `missing` names them.

    `remedy` is what would bring them, where anything does.
    """

    exit_code = 5

    def __init__(self, missing: Iterable[Missing], reason: str, remedy: str = "") -> None:
        self.missing = tuple(missing)
        self.remedy = remedy
        message = f"{reason}: {'; '.join(map(str, self.missing))}."
        super().__init__(message, hint=remedy or _HINT)


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The form of Spark's Kafka source: `{"topic": {"0": 23}}`, in order."""
    content: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        content.setdefault(topic, {})[str(partition)] = offset
    return content


def from_json(content: Mapping[str, Any]) -> Offsets:
    """The reverse of `to_json`."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in content.items()
        for partition, offset in partitions.items()
    }


def wanted(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """What lies between; a partition that is not in `start` is new and read from offset 0.

    Raises `HistoryLost` where a partition ends before its start: it was made anew.
    """
    ranges = [OffsetRange(*key, start.get(key, 0), end[key]) for key in sorted(end)]
    backwards = [Missing(r.topic, r.partition, r.end, r.start) for r in ranges if r.end < r.start]
    if backwards:
        raise HistoryLost(
            backwards, "The log ends before the offset where the query goes on, so it lacks"
        )
    return [each for each in ranges if each.start < each.end]


def behind(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """How many offsets each partition of `latest` has beyond `start`; a new one, all of them."""
    return {key: max(0, end - start.get(key, 0)) for key, end in latest.items()}


def admit(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    most: int | None,
) -> Offsets:
    """Where the next micro-batch ends so that it brings about `most` offsets; None: everything.

    Each partition gets its share by how far behind it is, at least one, as in Spark's Kafka
    source; so all of them arrive at the end together, and none waits for ever.
    """
    lags = behind(start, latest)
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(latest)
    end = {}
    for key, lag in lags.items():
        share = most * lag / total
        begin = start.get(key, 0)
        # Never before the start, so that a partition made anew is noticed, not read again.
        end[key] = min(begin + max(int(share), 1), latest[key]) if lag else latest[key]
    return end


def at_most(tasks: Iterable[Task], most: int | None) -> list[Task]:
    """The same offsets in the same order, in tasks of at most `most` offsets; None: unchanged.

    A range of storage that is cut is read by each of its tasks, which keep their offsets of it.
    """
    if most is None:
        return list(tasks)
    return [piece for task in tasks for piece in _pieces(task, most)]


def _pieces(task: Task, most: int) -> list[Task]:
    total = sum(each.stop - each.first for each in task.slices)
    if total <= most:
        return [task]
    # Evenly, so that none is left with the few offsets over.
    share = -(-total // -(-total // most))
    pieces: list[list[Slice]] = [[]]
    room = share
    for each in task.slices:
        at = each.first
        while at < each.stop:
            if not room:
                pieces.append([])
                room = share
            stop = min(each.stop, at + room)
            pieces[-1].append(replace(each, first=at, stop=stop))
            room -= stop - at
            at = stop
    return [Task(tuple(piece)) for piece in pieces]
