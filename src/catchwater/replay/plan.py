"""From offsets wanted to tasks of even size. Pure: it opens nothing and asks nobody.

A plan lists ranges of bytes, each beginning with a batch; a slice is the part of one range (or,
over the Kafka protocol, of a partition) that a query wants; a task is what one Spark task reads.
Tasks are cut from all slices in order, by bytes where the plan knows them and by offsets where
nobody does, so that one large partition is read by many tasks and many small ones by few.

Promises that the slices of all tasks together are exactly the wanted offsets that the plan covers,
each once and in order within a partition, and that offsets it does not cover are named. A slice
carries the aborted transactions that reach into it, for who reads committed records only. What the
log has deleted and its topic's table still has is a slice of that table's files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

CHUNK = "chunk"
SEGMENT = "segment"
CLEANED = "cleaned"
"""A segment in which compaction has left holes in front of batches."""

TASK_BYTES = 128 * 2**20
"""A task that reads more is cut, so that one large partition keeps every core busy.

As much as Spark gives a task of a file (`spark.sql.files.maxPartitionBytes`): each costs it tens of
milliseconds."""
_TABLE_ROW_BYTES = 100
"""What reading a row of a table is taken to cost; its files do not say how many a partition has."""
_NEAR = 16
"""A task is even enough within this part of its share."""


class OffsetRange(NamedTuple):
    """The offsets [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int


class Missing(NamedTuple):
    """Offsets [start, end) that were asked for and are not there."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end - 1}"


class Aborted(NamedTuple):
    """A transaction of a partition that was aborted; its marker lies at `last_offset`."""

    topic: str
    partition: int
    producer_id: int
    first_offset: int
    last_offset: int

    @classmethod
    def from_json(cls, topic: str, fields: Mapping[str, Any]) -> "Aborted":
        return cls(topic, *(int(fields[name]) for name in cls._fields[1:]))


class TableFiles(NamedTuple):
    """Files of a topic's table that hold the records of these offsets as rows."""

    topic: str
    spans: Mapping[int, tuple[int, int]]
    """By partition: the offsets [first, stop) that they stand for."""
    whole: Sequence[str]
    """URLs of files with rows of these offsets only."""
    partly: Sequence[str]
    """URLs of files with other rows, too."""
    values: str
    """What the values were declared to be; empty: they are bytes."""
    malformed: int
    """How many values of the table may not be as declared."""
    left_out: bool
    """Whether records of aborted transactions are not in it."""
    why: str = ""
    """Why there are no files, though the topic is a table, as a sentence."""


def without(slices: Iterable["Slice"], tables: Iterable[TableFiles]) -> list["Slice"]:
    """The slices but for the offsets that these tables stand for."""
    spans = {(each.topic, p): span for each in tables for p, span in each.spans.items()}
    left = []
    for each in slices:
        first, stop = spans.get((each.topic, each.partition), (each.stop, each.stop))
        before = replace(each, stop=min(each.stop, first))
        after = replace(each, first=max(each.first, stop))
        left += [part for part in (before, after) if part.first < part.stop]
    return left


@dataclass(frozen=True, slots=True)
class PlanRange:
    """Whole batches of one partition in one object, as the control API describes them.

    In a chunk they are numbered on from `base_offset`; in a segment they carry their offsets.
    """

    topic: str
    partition: int
    kind: str
    url: str
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    parquet: str = ""
    """URL of a Parquet object with the data records of the whole segment that the range lies in,
    signed as `url` is; "" if there is none. Ranges of one segment name the same."""
    parquet_schema: str = ""
    """The declared schema of the values, if that object has them as typed columns too."""
    parquet_first: int = 0
    parquet_stop: int = 0
    """That object stands for the offsets [parquet_first, parquet_stop): those of its segment."""

    @classmethod
    def from_json(cls, topic: str, fields: Mapping[str, Any]) -> "PlanRange":
        return cls(
            topic,
            int(fields["partition"]),
            str(fields["kind"]),
            str(fields["url"]),
            int(fields["byte_offset"]),
            int(fields["byte_size"]),
            int(fields["base_offset"]),
            int(fields["last_offset"]),
            # A broker that is older than these fields has no Parquet.
            str(fields.get("parquet", "")),
            str(fields.get("parquet_schema", "")),
            int(fields.get("parquet_first", 0)),
            int(fields.get("parquet_stop", 0)),
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """The offsets [first, stop) of a partition: in `range`, in `files`, or from the leader."""

    topic: str
    partition: int
    first: int
    stop: int
    range: PlanRange | None = None
    aborted: tuple[Aborted, ...] = ()
    """Of the transactions that have records or marker in the slice; nothing else of them counts."""
    fields: str = ""
    """What the topic says becomes of its fields (`values.policy`)."""
    files: tuple[str, ...] = ()
    """URLs of files of the topic's table: the log has deleted these offsets, and they hold them."""

    @property
    def weight(self) -> int:
        """What reading it costs: bytes from storage, offsets from the leader."""
        if self.range:
            return self.range.byte_size
        return (self.stop - self.first) * (_TABLE_ROW_BYTES if self.files else 1)


@dataclass(frozen=True, slots=True)
class Quota:
    """What a job may read from storage in a second, and who keeps the account it pays from."""

    bytes_per_s: int
    keeper_url: str = field(repr=False)
    """The control API of that broker."""
    client_id: str = ""
    tasks: int = 1
    """Of the job; they all pay from the same account."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], client_id: str) -> "Quota":
        return cls(int(fields["bytes_per_s"]), str(fields["url"]), client_id)


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads, in this order."""

    slices: tuple[Slice, ...]
    quota: Quota | None = None
    """What it pays from before it reads storage, if the log asks for that."""

    def __str__(self) -> str:
        if not self.slices:
            return "The empty task"
        first = self.slices[0]
        return f"The task from {first.topic}-{first.partition} offset {first.first} on"

    @property
    def stored_bytes(self) -> int:
        """What it reads from storage."""
        return sum(each.weight for each in self.slices if each.range or each.files)


def slices_of(
    wanted: Sequence[OffsetRange], ranges: Iterable[PlanRange], aborted: Iterable[Aborted] = ()
) -> list[Slice]:
    """The wanted part of each range, in order of topic, partition and offset.

    A partition may be wanted in several pieces that do not overlap, and a range that reaches over
    some of them be listed for each, by other URLs, or meanwhile by another range with the same
    offsets: no offset is in two slices. Each slice has those of the aborted transactions that
    reach into it.
    """
    pieces: dict[tuple[str, int], list[OffsetRange]] = {}
    for want in wanted:
        pieces.setdefault((want.topic, want.partition), []).append(want)
    slices = []
    for each in dict.fromkeys(ranges):
        for want in pieces.get((each.topic, each.partition), ()):
            first, stop = max(want.start, each.base_offset), min(want.end, each.last_offset + 1)
            if first < stop:
                slices.append(Slice(each.topic, each.partition, first, stop, each))
    slices = list(_once(sorted(slices, key=lambda s: (s.topic, s.partition, s.first))))
    voids = list(aborted)
    return list(_with_aborted(slices, voids)) if voids else slices


def _once(slices: Iterable[Slice]) -> Iterator[Slice]:
    """The slices, in order, without the offsets that one before has."""
    key, at = ("", -1), 0
    for each in slices:
        if (each.topic, each.partition) != key:
            key, at = (each.topic, each.partition), each.first
        if each.first < at:
            if each.stop <= at:
                continue
            each = replace(each, first=at)
        yield each
        at = each.stop


def _with_aborted(slices: Iterable[Slice], aborted: Iterable[Aborted]) -> Iterator[Slice]:
    """The slices, each with what of `aborted` reaches into it, by first offset."""
    later: dict[tuple[str, int], list[Aborted]] = {}
    for each in sorted(aborted, key=lambda a: a.first_offset, reverse=True):
        later.setdefault((each.topic, each.partition), []).append(each)
    for key, of_partition in groupby(slices, key=lambda s: (s.topic, s.partition)):
        to_come, reaching = later.get(key, []), list[Aborted]()
        for piece in of_partition:
            while to_come and to_come[-1].first_offset < piece.stop:
                reaching.append(to_come.pop())
            reaching = [each for each in reaching if each.last_offset >= piece.first]
            yield replace(piece, aborted=tuple(reaching))


def uncovered(wanted: Sequence[OffsetRange], slices: Iterable[Slice]) -> list[Missing]:
    """The wanted offsets that no slice holds; `slices` are in the order of `slices_of`."""
    grouped = groupby(slices, key=lambda s: (s.topic, s.partition))
    by_partition = {key: list(group) for key, group in grouped}
    missing = []
    for topic, partition, start, end in wanted:
        at = start
        for each in by_partition.get((topic, partition), ()):
            if at < min(each.first, end):
                missing.append(Missing(topic, partition, at, min(each.first, end)))
            at = max(at, each.stop)
        if at < end:
            missing.append(Missing(topic, partition, at, end))
    return missing


def joined(pieces: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The same offsets, in the same order; those side by side as one range."""
    whole: list[OffsetRange] = []
    for each in pieces:
        if whole and whole[-1][:2] == each[:2] and whole[-1].end == each.start:
            whole[-1] = whole[-1]._replace(end=each.end)
        else:
            whole.append(each)
    return whole


def cut(slices: Sequence[Slice], count: int | None = None) -> list[Task]:
    """About `count` tasks of even weight; fewer where there is less than a range for each.

    Without a count: one for each partition with data, more where that would exceed TASK_BYTES.
    """
    total = sum(each.weight for each in slices)
    if count is None:
        partitions = len({(each.topic, each.partition) for each in slices})
        known_bytes = sum(each.weight for each in slices if each.range or each.files)
        count = max(partitions, -(-known_bytes // TASK_BYTES))
    tasks: list[Task] = []
    current: list[Slice] = []
    done, share = 0, total // max(count, 1)
    for each in slices:
        rest: Slice | None = each
        while rest is not None:
            goal = total * (len(tasks) + 1) // count
            # A task may end a little early or late rather than with a few offsets of a partition.
            near = share // _NEAR if len(tasks) + 1 < count else 0
            piece, rest = _split(rest, goal - done if goal > done else share, near)
            current.append(piece)
            done += piece.weight
            if done >= goal - near:
                tasks.append(Task(tuple(current)))
                current = []
    assert not current, "the last task ends where the last slice ends"
    return tasks


def _split(each: Slice, room: int, near: int) -> tuple[Slice, Slice | None]:
    """A slice's part for which there is room, and the rest of it, where it can be cut anywhere."""
    room = max(room, 1)
    if each.range is not None or each.weight <= room + near:
        return each, None
    at = each.first + max(room * (each.stop - each.first) // each.weight, 1)
    return replace(each, stop=at), replace(each, first=at)
