"""Stored batches as the rows of a topic's table.

A row says where its record lies (`partition`, `offset`), when it was made, and what its key and
headers are. Its value is the column `value`, or, where the topic declares what its values are, a
column for each of their fields. A value that is not as declared is no reason to stop: its fields
are null then and its bytes stand in `_malformed`. A tombstone has nulls only.

Relies on `wire.arrow` and, for declared values, on `values.typed`. Promises a row for every
record of a committed transaction, or of none, in order. Holds what one call of `rows` decodes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from catchwater.objects.base import Buffer
from catchwater.values.policy import FieldPolicy
from catchwater.values.settings import (
    KEPT_BYTES,
    MALFORMED,
    BadSchema,
    OnMalformed,
    ValueSettings,
)
from catchwater.wire.arrow import AbortedTransaction, decode, place
from catchwater.wire.columns import HEADERS_TYPE

MICROSECONDS = pa.timestamp("us", "UTC")
_DECODED = ("offset", "timestamp", "timestampType", "key", "headers", "value")
_TYPED_ROWS = 1_000
"""Decoded in one go, for that keeps other threads waiting."""
_LAST_MS = (2**63 - 1) // 1000
"""A later timestamp does not fit into microseconds; it is null in a table."""

TOMBSTONE = "_tombstone"
"""Of a table of newest values, beside the table's own columns: whether the row's key is gone."""

RAW = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", MICROSECONDS),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("value", pa.binary()),
    ]
)
"""The columns of a table whose topic declares nothing."""
_BYTES_FIELD = pa.field(KEPT_BYTES, pa.binary())


class Shape:
    """The columns of one topic's table."""

    def __init__(
        self,
        values: ValueSettings | None,
        unfit: Collection[str] = (),
        policy: FieldPolicy | None = None,
        *,
        upserts: bool = False,
        keeps_bytes: bool = False,
    ) -> None:
        """Raises `BadSchema` where a field is named like one of our own columns, and
        `SecretMissing` where fields are to be hashed without a secret.

        The table cannot take the fields `unfit`: a row that has one is like a malformed one, but
        for its other fields. With `upserts` rows have `TOMBSTONE`, too, and with `keeps_bytes`, if
        their values are declared, `KEPT_BYTES`.
        """
        self._upserts = upserts
        self._keeps_bytes = keeps_bytes
        self._values = values and replace(values, on_malformed=OnMalformed.NULL)
        self._unfit = frozenset(unfit)
        self._policy = policy
        if policy is not None:
            policy.check()
        self.schema = RAW
        if self._values is not None:
            # Loads Spark's Python package: only brokers whose topics declare something pay for it.
            from catchwater.values.typed import open_decoder, value_fields

            value_fields(self._values, [*RAW.names, *([KEPT_BYTES] if keeps_bytes else [])])
            self._decoder = open_decoder(self._values)
            empty = [pa.array([], kind) for kind in RAW.types]
            [none] = self._typed([pa.RecordBatch.from_arrays(empty, schema=RAW)])
            kept = [_widened(each) for each in none.schema if each.name not in self._unfit]
            self.schema = pa.schema([*kept, *([_BYTES_FIELD] if keeps_bytes else [])])

    def rows(
        self,
        partition: int,
        data: Buffer,
        first: int,
        stop: int,
        *,
        base_offset: int | None = None,
        aborted: Sequence[AbortedTransaction] = (),
        step: Callable[[], None] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in [first, stop) of the batches that lie side by side in `data`.

        `base_offset` as in `wire.arrow.place`. `step` is called between pieces of the work. Raises
        `RecordsDamaged`, and what `step` raises.
        """
        batches = place(data, base_offset=base_offset)
        for found in decode(
            data, batches, first=first, stop=stop, columns=_DECODED, aborted=aborted
        ):
            raw = _raw(found, partition)
            if self._values is None and self._policy is None:
                step()
                yield self._with_tombstones(raw, raw)
                continue
            for at in range(0, raw.num_rows, _TYPED_ROWS):
                part = raw.slice(at, _TYPED_ROWS)
                yield self._with_tombstones(self._as_declared(part), part)
                step()

    def _with_tombstones(self, rows: pa.RecordBatch, raw: pa.RecordBatch) -> pa.RecordBatch:
        if not self._upserts:
            return rows
        return rows.append_column(TOMBSTONE, raw.column("value").is_null())

    def _as_declared(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        if self._policy is not None:
            seen = pa.array(
                list(map(self._policy.apply, raw.column("value").to_pylist())), pa.binary()
            )
            raw = raw.set_column(RAW.get_field_index("value"), RAW.field("value"), seen)
        if self._values is None:
            return raw
        [typed] = self._typed([raw])
        rows = self._without_unfit(typed, raw.column("value"))
        if self._keeps_bytes:
            rows = rows.append_column(_BYTES_FIELD, raw.column("value"))
        return self._cast(rows)

    def _without_unfit(self, typed: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        for name in self._unfit:
            has_it = typed.column(name).is_valid()
            bytes_too = pc.if_else(has_it, values, typed.column(MALFORMED))
            at = typed.schema.get_field_index(MALFORMED)
            typed = typed.set_column(at, MALFORMED, bytes_too).drop_columns([name])
        return typed

    def _cast(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return rows.cast(self.schema)
        except pa.ArrowException as error:
            raise BadSchema(
                f"The declared values cannot be columns of a table: {error}."
            ) from error

    def _typed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from catchwater.values.typed import typed

        assert self._values is not None, "raw values stay as they are"
        return typed(iter(batches), self._values, RAW.names, self._decoder)


def malformed_in(rows: pa.RecordBatch | pa.Table) -> int:
    """How many of the rows have a value that is not as declared."""
    if MALFORMED not in rows.schema.names:
        return 0
    return int(rows.num_rows - rows.column(MALFORMED).null_count)


def first_malformed(rows: pa.RecordBatch) -> int | None:
    """The first of the rows whose value is not as declared; None: all are."""
    if not malformed_in(rows):
        return None
    return int(pc.index(rows.column(MALFORMED).is_valid(), True).as_py())


def _raw(found: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    milliseconds = found.column("timestamp").cast(pa.int64())
    fits = pc.and_(pc.less_equal(milliseconds, _LAST_MS), pc.greater_equal(milliseconds, -_LAST_MS))
    times = pc.if_else(fits, found.column("timestamp"), pa.scalar(None, pa.timestamp("ms", "UTC")))
    arrays = [
        pa.repeat(pa.scalar(partition, pa.int32()), found.num_rows),
        found.column("offset"),
        times.cast(MICROSECONDS),
        *(found.column(name) for name in _DECODED[2:]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def _widened(field: pa.Field) -> pa.Field:
    """The field as Iceberg can have it, which knows no integers of 8 and 16 bits."""
    return field.with_type(_wide(field.type))


def _wide(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.int8(), pa.int16()):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([_widened(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_wide(kind.key_type), _widened(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_field))
    return kind
