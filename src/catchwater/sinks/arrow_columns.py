"""Outputs as rows of typed columns: an output type becomes an Arrow schema, its JSON a table.

A column has the field's name in JSON. A union of records has the columns of all its records; those
that a record does not have are null, as every column may be. The first three columns are the row's
identity (`ROW_COLUMNS`).

Single values have the columns of `columns.TYPES`; an `Enum` or `Literal` has the type of its
values, `int | float` is a double. A `list`, `set` or `tuple[T, ...]` is a list, a `dict` a map, a
record a struct. A `datetime` without a zone counts as UTC.

Relies on pyarrow. A field without a column type is refused by name (`ColumnUnsupported`), and a
value that does not fit its column by its row (`ValueUnfit`); nothing is rounded or truncated.
"""

import datetime as dt
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from catchwater.config import CatchwaterError, Restart
from catchwater.sinks.base import OutputRecord, RowId, SinkRow, StagedRow, TargetDiffers
from catchwater.sinks.columns import ROW_COLUMNS, TYPES, ColumnType
from catchwater.state.records import is_pydantic

_BATCH_ROWS = 250
"""Rows that are Python objects at once: so few stay in the processor's cache, and are gone before
Python's collector of cycles has looked at them often. Ten thousand cost nearly twice as much."""
_EPOCH_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _arrow(each: ColumnType) -> Any:
    name, *arguments = each.arrow
    return getattr(pa, name)(*arguments)


_ROW_ID_FIELDS = [pa.field(name, pa.int64()) for name in ROW_COLUMNS]
_SCALARS: dict[type, Any] = {type(inspect.type_info(each.python)): _arrow(each) for each in TYPES}
"""By what msgspec says of an annotation."""
_PYTHON: dict[Any, Any] = {_arrow(each): each.python for each in reversed(TYPES)}
"""What values are decoded to, for Arrow to take: a UUID and a duration are texts."""
_RAW: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.map_(pa.string(), pa.binary()),
}


class ColumnUnsupported(CatchwaterError):
    """A field of the output type that no column can hold."""

    exit_code = 2


class ValueUnfit(CatchwaterError):
    """An output that does not fit its type's columns."""

    restart = Restart.ONCE


