"""A record batch opened: record batches to Arrow, and records to one record batch.

Reading goes by groups of batches (about 4 MiB or 64k records): the records are decompressed, parsed
in one compiled pass and gathered into Arrow arrays in another, and only the columns asked for are
built. A batch of more records is decoded piece by piece, so that what it may unfold to
(`codecs.MAX_DECOMPRESSED_BYTES`) bounds the memory too. Writing makes one batch, as a producer
sends it. Needs the `spark` extra (numba, pyarrow).

Relies on `batch` for headers and checksums and on `codecs` for compression. Promises: damaged bytes
raise `RecordsDamaged` naming the offset, and are never read past their end, even where a checksum
fits them; a batch that is cut short is an error unless the caller expects one; control batches and
aborted transactions (if their list is given) yield no rows; no row is dropped in silence.
Does not know topics, partitions, or where the bytes came from.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catchwater.config import CatchwaterError
from catchwater.wire import codecs, kernels
from catchwater.wire.batch import (
    ABORT,
    HEADER_BYTES,
    LENGTH_FIELD_END,
    MAGIC,
    MOST_HEADERS,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SMALLEST_RECORD_BYTES,
    TRANSACTIONAL_BIT,
    BatchError,
    BatchHeader,
    check_crc,
    encode,
    encode_zigzag,
    load_walk,
    marker_type,
    read_extent,
    read_header,
)
from catchwater.wire.codecs import Codec, CodecError
from catchwater.wire.columns import COLUMNS, HEADERS_TYPE
from catchwater.wire.fields import Buffer

MAX_OFFSET = 2**63 - 1
# However many records it has, a batch that begins here ends below MAX_OFFSET.
_LAST_BASE_OFFSET = MAX_OFFSET - 2**31

GROUP_BYTES = 4 * 2**20
GROUP_RECORDS = 64 * 1024
# A batch is opened before it is known how large it is; what a group ends with goes behind it.
_ROOM_BYTES = 2 * GROUP_BYTES
# Batches that are left out may lie between those of a group, and positions are 32 bits wide.
_MOST_SPAN_BYTES = 2**31 - 1

_NOT_RECORDS = (
    "its records do not fill it exactly, are not numbered upwards within its offsets, or one has "
    f"more than {MOST_HEADERS} headers."
)
_NO_HEADERS = b"\x00"

_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int32]


class RecordsDamaged(CatchwaterError):
    """Bytes that should be record batches and are not; `offset` is where the damage begins."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class PlacedBatch(NamedTuple):
    """A batch in a buffer: its header, the byte it begins at, and the offset it has in the log."""

    header: BatchHeader
    at: int
    base_offset: int

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.at + self.header.size_bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


class AbortedTransaction(NamedTuple):
    """A producer whose records from this offset to its next abort marker must not be read."""

    producer_id: int
    first_offset: int


def place(
    data: Buffer, *, base_offset: int | None = None, partial_tail: bool = False
) -> list[PlacedBatch]:
    """The batches that lie side by side in `data`, and their offsets.

    With a `base_offset` the batches are numbered on from there, as the bytes in a chunk are, which
    carry no offsets yet; without, their headers are right. `partial_tail` allows the last batch to
    be cut short, as in a Fetch reply; it is then left out. Raises `RecordsDamaged`.
    """
    view = memoryview(data)
    batches: list[PlacedBatch] = []
    at, offset = 0, base_offset
    while at < len(view):
        if partial_tail and _is_cut_short(view, at):
            break
        try:
            header = read_header(view, at)
        except BatchError as error:
            last = batches[-1].next_offset if batches else (base_offset or 0)
            raise RecordsDamaged(str(error), offset=last) from error
        batches.append(PlacedBatch(header, at, header.base_offset if offset is None else offset))
        if header.last_offset_delta < 0 or not 0 <= batches[-1].base_offset <= _LAST_BASE_OFFSET:
            reason = f"its offsets are {batches[-1].base_offset} to {batches[-1].next_offset - 1}"
            raise _damaged(batches[-1], reason)
        at += header.size_bytes
        if offset is not None:
            offset = batches[-1].next_offset
    return batches


