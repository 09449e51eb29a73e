"""Values in JSON: one object each, decoded by msgspec straight to the declared types.

Strict, so that nothing is changed in silence: a missing field and null are null, fields that are
not declared are ignored, and a value of another type, or one that its type cannot hold, makes the
row malformed. Binary is base64; timestamps are RFC 3339 (UTC where no zone is given).

Every value is judged alone, whatever is in it; `pyarrow.json` would take the values of a batch
joined by newlines, and find neither a newline within a value nor which row is malformed.
"""

import datetime
import decimal
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Optional, TypedDict

import msgspec
from pyspark.sql import types

from catchwater.values.decoder import Cells, Decoder, only
from catchwater.values.schema import parse_ddl
from catchwater.values.settings import BadSchema, ValueSettings

# A checker wants its fields written down; these are known at run time only.
_TYPED_DICT: Any = TypedDict
_MAX_FLOAT = 3.4028234663852886e38
_BITS = {types.ByteType: 8, types.ShortType: 16, types.IntegerType: 32, types.LongType: 64}
_PLAIN: dict[type[types.DataType], Any] = {
    types.StringType: str,
    types.BinaryType: bytes,
    types.BooleanType: bool,
    types.FloatType: Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)],
    types.DoubleType: float,
    types.DecimalType: decimal.Decimal,
    types.DateType: datetime.date,
    types.TimestampType: datetime.datetime,
}


def json_decoder(settings: ValueSettings) -> Decoder:
    """The decoder of objects with the fields of a DDL schema. Raises `BadSchema`."""
    schema = parse_ddl(settings.schema)
    fields = tuple(schema[name] for name in only(settings.fields, schema.names))
    # The names in JSON need not be names in Python.
    names = {f"f{index}": _checked(field.name) for index, field in enumerate(fields)}
    row = msgspec.defstruct(
        "Row",
        [(name, _python(field.dataType), None) for name, field in zip(names, fields, strict=True)],
        rename=names,
        gc=False,
    )
    return Decoder(
        fields,
        tuple(_cells(name) for name in names),
        msgspec.json.Decoder(row).decode,
        (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError),
        row(),
    )


def _cells(name: str) -> Cells:
    read = attrgetter(name)

    def cells(rows: Sequence[Any]) -> list[Any]:
        return [read(row) for row in rows]

    return cells


def _checked(name: str) -> str:
    if any(sign in '"\\' or sign < " " for sign in name):
        raise BadSchema(f"valueSchema: a field of JSON cannot be named {name!r} here.")
    return name


def _python(kind: types.DataType) -> Any:
    """The type that msgspec decodes to, for a field, an element or a map's value: or null."""
    return Optional[_present(kind)]  # noqa: UP045 - the type is known at run time only


def _present(kind: types.DataType) -> Any:
    if isinstance(kind, types.ArrayType):
        return list[_python(kind.elementType)]  # type: ignore[misc]
    if isinstance(kind, types.MapType):
        return dict[str, _python(kind.valueType)]  # type: ignore[misc]
    if isinstance(kind, types.StructType):
        inner = {_checked(field.name): _python(field.dataType) for field in kind}
        return _TYPED_DICT("Inner", inner, total=False)
    if type(kind) in _BITS:
        edge = 2 ** (_BITS[type(kind)] - 1)
        return Annotated[int, msgspec.Meta(ge=-edge, le=edge - 1)]
    return _PLAIN[type(kind)]
