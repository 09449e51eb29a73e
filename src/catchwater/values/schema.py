"""A schema as Spark writes it (`card string, at long`) to Spark's types, without a session.

Spark's own parser runs in the JVM. This one knows the types that a value can be decoded to; what
it does not know it refuses, and says at which character.
"""

import re
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from pyspark.sql import types

from catchwater.values.settings import BadSchema

_PLAIN: dict[str, type[types.DataType]] = {
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
_NAMES = (*_PLAIN, "decimal", "array", "struct", "map")
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
        if name in _PLAIN:
            return _PLAIN[name]()
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
        # A sign that no schema has: whoever looks at it names it.
        return _Token(self._text[at : at + 1], at, "end" if at == len(self._text) else "other")

    def _shown(self) -> str:
        return repr(self._next.text) if self._next.text else "the end"

    def _fail(self, what: str) -> NoReturn:
        raise BadSchema(f"valueSchema, character {self._next.at + 1}: {what}.")
