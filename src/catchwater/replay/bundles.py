"""Thousands of records as one row, which Spark's own code cuts: what a task may hand over instead.

Spark copies every column of every row that Python hands it. A bundle is one row: the bytes of
neighbouring records as they lie in the log, and a long for each record that says where its value
lies, how long it and its key are, and how many milliseconds it is younger than the oldest. What a
record's long cannot say stands in an array of the bundle, which is null in the others:

| column | of a bundle that has |
|---|---|
| `keys`, `values` | a key of 511 bytes, a value of 32,767, or more; `data` is then empty |
| `offsets` | offsets that do not follow each other: compacted, aborted, markers of transactions |
| `times` | records more than 17 minutes apart |
| `headers` | headers |

So every record has its form, and `frame` one rule: what the array says, or else the long. Pure: it
opens nothing and knows no Spark.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catchwater.wire.bundle import FAR_TIMES, HOLES, LONG
from catchwater.wire.columns import HEADERS_TYPE

if TYPE_CHECKING:
    from catchwater.wire.arrow import Located

# Said to be never null, for Spark would look at each.
_LONGS = pa.list_(pa.field("element", pa.int64(), nullable=False))
_BYTES = pa.list_(pa.field("element", pa.binary()))

_PARTS = {
    "key": [("keys", _BYTES)],
    "value": [("values", _BYTES)],
    "topic": [("topic", pa.string())],
    "partition": [("partition", pa.int32())],
    "offset": [("first_offset", pa.int64()), ("offsets", _LONGS)],
    "timestamp": [("oldest_ms", pa.int64()), ("times", _LONGS)],
    "timestampType": [("timestampType", pa.int32())],
    "headers": [("headers", pa.list_(pa.field("element", HEADERS_TYPE)))],
}
"""Column of the source → what a bundle has for it, besides `data` and `places`."""

_ARRAYS = {"keys": "key", "values": "value", "offsets": "offset", "times": "timestamp"}
"""Which column's values stand in an array of a bundle that cannot say them otherwise."""
_NEEDED_BY = {"keys": LONG, "values": LONG, "offsets": HOLES, "times": FAR_TIMES}

_SMALL_BYTES = 128 * 1024
"""Bundles of less may wait for others and share an Arrow batch with them."""
_MOST_WAITING_BYTES = 2**20
_MOST_BETWEEN_BYTES = 4 * 1024
"""Between two bundles of an Arrow batch lie a batch's header, or what nobody reads, as it came."""


class _Cut(NamedTuple):
    """Records of one bundle, by their indices; see `kernels.bundle`."""

    begin: int
    stop: int
    at: int
    end: int
    oldest_ms: int
    form: int


def bundle_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of bundles from which these columns can be cut."""
    parts = [part for name in columns for part in _PARTS[name]]
    return pa.schema([("data", pa.binary()), ("places", _LONGS), *parts])


def bundled(
    located: "Located", topic: str, partition: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The same records as bundles, in as few Arrow batches as can be without copying.

    Their data, unless they are few, point into `located`: be done with them before the next.
    """
    rows = len(located.offsets)
    places = np.empty(rows, np.int64)
    side_by_side: list[_Cut] = []
    begin = 0
    while begin < rows:
        cut = _Cut(begin, *located.bundle(begin, "key" in columns, places))
        if side_by_side and not _follows(cut, side_by_side[-1]):
            yield _batch(located, topic, partition, columns, side_by_side, places)
            side_by_side = []
        side_by_side.append(cut)
        begin = cut.stop
    yield _batch(located, topic, partition, columns, side_by_side, places)


def _follows(cut: _Cut, last: _Cut) -> bool:
    """Whether the data of both can be one piece of memory."""
    return not (cut.form | last.form) & LONG and 0 <= cut.at - last.end <= _MOST_BETWEEN_BYTES


def _batch(
    located: "Located", topic: str, partition: int, columns: Sequence[str], cuts: list[_Cut],
    places: npt.NDArray[np.int64],
) -> pa.RecordBatch:  # fmt: skip
    begins = [cut.begin for cut in cuts]
    arrays = {
        "data": _data(located.source, cuts),
        "places": _lists(cuts, pa.array(places[begins[0] : cuts[-1].stop]), _LONGS),
        "topic": pa.repeat(topic, len(cuts)),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(cuts)),
        "first_offset": pa.array(located.offsets[begins]),
        "oldest_ms": pa.array([cut.oldest_ms for cut in cuts], pa.int64()),
        "timestampType": pa.array(located.append_times[begins]),
    }
    schema = bundle_schema(columns)
    for field in schema:
        if field.name in _ARRAYS:
            needing = [cut for cut in cuts if cut.form & _NEEDED_BY[field.name]]
            arrays[field.name] = _said(located, _ARRAYS[field.name], cuts, needing, field.type)
        elif field.name == "headers":
            needing = cuts if located.part(begins[0], cuts[-1].stop).has_headers else []
            arrays[field.name] = _said(located, field.name, cuts, needing, field.type)
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in schema], schema=schema)


def _data(source: npt.NDArray[np.uint8], cuts: list[_Cut]) -> pa.Array:
    """The bytes of each, up to where the next begins; none of a bundle that has them in arrays."""
    at, end = cuts[0].at, cuts[-1].at if cuts[-1].form & LONG else cuts[-1].end
    content = source[at:end]
    # Few may wait for others, while what was unfolded is overwritten.
    kept = content.tobytes() if len(content) < _SMALL_BYTES else content
    ends = pa.py_buffer(np.array([*(cut.at - at for cut in cuts), end - at], np.int32))
    return pa.Array.from_buffers(pa.binary(), len(cuts), [None, ends, pa.py_buffer(kept)])


def _said(
    located: "Located", column: str, cuts: list[_Cut], needing: list[_Cut], kind: pa.DataType
) -> pa.Array:
    """A list of the column's values for each bundle that needs it, null for the others."""
    if not needing:
        return pa.nulls(len(cuts), kind)
    values = pa.concat_arrays([located.part(cut.begin, cut.stop).column(column) for cut in needing])
    return _lists(cuts, values.view(pa.int64()) if column == "timestamp" else values, kind, needing)


def _lists(
    cuts: list[_Cut], values: pa.Array, kind: pa.DataType, needing: Sequence[_Cut] | None = None
) -> pa.Array:
    """These values as one list for each bundle; where only some need one, null for the others."""
    has = [needing is None or cut in needing for cut in cuts]
    ends = np.cumsum(
        [0, *(each * (cut.stop - cut.begin) for each, cut in zip(has, cuts, strict=True))]
    )
    offsets = pa.array(ends, pa.int32(), mask=np.array([*(not each for each in has), False]))
    return pa.ListArray.from_arrays(offsets, values, type=kind)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same bundles in the same order; batches of few share one."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for each in batches:
        grown = size + each.nbytes
        if waiting and grown > _MOST_WAITING_BYTES:
            yield _one(waiting)
            waiting, grown = [], each.nbytes
        if each.column("data").nbytes < _SMALL_BYTES:
            waiting.append(each)
            size = grown
        else:
            if waiting:
                yield _one(waiting)
                waiting = []
            size = 0
            yield each
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
