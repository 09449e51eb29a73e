"""Thousands of records as one row, which Spark's own code cuts: what a task may hand over instead.

Spark copies every column of every row that Python hands it. A bundle is one row: the bytes of
neighbouring records as they lie in the log, and a long for each record that says where its value
lies, how long it and its key are, and how many milliseconds it is younger than the oldest. What a
record's long cannot say stands in an array of the bundle, which is null in the others:

| column | of a bundle that has |
|---|---|
| `keys`, `values` | a key of 511 bytes, a value of 32,767, or more; `data` is then empty |
| `offsets` | offsets that do not follow each other: compacted, aborted, markers of transactions |
| `times` | records more than 262 s apart |
| `headers` | headers |

So every record has its form, and `frame` one rule: what the array says, or else the long. Pure: it
opens nothing and knows no Spark.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catchwater.wire.columns import BUNDLE_BYTES, FAR_TIMES, HEADERS_TYPE, HOLES, LONG

if TYPE_CHECKING:
    from catchwater.wire.arrow import Located

_LONGS = pa.list_(pa.field("element", pa.int64()))
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

_ARRAYS = {
    "keys": (LONG, "key"),
    "values": (LONG, "value"),
    "offsets": (HOLES, "offset"),
    "times": (FAR_TIMES, "timestamp"),
}
"""What is null unless the bundle has that form, and the column whose values it has then."""

_SMALL_BYTES = 128 * 1024
"""A bundle of less may wait for others and share an Arrow batch with them."""


def bundle_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of bundles from which these columns can be cut."""
    parts = [part for name in columns for part in _PARTS[name]]
    return pa.schema([("data", pa.binary()), ("places", _LONGS), *parts])


def bundled(
    located: "Located", topic: str, partition: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The same records as bundles, one an Arrow batch.

    Whose data are not small point into `located`: they are to be written before the next is asked
    for.
    """
    schema = bundle_schema(columns)
    rows = len(located.offsets)
    places = np.empty(rows, np.int64)
    begin = 0
    while begin < rows:
        stop, at, end, oldest_ms, form = located.bundle(begin, "key" in columns, places)
        part = located.part(begin, stop)
        scalars: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "first_offset": part.offsets[0],
            "oldest_ms": oldest_ms,
            "timestampType": part.append_times[0],
        }
        data = part.source[at : at if form & LONG else end]
        lists = {"data": _data(data), "places": _list(pa.array(places[begin:stop]), _LONGS)}
        for name, (needed, column) in _ARRAYS.items():
            if form & needed and name in schema.names:
                lists[name] = _list(part.column(column), schema.field(name).type)
        if "headers" in columns and part.has_headers:
            lists["headers"] = _list(part.column("headers"), schema.field("headers").type)
        arrays = [
            lists[field.name]
            if field.name in lists
            else pa.array([scalars.get(field.name)], field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        begin = stop


def _data(content: npt.NDArray[np.uint8]) -> pa.Array:
    # Small ones may wait for others, while what was unfolded is overwritten.
    kept = content.tobytes() if len(content) < _SMALL_BYTES else content
    ends = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(kept)])


def _list(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """One list of all these."""
    values = values.view(pa.int64()) if pa.types.is_timestamp(values.type) else values
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values, type=kind)


def joined(bundles: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same bundles in the same order; small ones share an Arrow batch."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for each in bundles:
        grown = size + each.nbytes
        if waiting and grown > BUNDLE_BYTES:
            yield _one(waiting)
            waiting, grown = [], each.nbytes
        if len(each.column("data")[0].as_buffer()) < _SMALL_BYTES:
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
