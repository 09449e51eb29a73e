"""What the options say about values: their format, their schema, what happens to malformed ones.

`load` reads the files that `valueSchema` names. The driver calls it; tasks run on machines that
need not have the files.
"""

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError

VALUE_OPTIONS = ("valueFormat", "valueSchema", "valueMessage", "valueFields", "onMalformed")
REGISTRY_OPTIONS = (
    "schema.registry.url",
    "schema.registry.folder",
    "schema.registry.basic.auth.user.info",
)

MALFORMED = "_malformed"
"""The column that holds the bytes of a malformed value; null in every other row."""
KEPT_BYTES = "_value"
"""The column of a topic's table with the bytes of declared values, where the topic keeps them."""


class BadSchema(CatchwaterError):
    """An option on values that is wrong, or a schema that cannot be read or has no Spark types."""

    exit_code = 2


class ValueFormat(Enum):
    """How a record's value is encoded; `binary` leaves it as it is."""

    BINARY = "binary"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class OnMalformed(Enum):
    """Stop at a malformed value, or give nulls and the bytes."""

    FAIL = "fail"
    NULL = "null"


class Registry(msgspec.Struct, frozen=True):
    """Which registry: it travels with a function's code."""

    url: str
    folder: str | None = None
    """Where what was read is kept for the next process; None: nowhere."""
    login: str = ""
    """`user:password`."""
    waits: bool = True
    """Whether a schema that nobody has is asked for again and again; else once."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # the login is a password


@dataclass(frozen=True, slots=True)
class ValueSettings:
    """How values are decoded. `fields` are those that become columns, in this order; all if empty.

    `schema` is a text: DDL, an Avro schema, or the path to one or to a Protobuf descriptor set.
    With a `registry` each value begins with the id of the schema that it was written with.
    """

    format: ValueFormat = ValueFormat.BINARY
    schema: str = ""
    message: str = ""
    fields: tuple[str, ...] = ()
    on_malformed: OnMalformed = OnMalformed.FAIL
    descriptors: bytes = b""
    registry: Registry | None = None
    path: tuple[int, ...] = ()
    """Of Protobuf behind a registry: where in its file the message stands. A value that names
    another is malformed; with an empty one it is not looked at."""


BINARY_VALUES = ValueSettings()
"""Nothing is decoded."""


def load(settings: ValueSettings) -> ValueSettings:
    """The same settings with what the named file holds in place of its path."""
    is_path = bool(settings.schema) and not settings.schema.lstrip().startswith("{")
    if settings.format is ValueFormat.AVRO and is_path:
        try:
            return replace(settings, schema=_read(settings.schema).decode())
        except UnicodeDecodeError as error:
            raise BadSchema(f"valueSchema names {settings.schema}, which is no text.") from error
    if settings.format is ValueFormat.PROTOBUF and not settings.descriptors:
        return replace(settings, descriptors=_read(settings.schema))
    return settings


def identity(settings: ValueSettings) -> str:
    """Names the format and the whole schema, whose files are loaded: equal ones decode alike.

    The schema's text counts as it is written; which of its fields are wanted does not.
    """
    content = settings.descriptors or settings.schema.strip().encode()
    framed = " behind an id" if settings.registry else ""
    kind = f"{settings.format.value} {settings.message}{framed}\n".encode()
    return hashlib.sha256(kind + content).hexdigest()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadSchema(
            f"valueSchema names {path!r}, which cannot be read: {error.strerror}.",
            hint="Give the path of a file on the driver's machine.",
        ) from error
