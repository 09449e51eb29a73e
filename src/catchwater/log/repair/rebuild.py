"""Rebuilds a catalog from the object store and, for a lone broker, its WAL.

The newest intact backup has the small tables, and segments describe themselves. Frames of a lone
broker's WAL after the backup are sequenced again: the same frames in the same order give the same
offsets. Other chunks have no known order: chunks of many brokers, and chunks staged by sinks, that
are not in the backup may have been committed after it or never. They are reported and left out,
with all later frames of the same partitions, unless the caller asks for a guess: by the time they
were made, then by key.

Relies on WAL files being kept until a backup covers them (`Backups.cover`). Reads everything and
writes nothing; `RebuiltCatalog.write` fills an empty catalog.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from catchwater.catalog.base import Catalog
from catchwater.catalog.commit import json_text, producer_row, txn_columns, txn_row
from catchwater.catalog.rows import (
    AbortedRow,
    Changes,
    ObjectRow,
    OpenTxnRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
    Snapshot,
    State,
)
from catchwater.log.format.batches import DamagedObject
from catchwater.log.format.chunk import Chunk, ChunkError, Entry, decode_index
from catchwater.log.format.segment import (
    Footer,
    SegmentTooNew,
    read_footer,
)
from catchwater.log.keep.pack import segment_run
from catchwater.log.repair.backup import Backup, last_number, newest_backup
from catchwater.log.repair.files import LogFiles
from catchwater.log.repair.infer import TxnInference
from catchwater.log.repair.segments import apply_header, cover, headers
from catchwater.log.storage import SEGMENTS, STAGED
from catchwater.log.write.sequence import (
    PartitionState,
    Sequenced,
    decoded,
    partition_row,
    replay,
    states_of,
    txns_of,
)
from catchwater.objects.base import ObjectMissing
from catchwater.wal.base import Position
from catchwater.wal.directory import FILE_NAME
from catchwater.wire.batch import BatchHeader

_CLOCK_SKEW_MS = 60_000
_NEVER_GIVEN = 1_000_000
"""Added to counters, so that no id allocated after the backup is allocated again."""

Kind = Literal["lost", "uncertain", "damaged", "note"]


class Finding(NamedTuple):
    """Something that the rebuilt catalog lacks, or may have wrong; offsets are inclusive."""

    kind: Kind
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    """-1 if the end is not known."""
    what: str


@dataclass
class RebuiltCatalog:
    """The rows of the new catalog, and the findings about them."""

    backup: Backup | None
    last_backup: int
    state: State
    objects: list[ObjectRow]
    runs: list[RunRow]
    frames: int
    """WAL frames that were sequenced again."""
    findings: list[Finding]

    def write(self, catalog: Catalog) -> None:
        """Fill an empty catalog. Raises what the catalog's changes raise."""
        catalog.restore(self.state, self.objects, self.runs, self.last_backup).result()


def rebuild(files: LogFiles, new_cluster_id: str, *, guess: bool = False) -> RebuiltCatalog:
    """Read everything and compute the catalog's rows. Raises `StoreError`.

    `new_cluster_id` is used if no backup has the old one.
    """
    # What exists: the backup's rows, the segments, the frames, and chunks without a known order.
    work = _Rebuild(files, new_cluster_id)
    work.read_segments()
    frames = work.frames_behind_backup()
    unplaced = work.chunks_of_unknown_order()
    work.advance_uncertain()
    # In which order: the WAL's own, and with a guess the others by time.
    if guess:
        frames += [
            (Position(0, key, at, chunk.size_bytes), chunk) for (key, at), chunk in unplaced.items()
        ]
        frames = [(position, work.without_packed(chunk)) for position, chunk in frames]
        frames.sort(key=lambda frame: (frame[1].created_ms, frame[0].file, frame[0].sequence))
    # Sequencing them again gives the offsets that the lost catalog had.
    work.sequence_again(frames, guess=guess)
    if not guess:
        work.report_unplaced(unplaced)
    return work.finish(len(frames))


