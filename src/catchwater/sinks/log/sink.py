"""Outputs into our own log: staged chunks, and one catalog commit per epoch.

The catalog makes an epoch's chunks part of the topic together with the mark, through the control
API. A log cannot take back: `withdraw` appends retractions, each the record again with headers that
say which row, at which offset, it retracts; `repair` appends rows that are missing, with headers
that say which they are, and cannot mend the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch
from catchwater.replay.control import CONTROL_URL, Control, ControlRefused, ControlUnreachable
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    RETRACTS_OFFSET_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    EpochMissing,
    Fix,
    NotAdmitted,
    OutputRecord,
    Seen,
    SinkFull,
    SinkRow,
    SinkUnavailable,
    Staged,
    Stager,
    Superseded,
    TargetDiffers,
    epoch_checksum,
    record_digest,
    refuse_other,
)
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.log.marks import REPAIRED, WITHDRAWN, LogMarks
from catchwater.sinks.log.stager import LogAppender, LogStager, copies, partition_of, row_headers
from catchwater.sinks.log.topic import Placed, Reading, Span, Tail, read_records, tails_of
from catchwater.sinks.staged import Archive
from catchwater.sinks.surroundings import NotOurLog, Surroundings, staged_folder
from catchwater.wire.client import Client

_CHUNK_RECORDS = 50_000
"""Records of one staged chunk, where a sink writes them itself."""


class LogSink:
    """The driver's half; see `base.Sink`."""

    def __init__(
        self,
        control: Control,
        marks: LogMarks,
        stager: LogStager,
        truth: Archive,
        *,
        topic: str,
        clock: Clock,
        appender: LogAppender | None = None,
    ) -> None:
        """With an appender it is `at-least-once`. Raises `Superseded`."""
        self.name = marks.sink
        self.retracts = True
        self.truth = truth
        self._control = control
        self._marks = marks
        self._stager = stager
        self._appender = appender
        self._topic = topic
        self._clock = clock
        self._label = f"{marks.pipeline}/{marks.sink}"
        if marks.superseded():
            raise Superseded(
                f"The sink {marks.sink!r} of {marks.pipeline!r} is written by generation "
                f"{marks.generation + 1} of the pipeline, or a newer one; this is generation "
                f"{marks.generation}, which was rolled back.",
                hint="Stop this pipeline: another one runs in its place.",
            )

    def stager(self) -> Stager:
        """What the tasks stage with."""
        return self._appender or self._stager

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Make the epoch's chunks part of the topic, once."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        checksum = epoch_checksum(pieces)
        if self._appender is not None:
            self.truth.record(epoch, pieces, self._clock.now_ms())
            return SinkEpoch(self._topic, sum(piece.records for piece in pieces), checksum)
        # The commit does not need the index of the copies: side by side they take the time of one.
        recorded = copies().submit(self._record_unless_other, epoch, pieces)
        answer = self._commit(epoch, [p.location for p in pieces if p.location], checksum)
        if answer["topic"] != self._topic:
            raise TargetDiffers(
                f"The sink {self.name!r} of {self._marks.pipeline!r} has written epoch {epoch} to "
                f"the topic {answer['topic']}, and is now to write to {self._topic}.",
                hint="Give the sink another name, or leave the topic as it was.",
            )
        refuse_other(self.name, self._marks.pipeline, epoch, answer["checksum"], checksum)
        if not recorded.result():
            self.truth.record(epoch, pieces, self._clock.now_ms())
        return SinkEpoch(
            self._topic,
            int(answer["records"]),
            checksum,
            {str(p): (int(first), int(last)) for p, (first, last) in answer["offsets"].items()},
        )

    def last_epoch(self) -> int | None:
        """The newest epoch of the pipeline that the topic holds."""
        return None if self._appender else self._marks.last_live()

    def withdraw(self, after: int) -> None:
        """Append a retraction for every record that older generations wrote after this epoch."""
        generation = self._marks.generation
        if generation == 0 or self._marks.last(generation, WITHDRAWN) is not None:
            return
        self._append(WITHDRAWN, after + 1, self._retractions(after))
        self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        """A log keeps every record."""
        return None

    def digest(self, record: OutputRecord) -> bytes:
        """Of key, value and headers."""
        return record_digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """What the topic holds of these epochs."""
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
        """Append the missing rows; those that are there in another shape are returned."""
        missing: list[tuple[int, OutputRecord]] = []
        left: list[Fix] = []
        for fix in fixes:
            if fix.absent and fix.record is not None:
                headers = (*fix.record.headers, *row_headers(self._label, fix.id))
                partition = partition_of(fix.record.key, self._stager.partitions)
                missing.append((partition, fix.record._replace(headers=headers)))
            else:
                left.append(fix)
        if missing:
            done = self._marks.last(self._marks.generation, REPAIRED)
            self._append(REPAIRED, 0 if done is None else done + 1, iter(missing))
        return left

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget the copies of epochs before; what the topic holds is retention's business."""
        self.truth.sweep(oldest, now_ms)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _retracted(self, ranges: Mapping[int, Tail]) -> set[tuple[int, int]]:
        """The places of records that were taken back, where no mark tells."""
        found = set()
        for placed in read_records(self._control, self._topic, ranges):
            headers = dict(placed.record.headers)
            if RETRACTS_OFFSET_HEADER in headers:
                found.add((placed.partition, int(headers[RETRACTS_OFFSET_HEADER])))
        return found

    def _record_unless_other(self, epoch: int, pieces: list[Staged]) -> bool:
        """Index the copies, unless others are indexed that may be those of a committed epoch."""
        kept = self.truth.pieces(epoch)
        if kept is not None and epoch_checksum(kept) != epoch_checksum(pieces):
            return False
        self.truth.record(epoch, pieces, self._clock.now_ms())
        return True

    def _append(
        self, suffix: str, number: int, records: Iterator[tuple[int, OutputRecord]]
    ) -> None:
        """Append records of our own making, in one commit under a name of its own."""
        staged = []
        while some := list(islice(records, _CHUNK_RECORDS)):
            staged.append(self._stager.put_chunk(some, self._clock)[0])
        self._commit(number, staged, "", suffix)

    def _commit(
        self, number: int, staged: list[str], checksum: str, suffix: str = ""
    ) -> dict[str, Any]:
        name = self._marks.name(self._marks.generation, suffix)
        pipeline = self._marks.pipeline
        try:
            return self._control.commit_epoch(
                pipeline, name, number, topic=self._topic, staged=staged, checksum=checksum
            )
        except ControlRefused as refusal:
            named = self._named(refusal)
            if named is None:
                raise
            raise named from refusal
        except ControlUnreachable as error:
            raise SinkUnavailable(str(error), hint=error.hint) from error

    def _named(self, refusal: ControlRefused) -> CatchwaterError | None:
        """What the refusal of a commit means to the user; None: no more than it says."""
        match refusal.code:
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
        """A retraction for every record after this epoch, in the record's own partition."""
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
                (SINK_HEADER, self._label.encode()),
            )
            yield placed.partition, placed.record._replace(headers=headers)

    def _written_after(
        self, spans: Mapping[int, list[Span]], tails: Mapping[int, Tail]
    ) -> Iterator[Placed]:
        """The records of these spans; at least once there are none, and headers tell."""
        if self._appender:
            yield from read_records(self._control, self._topic, tails)
        for partition, of in spans.items():
            for span in of:
                start = max(span.first, tails[partition].start)
                if span.live:
                    ranges = {partition: Tail(start, span.last + 1)}
                    yield from read_records(self._control, self._topic, ranges)

    def _reading(
        self, spans: Mapping[int, list[Span]], epochs: Iterable[int], partitions: int
    ) -> Reading:
        expected = (row for epoch in epochs for row in self.truth.rows(epoch))
        return Reading(self._label, spans, expected, partitions)

    def _spans(self, first: int, last: int | None) -> dict[int, list[Span]]:
        """By partition, in order: the offsets of all epochs from `first` on.

        Those after `last`, and those that were taken back, are marked as not live: known, but not
        asked for.
        """
        spans: dict[int, list[Span]] = {}
        for generation, begun, live, newest in self._marks.spans():
            for epoch in range(max(first, begun), newest + 1):
                mark = self._marks.read(generation, epoch)
                asked = epoch <= live and (last is None or epoch <= last)
                for partition, (start, end) in mark.offsets.items() if mark else ():
                    spans.setdefault(partition, []).append(Span(start, end, epoch, asked))
        return {partition: sorted(of) for partition, of in spans.items()}


