"""Our own log: staged chunks, and one catalog commit per epoch.

The catalog adds an epoch's chunks to the topic together with the mark, through the control API. A
log cannot delete: `withdraw` appends retractions, which repeat a record with headers for the row
and the offset that they retract. `repair` appends missing rows with headers for their identity, and
cannot repair others.

The stager for the tasks is in `log_stager`.
"""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    RETRACTS_OFFSET_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    EpochMissing,
    Fix,
    NotAdmitted,
    OutputRecord,
    RowId,
    SinkFull,
    SinkRow,
    SinkUnavailable,
    Staged,
    StagedRow,
    Stager,
    Superseded,
    TargetDiffers,
    TargetState,
    epoch_checksum,
    record_digest,
)
from catchwater.sinks.config import (
    Guarantee,
    Kind,
    SinkConfig,
    TopicOptions,
    check_together,
    check_values,
)
from catchwater.sinks.epochs import Mark, Owner, TargetEpochs, admit, refuse_superseded
from catchwater.sinks.topic_values import Encoding, kept_subject, look_at_values, open_values

if TYPE_CHECKING:
    from catchwater.replay.control import Control, ControlRefused
    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive
    from catchwater.sinks.log_stager import LogAppender, LogStager
    from catchwater.values.outputs import OutputValues

T = TypeVar("T")

WITHDRAWN, REPAIRED = ":withdrawn", ":repaired"
_CHUNK_RECORDS = 50_000
"""Bound on the records of a chunk that the driver writes itself."""
_COLUMNS = ("partition", "offset", "key", "value", "timestamp", "headers")