class _Segment(NamedTuple):
    run: RunRow
    topic: str
    size_bytes: int
    modified_ms: int
    aborted: list[AbortedRow]


@dataclass
class _Changes:
    """Rows that the frames after the backup have changed, other than partition states."""

    runs: list[RunRow] = field(default_factory=list)
    objects: dict[str, ObjectRow] = field(default_factory=dict)
    aborted: list[AbortedRow] = field(default_factory=list)
    ended: list[tuple[int, bool]] = field(default_factory=list)
    applied: int = 0

    def add(self, changes: Changes) -> None:
        self.runs += changes.runs
        for row in changes.objects:
            known = self.objects.get(row.key)
            if known is None or known.size_bytes < row.size_bytes:
                self.objects[row.key] = row
        self.aborted += changes.aborted
        self.ended += [(end.producer_id, end.committed) for end in changes.ended]


class _Rebuild:
    """One rebuild: the backup's state, updated by what was written after it."""

    def __init__(self, files: LogFiles, new_cluster_id: str) -> None:
        self._files = files
        self.findings: list[Finding] = []
        self.backup, damaged = newest_backup(files.objects)
        for error in damaged:
            self._note("damaged", str(error))
        if self.backup is None:
            what = "There is no intact backup: groups, pins, sink epochs, producers' standing and "
            self._note("lost", f"{what}the topics' settings are unknown.")
        state = self.backup.state if self.backup else {"log": [(new_cluster_id, 0, 1, 1)]}
        self._state: dict[str, list[Any]] = {table: list(rows) for table, rows in state.items()}
        self._since_ms = self.backup.created_ms - _CLOCK_SKEW_MS if self.backup else -1
        self._topics = {row[0]: list(row) for row in self._rows("topic")}
        snapshot = Snapshot(
            cluster_id="",
            applied_sequence=0,
            topics=(),
            partitions=[PartitionRow._make(row) for row in self._rows("partition")],
            producers=[producer_row(tuple(row)) for row in self._rows("producer")],
            txns=[txn_row(tuple(row)) for row in self._rows("txn")],
            open_txns=[OpenTxnRow._make(row) for row in self._rows("open_txn")],
        )
        self._states = states_of(snapshot)
        self._txns = txns_of(snapshot)
        self._inferred = TxnInference(self._states, self._txns)
        self._backed_up = {key: state.high_watermark for key, state in self._states.items()}
        self._segments: dict[PartitionKey, list[_Segment]] = defaultdict(list)
        self._changes = _Changes(applied=int(self._rows("log")[0][1]))
        self._uncertain: set[PartitionKey] = set()
        self._unplaced: dict[tuple[str, int], Chunk] = {}
        self._packed: dict[PartitionKey, list[BatchHeader]] = {}
        self._known = {row[0] for row in self._rows("object")}

    def _rows(self, table: str) -> list[Any]:
        return self._state.get(table, [])

    def _note(self, kind: Kind, what: str) -> None:
        self.findings.append(Finding(kind, "", -1, -1, -1, what))

    def _report(self, kind: Kind, key: PartitionKey, first: int, last: int, what: str) -> None:
        topic = self._topics.get(key[0])
        name = str(topic[1]) if topic else f"with the id {key[0].hex()}"
        self.findings.append(Finding(kind, name, key[1], first, last, what))

    # --- segments --------------------------------------------------------------------------------

    def read_segments(self) -> None:
        """Read every segment's footer; create topics that are only known from segments."""
        for info in self._files.objects.list(SEGMENTS):
            try:
                footer = read_footer(self._files.objects, info.key)
            except (DamagedObject, SegmentTooNew) as error:
                self._note("damaged", str(error))
                continue
            if self._belongs(footer, info.modified_ms):
                run = segment_run(footer, info.key)
                aborted = [
                    AbortedRow(footer.topic_id, footer.partition, *txn) for txn in footer.aborted
                ]
                size_bytes = self._files.objects.size(info.key)  # a listing's may be that of a seal
                segment = _Segment(run, footer.topic, size_bytes, info.modified_ms, aborted)
                self._segments[footer.topic_id, footer.partition].append(segment)

    def _belongs(self, footer: Footer, modified_ms: int) -> bool:
        """Whether the segment's partition exists; it may be newer than the backup."""
        topic = self._topics.get(footer.topic_id)
        if topic is None:
            if modified_ms < self._since_ms:
                return False  # its topic was deleted before the backup
            if any(row[1] == footer.topic for row in self._topics.values()):
                what = f"Segments of another topic named {footer.topic} were left out."
                self._note("uncertain", what)
                return False
            topic = [footer.topic_id, footer.topic, 0, "{}"]
            self._topics[footer.topic_id] = topic
            self._note("note", f"Topic {footer.topic} is not in the backup; it is made again.")
        for index in range(topic[2], footer.partition + 1):
            self._states[footer.topic_id, index] = PartitionState()
        topic[2] = max(topic[2], footer.partition + 1)
        return True

    # --- chunks ----------------------------------------------------------------------------------

    def frames_behind_backup(self) -> list[tuple[Position, Chunk]]:
        """The frames of a lone broker's WAL after the backup, in order.

        Frames after damage or after a missing file count as chunks of unknown order.
        """
        frames: list[tuple[Position, Chunk]] = []
        applied, self._changes.applied = self._changes.applied, 0
        expected = applied + 1
        for position, payload in self._files.own_frames():
            self._changes.applied = max(self._changes.applied, position.sequence)
            if position.sequence <= applied:
                continue
            if position.sequence == expected and not self._unplaced:
                frames += decoded([(position, payload)])
                expected += 1
                continue
            if not self._unplaced:
                what = f"WAL frames {expected} to {position.sequence - 1} are damaged or gone."
                self._note("lost", what)
            self._add_chunk(position.file, position.offset, payload)
        return frames

    def chunks_of_unknown_order(self) -> dict[tuple[str, int], Chunk]:
        """Chunks that are not in the backup and may be newer, by object key and first byte."""
        for info in self._files.objects.list(STAGED):
            if info.key not in self._known and info.modified_ms >= self._since_ms:
                self._add_chunk(info.key, 0, self._files.objects.get(info.key))
        for file in self._files.wal_files():
            match = FILE_NAME.fullmatch(file)
            if match is not None and match[1]:
                ends = [row[3] for row in self._rows("object") if row[0] == file]
                for position, chunk in self._files.frames(file):
                    if position.offset >= max(ends, default=0):
                        self._add_chunk(file, position.offset, chunk)
        chunks = self._unplaced.values()
        self._uncertain = {_key(entry) for chunk in chunks for entry in chunk.entries}
        return self._unplaced

    def _add_chunk(self, key: str, at: int, data: bytes | memoryview) -> None:
        try:
            chunk = decode_index(data)
        except ChunkError as error:
            self._note("damaged", f"{key}: {error}")
            return
        if chunk.created_ms >= self._since_ms:
            self._unplaced[key, at] = chunk

    def advance_uncertain(self) -> None:
        """Advance partitions with chunks of unknown order to the end of their segments."""
        for key in self._uncertain & self._states.keys():
            self._advance(key)

    def _advance(self, key: PartitionKey) -> None:
        """Advance a partition to the end of its segments, whose batches have final offsets."""
        state = self._states[key]
        for segment in sorted(self._segments[key], key=lambda segment: segment.run.last_offset):
            run = segment.run
            if run.last_offset < state.high_watermark:
                continue
            try:
                for header in headers(self._files.objects, run):
                    if header.base_offset >= state.high_watermark:
                        apply_header(header, state, segment.modified_ms)
            except DamagedObject as error:
                self._note("damaged", str(error))
            state.high_watermark = run.last_offset + 1

    def without_packed(self, chunk: Chunk) -> Chunk:
        """The chunk without batches that are in segments already."""
        left = [
            entry
            for entry in chunk.entries
            if _key(entry) not in self._uncertain or not self._is_packed(entry)
        ]
        return chunk._replace(entries=left)

    def _is_packed(self, entry: Entry) -> bool:
        # An idempotent batch is identified by its sequence; for others all fields must agree.
        return any(
            header.producer_id == entry.producer_id
            and header.base_sequence == entry.base_sequence
            and header.size_bytes == entry.size_bytes
            and header.max_timestamp == entry.max_timestamp
            and header.record_count == entry.record_count
            for header in self._packed_since(_key(entry))
        )

    def _packed_since(self, key: PartitionKey) -> list[BatchHeader]:
        """The headers of batches in segments that end after the backup."""
        if key not in self._packed:
            behind = self._backed_up.get(key, 0)
            runs = [segment.run for segment in self._segments[key]]
            self._packed[key] = [
                header
                for run in runs
                if run.last_offset >= behind
                for header in headers(self._files.objects, run)
            ]
        return self._packed[key]

    def sequence_again(self, frames: Iterable[tuple[Position, Chunk]], *, guess: bool) -> None:
        """Sequence chunks again; without a guess, not for partitions of unknown order."""
        states = self._states
        if not guess:
            states = {key: s for key, s in states.items() if key not in self._uncertain}
        guessed_from: dict[PartitionKey, int] = {}

        def adopt(chunk: Chunk) -> None:
            if guess:
                guessed_from.update((key, state.high_watermark) for key, state in states.items())
            self._changes.ended += self._inferred.adopt(chunk, states)

        def collect(position: Position, chunk: Chunk, done: Sequenced, changes: Changes) -> None:
            self._inferred.watch(chunk.entries, states, done)
            self._changes.add(changes)
            self._changes.applied = max(self._changes.applied, position.sequence)
            for key in done.changed.keys() & self._uncertain:
                first, last = guessed_from[key], states[key].high_watermark - 1
                what = f"these offsets were guessed for {position.file}; they may be wrong."
                self._report("uncertain", key, first, last, what)

        replay(frames, states, self._txns, before=adopt, after=collect)

    def report_unplaced(self, unplaced: dict[tuple[str, int], Chunk]) -> None:
        """Report the partitions and offsets whose order is not known."""
        keys: dict[PartitionKey, set[str]] = defaultdict(set)
        for (object_key, _), chunk in unplaced.items():
            for entry in chunk.entries:
                keys[_key(entry)].add(object_key)
        for key, objects in sorted(keys.items()):
            if key in self._states:
                first = self._states[key].high_watermark
                what = (
                    f"{len(objects)} chunks ({min(objects)} …) were written after the backup; "
                    "nobody knows their order, or whether they were acknowledged."
                )
                self._report("uncertain", key, first, -1, what)

    # --- the rows --------------------------------------------------------------------------------

    def finish(self, frames: int) -> RebuiltCatalog:
        """Choose the runs of every partition, and collect all rows."""
        # Chunks that still exist, then per partition the runs that hold every offset once.
        chunk_runs: dict[PartitionKey, list[RunRow]] = defaultdict(list)
        sizes = self._chunk_sizes()
        for run in [*map(RunRow._make, self._rows("run")), *self._changes.runs]:
            if run.byte_offset + run.byte_size <= sizes.get(run.object, 0):
                chunk_runs[run[:2]].append(run)
        runs: list[RunRow] = []
        segments: list[_Segment] = []
        for key, state in sorted(self._states.items()):
            self._advance(key)
            chosen = self._cover(key, state, chunk_runs.get(key, ()))
            runs += chosen
            in_use = {run.object for run in chosen}
            segments += [segment for segment in self._segments[key] if segment.run.object in in_use]
        # Open transactions get an end, and doubtful batches are reported.
        self._inferred.close()
        for remark in self._inferred.remarks():
            self._report(*remark)
        # Only objects that a run uses get a row; the others become orphans.
        objects = [
            ObjectRow(
                segment.run.object, "segment", "live", segment.size_bytes, segment.modified_ms
            )
            for segment in segments
        ]
        chunks = {run.object for run in runs if not run.object.startswith(SEGMENTS)}
        rows = {row[0]: ObjectRow._make(row) for row in self._rows("object")}
        objects += [row for key, row in (rows | self._changes.objects).items() if key in chunks]
        last = last_number(self._files.objects)
        after = self._state_after(segments)
        return RebuiltCatalog(self.backup, last, after, objects, runs, frames, self.findings)

    def _chunk_sizes(self) -> dict[str, int]:
        """The sizes of the chunks that exist, by key."""
        sizes = {}
        for key in {run[4] for run in self._rows("run")} | self._changes.objects.keys():
            try:
                sizes[key] = self._files.size(key)
            except ObjectMissing:
                self._note("note", f"{key} is gone; what lay in it may lie in segments.")
        return sizes

    def _cover(
        self, key: PartitionKey, state: PartitionState, chunks: Sequence[RunRow]
    ) -> list[RunRow]:
        """Runs that hold each of the partition's offsets once; reports offsets that none holds."""
        segments = {segment.run: segment.modified_ms for segment in self._segments[key]}
        runs, gaps = cover(state.log_start, state.high_watermark, segments, chunks)
        for first, last in gaps:
            what = "no object holds these offsets: they were "
            if first == state.log_start:
                what += "deleted by retention after the backup, or lost."
                state.log_start = last + 1
            else:
                what += "lost."
            self._report("lost", key, first, last, what)
        state.bytes = sum(run.byte_size for run in runs)
        state.earliest_timestamp = runs[0].max_timestamp if runs else -1
        return runs

    def _state_after(self, segments: Iterable[_Segment]) -> State:
        """The backup's rows, updated by the frames and segments after it."""
        cluster_id, _, next_producer_id, next_epoch = self._rows("log")[0]
        producers = [
            ProducerRow._make((*key, producer_id, *standing))
            for key, state in self._states.items()
            for producer_id, standing in state.producers.items()
        ]
        seen = max((row.producer_id for row in producers), default=0)
        counters = (max(next_producer_id, seen + 1) + _NEVER_GIVEN, next_epoch + _NEVER_GIVEN)
        known = [*map(AbortedRow._make, self._rows("aborted_txn")), *self._changes.aborted]
        known += [row for segment in segments for row in segment.aborted]
        # Segments come last, because they are right where the rows disagree.
        aborted = {(row.topic_id, row.partition, row.last_offset): row for row in known}
        return (
            self._state
            | self._offsets_after()
            | {
                "log": [(cluster_id, self._changes.applied, *counters)],
                "topic": list(self._topics.values()),
                "partition": [partition_row(*item) for item in sorted(self._states.items())],
                "producer": [(*row[:4], json_text(row.batches), row.last_ms) for row in producers],
                "txn": [txn_columns(row) for row in self._txns.values()],
                "open_txn": [
                    OpenTxnRow(*key, producer_id, first_offset)
                    for key, state in self._states.items()
                    for producer_id, first_offset in state.open_txns.items()
                ],
                "aborted_txn": sorted(aborted.values()),
                "object": [],
                "run": [],
            }
        )

    def _offsets_after(self) -> dict[str, list[Any]]:
        """Committed offsets, with those of transactions that ended in the frames."""
        kept = {tuple(row[:3]): list(row) for row in self._rows("group_offset")}
        waiting = [list(row) for row in self._rows("txn_offset")]
        for producer_id, committed in self._changes.ended:
            if committed:
                kept |= {tuple(row[1:4]): row[1:] for row in waiting if row[0] == producer_id}
            waiting = [row for row in waiting if row[0] != producer_id]
        return {"group_offset": list(kept.values()), "txn_offset": waiting}


def _key(entry: Entry) -> PartitionKey:
    return entry.topic_id, entry.partition
