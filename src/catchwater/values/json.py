"""Values in JSON: one object each, decoded by msgspec straight to the declared types.

Strict, so that nothing is changed in silence: a missing field and null are null, fields that are
not declared are ignored, and a value of another type, or one that its type cannot hold, makes the
row malformed. Binary is base64; timestamps are RFC 3339 (UTC where no zone is given).

The schema is given as Spark writes one (`card string, at long`), and read here: Spark's own parser
runs in the JVM. What cannot be decoded to is refused, with the character at which it stands.

Every value is judged alone, whatever is in it; `pyarrow.json` would take the values of a batch
joined by newlines, and find neither a newline within a value nor which row is malformed.
"""

import datetime
import decimal
import re
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, NoReturn, Optional, TypedDict

import msgspec
from pyspark.sql import types

from catchwater.values.decoder import Decoder, cells_by, only
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
        tuple(cells_by(attrgetter(name)) for name in names),
        msgspec.json.Decoder(row).decode,
        (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError),
        row(),
    )


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


# The schema.

_DDL_TYPES: dict[str, type[types.DataType]] = {
    "string": types.StringType,
    "binary": types.BinaryType,
    "boolean": types.BooleanType,
    "byte": types.ByteType,
    "tinyint": types.ByteType,
    "short": types.ShortType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "long": types.LongType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
}
_NAMES = (*_DDL_TYPES, "decimal", "array", "struct", "map")
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<sign>[<>(),:]))")
_MAX_DECIMAL = 38


class _Token(NamedTuple):
    text: str
    at: int
    kind: str


def parse_ddl(text: str) -> types.StructType:
    """The fields of a value. Raises `BadSchema` with the character (from 1) where it is wrong."""
    parser = _Parser(text)
    fields = parser.fields(end="")
    return types.StructType(fields)


class _Parser:
    """Reads tokens from left to right; `_next` is the one that is looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._next = self._scan()

    def fields(self, end: str) -> list[types.StructField]:
        """Names with types, up to the token `end` ("" is the end of the text)."""
        found: dict[str, types.StructField] = {}
        while True:
            name = self._name()
            if name.lower() in found:
                self._fail(f"the field {name} stands there twice")
            if self._next.text == ":":
                self._take()
            found[name.lower()] = types.StructField(name, self._type())
            if self._next.text != ",":
                break
            self._take()
        self._expect(end)
        return list(found.values())

    def _type(self) -> types.DataType:
        name = self._next.text.lower()
        if self._next.kind != "word" or name not in _NAMES:
            near = get_close_matches(name, _NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"the types are: {', '.join(_NAMES)}"
            self._fail(f"{self._shown()} is no type ({hint})")
        self._take()
        if name in _DDL_TYPES:
            return _DDL_TYPES[name]()
        if name == "decimal":
            return self._decimal()
        self._expect("<")
        if name == "struct":
            return types.StructType(self.fields(end=">"))
        if name == "map":
            self._map_key()
        inner = self._type()
        self._expect(">")
        return types.MapType(types.StringType(), inner) if name == "map" else types.ArrayType(inner)

    def _map_key(self) -> None:
        if self._next.text.lower() != "string":
            self._fail(f"a map's keys are of type string, not {self._shown()}")
        self._take()
        self._expect(",")

    def _decimal(self) -> types.DecimalType:
        if self._next.text != "(":
            return types.DecimalType(10, 0)
        self._take()
        precision, scale = self._number(1, _MAX_DECIMAL), 0
        if self._next.text == ",":
            self._take()
            scale = self._number(0, precision)
        self._expect(")")
        return types.DecimalType(precision, scale)

    def _number(self, least: int, most: int) -> int:
        text = self._next.text
        if not text.isdecimal() or not least <= int(text) <= most:
            self._fail(f"a number from {least} to {most} is expected, not {self._shown()}")
        self._take()
        return int(text)

    def _name(self) -> str:
        token = self._next
        if token.kind not in ("word", "quoted"):
            self._fail(f"a field's name is expected, not {self._shown()}")
        self._take()
        return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text

    def _expect(self, text: str) -> None:
        if self._next.text != text:
            wanted = f"{text!r}" if text else "',' or the end"
            self._fail(f"{wanted} is expected, not {self._shown()}")
        if text:
            self._take()

    def _take(self) -> None:
        self._next = self._scan()

    def _scan(self) -> _Token:
        match = _TOKEN.match(self._text, self._end)
        if match:
            self._end = match.end()
            kind = match.lastgroup or ""
            return _Token(match[kind], match.start(kind), kind)
        rest = self._text[self._end :]
        at = self._end + len(rest) - len(rest.lstrip())
        # A sign that no schema has: the parser names it when it gets there.
        return _Token(self._text[at : at + 1], at, "end" if at == len(self._text) else "other")

    def _shown(self) -> str:
        return repr(self._next.text) if self._next.text else "the end"

    def _fail(self, what: str) -> NoReturn:
        raise BadSchema(f"valueSchema, character {self._next.at + 1}: {what}.")