class LogSink:
    """See `base.Sink`."""

    def __init__(
        self,
        control: "Control",
        marks: "LogMarks",
        stager: "LogStager",
        truth: "Archive",
        *,
        topic: str,
        clock: Clock,
        appender: "LogAppender | None" = None,
        values: "OutputValues | None" = None,
    ) -> None:
        """With an appender it is `at-least-once`. Raises `Superseded`."""
        self.name = marks.owner.sink
        self.retracts = True
        self.truth = truth
        self._control = control
        self._marks = marks
        self._stager = stager
        self._appender = appender
        self._values = values
        self._topic = topic
        self._clock = clock
        self._owner = marks.owner
        refuse_superseded(marks.owner, marks.newest_generation())
        if marks.owner.claim is not None and appender is None:
            self._asking(self._fence)

    def stager(self) -> Stager:
        stager = self._appender or self._stager
        return stager if self._values is None else Encoding(stager, self._values)

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        from catchwater.sinks.log_stager import copies

        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        if self._appender is not None:
            self.truth.record(epoch, pieces, self._clock.now_ms())
            return mark.sink_epoch(self._topic)
        # The commit does not need the index of the copies; in parallel they take the time of one.
        recorded = copies().submit(self._record_unless_other, epoch, pieces)
        answer = self._commit(epoch, [p.location for p in pieces if p.location], mark.checksum)
        if answer["topic"] != self._topic:
            raise TargetDiffers(
                f"The sink {self.name!r} of {self._owner.pipeline!r} has written epoch {epoch} to "
                f"the topic {answer['topic']}, and is now to write to {self._topic}.",
                hint="Give the sink another name, or leave the topic as it was.",
            )
        # The catalog answers with what it has, which may be another run of this epoch.
        has = _mark_of(epoch, mark.generation, answer)
        admit(self._owner, TargetEpochs(mark.generation, epoch, has), mark)
        if not recorded.result():
            self.truth.record(epoch, pieces, self._clock.now_ms())
        return has.sink_epoch(self._topic)

    def last_epoch(self) -> int | None:
        return None if self._appender else self._marks.last_live()

    def withdraw(self, after: int) -> None:
        """Append a retraction for every record that older generations wrote after this epoch."""
        generation = self._owner.generation
        if generation == 0 or self._marks.last(generation, WITHDRAWN) is not None:
            return
        self._append(WITHDRAWN, after + 1, self._retractions(after))
        self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        return None

    def digest(self, record: OutputRecord) -> bytes:
        return record_digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        tails = tails_of(self._control, self._topic)
        spans = {} if self._appender else self._spans(first, last)
        reading = self._reading(spans, range(first, last + 1), len(tails))
        yield from reading.expired({p: tail.start for p, tail in tails.items()})
        begins = {p: of[0].first for p, of in spans.items()}
        ranges = {
            p: Tail(max(start, begins.get(p, start)), end) for p, (start, end) in tails.items()
        }
        retracted = self._retracted(ranges) if self._appender else set()
        for placed in read_records(self._control, self._topic, ranges):
            row = reading.row(placed)
            if row is not None and first <= row.id.epoch <= last:
                if (placed.partition, placed.offset) not in retracted:
                    yield row

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Append the missing rows; returns those that are there with other content."""
        from catchwater.sinks.log_stager import partition_of, row_headers

        missing: list[tuple[int, OutputRecord]] = []
        left: list[Fix] = []
        for fix in fixes:
            if fix.absent and fix.record is not None:
                headers = (*fix.record.headers, *row_headers(str(self._owner), fix.id))
                partition = partition_of(fix.record.key, self._stager.partitions)
                missing.append((partition, fix.record._replace(headers=headers)))
            else:
                left.append(fix)
        if missing:
            done = self._marks.last(self._owner.generation, REPAIRED)
            self._append(REPAIRED, 0 if done is None else done + 1, iter(missing))
        return left

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Delete the copies of earlier epochs; the topic has its own retention."""
        self.truth.sweep(oldest, now_ms)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _retracted(self, ranges: "Mapping[int, Tail]") -> set[tuple[int, int]]:
        """The places of retracted records; with at-least-once, only headers identify them."""
        found = set()
        for placed in read_records(self._control, self._topic, ranges):
            headers = dict(placed.record.headers)
            if RETRACTS_OFFSET_HEADER in headers:
                found.add((placed.partition, int(headers[RETRACTS_OFFSET_HEADER])))
        return found

    def _record_unless_other(self, epoch: int, pieces: list[Staged]) -> bool:
        """Index the copies, unless others are indexed, which may be those of the commit."""
        kept = self.truth.pieces(epoch)
        if kept is not None and epoch_checksum(kept) != epoch_checksum(pieces):
            return False
        self.truth.record(epoch, pieces, self._clock.now_ms())
        return True

    def _append(
        self, suffix: str, number: int, records: Iterator[tuple[int, OutputRecord]]
    ) -> None:
        """Append records that no task staged, in one commit under another sink's name."""
        staged = []
        while some := list(islice(records, _CHUNK_RECORDS)):
            staged.append(self._stager.put_chunk(some, self._clock)[0])
        self._commit(number, staged, "", suffix)

    def _commit(
        self, number: int, staged: list[str], checksum: str, suffix: str = ""
    ) -> dict[str, Any]:
        name = self._marks.name(self._owner.generation, suffix)
        fenced: dict[str, Any] = {"fence": self._owner.claim} if self._owner.claim else {}
        return self._asking(
            lambda: self._control.commit_epoch(
                self._owner.pipeline, name, number, topic=self._topic, staged=staged,
                checksum=checksum, **fenced,
            )
        )  # fmt: skip

    def _fence(self) -> None:
        """Let no earlier driver of the checkpoint commit any more. Raises `Superseded`."""
        (pipeline, sink), claim = self._owner.name, self._owner.claim
        assert claim is not None
        self._control.fence_sink(pipeline, sink, topic=self._topic, fence=claim)

    def _asking(self, ask: Callable[[], T]) -> T:
        from catchwater.replay.control import ControlRefused, ControlUnreachable

        try:
            return ask()
        except ControlRefused as refusal:
            named = self._named(refusal)
            if named is None:
                raise
            raise named from refusal
        except ControlUnreachable as error:
            raise SinkUnavailable(str(error), hint=error.hint) from error

    def _named(self, refusal: "ControlRefused") -> CatchwaterError | None:
        """A refused commit as an error for the user; None if the refusal says enough."""
        match refusal.code:
            case "WRITER_FENCED":
                return Superseded(str(refusal), hint=refusal.hint)
            case "EPOCH_GAP":
                return EpochMissing(str(refusal), hint=refusal.hint)
            case "STORAGE_FULL":
                return SinkFull(str(refusal), hint=refusal.hint)
            case "TOPIC_AUTHORIZATION_FAILED":
                return NotAdmitted(str(refusal), hint=refusal.hint)
            case "UNKNOWN_TOPIC":
                return TargetDiffers(
                    f"The topic {self._topic} is gone.",
                    hint="Start the pipeline again: it makes the topic anew, and what it held "
                    "comes back by catchwater sink repair, as far as that is kept.",
                )
        return None

    def _retractions(self, after: int) -> Iterator[tuple[int, OutputRecord]]:
        """A retraction for every record after this epoch, in the record's partition."""
        tails = tails_of(self._control, self._topic)
        spans = {} if self._appender else self._spans(after + 1, None)
        kept = [epoch for epoch in self.truth.epochs() if epoch > after]
        reading = self._reading(spans, kept, len(tails))
        for placed in self._written_after(spans, tails):
            row = reading.row(placed)
            if row is None or row.id.epoch <= after:
                continue
            plain = [h for h in placed.record.headers if h[0] not in (ROW_HEADER, SINK_HEADER)]
            headers = (
                *plain,
                (RETRACTS_HEADER, str(row.id).encode()),
                (RETRACTS_OFFSET_HEADER, str(placed.offset).encode()),
                (SINK_HEADER, str(self._owner).encode()),
            )
            yield placed.partition, placed.record._replace(headers=headers)

    def _written_after(
        self, spans: "Mapping[int, list[Span]]", tails: "Mapping[int, Tail]"
    ) -> "Iterator[PlacedRecord]":
        """The records of these spans; with at-least-once there are no spans: all records."""
        if self._appender:
            yield from read_records(self._control, self._topic, tails)
        for partition, of in spans.items():
            for span in of:
                start = max(span.first, tails[partition].start)
                if span.live:
                    ranges = {partition: Tail(start, span.last + 1)}
                    yield from read_records(self._control, self._topic, ranges)

    def _reading(
        self, spans: "Mapping[int, list[Span]]", epochs: Iterable[int], partitions: int
    ) -> "Reading":
        expected = (row for epoch in epochs for row in self.truth.rows(epoch))
        return Reading(str(self._owner), spans, expected, partitions)

    def _spans(self, first: int, last: int | None) -> "dict[int, list[Span]]":
        """The offsets of all epochs from `first` on, by partition and in order.

        Those after `last`, and those that were taken back, are marked as not live: known, but not
        asked for.
        """
        spans: dict[int, list[Span]] = {}
        for generation, begun, live, newest in self._marks.spans():
            for epoch in range(max(first, begun), newest + 1):
                mark = self._marks.read(generation, epoch)
                asked = epoch <= live and (last is None or epoch <= last)
                for partition, (start, end) in mark.offsets.items() if mark else ():
                    spans.setdefault(int(partition), []).append(Span(start, end, epoch, asked))
        return {partition: sorted(of) for partition, of in spans.items()}