def _is_cut_short(view: memoryview, at: int) -> bool:
    if len(view) - at < HEADER_BYTES:
        return True
    length, _ = read_extent(view, at)
    return bool(at + LENGTH_FIELD_END + length > len(view))


class _OpenBatch(NamedTuple):
    """A batch whose checksum holds, and its records uncompressed."""

    placed: PlacedBatch
    body: memoryview


def decode(
    data: Buffer,
    batches: Sequence[PlacedBatch],
    *,
    first: int = 0,
    stop: int = MAX_OFFSET,
    columns: Sequence[str] = tuple(COLUMNS),
    aborted: Sequence[AbortedTransaction] = (),
) -> Iterator[pa.RecordBatch]:
    """The records of `batches` with offsets in [first, stop), in order, as Arrow.

    The Arrow batches hold up to GROUP_RECORDS rows and are never empty. Raises `ValueError` for a
    column that does not exist, or for none; else see `locate`.
    """
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"No column is called {sorted(unknown)[0]!r}; there are {list(COLUMNS)}.")
    if not columns:
        raise ValueError("Arrow cannot say how many rows there are without at least one column.")
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    for located in locate(data, batches, first=first, stop=stop, aborted=aborted):
        arrays = [located.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def locate(
    data: Buffer,
    batches: Sequence[PlacedBatch],
    *,
    first: int = 0,
    stop: int = MAX_OFFSET,
    aborted: Sequence[AbortedTransaction] = (),
) -> Iterator["Located"]:
    """Where the records of `batches` with offsets in [first, stop) lie, up to GROUP_RECORDS a time.

    `batches` are what `place` found in `data`. `aborted` is what a Fetch reply lists for a reader
    of committed records. Raises `RecordsDamaged`.
    """
    view = memoryview(data)
    wanted = (
        batch
        for batch in _visible(view, batches, aborted)
        if batch.base_offset < stop and batch.next_offset > first
    )
    for group in _groups(view, wanted):
        yield from _locate_group(view, group, first, stop)


def _visible(
    view: memoryview, batches: Sequence[PlacedBatch], aborted: Sequence[AbortedTransaction]
) -> Iterator[PlacedBatch]:
    """The batches that carry records for readers: no control batches, no aborted transactions."""
    pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    open_producers: set[int] = set()
    for batch in batches:
        while pending and pending[-1].first_offset < batch.next_offset:
            open_producers.add(pending.pop().producer_id)
        producer_id = batch.header.producer_id
        if batch.header.is_control:
            if producer_id in open_producers and _is_abort_marker(view, batch):
                open_producers.discard(producer_id)
        elif not (batch.header.is_transactional and producer_id in open_producers):
            yield batch


def _is_abort_marker(view: memoryview, batch: PlacedBatch) -> bool:
    rows = next(_locate_group(view, [_open(view, batch)], 0, MAX_OFFSET), None)
    return rows is not None and marker_type(rows.column("key")[0].as_py()) == ABORT


def _open(view: memoryview, batch: PlacedBatch, room: memoryview | None = None) -> _OpenBatch:
    """Check the sum, unfold the records (into `room` if they fit); raises `RecordsDamaged`."""
    try:
        check_crc(view[batch.at : batch.end], batch.header)
        body = view[batch.at + HEADER_BYTES : batch.end]
        if batch.header.compression:
            body = codecs.decompress(batch.header.compression, body, room=room)
    except (BatchError, CodecError) as error:
        raise _damaged(batch, str(error)) from error
    if not 0 <= batch.header.record_count * SMALLEST_RECORD_BYTES <= len(body):
        reason = f"{batch.header.record_count} records cannot lie in {len(body)} bytes"
        raise _damaged(batch, reason)
    return _OpenBatch(batch, body)


def _damaged(batch: PlacedBatch, reason: str) -> RecordsDamaged:
    return RecordsDamaged(
        f"The batch at offset {batch.base_offset} (byte {batch.at} of what was read) is damaged: "
        f"{reason}",
        offset=batch.base_offset,
    )


class _Group:
    """Neighbours to decode together; what was compressed, in memory that is used again."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._room = view, memoryview(b"")
        self.clear()

    def clear(self) -> None:
        self.batches: list[_OpenBatch] = []
        self._stored_bytes = self._unfolded_bytes = self._records = 0

    def has_space(self, batch: PlacedBatch) -> bool:
        """Whether it belongs to this group, as far as that can be said before it is unfolded."""
        if not self.batches:
            return True
        first, size_bytes = self.batches[0].placed, batch.header.size_bytes - HEADER_BYTES
        unfolded_bytes = size_bytes * self._unfolded_bytes // max(self._stored_bytes, 1)
        return (
            self._unfolded_bytes + unfolded_bytes <= GROUP_BYTES
            and self._records + batch.header.record_count <= GROUP_RECORDS
            and batch.end - first.at <= _MOST_SPAN_BYTES
            and bool(batch.header.compression) == bool(first.header.compression)
        )

    def add(self, batch: PlacedBatch) -> _OpenBatch | None:
        """Open a batch that has space; returned instead if it turns out to be too large."""
        if batch.header.compression and not self._room:
            self._room = _pooled(_ROOM_BYTES, np.uint8).data
        opened = _open(self._view, batch, self._room[self._unfolded_bytes :])
        if batch.header.compression and opened.body.obj is not self._room.obj:
            return opened
        self.batches.append(opened)
        self._stored_bytes += batch.header.size_bytes - HEADER_BYTES
        self._unfolded_bytes += len(opened.body)
        self._records += batch.header.record_count
        return None


def _groups(view: memoryview, batches: Iterator[PlacedBatch]) -> Iterator[list[_OpenBatch]]:
    """The batches opened, in groups, each to be done with before the next is asked for."""
    group = _Group(view)
    for batch in batches:
        if not group.has_space(batch):
            yield group.batches
            group.clear()
        if too_large := group.add(batch):
            if group.batches:
                yield group.batches
                group.clear()
            yield [too_large]
    if group.batches:
        yield group.batches


def _source(view: memoryview, group: list[_OpenBatch]) -> tuple[_Bytes, list[int]]:
    """One array that holds all records of the group, and where each batch's begin in it.

    Records that were not compressed are read where they lie.
    """
    if len(group) == 1:
        source, starts = np.frombuffer(group[0].body, np.uint8), [0]
    elif not group[0].placed.header.compression:
        begin = group[0].placed.at
        source = np.frombuffer(view[begin : group[-1].placed.end], np.uint8)
        starts = [batch.placed.at - begin + HEADER_BYTES for batch in group]
    else:
        ends = np.cumsum([len(batch.body) for batch in group]).tolist()
        source = np.asarray(group[0].body.obj)[: ends[-1]]
        starts = [0, *ends[:-1]]
    source.flags.writeable = False  # numba compiles once more for arrays that can be written
    return source, starts


def _describe(batch: _OpenBatch, start: int) -> tuple[int, ...]:
    """One row of the table that `kernels.parse` reads; the order is that of its constants."""
    header = batch.placed.header
    return (
        start,
        start + len(batch.body),
        header.record_count,
        batch.placed.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.log_append_time,
        -1,
    )


class Located(NamedTuple):
    """At least one record: the bytes that hold them, and where in these their fields lie.

    What was compressed is unfolded into memory that the next ones take: be done with these before.
    """

    source: _Bytes
    fields: _Ints
    """A row for each of `kernels.KEY_AT` to `HEADER_COUNT`, a column for each record."""
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    """Milliseconds since 1970."""
    append_times: _Ints
    """1 where the broker set the time."""

    def part(self, begin: int, stop: int) -> "Located":
        """Those with an index in [begin, stop)."""
        rows = slice(begin, stop)
        return Located(
            self.source, self.fields[:, rows], self.offsets[rows], self.times[rows],
            self.append_times[rows],
        )  # fmt: skip

    @property
    def has_headers(self) -> bool:
        return bool(self.fields[kernels.HEADER_COUNT].any())

    def bundle(
        self, first: int, with_keys: bool, places: npt.NDArray[np.int64]
    ) -> tuple[int, int, int, int, int]:
        """See `kernels.bundle`."""
        _, fields, *others = self
        found: tuple[int, int, int, int, int] = kernels.bundle(
            fields, *others, first, with_keys, places
        )
        return found

    def column(self, name: str) -> pa.Array:
        """One of COLUMNS."""
        match name:
            case "key":
                return _binary(self.source, *self.fields[kernels.KEY_AT : kernels.VALUE_AT])
            case "value":
                return _binary(self.source, *self.fields[kernels.VALUE_AT : kernels.HEADERS_AT])
            case "offset":
                return pa.array(self.offsets)
            case "timestamp":
                return pa.array(self.times).view(COLUMNS["timestamp"])
            case "timestampType":
                return pa.array(self.append_times)
        return _headers(self.source, *self.fields[kernels.HEADERS_AT :])


def _locate_group(
    view: memoryview, group: list[_OpenBatch], first: int, stop: int
) -> Iterator[Located]:
    source, starts = _source(view, group)
    assert len(source) < 2**31, "positions in a group are 32 bits wide"
    table = np.array([_describe(*pair) for pair in zip(group, starts, strict=True)], np.int64)
    while True:
        located, bad_batch = _locate_some(source, table, first, stop)
        if located is None:
            raise _damaged(group[bad_batch].placed, _NOT_RECORDS)
        if len(located.offsets):
            yield located
        if not table[:, kernels.COUNT].any():
            return


def _locate_some(
    source: _Bytes, table: npt.NDArray[np.int64], first: int, stop: int
) -> tuple[Located | None, int]:
    """Up to GROUP_RECORDS records of what `table` says is left; None and a bad batch's index."""
    count = min(int(table[:, kernels.COUNT].sum()), GROUP_RECORDS)
    fields = _pooled(6 * count, np.int32).reshape(6, count)
    offsets, times = _pooled(count, np.int64), _pooled(count, np.int64)
    append_times = _pooled(count, np.int32)
    rows, bad_batch = kernels.parse(
        source, table, first, stop, fields, offsets, times, append_times
    )
    if bad_batch >= 0:
        return None, bad_batch
    return Located(source, fields, offsets, times, append_times).part(0, rows), -1


def _binary(source: _Bytes, starts: _Ints, sizes: _Ints) -> pa.Array:
    total_bytes = int(sizes.clip(0).sum(dtype=np.int64))
    ends, target = _pooled(len(starts) + 1, np.int32), _pooled(total_bytes, np.uint8)
    nulls = kernels.gather(source, starts, sizes, ends, target)
    valid = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little")) if nulls else None
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(target)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers, null_count=nulls)


