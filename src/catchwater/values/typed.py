"""Batches with a binary `value` to batches with the value's fields as typed columns.

A value that is null (a tombstone) gives nulls and is not malformed. Promises as many rows as there
were, in their order, and that a malformed value either stops the query, with topic, partition and
offset, or gives nulls and its bytes in `_malformed`. Decodes a batch at a time; only a batch with a
malformed value is looked at row by row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from catchwater.config import CatchwaterError
from catchwater.values.decoder import Decoder
from catchwater.values.settings import (
    MALFORMED,
    BadSchema,
    OnMalformed,
    ValueFormat,
    ValueSettings,
)

_PLACE = ("topic", "partition", "offset")
# What Arrow raises for a cell that its column cannot hold.
_UNFIT = (ValueError, TypeError, OverflowError)


class ValueMalformed(CatchwaterError):
    """A value that is not what the schema says."""


def open_decoder(settings: ValueSettings) -> Decoder:
    """The decoder of a format and schema, whose files are loaded. Raises `BadSchema`."""
    decoder = _decoder_of(settings)
    if settings.registry is None or settings.format is ValueFormat.AVRO:
        return decoder
    from catchwater.values.registry import unframed

    # The schema is the one that is given: of the id in front nobody is asked.
    decode = decoder.decode
    if settings.format is ValueFormat.PROTOBUF:
        return replace(decoder, decode=lambda value: decode(_message(unframed(value), settings)))
    return replace(decoder, decode=lambda value: decode(unframed(value)))


def _message(value: bytes, settings: ValueSettings) -> bytes:
    """The message behind the path of its type. Raises `ValueError`."""
    from catchwater.values.events import with_path

    path, message = with_path(value)
    if settings.path and path != settings.path:
        raise ValueError(f"it is another message of its file, at {list(path)}")
    return message


def _decoder_of(settings: ValueSettings) -> Decoder:
    # Each format's library is loaded only where that format is read.
    match settings.format:
        case ValueFormat.JSON:
            from catchwater.values.json import json_decoder

            return json_decoder(settings)
        case ValueFormat.AVRO:
            from catchwater.values.avro import avro_decoder

            return avro_decoder(settings)
        case ValueFormat.PROTOBUF:
            from catchwater.values.protobuf import protobuf_decoder

            return protobuf_decoder(settings)
        case ValueFormat.BINARY:
            raise AssertionError("binary values are not decoded")


def value_fields(settings: ValueSettings, columns: Sequence[str]) -> list[types.StructField]:
    """What stands in place of the column `value`; none of it may be named like another column."""
    fields = list(open_decoder(settings).fields)
    if settings.on_malformed is OnMalformed.NULL:
        fields.append(types.StructField(MALFORMED, types.BinaryType()))
    taken = {name.lower() for name in columns if name != "value"}
    for field in fields:
        if field.name.lower() in taken:
            raise BadSchema(
                f"The field {field.name} of valueSchema is named like another column.",
                hint="Leave one of the two out, by the option columns or by valueFields.",
            )
        taken.add(field.name.lower())
    return fields


def read_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that must be read for these: an error names a record's place."""
    return (*columns, *(name for name in _PLACE if name not in columns))


