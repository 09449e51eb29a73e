"""A catalog made again from what lies in the object store and, of a broker alone, its WAL.

The newest intact backup gives all that is small, and segments say of themselves what they hold.
Frames of a broker's own WAL behind the backup are sequenced again; the same frames in the same
order give the same offsets. Nothing else has a known order: chunks of many brokers, and chunks
staged by sinks, that the backup does not know may have been committed after it or never. What
they would have added is reported and left out, with all later frames of the same partitions,
unless the caller asks for a guess: by the time they were made, then by key.

Relies on WAL files staying until a backup covers them (`Backups.cover`). Reads everything and
writes nothing; `Rebuilt.write` fills an empty catalog.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from catchwater.catalog.base import Catalog
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
    json_text,
    producer_row,
    txn_columns,
    txn_row,
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
from catchwater.log.repair.infer import Inferred
from catchwater.log.repair.segments import cover, headers, remember
from catchwater.log.repair.stored import Stored
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
from catchwater.wal.scan import scan
from catchwater.wire.batch import BatchHeader

_CLOCK_SKEW_MS = 60_000
_NEVER_GIVEN = 1_000_000
"""Added to counters, so that no id given out after the backup is given out again."""

Kind = Literal["lost", "uncertain", "damaged", "note"]


class Finding(NamedTuple):
    """Something the rebuilt catalog does not hold, or holds otherwise; offsets are inclusive."""

    kind: Kind
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    """-1 where nobody knows how far it goes."""
    what: str


@dataclass
class Rebuilt:
    """The rows of the catalog to be, and what is to be said about them."""

    backup: Backup | None
    last_backup: int
    state: State
    objects: list[ObjectRow]
    runs: list[RunRow]
    frames: int
    """WAL frames that were sequenced again."""
    findings: list[Finding]

    def write(self, catalog: Catalog) -> None:
        """Fill an empty catalog. Fails as the catalog's changes do."""
        catalog.restore(self.state, self.objects, self.runs, self.last_backup).result()


def rebuild(stored: Stored, new_cluster_id: str, *, guess: bool = False) -> Rebuilt:
    """Read everything and say what the catalog should hold. Raises `StoreError`.

    `new_cluster_id` is used where no backup tells the old one.
    """
    work = _Work(stored, new_cluster_id)
    work.read_segments()
    frames = work.frames_behind_backup()
    unplaced = work.chunks_of_unknown_order()
    work.advance_uncertain()
    if guess:
        frames += [
            (Position(0, key, at, chunk.size_bytes), chunk) for (key, at), chunk in unplaced.items()
        ]
        frames = [(position, work.without_packed(chunk)) for position, chunk in frames]
        frames.sort(key=lambda frame: (frame[1].created_ms, frame[0].file, frame[0].sequence))
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
class _Collected:
    """What the frames behind the backup have changed besides the states."""

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


