"""Rows of a topic's table as the records that they were.

A table's files hold the rows of several partitions and commits, in no order that could be relied
on: one is what a commit brought, another many that were made one, a third a day's. So the groups of
rows that may have some of the wanted offsets, as their statistics say, are read one by one in the
order of their first offset, and rows are given as soon as no group that is left can have an earlier
one. Holds a group, and what of the groups before it is not in turn yet.

Relies on the names of the table's columns, which the broker has looked at. Promises each row of the
wanted offsets once, in order, as a record with the bytes of the one that was written; records have
been hidden already, where the topic says so (`values.policy`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catchwater.config import CatchwaterError
from catchwater.objects.urls import RemoteFile
from catchwater.replay.plan import Slice
from catchwater.values.settings import KEPT_BYTES
from catchwater.wire.arrow import Located, encode_columns, locate, place
from catchwater.wire.columns import HEADERS_TYPE

_PLACE = ("partition", "offset")
_STORED = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
_ALWAYS = ("timestamp", "timestampType")
_ROWS = 10_000
"""Made into one batch."""
_MOST_KNOWN = 1_000
"""Files of which a process remembers what is in them; they never change."""


class TimeLost(CatchwaterError):
    """A record's time does not fit into a table, so that the record cannot be had from there."""

    exit_code = 5


class _Group(NamedTuple):
    """Rows that lie side by side in a file, some of which may be wanted."""

    first: int
    url: str
    number: int
    file: pq.FileMetaData
    file_bytes: int | None

    @property
    def size_bytes(self) -> int:
        return int(self.file.row_group(self.number).total_byte_size)


def records_of(
    wanted: Slice, columns: Sequence[str], pay: Callable[[int], None]
) -> Iterator[Located]:
    """The records of a slice of a table. Of key, value and headers those in `columns` are read.

    `pay` is called with the bytes of each group before it is read. Raises `TimeLost`, `OSError`,
    for a file in a bucket `StoreError`, and `pyarrow.ArrowException` for what is no table's file.
    """
    names = [*_ALWAYS, *(name for name in ("key", "value", "headers") if name in columns)]
    groups = _groups(wanted)
    waiting = _STORED.empty_table().select([*names, "offset"])
    for index, group in enumerate(groups):
        pay(group.size_bytes)
        rows = _read(group, wanted, names)
        waiting = pa.concat_tables([waiting, rows])
        stop = groups[index + 1].first if index + 1 < len(groups) else wanted.stop
        is_next = pc.less(waiting.column("offset"), stop)
        yield from _records(_in_order(_where(is_next, waiting)), wanted)
        waiting = _where(pc.invert(is_next), waiting)


def first_since(wanted: Slice, since_ms: int) -> int | None:
    """The first offset of a slice of a table whose record is not older; None: none is.

    A record whose time does not fit into a table is passed over. Raises what `records_of` raises,
    but for `TimeLost`.
    """
    since = pa.scalar(since_ms * 1000, _STORED.field("timestamp").type)
    found = None
    for group in _groups(wanted):
        if found is not None and group.first > found:
            break
        rows = _read(group, wanted, ("timestamp",))
        offsets = rows.filter(pc.greater_equal(rows.column("timestamp"), since)).column("offset")
        found = min((first for first in (found, pc.min(offsets).as_py()) if first is not None),
                    default=None)  # fmt: skip
    return found


def made_again(
    data: bytes, offsets: npt.NDArray[np.int64], append_times: npt.NDArray[np.int32]
) -> Iterator[Located]:
    """The records of a batch that was made of their content, where they lay."""
    at = 0
    for each in locate(data, place(data), first=0, stop=len(offsets)):
        upto = at + len(each.offsets)
        yield each._replace(offsets=offsets[at:upto], append_times=append_times[at:upto])
        at = upto


def _groups(wanted: Slice) -> list[_Group]:
    """What the slice's files have of it, by first offset."""
    found = []
    for url in wanted.files:
        file, size_bytes = _footer(url)
        for number in range(file.num_row_groups):
            first = _bounds(file.row_group(number), wanted)
            if first is not None:
                found.append(_Group(first, url, number, file, size_bytes))
    return sorted(found)


