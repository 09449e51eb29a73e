"""Runs read back from storage: verified, in pieces, through a cache of their own.

A run is read in pieces of about a megabyte, cut where a batch begins, so that a small fetch from
a large segment costs what it returns. A piece is verified once, when it comes from storage, and
cached; the tail's cache is never touched, so lagging consumers cannot slow the others down.

Everything here blocks and runs in worker threads. Damage is raised, never skipped.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from catchwater.catalog.base import (
    Catalog,
)
from catchwater.catalog.rows import (
    ParquetRow,
    PartitionKey,
    RunRow,
)
from catchwater.config import CatchwaterError
from catchwater.log.format.batches import (
    Block,
    DamagedObject,
    StoredBatch,
    first_record_at,
    place,
    placed_block,
    walk,
)
from catchwater.log.format.segment import Footer, IndexEntry, is_cleaned, read_footer
from catchwater.log.storage import SEGMENTS, UNREADABLE, Readable

PIECE_BYTES = 1024 * 1024
PLAN_RANGE_BYTES = 8 * 1024 * 1024
_RUNS_SPLIT = 1024
_READS_AT_ONCE = 32


class LostBytes(DamagedObject):
    """The catalog named these bytes, but they are not there; they may have been packed away."""


class Piece(NamedTuple):
    """Whole batches of one run: what is read, verified and cached as one."""

    base_offset: int
    last_offset: int
    position: int
    size_bytes: int
    max_timestamp: int
    holes: int | None = None
    """Where offsets may be missing in front of a batch: the CRC over the base offsets."""


@dataclass(frozen=True, slots=True)
class PlanRange:
    """Bytes that hold the batches of `base_offset` to `last_offset` of one partition.

    In a `segment` the batches carry their final offsets; in a `cleaned` segment too, but offsets
    may be missing in front of a batch; in a `chunk` they carry base offset 0 and take consecutive
    offsets from `base_offset` on.
    """

    partition: int
    kind: str
    url: str
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    parquet: str = ""
    """URL of the Parquet object with the records of the whole segment that the range lies in."""
    parquet_schema: str = ""
    """What its values were declared to be, if it has them as columns."""
    parquet_first: int = 0
    parquet_stop: int = 0
    """The offsets [first, stop) of that segment."""
    object: str = ""
    """The object's key, by which the broker itself reads it."""


class PlanTooLarge(CatchwaterError):
    """The requested offsets lie in more places than one answer may name."""

    def __init__(self) -> None:
        super().__init__(
            "The offsets lie in more places than one plan names.", hint="Ask for fewer at once."
        )


