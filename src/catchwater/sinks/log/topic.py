"""An output topic read back: which of its records are which rows.

Records of an epoch need no header to be known: its chunks were appended in the order of their
shards, so that the n-th record of the epoch in a partition is the n-th staged one that belongs
there. What lies outside the epochs is told by its headers (a record that was repaired, or appended
at least once), or by being equal to a row (somebody has written it again); all else is another
writer's and none of our business. Records that retention has deleted count as held.

Relies on plans, as every reader of history does, and on partitions only growing in number.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from catchwater.replay.control import Control
from catchwater.replay.plan import Task, Wanted, slices_of
from catchwater.replay.read import ReadSettings, read_task
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    Expected,
    OutputRecord,
    RowId,
    SinkRow,
    record_digest,
)
from catchwater.sinks.log.stager import partition_of

_COLUMNS = ("partition", "offset", "key", "value", "timestamp", "headers")


class Placed(NamedTuple):
    """A record and where it lies."""

    partition: int
    offset: int
    record: OutputRecord


class Span(NamedTuple):
    """The offsets of one epoch in one partition."""

    first: int
    last: int
    epoch: int
    live: bool
    """Whether it was not taken back."""


class Tail(NamedTuple):
    """The offsets that a partition holds: from `start` up to, and without, `end`."""

    start: int
    end: int


def tails_of(control: Control, topic: str) -> dict[int, Tail]:
    """What each partition of the topic holds now."""
    found = control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
    return {int(p["partition"]): Tail(int(p["log_start"]), int(p["high_watermark"])) for p in found}


def read_records(control: Control, topic: str, ranges: Mapping[int, Tail]) -> Iterator[Placed]:
    """The topic's records in these offsets, by partition and offset."""
    wanted = [Wanted(topic, p, start, end) for p, (start, end) in ranges.items() if start < end]
    if not wanted:
        return
    settings = ReadSettings("", _COLUMNS, control_url=control.url)
    for each in slices_of(wanted, control.plan(wanted).ranges):
        for batch in read_task(Task((each,)), settings):
            micros = batch.column("timestamp").cast("int64").to_pylist()
            names = ("partition", "offset", "key", "value", "headers")
            columns = (batch.column(name).to_pylist() for name in names)
            for at, (partition, offset, key, value, headers) in zip(
                micros, zip(*columns, strict=True), strict=True
            ):
                pairs = tuple((h["key"], h["value"] or b"") for h in headers or ())
                yield Placed(
                    partition, offset, OutputRecord(key or b"", value or b"", at // 1000, pairs)
                )


class Reading:
    """Knows the rows of some epochs in what a topic holds."""

    def __init__(
        self,
        sink: str,
        spans: Mapping[int, list[Span]],
        expected: Iterable[Expected],
        partitions: int,
    ) -> None:
        """`sink` is `<pipeline>/<sink>`; spans are in the order of their offsets.

        `expected` are the rows by epoch, `partitions` those of the topic now.
        """
        self._sink = sink.encode()
        self._spans = spans
        self._starts = {p: [span.first for span in of] for p, of in spans.items()}
        self._lengths: dict[int, dict[int, int]] = {}
        """Epoch → partition → how many records it has there."""
        for p, of in spans.items():
            for span in of:
                if span.live:
                    self._lengths.setdefault(span.epoch, {})[p] = span.last - span.first + 1
        self._order: dict[tuple[int, int], list[RowId]] = {}
        self._by_content: dict[bytes, RowId] = {}
        for epoch, group in groupby(expected, lambda row: row.id.epoch):
            rows = list(group)
            for row, partition in zip(rows, self._placed(epoch, rows, partitions), strict=True):
                self._order.setdefault((epoch, partition), []).append(row.id)
                self._by_content[record_digest(row.record)] = row.id

    def row(self, placed: Placed) -> SinkRow | None:
        """Which row this record is; None: it is none of those that were asked for."""
        headers = dict(placed.record.headers)
        ours = headers.get(SINK_HEADER) == self._sink
        if ours and RETRACTS_HEADER in headers:
            return None
        plain = placed.record._replace(
            headers=tuple(h for h in placed.record.headers if h[0] not in (ROW_HEADER, SINK_HEADER))
        )
        digest = record_digest(plain)
        span = self._span(placed)
        if span is not None:
            return self._in_span(span, placed, digest) if span.live else None
        if ours and ROW_HEADER in headers:
            epoch, shard, row = map(int, headers[ROW_HEADER].split(b"/"))
            return SinkRow(RowId(epoch, shard, row), plain.key, digest)
        id = self._by_content.get(digest)
        return None if id is None else SinkRow(id, plain.key, digest)

    def expired(self, starts: Mapping[int, int]) -> Iterator[SinkRow]:
        """The rows whose offsets lie before these log starts."""
        for partition, spans in self._spans.items():
            for span in spans:
                ids = self._order.get((span.epoch, partition), []) if span.live else []
                gone = min(max(starts[partition] - span.first, 0), len(ids))
                yield from (SinkRow(id, b"", None) for id in ids[:gone])

    def _placed(self, epoch: int, rows: Sequence[Expected], partitions: int) -> list[int]:
        """The partition of each row; the topic may have had fewer when the epoch was written."""
        lengths = self._lengths.get(epoch)
        now = [partition_of(row.record.key, partitions) for row in rows]
        if not lengths or Counter(now) == lengths:
            return now
        for fewer in range(partitions - 1, 0, -1):
            then = [partition_of(row.record.key, fewer) for row in rows]
            if Counter(then) == lengths:
                return then
        return now

    def _in_span(self, span: Span, placed: Placed, digest: bytes) -> SinkRow:
        ids = self._order.get((span.epoch, placed.partition), [])
        at = placed.offset - span.first
        # More than was staged, or what was staged is no longer kept: the shard is not known.
        id = ids[at] if at < len(ids) else RowId(span.epoch, -1, at)
        return SinkRow(id, placed.record.key, digest)

    def _span(self, placed: Placed) -> Span | None:
        at = bisect_right(self._starts.get(placed.partition, ()), placed.offset) - 1
        if at < 0:
            return None
        span = self._spans[placed.partition][at]
        return span if placed.offset <= span.last else None
