"""The column types of Python types (`TYPES`), and outputs as rows of a table.

A field of the output type is a column of the same name; types without a column type (lists, maps,
nested records, unions) are JSON. An output that is no record is one JSON column `value`; a dead
letter has `key`, `value` and `headers`. Every row also has ROW_COLUMNS, its identity.

Pure. Digests are over values, not text: a value from a database has the digest of the JSON it was
made from, regardless of how the database writes numbers, times and JSON.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from catchwater.config import CatchwaterError, Restart
from catchwater.sinks.base import OutputRecord
from catchwater.state.records import is_pydantic

ColumnKind = Literal[
    "text", "integer", "real", "boolean", "bytes", "time", "date", "decimal", "uuid", "json"
]
ROW_COLUMNS = ("catchwater_epoch", "catchwater_shard", "catchwater_row")
"""The columns that say which output a row is: the same on every replay."""


class ColumnType(NamedTuple):
    """The columns that hold one type of values."""

    python: Any
    """The annotation."""
    kind: ColumnKind
    """How tables treat it: its values, its JSON and its digest."""
    sqlite: str
    """The type in a new table, then those accepted in an existing table."""
    sqlite_takes: tuple[str, ...]
    postgres: str
    postgres_takes: tuple[str, ...]
    arrow: tuple[Any, ...]
    """pyarrow's function and what it is given. An Iceberg column is made from it by pyiceberg."""


_TEXTS = ("text", "varchar", "char", "clob", "")
_PG_TEXTS = ("text", "varchar", "bpchar", "citext")
_JSONS, _PG_JSONS = (*_TEXTS, "json"), ("jsonb", "json")
DECIMAL_PLACES = 18

TYPES = (
    ColumnType(str, "text", "TEXT", _TEXTS, "text", _PG_TEXTS, ("string",)),
    ColumnType(
        int, "integer", "INTEGER", ("integer", "int", "bigint"),
        "bigint", ("int8", "int4", "int2", "numeric"), ("int64",),
    ),
    ColumnType(
        float, "real", "REAL", ("real", "double", "double precision", "float"),
        "double precision", ("float8",), ("float64",),
    ),
    ColumnType(
        bool, "boolean", "INTEGER", ("integer", "int", "boolean", "bool"),
        "boolean", ("bool",), ("bool_",),
    ),
    ColumnType(bytes, "bytes", "BLOB", ("blob",), "bytea", ("bytea",), ("binary",)),
    ColumnType(
        datetime, "time", "TEXT", (*_TEXTS, "datetime", "timestamp"),
        "timestamptz", ("timestamptz", "timestamp"), ("timestamp", "us", "UTC"),
    ),
    ColumnType(date, "date", "TEXT", (*_TEXTS, "date"), "date", ("date",), ("date32",)),
    ColumnType(
        Decimal, "decimal", "TEXT", ("text",), "numeric", ("numeric",),
        ("decimal128", 38, DECIMAL_PLACES),
    ),
    ColumnType(UUID, "uuid", "TEXT", _TEXTS, "uuid", ("uuid", *_PG_TEXTS), ("string",)),
    ColumnType(time, "json", "TEXT", _JSONS, "jsonb", _PG_JSONS, ("time64", "us")),
    ColumnType(timedelta, "json", "TEXT", _JSONS, "jsonb", _PG_JSONS, ("string",)),
)  # fmt: skip
"""Every type that has a column of its own somewhere. Lists, maps, records and unions are JSON in a
table; in a lake they are lists, maps and structs (`arrow_columns`)."""

_KINDS: dict[Any, ColumnKind] = {each.python: each.kind for each in TYPES}
_DECODED: dict[ColumnKind, Any] = {
    "integer": int | None,
    "real": float | None,
    "boolean": bool | None,
    "bytes": bytes | None,
    "decimal": str | int | float | None,
    "json": msgspec.Raw,
}
"""What msgspec makes of a column's JSON; a text where nothing is said."""


class RowUnfit(CatchwaterError):
    """An output that its table cannot hold."""

    restart = Restart.ONCE


class Column(NamedTuple):
    """One column of the outputs."""

    name: str
    """As the field is called in JSON."""
    kind: ColumnKind
    default: Any = None
    """Where the field is missing from the JSON."""


Values = tuple[Any, ...]


class Codec(NamedTuple):
    """How one output type becomes rows."""

    columns: tuple[Column, ...]
    values: Callable[[OutputRecord], Values]
    """The columns' values, as every database takes them. Raises `RowUnfit`."""


def codec_of(output_type: Any) -> Codec:
    """The columns of an output type; None: dead letters, whose values are bytes."""
    if output_type is None:
        columns = (Column("key", "bytes"), Column("value", "bytes"), Column("headers", "json"))
        return Codec(columns, _raw_values)
    fields = _fields(output_type)
    if not fields:
        return Codec((Column("value", "json"),), lambda record: (_json_text(record.value),))
    return Codec(tuple(fields), _decoder(fields))


def names_of(output_type: Any) -> list[str]:
    """The fields of an output type as they are called in JSON; none for what is no record."""
    return [column.name for column in _fields(output_type)]