def _footer(url: str) -> tuple[pq.FileMetaData, int | None]:
    """What is in a file; of one in a bucket its size, too."""
    if _is_remote(url):
        return _remote_footer(url)
    return pq.read_metadata(_source(url)), None


@lru_cache(maxsize=_MOST_KNOWN)
def _remote_footer(url: str) -> tuple[pq.FileMetaData, int]:
    """Kept, because the slices of all partitions ask it of the same files."""
    source = RemoteFile(url)
    return pq.read_metadata(source), source.size_bytes


def _source(url: str, size_bytes: int | None = None) -> str | RemoteFile:
    """What pyarrow reads a file from."""
    return RemoteFile(url, size_bytes) if _is_remote(url) else url.removeprefix("file://")


def _is_remote(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _bounds(group: pq.RowGroupMetaData, wanted: Slice) -> int | None:
    """The first offset that the group may have of what is wanted; None: it has none of it."""
    first = wanted.first
    for index in range(group.num_columns):
        column = group.column(index)
        name, said = column.path_in_schema, column.statistics
        if name not in _PLACE or said is None or not said.has_min_max:
            continue
        if name == "partition" and not said.min <= wanted.partition <= said.max:
            return None
        if name == "offset":
            if not (said.min < wanted.stop and wanted.first <= said.max):
                return None
            first = max(first, said.min)
    return first


def _read(group: _Group, wanted: Slice, names: Sequence[str]) -> pa.Table:
    """The rows of the group that are wanted."""
    source = _source(group.url, group.file_bytes)
    with pq.ParquetFile(source, metadata=group.file, page_checksum_verification=True) as file:
        where = file.read_row_group(group.number, [*_PLACE])
        offsets = where.column("offset")
        is_wanted = pc.and_(
            pc.equal(where.column("partition"), wanted.partition),
            pc.and_(pc.greater_equal(offsets, wanted.first), pc.less(offsets, wanted.stop)),
        )
        # Beside the columns of declared values their bytes stand under a name of their own.
        is_typed = KEPT_BYTES in file.schema_arrow.names
        stored = [KEPT_BYTES if name == "value" and is_typed else name for name in names]
        rows = file.read_row_group(group.number, stored)
    rows = rows.select(stored).rename_columns([*names])
    rows = rows.append_column(_STORED.field("offset"), offsets)
    kinds = pa.schema([_STORED.field(name) for name in rows.column_names])
    return _where(is_wanted, rows.cast(kinds))


def _where(is_wanted: pa.ChunkedArray, rows: pa.Table) -> pa.Table:
    """These rows; no copy, if it is all of them."""
    return rows if pc.all(is_wanted).as_py() is not False else rows.filter(is_wanted)


def _in_order(rows: pa.Table) -> pa.Table:
    """By offset, as they nearly always lie."""
    offsets = rows.column("offset").to_numpy()
    return rows if (offsets[:-1] < offsets[1:]).all() else rows.sort_by("offset")


def _records(rows: pa.Table, wanted: Slice) -> Iterator[Located]:
    for part in rows.to_batches(max_chunksize=_ROWS):
        if not part.num_rows:
            continue
        times = part.column("timestamp")
        if times.null_count:
            lost = part.filter(times.is_null()).column("offset")[0].as_py()
            raise TimeLost(
                f"The time of the record at offset {lost} of {wanted.topic}-{wanted.partition} "
                "does not fit into the topic's table, and the log has deleted the record.",
                hint="Begin after it.",
            )
        times_ms = np.floor_divide(times.cast(pa.int64()).to_numpy(), 1000)
        key, value, headers = (_content(part, name) for name in ("key", "value", "headers"))
        data = encode_columns(key, value, times_ms, headers)
        append_times = part.column("timestampType").to_numpy()
        yield from made_again(data, part.column("offset").to_numpy(), append_times)


def _content(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name in rows.schema.names:
        return rows.column(name)
    return pa.nulls(rows.num_rows, _STORED.field(name).type)
