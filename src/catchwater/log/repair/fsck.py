"""Compares the catalog with the bytes it names: finds damaged, missing and orphaned objects.

For every partition the runs must follow each other from the log's start to its high watermark, and
each must be in an object that exists, is long enough and, if a segment, has a footer that agrees. A
deep check reads every byte and verifies every batch and every frame of the WAL. A segment's Parquet
must exist, too; a deep check compares its checksum and number of records. Damage is reported by
object, bytes, topic, partition and offsets, with the pins (of checkpoints, of savepoints) that need
those offsets. A running broker may pack and delete meanwhile, so a missing object is looked up
again before it is reported.

Reads a few megabytes at a time (a WAL file at once); changes nothing; blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from catchwater.catalog.base import Catalog
from catchwater.catalog.errors import CatalogDead
from catchwater.catalog.rows import ParquetRow, PartitionKey, PartitionRow, Pin, RunRow, Topic
from catchwater.catalog.sqlite import ReadOnlyCatalog
from catchwater.catalog.sums import find_spoiled
from catchwater.clock import Clock
from catchwater.log.format.batches import DamagedObject, walk, whole_batches
from catchwater.log.format.segment import (
    HEADER_BYTES,
    Footer,
    IndexEntry,
    SegmentTooNew,
    is_header,
    read_footer,
)
from catchwater.log.repair.backup import newest_backup
from catchwater.log.repair.files import LogFiles
from catchwater.log.storage import PARQUET, SEGMENTS, STAGED
from catchwater.objects.base import ObjectMissing, ObjectStore, ObjectTruncated
from catchwater.wal.frames import spoiled_padding

_PIECE_BYTES = 4 * 1024 * 1024
_RUNS_A_LOOK = 1000
_KEYS_A_LOOK = 500
_LOOKS_AT_PAGES = 4
_BETWEEN_LOOKS_S = 0.2


class Damage(NamedTuple):
    """One damaged range of bytes; bytes and offsets are inclusive, -1: none."""

    object: str
    first_byte: int
    last_byte: int
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    reason: str
    pins: tuple[str, ...]
    """`<id> (<owner>)` of the pins that need these offsets."""


@dataclass
class Report:
    """The counts and findings of a check."""

    partitions: int = 0
    runs: int = 0
    objects: int = 0
    bytes_read: int = 0
    damaged: list[Damage] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Objects without a row, left by crashes. No damage: the broker deletes them."""

    @property
    def is_good(self) -> bool:
        """Whether everything that the catalog names is there and whole."""
        return not self.damaged


Progress = Callable[[int, int], None]
"""Called with the bytes of runs checked so far, and the bytes of all."""


def fsck(catalog: Catalog, files: LogFiles, *, deep: bool, progress: Progress) -> Report:
    """Check a log. Raises `StoreError` if a store does not answer, or `CatalogDead`."""
    check = _Check(catalog, files, deep, progress)
    check.partitions()
    if deep:
        check.wal()
    check.backups()
    check.orphans()
    return check.report


def fsck_directory(
    data_dir: Path, objects: ObjectStore, *, deep: bool, progress: Progress, clock: Clock
) -> Report:
    """Check the log of a lone broker, which may be running. Raises `StoreError`."""
    damaged = _spoiled_pages(data_dir / "catalog.db", clock)
    try:
        catalog = ReadOnlyCatalog(data_dir / "catalog.db")
        with closing(catalog):
            report = fsck(catalog, LogFiles(objects, data_dir), deep=deep, progress=progress)
    except CatalogDead as error:
        report = Report()
        if not damaged:
            damaged = [_of_file("catalog.db", 0, -1, str(error))]
    report.damaged[:0] = damaged
    return report


def _spoiled_pages(database: Path, clock: Clock) -> list[Damage]:
    """Damaged pages of the catalog; checked again in case a broker was writing them."""
    for _ in range(_LOOKS_AT_PAGES - 1):
        if not list(find_spoiled(database)):
            return []
        clock.pause(_BETWEEN_LOOKS_S)
    return [_of_file(found.path.name, *found[1:]) for found in find_spoiled(database)]