class Columns:
    """The columns of one output type; of dead letters, whose values are bytes, if it is None."""

    def __init__(self, output_type: Any) -> None:
        """Raises `ColumnUnsupported`."""
        self._is_raw = output_type is None
        fields = dict(_RAW) if self._is_raw else _record_fields(output_type, "the output")
        if taken := {*ROW_COLUMNS}.intersection(fields):
            raise ColumnUnsupported(
                f"The output's field {min(taken)} has a name that is ours.",
                hint="Give the field another name; in JSON is enough (msgspec: rename).",
            )
        self.output = pa.schema(list(fields.items()))
        """The output's own columns."""
        self.schema = pa.schema([*_ROW_ID_FIELDS, *self.output])
        """All columns: which output it is, then the output's own."""
        self._decode = msgspec.json.Decoder(_python_type(pa.struct(list(self.output)))).decode
        self._defaults = self._decode(_omitted(output_type))
        self._encode = msgspec.json.Encoder().encode
        self._normal = {
            field.name: normal
            for field in self.output
            if (normal := _normal(field.type)) is not None
        }

    def table(self, rows: Iterable[StagedRow]) -> Any:
        """The rows as an Arrow table. Raises `ValueUnfit`."""
        struct, batches, remaining = pa.struct(list(self.output)), [], iter(rows)
        while some := list(islice(remaining, _BATCH_ROWS)):
            plain = [self._row(id, record) for id, record in some]
            ids = [pa.array(part, pa.int64()) for part in zip(*(id for id, _ in some), strict=True)]
            try:
                outputs = pa.RecordBatch.from_struct_array(pa.array(plain, struct))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                raise self._unfit(some, plain) from None
            columns = [*ids, *outputs.columns]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return pa.Table.from_batches(batches, self.schema)

    def check(self, there: Any, where: str) -> None:
        """Raise `TargetDiffers` if a column of this schema has another type than ours."""
        for field in self.schema:
            index = there.get_field_index(field.name)
            if index >= 0 and there.field(index).type != field.type:
                raise TargetDiffers(
                    f"The column {field.name} of {where} is {there.field(index).type}; the "
                    f"output has {field.type}.",
                    hint="Give the output's field another name, or the sink another target.",
                )

    def digest(self, record: OutputRecord) -> bytes:
        """A digest of the record's columns; that of `rows_of` once it is a row."""
        return self._digest(self._row(RowId(-1, -1, -1), record))

    def rows_of(self, table: Any) -> Iterator[SinkRow]:
        """What a table with these columns, or some of them, holds, row by row.

        A row that does not say which it is has an identity of no epoch: (-1, -1, -1).
        """
        names = [name for name in self.output.names if name in table.column_names]
        for batch in table.select([*ROW_COLUMNS, *names]).to_batches(max_chunksize=_BATCH_ROWS):
            for row in batch.to_pylist():
                id = [row.pop(name) for name in ROW_COLUMNS]
                known = RowId(-1, -1, -1) if None in id else RowId(*id)
                yield SinkRow(known, b"", self._digest(row))

    def cast(self, table: Any) -> Any:
        """A table that holds what outputs hold, with the types that its columns have here."""
        for at, field in enumerate(table.schema):
            index = self.schema.get_field_index(field.name)
            if index >= 0 and field.type != self.schema.field(index).type:
                wanted = self.schema.field(index)
                table = table.set_column(at, wanted, table.column(at).cast(wanted.type))
        return table

    def _row(self, row_id: RowId, record: OutputRecord) -> dict[str, Any]:
        if self._is_raw:
            at = _EPOCH_TIME + dt.timedelta(milliseconds=record.timestamp_ms)
            raw = (record.key, record.value, at, dict(record.headers))
            return dict(zip(self.output.names, raw, strict=True))
        try:
            row: dict[str, Any] = self._decode(record.value)
            return {**self._defaults, **row} if self._defaults else row
        except msgspec.DecodeError as error:
            raise ValueUnfit(
                f"The output {row_id} does not fit its columns: {error}.",
                hint="The function puts out something else than its declared output type.",
            ) from None

    def _digest(self, row: dict[str, Any]) -> bytes:
        for name, normal in self._normal.items():
            if row.get(name) is not None:
                row[name] = normal(row[name])
        return sha256(self._encode([row.get(name) for name in self.output.names])).digest()[:8]

    def _unfit(self, rows: Sequence[StagedRow], plain: Sequence[dict[str, Any]]) -> ValueUnfit:
        """Name the first value that no column holds."""
        for (id, _), row in zip(rows, plain, strict=True):
            for field in self.output:
                try:
                    pa.array([row.get(field.name)], field.type)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                    return ValueUnfit(
                        f"The output {id} does not fit the column {field.name} of type "
                        f"{field.type}: {error}.",
                        hint="Let the function put out what the column takes; nothing is rounded.",
                    )
        raise AssertionError("each value alone fits its column")


def has_identities(table: Any) -> bool:
    """Whether the table has the columns that say which output a row is."""
    return set(ROW_COLUMNS) <= {
        each.name for each in table.schema if pa.types.is_integer(each.type)
    }


def _omitted(declared: Any) -> bytes:
    """As JSON: what the fields are that the JSON of a Struct with `omit_defaults` leaves out."""
    config = getattr(declared, "__struct_config__", None)
    if config is None or not config.omit_defaults:
        return b"{}"
    defaults = {
        field.encode_name: field.default
        if field.default_factory is msgspec.NODEFAULT
        else field.default_factory()
        for field in msgspec.structs.fields(declared)
        if not field.required
    }
    return msgspec.json.encode(defaults)


def _record_fields(declared: Any, where: str) -> dict[str, Any]:
    """Column name → Arrow type, of a record type or a union of them."""
    found: dict[str, Any] = {}
    members = typing.get_args(declared) if not isinstance(declared, type) else ()
    for member in members or (declared,):
        for name, column in _fields(member, where):
            if found.setdefault(name, column) != column:
                raise ColumnUnsupported(
                    f"{where}'s field {name} is {found[name]} in one record of the union and "
                    f"{column} in another.",
                    hint="Give the two fields different names.",
                )
    return found