# This sink's epochs in the catalog, over all generations
#
# In the catalog a sink's epochs have no gaps and are never deleted. So every generation is another
# sink there: `<sink>`, then `<sink>@1`, `<sink>@2` … A withdrawal is a commit of its retractions as
# `<sink>@1:withdrawn`, with the number of the first epoch it withdrew; records that a repair wrote
# again are commits of `<sink>@1:repaired`, with their own numbers.


class LogMarks:
    """The commits of one sink."""

    def __init__(self, control: "Control", owner: Owner) -> None:
        self._control = control
        self.owner = owner

    def name(self, generation: int, suffix: str = "") -> str:
        """The name of a generation of the sink in the catalog."""
        return (f"{self.owner.sink}@{generation}" if generation else self.owner.sink) + suffix

    def last(self, generation: int, suffix: str = "") -> int | None:
        """The newest epoch that this generation has committed."""
        answer = self._control.last_epoch(self.owner.pipeline, self.name(generation, suffix))
        return None if answer is None else int(answer["epoch"])

    def read(self, generation: int, epoch: int, suffix: str = "") -> Mark | None:
        """One commit, None if there is none."""
        answer = self._control.epoch(self.owner.pipeline, self.name(generation, suffix), epoch)
        if answer is None:
            return None
        return _mark_of(epoch, generation, answer)

    def newest_generation(self) -> int:
        """The newest of the next two generations that has a commit; else the owner's own.

        A generation that withdrew nothing is found only after it, or the next one, has written.
        """
        own = self.owner.generation
        newer = range(own + 2, own, -1)
        took = (g for g in newer if any(self.last(g, s) is not None for s in (WITHDRAWN, "")))
        return next(took, own)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """(generation, first epoch it may have, last live one, last one), newest first.

        A newer generation withdrew the epochs after the last live one.
        """
        live = None
        for generation in range(self.owner.generation, -1, -1):
            begun = self.last(generation, WITHDRAWN)
            first = begun or 0
            last = self.last(generation)
            if last is not None:
                yield generation, first, last if live is None else min(last, live), last
            if begun is not None:
                live = begun - 1 if live is None else min(live, begun - 1)

    def find(self, epoch: int) -> Mark | None:
        """The live commit of an epoch."""
        for generation, first, live, _ in self.spans():
            if first <= epoch <= live:
                mark = self.read(generation, epoch)
                if mark is not None:
                    return mark
        return None

    def last_live(self) -> int | None:
        """The newest epoch that was not taken back."""
        return max((live for _, first, live, _ in self.spans() if first <= live), default=None)