def _of_file(name: str, first_byte: int, last_byte: int, reason: str) -> Damage:
    return Damage(name, first_byte, last_byte, "", -1, -1, -1, reason, ())


class _Check:
    def __init__(self, catalog: Catalog, files: LogFiles, deep: bool, progress: Progress) -> None:
        self.report = Report()
        self._catalog = catalog
        self._files = files
        self._deep = deep
        self._progress = progress
        self._pins = [pin for pin in catalog.pins() if pin.state != "lost"]
        self._seen_objects: set[str] = set()
        self._parquet: dict[str, ParquetRow] = {}
        """By segment, of the partition being checked."""
        self._data_records = 0
        """Records in the verified batches of the current run."""
        self._looked_at = self._to_look_at = 0

    # --- the runs of every partition -------------------------------------------------------------

    def partitions(self) -> None:
        """Walk every partition from its log start to its high watermark."""
        state = self._catalog.load()
        topics = {topic.id: topic for topic in state.topics}
        self._to_look_at = sum(row.bytes for row in state.partitions)
        for row in state.partitions:
            topic = topics.get(row.topic_id)
            if topic is None:
                self._add(_CATALOG, 0, -1, row[:2], None, -1, -1, "the partition has no topic.")
                continue
            self.report.partitions += 1
            self._partition(topic, row)
        self.report.objects = len(self._seen_objects)

    def _partition(self, topic: Topic, row: PartitionRow) -> None:
        key = row[:2]
        expected = row.log_start
        found = self._catalog.parquet(key, row.log_start, row.high_watermark)
        self._parquet = {parquet.segment: parquet for parquet in found}
        for run in self._runs(key, row.log_start):
            if run.base_offset > expected:
                self._gap(key, topic, expected, run.base_offset - 1)
            elif run.base_offset < expected and expected > row.log_start:
                reason = f"the run begins at offset {run.base_offset}, within the one before it."
                self._damaged_run(run, topic, reason)
            found_before = len(self.report.damaged)
            self._run(run, topic)
            if run.object in self._parquet:
                is_whole = len(self.report.damaged) == found_before
                self._parquet_of(run, topic, self._parquet[run.object], is_whole)
            expected = max(expected, run.last_offset + 1)
            self.report.runs += 1
            self._looked_at += run.byte_size
            self._progress(self._looked_at, max(self._to_look_at, self._looked_at))
        if expected < row.high_watermark:
            self._gap(key, topic, expected, row.high_watermark - 1)

    def _runs(self, key: PartitionKey, offset: int) -> Iterator[RunRow]:
        while runs := self._catalog.runs(key, offset, limit=_RUNS_A_LOOK):
            yield from runs
            offset = runs[-1].last_offset + 1

    def _gap(self, key: PartitionKey, topic: Topic, first: int, last: int) -> None:
        rows = self._catalog.partitions([key])
        if not rows or rows[0].log_start > last:
            return  # deleted during the check
        reason = "no run of the catalog holds these offsets."
        self._add(_CATALOG, 0, -1, key, topic, max(first, rows[0].log_start), last, reason)

    def _run(self, run: RunRow, topic: Topic) -> None:
        self._seen_objects.add(run.object)
        self._data_records = 0
        try:
            if run.object.startswith(SEGMENTS):
                self._segment(run, topic)
            elif self._deep:
                self._chunk_run(run, topic)
            else:
                self._files.read(run.object, run.byte_offset + run.byte_size - 1, 1)
        except (ObjectMissing, ObjectTruncated) as error:
            if self._is_current(run):
                self._damaged_run(run, topic, str(error))

    def _parquet_of(self, run: RunRow, topic: Topic, parquet: ParquetRow, is_whole: bool) -> None:
        """Check a segment's Parquet; compare their records if the segment `is_whole`."""
        self._seen_objects.add(parquet.object)
        size = 0
        try:
            size = self._files.size(parquet.object)
            wrong = self._wrong_parquet(parquet, size, is_whole)
        except (ObjectMissing, ObjectTruncated) as error:
            wrong = str(error) if self._is_current(run) else ""
        if wrong:
            reason = f"{wrong} The records are in {run.object}, too."
            self._add(parquet.object, 0, size - 1, run[:2], topic, run.base_offset,
                      run.last_offset, reason)  # fmt: skip

    def _wrong_parquet(self, parquet: ParquetRow, size: int, is_whole: bool) -> str:
        """What is wrong with the object, as a sentence; only a deep check reads all its bytes."""
        ending = self._files.read(parquet.object, max(0, size - len(_PARQUET_END)), min(size, 4))
        if ending != _PARQUET_END:
            return "It does not end as Parquet does; it was cut off or overwritten."
        if not self._deep:
            return ""
        crc = 0
        for at in range(0, size, _PIECE_BYTES):
            crc = crc32c(self._read(parquet.object, at, min(_PIECE_BYTES, size - at)), crc)
        if crc != parquet.crc:
            return "It fails the checksum that the catalog has of it."
        if is_whole and parquet.records != self._data_records:
            return f"It holds {parquet.records} records, but its segment {self._data_records}."
        return ""

    def _is_current(self, run: RunRow) -> bool:
        return self._catalog.runs(run[:2], run.base_offset, limit=1) == [run]

    def _damaged_run(self, run: RunRow, topic: Topic, reason: str) -> None:
        last_byte = run.byte_offset + run.byte_size - 1
        self._add(
            run.object, run.byte_offset, last_byte, run[:2], topic, run.base_offset,
            run.last_offset, reason,
        )  # fmt: skip

    def _segment(self, run: RunRow, topic: Topic) -> None:
        try:
            footer = read_footer(self._files.objects, run.object)
        except (DamagedObject, SegmentTooNew) as error:
            first, last = getattr(error, "first_byte", 0), getattr(error, "last_byte", -1)
            self._add(
                run.object, first, last, run[:2], topic, run.base_offset, run.last_offset,
                str(error),
            )  # fmt: skip
            return
        says = (footer.topic_id, footer.partition, footer.base_offset, footer.last_offset)
        if says != run[:4] or footer.index_position != run.byte_offset + run.byte_size:
            what = f"offsets {footer.base_offset} to {footer.last_offset}"
            reason = f"it says that it holds {what} of {footer.topic}-{footer.partition}."
            self._damaged_run(run, topic, reason)
        elif self._deep:
            self._batches(run, topic, footer)

    def _batches(self, run: RunRow, topic: Topic, footer: Footer) -> None:
        if not is_header(self._files.read(run.object, 0, HEADER_BYTES)):
            reason = "its header is not a segment's; nothing that is served lies there."
            self._add(run.object, 0, HEADER_BYTES - 1, run[:2], topic, -1, -1, reason)
        end = IndexEntry(footer.last_offset + 1, footer.index_position, 0)
        for entry, after in pairwise((*footer.index, end)):
            data = self._read(run.object, entry.position, after.position - entry.position)
            first, last = entry.base_offset, after.base_offset - 1
            holes = entry.heads_crc if footer.is_cleaned else None
            self._walk(run, topic, data, first, last, entry.position, placed=True, holes=holes)

    def _chunk_run(self, run: RunRow, topic: Topic) -> None:
        """The batches of a run in a chunk, a few megabytes of whole batches at a time."""
        at, end = run.byte_offset, run.byte_offset + run.byte_size
        offset = run.base_offset
        while at < end:
            data = self._read(run.object, at, min(_PIECE_BYTES, end - at))
            if len(data) < end - at:
                whole, following = whole_batches(data, offset)
                if whole == 0:  # one batch is larger than a piece, or its length is damaged
                    data = self._read(run.object, at, end - at)
                    whole, following = len(data), run.last_offset + 1
                data = data[:whole]
            else:
                following = run.last_offset + 1
            if not self._walk(run, topic, data, offset, following - 1, at, placed=False):
                return  # the position of the next batch is not known
            at += len(data)
            offset = following

    def _walk(
        self, run: RunRow, topic: Topic, data: bytes, first: int, last: int, position: int,
        *, placed: bool, holes: int | None = None,
    ) -> bool:  # fmt: skip
        """Verify adjacent batches; whether all are intact."""
        offset = first
        try:
            for batch in walk(
                data, first, last, key=run.object, position=position, placed=placed, holes=holes
            ):
                offset = batch.header.last_offset + 1
                self._data_records += 0 if batch.header.is_control else batch.header.record_count
        except DamagedObject as error:
            until = last if placed else run.last_offset
            self._add(
                run.object, error.first_byte, error.last_byte, run[:2], topic, offset, until,
                str(error),
            )  # fmt: skip
            return False
        return True

    def _read(self, key: str, at: int, size: int) -> bytes:
        self.report.bytes_read += size
        return self._files.read(key, at, size)

    # --- the rest --------------------------------------------------------------------------------

    def wal(self) -> None:
        """Check every frame of every WAL file, including the bytes between batches."""
        committed = {row.key: row.size_bytes for row in self._catalog.objects("live")}
        files = list(self._files.wal_files())
        named = {(found.object, found.first_byte) for found in self.report.damaged}
        for file in files:
            try:
                data, found, payloads = self._files.scanned(file)
            except (ObjectMissing, ObjectTruncated):
                continue  # deleted or begun during the check
            self.report.bytes_read += len(data)
            for position, payload in payloads:
                if payload is None:
                    ends = position.offset + position.size - 1
                    reason = "this frame was sealed, and is not what was written."
                    self._in_file(file, position.offset, ends, reason)
            spoiled = [(lost.first_byte, lost.last_byte) for lost in found.damage]
            spoiled += spoiled_padding(data, found)
            end = len(data) if self._is_finished(file, files) else committed.get(file, 0)
            if found.end < end:
                spoiled.append((found.end, end - 1))
            for first, last in spoiled:
                if not any(key == file and first <= byte <= last for key, byte in named):
                    reason = "these bytes are no frame of the write-ahead log."
                    self._in_file(file, first, last, reason)

    def _is_finished(self, file: str, files: list[str]) -> bool:
        """Whether the file is complete; in the one being written a torn end is no damage."""
        folder = file.rpartition("/")[0]
        return file != max(key for key in files if key.rpartition("/")[0] == folder)

    def _in_file(self, file: str, first: int, last: int, reason: str) -> None:
        """Report damage outside of verified batches."""
        self._add(file, first, last, None, None, -1, -1, reason)

    def backups(self) -> None:
        """Report backups that are damaged, down to the newest intact one."""
        for error in newest_backup(self._files.objects)[1]:
            self._add(_CATALOG, 0, -1, None, None, -1, -1, str(error))

    def orphans(self) -> None:
        """Find objects without a row in the catalog."""
        for prefix in (SEGMENTS, PARQUET, STAGED):
            listed = (info.key for info in self._files.objects.list(prefix))
            while keys := list(islice(listed, _KEYS_A_LOOK)):
                known = self._catalog.known_objects(keys)
                self.report.orphans += [key for key in keys if key not in known]

    def _add(
        self, key: str, first_byte: int, last_byte: int, partition: PartitionKey | None,
        topic: Topic | None, first: int, last: int, reason: str,
    ) -> None:  # fmt: skip
        name = topic.name if topic else ""
        index = partition[1] if partition else -1
        pins = tuple(
            f"{pin.id} ({pin.owner})" for pin in self._pins if _needs(pin, name, index, last)
        )
        self.report.damaged.append(
            Damage(key, first_byte, last_byte, name, index, first, last, reason, pins)
        )


_CATALOG = "the catalog"
_PARQUET_END = b"PAR1"


def _needs(pin: Pin, topic: str, partition: int, last_offset: int) -> bool:
    return pin.positions.get((topic, partition), last_offset + 1) <= last_offset