def look_at_log(config: SinkConfig, around: Surroundings) -> Seen:
    """See `open.look_at`. A topic that is not there is made when the sink is opened."""
    marks = LogMarks(_ours(config, around), around.pipeline, config.name, around.generation)
    newest = marks.last_live() if config.exactly_once else None
    return Seen(newest is not None, newest)


def _ours(config: SinkConfig, around: Surroundings) -> Control:
    if around.control is None:
        raise NotOurLog(
            f"The brokers at {around.bootstrap} name no {CONTROL_URL}: the sink {config.name!r} of "
            "kind log cannot commit there.",
            hint='Run the pipeline against a Catchwater log, or choose kind = "kafka".',
        )
    return around.control


def open_log(config: SinkConfig, around: Surroundings, truth: Archive) -> LogSink:
    """The sink of a pipeline whose source is a Catchwater log; creates the topic.

    Raises `NotOurLog` for any other source.
    """
    control = _ours(config, around)
    topic = config.options["topic"]
    with Client(around.bootstrap, security=around.security) as client:
        if topic not in client.metadata([topic]).topics():
            client.create_topics({topic: int(config.options["partitions"] or -1)})
    found = control.request("GET", f"/api/v1/topics/{topic}")
    stager = LogStager(
        control.objects_url(),
        staged_folder(around.pipeline, config.name),
        bytes.fromhex(found["id"]),
        int(found["partitions"]),
        truth.stager(),
    )
    label = f"{around.pipeline}/{config.name}"
    security = around.security.loaded()
    appender = LogAppender(
        around.bootstrap, topic, stager.partitions, label, truth.stager(), security
    )
    return LogSink(
        control,
        LogMarks(control, around.pipeline, config.name, around.generation),
        stager,
        truth,
        topic=topic,
        clock=around.clock,
        appender=None if config.exactly_once else appender,
    )