def _pooled(count: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    """An array in memory from Arrow's pool, which keeps its pages.

    Touching fresh ones, as `np.empty` does, costs three times the copy that follows.
    """
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _headers(source: _Bytes, starts: _Ints, counts: _Ints) -> pa.Array:
    """Lists of (key, value); null, as in Spark's Kafka source, for a record without headers."""
    total = int(counts.sum(dtype=np.int64))
    fields = _pooled(4 * total, np.int32).reshape(4, total)
    kernels.parse_headers(source, starts, counts, fields)
    key = _text(_binary(source, fields[kernels.KEY_AT], fields[kernels.KEY_SIZE]))
    value = _binary(source, fields[kernels.VALUE_AT], fields[kernels.VALUE_SIZE])
    element = HEADERS_TYPE.value_type
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays([key, value], fields=list(element))
    lists = pa.ListArray.from_arrays(pa.array(ends), pairs, type=HEADERS_TYPE)
    return pc.if_else(pa.array(counts > 0), lists, pa.scalar(None, HEADERS_TYPE))


def _text(values: pa.Array) -> pa.Array:
    """As strings; what is no UTF-8 becomes U+FFFD, as in the Java client."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in values.to_pylist()])


Record = tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]
"""What `encode_batch` takes: key, value, timestamp in milliseconds since 1970, headers."""


def encode_batch(
    records: Sequence[Record],
    *,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> bytes:
    """One v2 record batch (KIP-98) of these records, in this order, ready for a Produce request.

    Raises `ValueError` without records (Kafka has no empty batch from a producer), and `CodecError`
    for a codec that does not exist.
    """
    if not records:
        raise ValueError("A record batch holds at least one record.")
    keys, values, timestamps, headers = zip(*records, strict=True)
    times = np.array(timestamps, np.int64)
    encoded = [_encode_headers(pairs) if pairs else _NO_HEADERS for pairs in headers]
    columns = [_side_by_side(column) for column in (keys, values, encoded)]
    header = BatchHeader(
        base_offset,
        0,
        -1,
        MAGIC,
        0,
        int(codec) | (TRANSACTIONAL_BIT if transactional else 0),
        len(records) - 1,
        int(times[0]),
        int(times.max()),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return encode(header, codecs.compress(codec, _encode_records(times, columns)))


def encode_columns(
    keys: pa.Array, values: pa.Array, times: npt.NDArray[np.int64], headers: pa.Array
) -> bytes:
    """As `encode_batch`, of at least one record in columns like those of `decode`.

    Times are milliseconds. No record becomes an object of Python unless it has headers.
    """
    count = len(times)
    encoded = np.frombuffer(_NO_HEADERS * count, np.uint8), np.ones(count, np.int64)
    if pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py():
        pairs = [
            [(each["key"], each["value"]) for each in row or ()] for row in headers.to_pylist()
        ]
        encoded = _side_by_side([_encode_headers(row) if row else _NO_HEADERS for row in pairs])
    columns = [_in_place(keys), _in_place(values), encoded]
    header = BatchHeader(
        0, 0, -1, MAGIC, 0, 0, count - 1, int(times[0]), int(times.max()),
        NO_PRODUCER_ID, -1, NO_SEQUENCE, count,
    )  # fmt: skip
    return encode(header, _encode_records(times, columns))


_Column = tuple[_Bytes, npt.NDArray[np.int64]]
"""Values side by side, and their sizes; -1 is null."""


def _encode_records(times: npt.NDArray[np.int64], columns: Sequence[_Column]) -> memoryview:
    """Of keys, values, and headers as they are encoded."""
    content_bytes = sum(len(content) for content, _ in columns)
    most_bytes = content_bytes + len(times) * kernels.MOST_RECORD_OVERHEAD_BYTES
    target = np.empty(most_bytes, np.uint8)
    arrays = [array for column in columns for array in column]
    written = kernels.write_records(times - times[0], *arrays, target)
    return target[:written].data


def _in_place(column: pa.Array) -> _Column:
    """The values of a column of bytes, without a copy."""
    column = column.cast(pa.binary())
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    if column.null_count:
        column = column.fill_null(b"")  # else bytes could lie behind a null
    _, ends, content = column.buffers()
    at = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(at).astype(np.int64)
    sizes[nulls] = -1
    return np.frombuffer(content or b"", np.uint8)[at[0] : at[-1]], sizes


def _side_by_side(column: Sequence[bytes | None]) -> _Column:
    sizes = np.array([-1 if value is None else len(value) for value in column], np.int64)
    content = b"".join([value for value in column if value is not None])
    return np.frombuffer(content, np.uint8), sizes


def _encode_headers(pairs: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [encode_zigzag(len(pairs))]
    for key, value in pairs:
        name = key.encode()
        parts += [encode_zigzag(len(name)), name]
        parts += [encode_zigzag(-1)] if value is None else [encode_zigzag(len(value)), value]
    return b"".join(parts)


def warm() -> None:
    """Compile every loop and put it into the cache: seconds once, instead of in the first task."""
    batch = encode_batch([(b"key", b"value", 0, [("header", b"value")]), (None, None, 0, [])])
    for _ in decode(batch, place(batch)):
        pass
    for located in locate(batch, place(batch)):
        located.bundle(0, True, np.empty(2, np.int64))
    load_walk()