# Reading an output topic back: which record is which row
#
# Records of an epoch are identified without headers: its chunks were appended in the order of their
# shards, so that the n-th record of the epoch in a partition is the n-th staged one for it. Records
# outside of epochs are identified by their headers (repaired ones, and those of at-least-once), or
# by being equal to a row (somebody has written it again); all others are another writer's. Records
# that retention has deleted count as present.
#
# Relies on plans, as every reader of history does, and on the number of partitions only growing.


class PlacedRecord(NamedTuple):
    """A record and its place."""

    partition: int
    offset: int
    record: OutputRecord


class Span(NamedTuple):
    """The offsets of one epoch in one partition."""

    first: int
    last: int
    epoch: int
    live: bool
    """Whether it was not withdrawn."""


class Tail(NamedTuple):
    """The offsets that a partition has: from `start` up to, but without, `end`."""

    start: int
    end: int


def tails_of(control: "Control", topic: str) -> dict[int, Tail]:
    """The offsets that each partition of the topic has now."""
    found = control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
    return {int(p["partition"]): Tail(int(p["log_start"]), int(p["high_watermark"])) for p in found}


def read_records(
    control: "Control", topic: str, ranges: Mapping[int, Tail]
) -> Iterator[PlacedRecord]:
    """The topic's records in these offsets, by partition and offset."""
    from catchwater.replay.plan import OffsetRange, Task, slices_of
    from catchwater.replay.read import ReadSettings, read_task

    wanted = [
        OffsetRange(topic, p, start, end) for p, (start, end) in ranges.items() if start < end
    ]
    if not wanted:
        return
    settings = ReadSettings(
        "", _COLUMNS, control_url=control.location, locations=tuple(control.locations)
    )
    for each in slices_of(wanted, control.plan(wanted).ranges):
        for batch in read_task(Task((each,)), settings):
            micros = batch.column("timestamp").cast("int64").to_pylist()
            names = ("partition", "offset", "key", "value", "headers")
            columns = (batch.column(name).to_pylist() for name in names)
            for at, (partition, offset, key, value, headers) in zip(
                micros, zip(*columns, strict=True), strict=True
            ):
                pairs = tuple((h["key"], h["value"] or b"") for h in headers or ())
                yield PlacedRecord(
                    partition, offset, OutputRecord(key or b"", value or b"", at // 1000, pairs)
                )


class Reading:
    """Identifies the rows of some epochs among a topic's records."""

    def __init__(
        self,
        sink: str,
        spans: Mapping[int, list[Span]],
        expected: Iterable[StagedRow],
        partitions: int,
    ) -> None:
        """`sink` is `<pipeline>/<sink>`; spans are in the order of their offsets.

        `expected` are the rows by epoch, `partitions` those of the topic now.
        """
        self._sink = sink.encode()
        self._spans = spans
        self._starts = {p: [span.first for span in of] for p, of in spans.items()}
        self._lengths: dict[int, dict[int, int]] = {}
        """Epoch → partition → number of records."""
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

    def row(self, placed: PlacedRecord) -> SinkRow | None:
        """The row that this record is; None if it is none of these epochs."""
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
        """The rows with offsets before these log starts."""
        for partition, spans in self._spans.items():
            for span in spans:
                ids = self._order.get((span.epoch, partition), []) if span.live else []
                gone = min(max(starts[partition] - span.first, 0), len(ids))
                yield from (SinkRow(id, b"", None) for id in ids[:gone])

    def _placed(self, epoch: int, rows: Sequence[StagedRow], partitions: int) -> list[int]:
        """The partition of each row; the topic may have had fewer when the epoch was written."""
        from catchwater.sinks.log_stager import partition_of

        lengths = self._lengths.get(epoch)
        now = [partition_of(row.record.key, partitions) for row in rows]
        if not lengths or Counter(now) == lengths:
            return now
        for fewer in range(partitions - 1, 0, -1):
            then = [partition_of(row.record.key, fewer) for row in rows]
            if Counter(then) == lengths:
                return then
        return now

    def _in_span(self, span: Span, placed: PlacedRecord, digest: bytes) -> SinkRow:
        ids = self._order.get((span.epoch, placed.partition), [])
        at = placed.offset - span.first
        # More than was staged, or what was staged is no longer kept: the shard is not known.
        id = ids[at] if at < len(ids) else RowId(span.epoch, -1, at)
        return SinkRow(id, placed.record.key, digest)

    def _span(self, placed: PlacedRecord) -> Span | None:
        at = bisect_right(self._starts.get(placed.partition, ()), placed.offset) - 1
        if at < 0:
            return None
        span = self._spans[placed.partition][at]
        return span if placed.offset <= span.last else None


def _mark_of(epoch: int, generation: int, answer: Mapping[str, Any]) -> Mark:
    """A commit as the catalog has it."""
    spans = {str(p): (int(first), int(last)) for p, (first, last) in answer["offsets"].items()}
    return Mark(epoch, generation, int(answer["records"]), str(answer["checksum"]), spans)


# What it declares


class NotOurLog(CatchwaterError):
    """The brokers have no control API, so nothing can be committed to them once."""

    exit_code = 2


def _guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.exactly_once:
        return Guarantee(
            "exactly-once", "tasks stage chunks, one catalog commit makes them visible with a mark"
        )
    return Guarantee(
        "at-least-once", "the task appends its records; each carries a header catchwater-row"
    )


def _target(config: SinkConfig, folder: Path) -> str:
    named: str = config.options.topic
    return named


def _ours(config: SinkConfig, context: "SinkContext") -> "Control":
    from catchwater.replay.control import CONTROL_URL

    if context.control is None:
        raise NotOurLog(
            f"The brokers at {context.bootstrap} name no {CONTROL_URL}: the sink "
            f"{config.name!r} of kind log cannot commit there.",
            hint='Run the pipeline against a Catchwater log, or choose kind = "kafka".',
        )
    return context.control


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """A topic that is not there is made when the sink is opened."""
    marks = LogMarks(_ours(config, context), context.owner(config.name))
    newest = marks.last_live() if config.exactly_once else None
    return TargetState(newest is not None, newest)


def _store_of(control: "Control") -> str:
    """Where to stage what the log is to read. Raises `ConfigError`, `StoreError`: it could not."""
    from catchwater.objects.open import KEYS, check_seal
    from catchwater.sinks.epochs import store_at

    url, is_sealed = control.storage()
    if is_sealed:
        check_seal(store_at(url), may_write=False)
    elif os.environ.get(KEYS):
        raise ConfigError(
            f"The log at {control.url} has no keys, and could not read what this pipeline, which "
            "has some, would stage there.",
            hint="Give its brokers the same keys (catchwater.encryption.keys), or write to it as "
            'to any Kafka: kind = "kafka".',
        )
    return url


def _open(config: SinkConfig, context: "SinkContext", truth: "Archive") -> LogSink:
    """Creates the topic. Raises `NotOurLog` for a source that is no Catchwater log."""
    from catchwater.sinks.epochs import staged_folder
    from catchwater.sinks.log_stager import LogAppender, LogStager
    from catchwater.wire.client import Client

    control, owner = _ours(config, context), context.owner(config.name)
    options: TopicOptions = config.options
    with Client(context.bootstrap, security=context.security) as client:
        if options.topic not in client.metadata([options.topic]).topics():
            client.create_topics({options.topic: options.partitions or -1})
    found = control.request("GET", f"/api/v1/topics/{options.topic}")
    stager = LogStager(
        _store_of(control),
        staged_folder(*owner.name),
        bytes.fromhex(found["id"]),
        int(found["partitions"]),
        truth.stager(),
    )
    security = context.security.loaded()
    appender = LogAppender(
        context.bootstrap, options.topic, stager.partitions, str(owner), truth.stager(), security
    )
    return LogSink(
        control,
        LogMarks(control, owner),
        stager,
        truth,
        topic=options.topic,
        clock=context.clock,
        appender=None if config.exactly_once else appender,
        values=None if options.is_plain else open_values(config, context, truth),
    )


KIND = Kind(
    name="log",
    options=TopicOptions,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: options.topic,
    named_by="topic",
    keeps=kept_subject,
    open=_open,
    look=_look,
    ask=look_at_values,
    check=check_values,
    check_options=check_together,
    modules=(
        "catchwater.replay.read",
        "catchwater.sinks.log_stager",
        "catchwater.wire.client",
    ),
    of_the_source=True,
)
