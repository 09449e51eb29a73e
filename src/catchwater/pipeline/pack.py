"""Events and rows of tables to one Arrow-IPC blob per batch and shard, and back.

Spark pays per row, so many events travel as one: the source packs what it reads, by shard, and
the operator reads it. A blob of events holds stored keys (hash and key), values as they came, the
offsets that error messages name, the records' timestamps and, if the function reads them, headers.
A shard is a range of the key's hash.

Relies on pyarrow. JSON is opened to pack it only for its key fields, and not at all where the
record's key is to be the function's key. That it is, is checked of every event where it is decoded.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec, Headers
from catchwater.pipeline.process.batch import (
    UNREADABLE,
    Batch,
    Poisoned,
    TableBatch,
    decode_all,
    unreadable,
)
from catchwater.state.keys import (
    HASH_BYTES,
    KeyTooLong,
    KeyUnusable,
    shard_of,
    stored_key,
    stored_keys,
)
from catchwater.values.registry import SchemaUnavailable
from catchwater.wire.columns import HEADERS_TYPE

BLOCK_EVENTS = 500
"""A block has about so many events: with their records they fit into the processor's own cache."""
_MOST_BYTES = 1 << 30
"""Of so many bytes blocks are made: an Arrow column of texts holds twice as much."""
_SCHEMA = (("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()))
_TIMESTAMP = ("timestamp", pa.int64())
_HEADERS = ("headers", HEADERS_TYPE)


class RecordKeyDiffers(CatchwaterError):
    """Records do not carry the function's key, as `recordKeyIsFunctionKey = true` says."""

    exit_code = 2


class Packed(NamedTuple):
    """The records of one batch that belong to one shard."""

    shard: int
    blob: bytes


class Records(NamedTuple):
    """Records of one partition side by side, in log order."""

    keys: pa.Array | None
    """The records' keys where they are the function's key; None: its fields are in the JSON."""
    values: pa.Array
    offsets: pa.Array
    timestamps: pa.Array | None = None
    """int64, ms since 1970; not above 0: the record has none. None: none of them has."""
    headers: pa.Array | None = None
    """`HEADERS_TYPE`, for a function that reads them; None: none of them has any."""


def pack(
    spec: FunctionSpec,
    keys: pa.Array | None,
    values: pa.Array,
    offsets: pa.Array,
    timestamps: pa.Array | None = None,
    headers: pa.Array | None = None,
    *,
    origin: str,
    shards: int,
    input: str = "",
) -> list[Packed]:
    """`pack_run` of one batch."""
    batch = Records(keys, values, offsets, timestamps, headers)
    return next(pack_run(spec, [batch], origin=origin, shards=shards, input=input))


def pack_run(
    spec: FunctionSpec,
    batches: Sequence[Records],
    *,
    origin: str,
    shards: int,
    input: str = "",
) -> Iterator[list[Packed]]:
    """Split each batch by shard, in log order within each; a key that many have is hashed once.

    `origin` ("topic-partition") and the offsets say where an event came from, `input` to which of
    several inputs. Records without a usable key travel in a blob of their own, with the reason.
    Blobs whose keys are the records' say so: `read_events` holds them against the events.
    """
    spec = spec.input(input)
    named = {"origin": origin, "input": input}
    if any(batch.keys is not None for batch in batches):
        named["keys"] = "of records"
    errors: list[dict[int, str]] = [{} for _ in batches]
    columns = [
        pa.array(_keys_in_json(spec, batch.values, bad), pa.binary())
        if batch.keys is None
        else batch.keys.cast(pa.binary())
        for batch, bad in zip(batches, errors, strict=True)
    ]
    encoded = pa.concat_arrays(columns).dictionary_encode()
    stored, refused = _stored_keys(spec, encoded.dictionary.to_pylist())
    stored_column = pa.array(stored, pa.binary())
    high = _high(stored_column)
    # `shard_of` of all at once.
    # In as few bytes as they take: of one or two, NumPy sorts ten thousand five times as fast.
    wanted = ((high * np.uint64(shards)) >> np.uint64(32)).astype(np.min_scalar_type(shards))
    at = 0
    fields = (*_SCHEMA, _TIMESTAMP, *([_HEADERS] if spec.headers else []))
    schema = pa.schema(fields, metadata=named)
    for batch, keys, bad in zip(batches, columns, errors, strict=True):
        values, offsets = batch.values, batch.offsets
        more = _more_columns(spec, batch)
        indices = encoded.indices.slice(at, len(keys))
        at += len(keys)
        if refused or indices.null_count:
            for row, index in enumerate(indices.to_pylist()):
                if index is None or index in refused:
                    bad.setdefault(row, refused.get(index, "it has no key"))
        packed = []
        if bad:
            packed.append(_pack_poison(keys, values, offsets, bad, named, shards))
            good = pa.array([row for row in range(len(values)) if row not in bad], pa.int64())
            indices, values, offsets, *more = (
                each.take(good) for each in (indices, values, offsets, *more)
            )
        table = pa.record_batch(
            [stored_column.take(indices), values.cast(pa.binary()), offsets, *more], schema=schema
        )
        parts = _split(table, wanted[indices.to_numpy()])
        yield [Packed(shard, _to_ipc(part)) for shard, part in parts] + packed


def _more_columns(spec: FunctionSpec, batch: Records) -> list[pa.Array]:
    """Timestamps, and headers if the function reads them."""
    times, headers = batch.timestamps, batch.headers
    if times is None:
        times = pa.repeat(pa.scalar(-1, pa.int64()), len(batch.values))
    if not spec.headers:
        return [times]
    return [times, pa.nulls(len(batch.values), HEADERS_TYPE) if headers is None else headers]


class _Opened(NamedTuple):
    """A blob."""

    named: dict[bytes, bytes]
    rows: pa.RecordBatch

    @property
    def origin(self) -> str:
        return self.named[b"origin"].decode()

    @property
    def input(self) -> str:
        return self.named[b"input"].decode()

    @property
    def is_poison(self) -> bool:
        return b"poison" in self.named

    @property
    def has_record_keys(self) -> bool:
        return b"keys" in self.named


def read_events(spec: FunctionSpec, blobs: Sequence[bytes]) -> Iterator[Batch]:
    """Open blobs of `pack`, decode their events, and set those apart that cannot be.

    A key is one object in all of them, whose hash Python then knows. The first batch names all
    keys: finding them together costs half of what it costs batch by batch. Raises
    `RecordKeyDiffers` at the first event whose key is not its record's.
    """
    return _in_log_order(spec, list(map(_open, blobs)))


def read_blocks(spec: FunctionSpec, blobs: Sequence[bytes]) -> Iterator[Iterator[Batch]]:
    """The events of `read_events` in blocks, each with all events of its keys.

    Blocks come in the order of the keys' hashes. In each the events lie in log order, with their
    places in the order of all beside them. Few events are one block, and as `read_events` has them.
    """
    opened = list(map(_open, blobs))
    good = [each.rows for each in opened if not each.is_poison]
    if sum(map(len, good)) <= 2 * BLOCK_EVENTS or sum(rows.nbytes for rows in good) > _MOST_BYTES:
        yield _in_log_order(spec, opened)
    else:
        yield from _in_blocks(spec, opened)


_BUCKETS = 1024
"""A multiple of them would be no better, a tenth would mix keys."""
HOT_SHARE, HOT_LEAST = 0.05, 100
"""A key is named that has such a share of a shard's events, if these are so many."""


def hottest(spec: FunctionSpec, blobs: Sequence[bytes]) -> tuple[str, int]:
    """The key with the most events of an epoch's shard, as text, and how many; ("", 0): none.

    Events are counted by a part of their key's hash, and keys in the fullest bucket alone, so that
    it costs two passes over numbers: some 5 ns an event.
    """
    opened = [each.rows.column(0) for each in map(_open, blobs) if not each.is_poison]
    events = sum(map(len, opened))
    if events < HOT_LEAST:
        return "", 0
    # The upper bits of a shard's hashes are the same.
    buckets = [_high(keys) & np.uint64(_BUCKETS - 1) for keys in opened]
    fullest = sum(np.bincount(each.astype(np.int64), minlength=_BUCKETS) for each in buckets)
    top = np.uint64(np.argmax(fullest))
    chosen = [
        keys.filter(pa.array(each == top)) for keys, each in zip(opened, buckets, strict=True)
    ]
    counts = pa.chunked_array(chosen, pa.binary()).value_counts()
    at = int(np.argmax(counts.field("counts").to_numpy()))
    count = counts.field("counts")[at].as_py()
    if count < HOT_SHARE * events:
        return "", 0
    key = counts.field("values")[at].as_py()[HASH_BYTES:]
    try:
        return str(spec.decode_key(key))[:_KEY_CHARACTERS], count
    except ValueError:
        return key.hex()[:_KEY_CHARACTERS], count


_KEY_CHARACTERS = 80


def _in_log_order(spec: FunctionSpec, opened: Sequence[_Opened]) -> Iterator[Batch]:
    columns = [each.rows.column(0) for each in opened if not each.is_poison]
    encoded = pa.chunked_array(columns, pa.binary()).dictionary_encode()
    keys = _Keys(spec, encoded.chunk(0).dictionary if columns else pa.array([], pa.binary()))
    indices = (chunk.indices.to_numpy() for chunk in encoded.chunks)
    new_keys = keys.stored.tolist()
    for each in opened:
        if each.is_poison:
            yield _batch_of_poison(each)
        else:
            taken, runs = next(indices), ((each.origin, len(each.rows)),)
            yield _decoded(spec, each, runs, each.rows, keys, taken, new_keys)
            new_keys = []


def _in_blocks(spec: FunctionSpec, opened: Sequence[_Opened]) -> Iterator[Iterator[Batch]]:
    """Blocks of ranges of the hash; what was poison before comes first."""
    starts = np.cumsum([0, *(len(each.rows) for each in opened)])
    for each, start in zip(opened, starts, strict=False):
        if each.is_poison:
            found = _batch_of_poison(each)
            here = range(start, start + len(each.rows))
            yield iter((replace(found, places=(), poisoned_places=here),))
    good = [index for index, each in enumerate(opened) if not each.is_poison]
    parts = [opened[index].rows.replace_schema_metadata() for index in good]
    (rows,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    places = np.concatenate([np.arange(*starts[index : index + 2]) for index in good])
    blobs = np.repeat(good, list(map(len, parts)))
    high = _high(rows.column(0))
    high -= high.min()
    blocks = len(rows) // BLOCK_EVENTS
    # In as few bytes as they take, for which NumPy's stable sort is quickest.
    wanted = (high * np.uint64(blocks) // (high.max() + np.uint64(1))).astype(
        np.min_scalar_type(blocks)
    )
    order = np.argsort(wanted, kind="stable")
    rows, places, blobs = rows.take(pa.array(order)), places[order], blobs[order]
    ends = np.cumsum(np.bincount(wanted, minlength=blocks)).tolist()
    for start, end in pairwise([0, *ends]):
        if end > start:
            block = rows.slice(start, end - start)
            yield _block(spec, opened, block, places[start:end], blobs[start:end])


def _block(
    spec: FunctionSpec,
    opened: Sequence[_Opened],
    rows: pa.RecordBatch,
    places: np.ndarray,
    blobs: np.ndarray,
) -> Iterator[Batch]:
    """One block: a batch for all that follow one another of one input."""
    encoded = rows.column(0).dictionary_encode()
    keys, indices = _Keys(spec, encoded.dictionary), encoded.indices.to_numpy()
    new_keys = sorted(keys.stored)
    first = [0, *(np.flatnonzero(np.diff(blobs)) + 1).tolist()]
    of = [opened[blob] for blob in blobs[first].tolist()]
    ends = [*first[1:], len(rows)]
    start = 0
    for _, group in groupby(zip(of, ends, strict=True), lambda part: _kind_of(part[0])):
        parts = list(group)
        end = parts[-1][1]
        yield _decoded(
            spec,
            parts[0][0],
            _runs((each.origin, until - start) for each, until in parts),
            rows.slice(start, end - start),
            keys,
            indices[start:end],
            new_keys,
            places[start:end],
        )
        new_keys, start = [], end


def _kind_of(opened: _Opened) -> tuple[str, bool]:
    """What events of one batch have in common."""
    return opened.input, opened.has_record_keys


def _runs(parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """`Batch.runs`: parts of one origin that follow one another are one."""
    found: list[tuple[str, int]] = []
    for origin, end in parts:
        if found and found[-1][0] == origin:
            found.pop()
        found.append((origin, end))
    return found


class _Keys:
    """The distinct keys of some events: a key is one object in all of them."""

    def __init__(self, spec: FunctionSpec, stored: pa.Array) -> None:
        self._spec = spec
        self.stored: np.ndarray = stored.to_numpy(zero_copy_only=False)

    @cached_property
    def values(self) -> np.ndarray:
        """What each stored key is the key of; None for what no key could be."""
        decode, keys = self._spec.decode_key, [key[HASH_BYTES:] for key in self.stored]
        try:
            return np.fromiter(map(decode, keys), object, len(keys))
        except ValueError:
            values = np.empty(len(keys), object)
            for index, key in enumerate(keys):
                with suppress(ValueError):
                    values[index] = decode(key)
            return values


def _decoded(
    spec: FunctionSpec,
    opened: _Opened,
    runs: Sequence[tuple[str, int]],
    rows: pa.RecordBatch,
    keys: _Keys,
    taken: np.ndarray,
    new_keys: Sequence[bytes],
    places: np.ndarray | None = None,
) -> Batch:
    """One batch with its stored keys, and without the events that cannot be decoded."""
    values, offsets, times = _to_list(rows.column(1)), *(rows.column(i).to_numpy() for i in (2, 3))
    events, errors = decode_all(spec.input(opened.input).decode_event, values)
    found = Batch(
        keys.stored[taken].tolist(),
        events,
        runs[0][0],
        offsets,
        values,
        opened.input,
        (),
        new_keys,
        times,
        int(times.min()),
        runs if len(runs) > 1 else (),
        _headers(rows.column(4)) if rows.num_columns > 4 else (),
        None if places is None else places.tolist(),
    )
    if errors:
        good = [i for i in range(len(values)) if i not in errors]
        found, taken = _without(found, errors, good), taken[good]
    if opened.has_record_keys:
        _refuse_other_keys(spec.input(found.input), found, keys.values[taken].tolist())
    return found


def _headers(column: pa.Array) -> list[Headers]:
    """Each record's, in order."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    names, values = column.flatten().flatten()
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    return [tuple(islice(pairs, count)) for count in counts]


def _without(found: Batch, errors: dict[int, str], good: list[int]) -> Batch:
    """A batch of the good events; the others are its poison."""
    places = found.places
    return replace(
        found,
        keys=[found.keys[i] for i in good],
        offsets=[found.offsets[i] for i in good],
        values=[found.values[i] for i in good],
        timestamps=[found.timestamps[i] for i in good],
        headers=[found.headers[i] for i in good] if found.headers else (),
        runs=[(origin, bisect_left(good, end)) for origin, end in found.runs],
        places=None if places is None else [places[i] for i in good],
        poisoned=[
            Poisoned(
                found.origin_of(i),
                int(found.offsets[i]),
                found.keys[i][HASH_BYTES:],
                found.values[i] or b"",
                error,
            )
            for i, error in errors.items()
        ],
        poisoned_places=() if places is None else [places[i] for i in errors],
    )


def _refuse_other_keys(spec: FunctionSpec, batch: Batch, expected: list[Any]) -> None:
    """Raise `RecordKeyDiffers` unless the events' keys are those that their records came under."""
    if list(map(spec.key_of, batch.events)) == expected:
        return
    for key, event, offset in zip(batch.keys, batch.events, batch.offsets, strict=True):
        if _key_bytes(spec, event) != key[HASH_BYTES:]:
            topic, _, partition = batch.origin.rpartition("-")
            raise RecordKeyDiffers(
                f"The record at topic {topic}, partition {partition}, offset {offset} has the key "
                f"{key[HASH_BYTES:]!r}, but the key of function {spec.name!r} "
                f"({', '.join(spec.key)}) is {spec.key_of(event)!r} in it. Nothing of its epoch "
                "was kept.",
                hint="Take recordKeyIsFunctionKey out of [source]: the key is then found in each "
                "event. Or produce the records under the function's key.",
            )


def _key_bytes(spec: FunctionSpec, event: Any) -> bytes | None:
    """The key of an event; None if it can be none."""
    try:
        return spec.encode_key(spec.key_of(event))
    except KeyUnusable:
        return None


def pack_table(
    spec: FunctionSpec,
    name: str,
    keys: pa.Array,
    values: pa.Array,
    offsets: pa.Array,
    *,
    origin: str,
    shards: int,
) -> list[Packed]:
    """Split a batch of a table's rows by shard, or give it to all: of each key the last row.

    Rows that cannot be read travel in a blob of their own, with the reason. Raises
    `SchemaUnavailable`, which is no fault of theirs.
    """
    table, read = spec.tables[name], spec.read_rows[name]
    named = {"origin": origin, "table": name}
    errors: dict[int, str] = {}
    last: dict[bytes, bytes | None] = {}
    for row, (key, value) in enumerate(zip(_to_list(keys), _to_list(values), strict=True)):
        try:
            if key is None:
                raise ValueError("it has no key")
            found = _canonical(spec, key) if table.keyed else key
            stored_key(found)
            last[found] = None if value is None else read(value)
        except SchemaUnavailable:
            raise
        except UNREADABLE as error:
            errors[row] = unreadable(table.row_type, error)
    packed = []
    if errors:
        packed.append(_pack_poison(keys, values, offsets, errors, named, shards))
    rows = pa.record_batch(
        [pa.array(last, pa.binary()), pa.array(last.values(), pa.binary())],
        schema=pa.schema(_SCHEMA[:2], metadata=named),
    )
    if not table.keyed:
        return [Packed(shard, _to_ipc(rows)) for shard in range(shards) if last] + packed
    wanted = np.array([shard_of(stored_key(key), shards) for key in last], np.int64)
    return [Packed(shard, _to_ipc(part)) for shard, part in _split(rows, wanted)] + packed


def read_table(blob: bytes) -> TableBatch:
    """Open a blob of `pack_table`."""
    opened = _open(blob)
    name = opened.named[b"table"].decode()
    if opened.is_poison:
        return TableBatch(name, (), (), _poisoned(opened))
    return TableBatch(name, *(_to_list(opened.rows.column(i)) for i in (0, 1)))


def _high(stored: pa.Array) -> np.ndarray:
    """The first four bytes of stored keys, which decide where they go, as numbers."""
    sliced = pc.binary_slice(stored, 0, 4)
    high: np.ndarray = np.frombuffer(sliced.buffers()[2], ">u4", len(sliced)).astype(np.uint64)
    return high


def _keys_in_json(
    spec: FunctionSpec, values: pa.Array, errors: dict[int, str]
) -> Iterator[bytes | None]:
    """The key of each event, None where there is none: the reason is then added to `errors`."""
    partial, bad = decode_all(spec.decode_key_fields, _to_list(values))
    errors.update(bad)
    found = iter(partial)
    for row in range(len(values)):
        key = None
        if row not in bad:
            try:
                key = spec.encode_key(spec.key_of_fields(next(found)))
            except UNREADABLE as error:
                errors[row] = unreadable(spec.event_type, error)
        yield key


def _stored_keys(spec: FunctionSpec, keys: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
    """The stored keys of key bytes, and why some cannot be: those are empty."""
    if spec.key_type in (str, bytes):
        with suppress(KeyTooLong):
            return stored_keys(keys), {}
    stored: list[bytes] = []
    refused: dict[int, str] = {}
    for index, key in enumerate(keys):
        try:
            stored.append(stored_key(_canonical(spec, key)))
        except UNREADABLE as error:
            refused[index] = unreadable(spec.event_type, error)
            stored.append(bytes(HASH_BYTES))
    return stored, refused


def _canonical(spec: FunctionSpec, key: bytes) -> bytes:
    """A record's key as the function's key: 1.50 and 1.5 are one Decimal."""
    if spec.key_type in (str, bytes):
        return key
    return spec.encode_key(spec.decode_key(key))


def _pack_poison(
    keys: pa.Array,
    values: pa.Array,
    offsets: pa.Array,
    errors: dict[int, str],
    named: dict[str, str],
    shards: int,
) -> Packed:
    """Records that cannot be handled, each with the reason; any shard will do."""
    rows = pa.array(errors, pa.int64())
    columns = [each.take(rows) for each in (keys.cast(pa.binary()), values, offsets)]
    batch = pa.record_batch(
        [*columns, pa.array(errors.values(), pa.string())],
        schema=pa.schema((*_SCHEMA, ("error", pa.string())), metadata=named | {"poison": "yes"}),
    )
    return Packed(batch.column(2)[0].as_py() % shards, _to_ipc(batch))


def _batch_of_poison(opened: _Opened) -> Batch:
    return Batch((), (), opened.origin, (), (), opened.input, _poisoned(opened), ())


def _poisoned(opened: _Opened) -> list[Poisoned]:
    columns = (column.to_pylist() for column in opened.rows.columns)
    return [
        Poisoned(opened.origin, offset, key, value or b"", error)
        for key, value, offset, error in zip(*columns, strict=True)
    ]


def _open(blob: bytes) -> _Opened:
    with pa.ipc.open_stream(blob) as reader:
        batch = reader.read_next_batch()
    return _Opened(batch.schema.metadata, batch)


def _to_list(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _split(table: pa.RecordBatch, shards: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(shards, kind="stable")
    found, starts = np.unique(shards[order], return_index=True)
    bounds = pairwise([*starts, len(order)])
    for shard, (start, end) in zip(found, bounds, strict=True):
        yield int(shard), table.take(pa.array(order[start:end]))


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