def _fields(declared: Any, where: str) -> Iterator[tuple[str, Any]]:
    if is_pydantic(declared):
        for name, field in declared.model_fields.items():
            # Pydantic writes bytes into JSON as text.
            column = _column(inspect.type_info(field.annotation), f"{where}.{name}")
            yield name, pa.string() if column == pa.binary() else column
        return
    info = inspect.type_info(declared)
    if isinstance(info, inspect.StructType) and info.tag_field:
        yield info.tag_field, pa.string() if isinstance(info.tag, str) else pa.int64()
    if not isinstance(info, _RECORDS) or getattr(info, "array_like", False):
        raise ColumnUnsupported(
            f"{where} is {declared}, which has no named fields.",
            hint="Put out a dataclass, a msgspec.Struct, a TypedDict or a pydantic model.",
        )
    for each in info.fields:
        yield each.encode_name, _column(each.type, f"{where}.{each.encode_name}")


_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


def _column(info: inspect.Type, where: str) -> Any:
    """The Arrow type of a field."""
    match info:
        case inspect.UnionType(types):
            return _of_all([t for t in types if not isinstance(t, inspect.NoneType)], where)
        case inspect.EnumType(cls):
            return _of_values([member.value for member in cls], where)
        case inspect.LiteralType(values):
            return _of_values(list(values), where)
        case inspect.DictType(key, value):
            return pa.map_(_column(key, where), _column(value, where))
        case inspect.CollectionType() | inspect.VarTupleType():
            return pa.list_(_column(info.item_type, where))
        case inspect.StructType(cls) | inspect.DataclassType(cls) | inspect.TypedDictType(cls):
            return pa.struct(list(_fields(cls, where)))
        case inspect.CustomType(cls) if is_pydantic(cls):
            return pa.struct(list(_fields(cls, where)))
    if (scalar := _SCALARS.get(type(info))) is not None:
        return scalar
    raise ColumnUnsupported(
        f"{where} is of a type that no column holds: {type(info).__name__.removesuffix('Type')}.",
        hint="Give the field one type that says what it holds.",
    )


def _of_all(types: Sequence[inspect.Type], where: str) -> Any:
    columns = {_column(each, where) for each in types}
    if columns == {pa.int64(), pa.float64()}:
        return pa.float64()
    if len(columns) == 1:
        return columns.pop()
    raise ColumnUnsupported(
        f"{where} may be {' or '.join(sorted(map(str, columns)))}; a column has one type.",
        hint="Give the field one type, or make it several fields.",
    )


def _of_values(values: Sequence[Any], where: str) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if kinds in ({str}, {int}):
        return pa.string() if kinds == {str} else pa.int64()
    raise ColumnUnsupported(f"{where} has values of several types; a column has one type.")


def _python_type(column: Any) -> Any:
    """What a column's values are decoded to, for Arrow to take."""
    if pa.types.is_struct(column):
        fields = {field.name: _python_type(field.type) | None for field in column}
        return typing.TypedDict("Row", fields, total=False)  # type: ignore[operator]
    if pa.types.is_map(column):
        return dict[_python_type(column.key_type), _python_type(column.item_type) | None]  # type: ignore[misc]
    if pa.types.is_list(column):
        return list[_python_type(column.value_type) | None]  # type: ignore[misc]
    return _PYTHON[column]


def _normal(column: Any) -> Callable[[Any], Any] | None:
    """How a value is made equal to the same value from Arrow; None: it is as it is."""
    if pa.types.is_timestamp(column):
        return _utc
    if pa.types.is_decimal(column):
        return _decimal
    if pa.types.is_map(column):
        return _normal_map(column)
    if pa.types.is_list(column):
        one = _normal(column.value_type)
        return None if one is None else lambda values: [v if v is None else one(v) for v in values]
    if pa.types.is_struct(column):
        return _normal_struct(column)
    return None


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _decimal(value: Decimal) -> str:
    return str(value.normalize())


def _normal_map(column: Any) -> Callable[[Any], Any]:
    key, item = _normal(column.key_type), _normal(column.item_type)

    def normal(value: Any) -> list[Any]:
        pairs = value.items() if isinstance(value, dict) else value
        return [(key(k) if key else k, item(v) if item and v is not None else v) for k, v in pairs]

    return normal


def _normal_struct(column: Any) -> Callable[[Any], Any]:
    normals = {field.name: _normal(field.type) for field in column}

    def normal(value: dict[str, Any]) -> list[Any]:
        return [
            one(value[name]) if one is not None and value.get(name) is not None else value.get(name)
            for name, one in normals.items()
        ]

    return normal