def digest_of(columns: Sequence[Column], values: Sequence[Any]) -> bytes:
    """The digest of a row, from its JSON's values or from the database's."""
    plain = [_canonical(column.kind, value) for column, value in zip(columns, values, strict=True)]
    return sha256(msgspec.json.encode(plain, order="deterministic")).digest()[:8]


def _decoder(columns: Sequence[Column]) -> Callable[[OutputRecord], Values]:
    names = [f"c{index}" for index in range(len(columns))]
    fields = [
        (name, _DECODED.get(column.kind, str | None), column.default)
        for name, column in zip(names, columns, strict=True)
    ]
    renamed = dict(zip(names, (column.name for column in columns), strict=True))
    row = msgspec.defstruct("Row", fields, rename=renamed)
    decode = msgspec.json.Decoder(row).decode
    other = [
        (at, _utc if column.kind == "time" else _text_of)
        for at, column in enumerate(columns)
        if column.kind in ("json", "decimal", "time")
    ]

    def values(record: OutputRecord) -> Values:
        try:
            found = msgspec.structs.astuple(decode(record.value))
        except msgspec.DecodeError as error:
            raise RowUnfit(
                f"An output of {len(record.value)} bytes is not a row: {error}."
            ) from error
        if not other:
            return found
        row = list(found)
        for at, change in other:
            row[at] = change(row[at])
        return tuple(row)

    return values


def _utc(text: str | None) -> str | None:
    """The time in UTC: a column without a zone would drop another one without a word."""
    if text is None or text.endswith("Z"):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text  # for the database to refuse
    return text if at.tzinfo is None else at.astimezone(UTC).isoformat()


def _text_of(value: Any) -> str | None:
    if isinstance(value, msgspec.Raw):
        text = bytes(value)
        return None if text == b"null" else text.decode()
    return None if value is None else str(value)


def _raw_values(record: OutputRecord) -> Values:
    # A dead letter with any bytes must be stored, but no database takes this character in a text.
    headers = {
        name: value.decode(errors="replace").replace("\0", "\ufffd")
        for name, value in record.headers
    }
    return record.key, record.value, msgspec.json.encode(headers).decode()


def _json_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RowUnfit(f"An output of {len(value)} bytes is not JSON: {error}.") from error


def _fields(declared: Any) -> list[Column]:
    """The columns of a record type; none for any other type."""
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        sparse = declared.__struct_config__.omit_defaults
        return [
            _column(each.encode_name, each.type, _default(each) if sparse else msgspec.NODEFAULT)
            for each in msgspec.structs.fields(declared)
        ]
    if is_pydantic(declared):
        hints = typing.get_type_hints(declared)
        columns = [_column(name, hints[name]) for name in declared.model_fields]
        # Pydantic writes bytes into JSON as text.
        return [c._replace(kind="text") if c.kind == "bytes" else c for c in columns]
    if dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    elif typing.is_typeddict(declared):
        names = list(typing.get_type_hints(declared))
    else:
        return []
    hints = typing.get_type_hints(declared)
    return [_column(name, hints[name]) for name in names]


def _default(field: Any) -> Any:
    """What a field is that `omit_defaults` has left out of the JSON."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _column(name: str, declared: Any, default: Any = msgspec.NODEFAULT) -> Column:
    kind = _kind(declared)
    given = None if default is msgspec.NODEFAULT else msgspec.to_builtins(default)
    if kind == "json":
        given = msgspec.Raw(msgspec.json.encode(given))
    return Column(name, kind, given)


def _kind(declared: Any) -> ColumnKind:
    """The column type of a field's type; optional or not is the same."""
    origin = typing.get_origin(declared)
    if origin is typing.Annotated:
        return _kind(typing.get_args(declared)[0])
    if origin in (typing.Union, types.UnionType):
        members = [each for each in typing.get_args(declared) if each is not types.NoneType]
        return _kind(members[0]) if len(members) == 1 else "json"
    if origin is typing.Literal:
        return _kind_of_values(typing.get_args(declared))
    if isinstance(declared, type) and issubclass(declared, Enum):
        return _kind_of_values([member.value for member in declared])
    supertype = getattr(declared, "__supertype__", None)  # NewType
    return _kind(supertype) if supertype is not None else _KINDS.get(declared, "json")


def _kind_of_values(values: Iterable[Any]) -> ColumnKind:
    found = {_KINDS.get(type(each), "json") for each in values}
    return found.pop() if len(found) == 1 else "json"


def _canonical(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case "time":
            at = datetime.fromisoformat(value) if isinstance(value, str) else value
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
        case "decimal":
            return str(Decimal(str(value)).normalize())
        case "json":
            return _same_numbers(msgspec.json.decode(value) if isinstance(value, str) else value)
        case "boolean":
            return bool(value)
        case "real":
            return float(value)
        case "bytes":
            return bytes(value)
        case "date" | "uuid":
            return str(value)
    return value


def _same_numbers(value: Any) -> Any:
    """JSON with whole floats as integers: databases spell 1.0 and 1e20 as they like.

    Of the digits that were written: a large double's own would be others.
    """
    match value:
        case float() if value.is_integer():
            return int(Decimal(repr(value)))
        case dict():
            return {key: _same_numbers(each) for key, each in value.items()}
        case list():
            return [_same_numbers(each) for each in value]
    return value
