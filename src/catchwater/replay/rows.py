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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catchwater.config import CatchwaterError
from catchwater.replay.plan import Slice
from catchwater.wire.arrow import Located, Record, encode_batch, locate, place

_PLACE = ("partition", "offset")
_CONTENT = ("timestamp", "timestampType", "key", "value", "headers")
_ROWS = 10_000
"""Made into one batch; most of what is held meanwhile are objects of Python."""


class TimeLost(CatchwaterError):
    """A record's time does not fit into a table, so that the record cannot be had from there."""

    exit_code = 5


class _Group(NamedTuple):
    """Rows that lie side by side in a file, some of which may be wanted."""

    first: int
    path: str
    number: int
    file: pq.FileMetaData

    @property
    def size_bytes(self) -> int:
        return int(self.file.row_group(self.number).total_byte_size)


def records_of(
    wanted: Slice, columns: Sequence[str], pay: Callable[[int], None]
) -> Iterator[Located]:
    """The records of a slice of a table. Of key, value and headers those in `columns` are read.

    `pay` is called with the bytes of each group before it is read. Raises `TimeLost`, `OSError`,
    and `pyarrow.ArrowException` for what is no file of a table.
    """
    names = [name for name in _CONTENT if name in columns or name.startswith("timestamp")]
    groups = sorted(each for path in wanted.files for each in _groups(path, wanted))
    waiting: pa.Table | None = None
    for index, group in enumerate(groups):
        pay(group.size_bytes)
        rows = _read(group, wanted, names)
        waiting = rows if waiting is None else pa.concat_tables([waiting, rows])
        stop = groups[index + 1].first if index + 1 < len(groups) else wanted.stop
        is_next = pc.less(waiting.column("offset"), stop)
        yield from _records(waiting.filter(is_next).sort_by("offset"), wanted)
        waiting = waiting.filter(pc.invert(is_next))


def made_again(
    found: Sequence[Record], offsets: np.ndarray[Any, Any], append_times: np.ndarray[Any, Any]
) -> Iterator[Located]:
    """Records of which only the content is known, where they lay."""
    data = encode_batch(found)
    at = 0
    for each in locate(data, place(data), first=0, stop=len(found)):
        upto = at + len(each.offsets)
        yield each._replace(offsets=offsets[at:upto], append_times=append_times[at:upto])
        at = upto


def _groups(url: str, wanted: Slice) -> Iterator[_Group]:
    path = url.removeprefix("file://")
    file = pq.read_metadata(path)
    for index in range(file.num_row_groups):
        found = _bounds(file.row_group(index), wanted)
        if found is not None:
            yield _Group(found, path, index, file)


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
    with pq.ParquetFile(group.path, metadata=group.file, page_checksum_verification=True) as file:
        where = file.read_row_group(group.number, [*_PLACE])
        offsets = where.column("offset")
        is_wanted = pc.and_(
            pc.equal(where.column("partition"), wanted.partition),
            pc.and_(pc.greater_equal(offsets, wanted.first), pc.less(offsets, wanted.stop)),
        )
        rows = file.read_row_group(group.number, [*names])
    rows = rows.select([*names]).append_column("offset", offsets)
    return rows.filter(is_wanted)


def _records(rows: pa.Table, wanted: Slice) -> Iterator[Located]:
    for at in range(0, len(rows), _ROWS):
        part = rows.slice(at, _ROWS)
        times = part.column("timestamp")
        if times.null_count:
            lost = part.filter(times.is_null()).column("offset")[0].as_py()
            raise TimeLost(
                f"The time of the record at offset {lost} of {wanted.topic}-{wanted.partition} "
                "does not fit into the topic's table, and the log has deleted the record.",
                hint="Begin after it.",
            )
        times_ms = np.floor_divide(times.cast(pa.int64()).to_numpy(), 1000)
        found = zip(
            _content(part, "key"),
            _content(part, "value"),
            times_ms.tolist(),
            [[(each["key"], each["value"]) for each in pairs or ()]
             for pairs in _content(part, "headers")],
            strict=True,
        )  # fmt: skip
        append_times = part.column("timestampType").to_numpy().astype(np.int32)
        yield from made_again([*found], part.column("offset").to_numpy(), append_times)


def _content(rows: pa.Table, name: str) -> list[Any]:
    return rows.column(name).to_pylist() if name in rows.column_names else [None] * len(rows)