def typed(
    batches: Iterator[pa.RecordBatch],
    settings: ValueSettings,
    columns: Sequence[str],
    decoder: Decoder | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches, of `read_columns(columns)`, with the value's fields in place of `value`.

    `decoder` is that of the settings, where it is open. Raises `ValueMalformed`, and `BadSchema`.
    """
    decoder = decoder or open_decoder(settings)
    arrow = to_arrow_schema(types.StructType(list(decoder.fields)), timezone="UTC")
    for batch in batches:
        values = batch.column("value").to_pylist()
        arrays, bad = _arrays(decoder, arrow, values)
        if bad and settings.on_malformed is OnMalformed.FAIL:
            raise _malformed(batch, min(bad), bad[min(bad)], settings)
        fields = list(arrow)
        if settings.on_malformed is OnMalformed.NULL:
            raw = [value if index in bad else None for index, value in enumerate(values)]
            arrays.append(pa.array(raw, pa.binary()))
            fields.append(pa.field(MALFORMED, pa.binary()))
        yield _put_in(batch, columns, arrays, fields)


class StructOfFields:
    """A batch of values as one struct column that has the fields of a schema."""

    def __init__(self, settings: ValueSettings) -> None:
        """Raises `BadSchema`."""
        self._decoder = open_decoder(settings)
        fields = types.StructType(list(self._decoder.fields))
        self._arrow = to_arrow_schema(fields, timezone="UTC")
        self.type = pa.struct(list(self._arrow))

    def column(self, values: list[bytes | None]) -> pa.StructArray | None:
        """The values in this order, nulls for one that is null; None if any is malformed."""
        arrays, bad = _arrays(self._decoder, self._arrow, values)
        return None if bad else pa.StructArray.from_arrays(arrays, fields=list(self._arrow))


def _arrays(
    decoder: Decoder, arrow: pa.Schema, values: list[bytes | None]
) -> tuple[list[pa.Array], dict[int, str]]:
    """A column for each field; and by index in the batch why a value is malformed."""
    decode, empty = decoder.decode, decoder.empty
    errors: tuple[type[Exception], ...] = (*decoder.errors, *_UNFIT)
    try:
        rows = [empty if value is None else decode(value) for value in values]
        return _built(decoder, arrow, rows), {}
    except errors:
        # One of them is malformed: which ones is found out row by row.
        rows, bad = _separated(decoder, arrow, values)
        return _built(decoder, arrow, rows), bad


def _built(decoder: Decoder, arrow: pa.Schema, rows: list[Any]) -> list[pa.Array]:
    return [pa.array(cells(rows), f.type) for cells, f in zip(decoder.cells, arrow, strict=True)]


def _separated(
    decoder: Decoder, arrow: pa.Schema, values: list[bytes | None]
) -> tuple[list[Any], dict[int, str]]:
    """The rows, empty ones where the value is malformed, and by index why it is."""
    rows, bad = [], {}
    for index, value in enumerate(values):
        row = decoder.empty
        try:
            row = row if value is None else decoder.decode(value)
        except decoder.errors as error:
            bad[index] = str(error) or type(error).__name__
        rows.append(row)
    for cells, field in zip(decoder.cells, arrow, strict=True):
        try:
            pa.array(cells(rows), field.type)
        except _UNFIT:
            for index, row in enumerate(rows):
                try:
                    pa.array(cells([row]), field.type)
                except _UNFIT as error:
                    bad[index] = f"field {field.name}: {error}"
                    rows[index] = decoder.empty
    return rows, bad


def _put_in(
    batch: pa.RecordBatch, columns: Sequence[str], arrays: list[pa.Array], fields: list[pa.Field]
) -> pa.RecordBatch:
    """The wanted columns of a batch, with these in place of `value`."""
    out_arrays: list[pa.Array] = []
    out_fields: list[pa.Field] = []
    for name in columns:
        if name == "value":
            out_arrays += arrays
            out_fields += fields
        else:
            out_arrays.append(batch.column(name))
            out_fields.append(batch.schema.field(name))
    return pa.RecordBatch.from_arrays(out_arrays, schema=pa.schema(out_fields))


def _malformed(
    batch: pa.RecordBatch, index: int, why: str, settings: ValueSettings
) -> ValueMalformed:
    topic, partition, offset = (batch.column(name)[index].as_py() for name in _PLACE)
    return ValueMalformed(
        f"The value of {topic}-{partition} at offset {offset} is not {settings.format.value} of "
        f"valueSchema: {why.rstrip('.')}.",
        hint="With onMalformed null the query goes on, with nulls and the bytes in _malformed.",
    )