class _Work:
    """One rebuilding: the backup's state, moved along by what was written after it."""

    def __init__(self, stored: Stored, new_cluster_id: str) -> None:
        self._stored = stored
        self.findings: list[Finding] = []
        self.backup, damaged = newest_backup(stored.objects)
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
        self._inferred = Inferred(self._states, self._txns)
        self._backed_up = {key: state.high_watermark for key, state in self._states.items()}
        self._segments: dict[PartitionKey, list[_Segment]] = defaultdict(list)
        self._collected = _Collected(applied=int(self._rows("log")[0][1]))
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
        """Every segment's footer. Topics that only segments know are made again."""
        for info in self._stored.objects.list(SEGMENTS):
            try:
                footer = read_footer(self._stored.objects, info.key)
            except (DamagedObject, SegmentTooNew) as error:
                self._note("damaged", str(error))
                continue
            if self._belongs(footer, info.modified_ms):
                run = segment_run(footer, info.key)
                aborted = [
                    AbortedRow(footer.topic_id, footer.partition, *txn) for txn in footer.aborted
                ]
                segment = _Segment(run, footer.topic, info.size_bytes, info.modified_ms, aborted)
                self._segments[footer.topic_id, footer.partition].append(segment)

    def _belongs(self, footer: Footer, modified_ms: int) -> bool:
        """Whether the segment's partition is there, perhaps since after the backup."""
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
        """The frames of a broker's own WAL that the backup does not hold, in order.

        Those behind damage, or behind a file that is gone, have no known order.
        """
        frames: list[tuple[Position, Chunk]] = []
        applied, self._collected.applied = self._collected.applied, 0
        expected = applied + 1
        for position, payload in self._stored.own_frames():
            self._collected.applied = max(self._collected.applied, position.sequence)
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
        """Chunks in the stores that the backup does not know and that may be newer than it.

        By object key and first byte.
        """
        for info in self._stored.objects.list(STAGED):
            if info.key not in self._known and info.modified_ms >= self._since_ms:
                self._add_chunk(info.key, 0, self._stored.objects.get(info.key))
        for file in self._stored.wal_files():
            match = FILE_NAME.fullmatch(file)
            if match is not None and match[1]:
                data = self._stored.read_all(file)
                ends = [row[3] for row in self._rows("object") if row[0] == file]
                for frame in scan(file, data, int(match[2])).frames:
                    if frame.payload >= max(ends, default=0):
                        chunk = memoryview(data)[frame.payload : frame.payload + frame.size]
                        self._add_chunk(file, frame.payload, chunk)
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
        """Let partitions whose chunks have no known order begin behind their segments."""
        for key in self._uncertain & self._states.keys():
            self._advance(key)

    def _advance(self, key: PartitionKey) -> None:
        """Move a partition behind its segments, whose batches carry their final offsets."""
        state = self._states[key]
        for segment in sorted(self._segments[key], key=lambda segment: segment.run.last_offset):
            run = segment.run
            if run.last_offset < state.high_watermark:
                continue
            try:
                for header in headers(self._stored.objects, run):
                    if header.base_offset >= state.high_watermark:
                        remember(header, state, segment.modified_ms)
            except DamagedObject as error:
                self._note("damaged", str(error))
            state.high_watermark = run.last_offset + 1

    def without_packed(self, chunk: Chunk) -> Chunk:
        """The chunk without batches that lie in segments already."""
        left = [
            entry
            for entry in chunk.entries
            if _key(entry) not in self._uncertain or not self._is_packed(entry)
        ]
        return chunk._replace(entries=left)

    def _is_packed(self, entry: Entry) -> bool:
        # A producer's batch is known by its sequence; another only by looking at everything.
        return any(
            header.producer_id == entry.producer_id
            and header.base_sequence == entry.base_sequence
            and header.size_bytes == entry.size_bytes
            and header.max_timestamp == entry.max_timestamp
            and header.record_count == entry.record_count
            for header in self._packed_since(_key(entry))
        )

    def _packed_since(self, key: PartitionKey) -> list[BatchHeader]:
        """The headers of batches in segments that reach behind the backup."""
        if key not in self._packed:
            behind = self._backed_up.get(key, 0)
            runs = [segment.run for segment in self._segments[key]]
            self._packed[key] = [
                header
                for run in runs
                if run.last_offset >= behind
                for header in headers(self._stored.objects, run)
            ]
        return self._packed[key]

    def sequence_again(self, frames: Iterable[tuple[Position, Chunk]], *, guess: bool) -> None:
        """Sequence chunks again; partitions with unknown order stand still without a guess."""
        states = self._states
        if not guess:
            states = {key: s for key, s in states.items() if key not in self._uncertain}
        guessed_from: dict[PartitionKey, int] = {}

        def adopt(chunk: Chunk) -> None:
            if guess:
                guessed_from.update((key, state.high_watermark) for key, state in states.items())
            self._collected.ended += self._inferred.adopt(chunk, states)

        def collect(position: Position, chunk: Chunk, done: Sequenced, changes: Changes) -> None:
            self._inferred.watch(chunk.entries, states, done)
            self._collected.add(changes)
            self._collected.applied = max(self._collected.applied, position.sequence)
            for key in done.changed.keys() & self._uncertain:
                first, last = guessed_from[key], states[key].high_watermark - 1
                what = f"these offsets were guessed for {position.file}; they may be wrong."
                self._report("uncertain", key, first, last, what)

        replay(frames, states, self._txns, before=adopt, after=collect)

    def report_unplaced(self, unplaced: dict[tuple[str, int], Chunk]) -> None:
        """Name the partitions and offsets whose order is not known."""
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

    def finish(self, frames: int) -> Rebuilt:
        """Choose the runs of every partition, and put all rows together."""
        chunk_runs: dict[PartitionKey, list[RunRow]] = defaultdict(list)
        sizes = self._chunk_sizes()
        for run in [*map(RunRow._make, self._rows("run")), *self._collected.runs]:
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
        self._inferred.close()
        for remark in self._inferred.remarks():
            self._report(*remark)
        objects = [
            ObjectRow(
                segment.run.object, "segment", "live", segment.size_bytes, segment.modified_ms
            )
            for segment in segments
        ]
        chunks = {run.object for run in runs if not run.object.startswith(SEGMENTS)}
        rows = {row[0]: ObjectRow._make(row) for row in self._rows("object")}
        objects += [row for key, row in (rows | self._collected.objects).items() if key in chunks]
        last = last_number(self._stored.objects)
        after = self._state_after(segments)
        return Rebuilt(self.backup, last, after, objects, runs, frames, self.findings)

    def _chunk_sizes(self) -> dict[str, int]:
        """The chunks that runs may lie in, as far as they are there."""
        sizes = {}
        for key in {run[4] for run in self._rows("run")} | self._collected.objects.keys():
            try:
                sizes[key] = self._stored.size(key)
            except ObjectMissing:
                self._note("note", f"{key} is gone; what lay in it may lie in segments.")
        return sizes

    def _cover(
        self, key: PartitionKey, state: PartitionState, chunks: Sequence[RunRow]
    ) -> list[RunRow]:
        """Runs that hold the partition's offsets once each; findings for those that none holds."""
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
        """The backup's rows, moved along by the frames and segments behind it."""
        cluster_id, _, next_producer_id, next_epoch = self._rows("log")[0]
        producers = [
            ProducerRow._make((*key, producer_id, *standing))
            for key, state in self._states.items()
            for producer_id, standing in state.producers.items()
        ]
        seen = max((row.producer_id for row in producers), default=0)
        counters = (max(next_producer_id, seen + 1) + _NEVER_GIVEN, next_epoch + _NEVER_GIVEN)
        known = [*map(AbortedRow._make, self._rows("aborted_txn")), *self._collected.aborted]
        known += [row for segment in segments for row in segment.aborted]
        # Where they disagree, segments are right.
        aborted = {(row.topic_id, row.partition, row.last_offset): row for row in known}
        return (
            self._state
            | self._offsets_after()
            | {
                "log": [(cluster_id, self._collected.applied, *counters)],
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
        """Positions that waited for transactions which ended in the frames."""
        kept = {tuple(row[:3]): list(row) for row in self._rows("group_offset")}
        waiting = [list(row) for row in self._rows("txn_offset")]
        for producer_id, committed in self._collected.ended:
            if committed:
                kept |= {tuple(row[1:4]): row[1:] for row in waiting if row[0] == producer_id}
            waiting = [row for row in waiting if row[0] != producer_id]
        return {"group_offset": list(kept.values()), "txn_offset": waiting}


def _key(entry: Entry) -> PartitionKey:
    return entry.topic_id, entry.partition