class History:
    """What the catalog says is there, read from storage."""

    def __init__(self, catalog: Catalog, storage: Readable, max_cached_bytes: int) -> None:
        self._catalog = catalog
        self._storage = storage
        self._cache = _BlockCache(max_cached_bytes)
        self._pieces = lru_cache(maxsize=_RUNS_SPLIT)(self._split)

    def blocks(self, key: PartitionKey, offset: int, max_bytes: int) -> Iterator[Block]:
        """About `max_bytes` of batches, from the piece that holds `offset` on, piece by piece.

        Ends early where the catalog holds no consecutive run; is empty if none holds `offset`.
        Ends too after `_READS_AT_ONCE` pieces from storage: small chunks may be far away, and a
        client waits. Raises `DamagedObject`, `SegmentTooNew` or `StoreError`.
        """
        expected = offset
        left = _READS_AT_ONCE
        for run in self._catalog.runs(key, offset, max_bytes=max_bytes):
            if run.base_offset > expected:
                return
            for piece in _from_offset(self._pieces(run), offset):
                block = self._cache.get((run.object, piece.position))
                if block is None:
                    if not left:
                        return
                    left -= 1
                    block = self._block(run, piece)
                yield block
            expected = run.last_offset + 1

    def first_at(self, key: PartitionKey, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record not older than this; None if all are."""
        run = self._catalog.run_for_timestamp(key, timestamp_ms)
        if run is None:
            return None
        for piece in self._pieces(run):
            if piece.max_timestamp < timestamp_ms:
                continue
            for batch in self._walk(run, piece, self._read(run, piece)):
                if batch.header.max_timestamp >= timestamp_ms:
                    return first_record_at(batch, timestamp_ms)
        return None

    def newest(self, key: PartitionKey) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp; None without one.

        The catalog finds the first run that reaches a time, so the search for the largest doubles
        and then halves its steps: some forty look-ups for any number of runs.
        """
        largest, step = -1, 1
        while step:
            run = self._catalog.run_for_timestamp(key, largest + step)
            if run is None:
                step //= 2
            else:
                largest, step = run.max_timestamp, step * 2
        return None if largest < 0 else self.first_at(key, largest)

    def plan(self, key: PartitionKey, start: int, end: int, most: int = 2**31) -> list[PlanRange]:
        """Where the offsets [start, end) lie: ranges of about 8 MiB, made of whole pieces.

        Ends early where the catalog holds no consecutive run. Raises `PlanTooLarge`.
        """
        ranges: list[PlanRange] = []
        parquet = {row.segment: row for row in self._catalog.parquet(key, start, end)}
        for run in self._consecutive(key, start, end):
            kind = "segment" if run.object.startswith(SEGMENTS) else "chunk"
            kind = "cleaned" if is_cleaned(run.object) else kind
            pieces = [
                piece._replace(holes=None)  # it is of a piece, and ranges are read in other parts
                for piece in _from_offset(self._pieces(run), start)
                if piece.base_offset < end
            ]
            planned = [
                self._plan_range(key[1], kind, run.object, piece)
                for piece in _joined(pieces, PLAN_RANGE_BYTES)
            ]
            if run.object in parquet:
                planned = self._with_parquet(planned, run, parquet[run.object])
            ranges += planned
            if len(ranges) > most:
                raise PlanTooLarge
        return ranges

    def _plan_range(self, partition: int, kind: str, key: str, piece: Piece) -> PlanRange:
        return PlanRange(
            partition=partition,
            kind=kind,
            url=self._storage.url(key, (piece.position, piece.size_bytes)),
            byte_offset=piece.position,
            byte_size=piece.size_bytes,
            base_offset=piece.base_offset,
            last_offset=piece.last_offset,
            max_timestamp=piece.max_timestamp,
            object=key,
        )

    def _with_parquet(
        self, planned: list[PlanRange], run: RunRow, parquet: ParquetRow
    ) -> list[PlanRange]:
        url = self._storage.url(parquet.object)
        stop = run.last_offset + 1
        return [
            replace(
                each,
                parquet=url,
                parquet_schema=parquet.schema,
                parquet_first=run.base_offset,
                parquet_stop=stop,
            )
            for each in planned
        ]

    def next_stored(self, key: PartitionKey, offset: int) -> int:
        """The first offset from `offset` on that a run holds; 2**63 - 1 if none does."""
        runs = self._catalog.runs(key, offset, limit=1)
        return max(runs[0].base_offset, offset) if runs else 2**63 - 1

    def _consecutive(self, key: PartitionKey, start: int, end: int) -> Iterator[RunRow]:
        """The runs that hold [start, end), up to the first hole."""
        while start < end:
            runs = self._catalog.runs(key, start)
            if not runs:
                return
            for run in runs:
                if run.base_offset > start or start >= end:
                    return
                yield run
                start = run.last_offset + 1

    def _split(self, run: RunRow) -> tuple[Piece, ...]:
        """The pieces of a run, by its segment's index or by a look at its batches."""
        if run.object.startswith(SEGMENTS):
            with _lost(run, _whole(run)):
                footer = read_footer(self._storage.objects, run.object)
            _check_place(run, footer)
            return tuple(_joined(_segment_pieces(footer), PIECE_BYTES))
        if run.byte_size <= PIECE_BYTES:
            return (_whole(run),)
        batches = self._walk(run, _whole(run), self._read(run, _whole(run)))
        return tuple(_joined(map(_batch_piece, batches), PIECE_BYTES))

    def _block(self, run: RunRow, piece: Piece) -> Block:
        """The piece from storage, every byte verified; the cache has it then."""
        data = self._read(run, piece)
        for _ in self._walk(run, piece, data):
            pass
        is_placed = run.object.startswith(SEGMENTS)
        block = placed_block(data) if is_placed else place(data, piece.base_offset)
        self._cache.put((run.object, piece.position), block)
        return block

    def _read(self, run: RunRow, piece: Piece) -> bytearray:
        with _lost(run, piece):
            return bytearray(self._storage.read(run.object, piece.position, piece.size_bytes))

    def _walk(self, run: RunRow, piece: Piece, data: bytearray) -> Iterator[StoredBatch]:
        """The batches of the piece, every byte verified."""
        return walk(
            data,
            piece.base_offset,
            piece.last_offset,
            key=run.object,
            position=piece.position,
            placed=run.object.startswith(SEGMENTS),
            holes=piece.holes,
        )


class _BlockCache:
    """Least recently used blocks out first; shared by the worker threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], Block] = OrderedDict()

    def get(self, key: tuple[str, int]) -> Block | None:
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return self._blocks[key]

    def put(self, key: tuple[str, int], block: Block) -> None:
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self._bytes += len(block.data)
            while self._bytes > self._max_bytes:
                _, dropped = self._blocks.popitem(last=False)
                self._bytes -= len(dropped.data)


@contextmanager
def _lost(run: RunRow, piece: Piece) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        last_byte = piece.position + piece.size_bytes - 1
        raise LostBytes(run.object, piece.position, last_byte, str(error)) from error


def _whole(run: RunRow) -> Piece:
    return Piece(
        run.base_offset, run.last_offset, run.byte_offset, run.byte_size, run.max_timestamp
    )


def _batch_piece(batch: StoredBatch) -> Piece:
    header = batch.header
    return Piece(
        header.base_offset,
        header.last_offset,
        batch.position,
        header.size_bytes,
        header.max_timestamp,
    )


def _segment_pieces(footer: Footer) -> Iterator[Piece]:
    """What lies between one index entry and the next, as pieces."""
    end = IndexEntry(footer.last_offset + 1, footer.index_position, 0)
    following = (*footer.index[1:], end)
    for entry, after in zip(footer.index, following, strict=True):
        size = after.position - entry.position
        yield Piece(
            entry.base_offset,
            after.base_offset - 1,
            entry.position,
            size,
            entry.max_timestamp,
            entry.heads_crc if footer.is_cleaned else None,
        )


def _check_place(run: RunRow, footer: Footer) -> None:
    """Raise `DamagedObject` where another segment lies in the place of the one we wrote."""
    found = (footer.topic_id, footer.partition, footer.base_offset, footer.last_offset)
    if found != run[:4] or footer.is_cleaned != is_cleaned(run.object):
        last_byte = run.byte_offset + run.byte_size - 1
        reason = (
            f"it says that it holds offsets {footer.base_offset} to {footer.last_offset} of "
            f"{footer.topic}-{footer.partition}, but offsets {run.base_offset} to "
            f"{run.last_offset} of partition {run.partition} were written here."
        )
        raise DamagedObject(run.object, run.byte_offset, last_byte, reason)


def _joined(pieces: Iterable[Piece], max_bytes: int) -> Iterator[Piece]:
    """Neighbouring pieces joined up to this size; a larger one stays as it is.

    So does one with holes, which can only be verified alone.
    """
    joined: Piece | None = None
    for piece in pieces:
        if joined is None:
            joined = piece
        elif joined.size_bytes + piece.size_bytes > max_bytes or piece.holes is not None:
            yield joined
            joined = piece
        else:
            joined = Piece(
                joined.base_offset,
                piece.last_offset,
                joined.position,
                joined.size_bytes + piece.size_bytes,
                max(joined.max_timestamp, piece.max_timestamp),
            )
    if joined is not None:
        yield joined


def _from_offset(pieces: tuple[Piece, ...], offset: int) -> tuple[Piece, ...]:
    """The piece that holds the offset and those after it."""
    return pieces[bisect_left(pieces, offset, key=lambda piece: piece.last_offset) :]
