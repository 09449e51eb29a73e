"""Whether bytes are a value of a registered schema: what a broker asks before it takes a record.

Made for bytes that anybody sends: what a decoder raises is the value's fault, never more. JSON is
looked at for being JSON, not held against its JSON Schema. Imports no Spark.
"""

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from catchwater.values.events import avro_reader, protobuf_reader, with_path
from catchwater.values.registry import Registered
from catchwater.values.settings import BadSchema

Fit = Callable[[bytes], str | None]
"""Why the bytes behind a schema's id are no value of it; None: they are one."""

FAULTS: tuple[type[Exception], ...] = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, MemoryError,
    RecursionError, struct.error, msgspec.MsgspecError,
)  # fmt: skip
"""What decoders raise for bytes that are no value."""


def fit_of(found: Registered) -> Fit:
    """What tells for a registered schema. Raises `BadSchema` for one that nothing fits."""
    match found.kind:
        case "AVRO":
            return _said(avro_reader(found.text, found.needs, object), FAULTS)
        case "PROTOBUF":
            return _protobuf(found)
        case "JSON":
            return _said(msgspec.json.decode, FAULTS)
    raise BadSchema(f"Its schema is {found.kind}, which is not looked into here.")


def _protobuf(found: Registered) -> Fit:
    from google.protobuf.message import DecodeError

    from catchwater.values.descriptors import message_at

    readers: dict[tuple[int, ...], Callable[[bytes], Any]] = {}

    def read(value: bytes) -> Any:
        path, message = with_path(value)
        reader = readers.get(path)
        if reader is None:
            reader = readers[path] = protobuf_reader(message_at(found, path), object)
        return reader(message)

    return _said(read, (*FAULTS, DecodeError, BadSchema))


def _said(read: Callable[[bytes], Any], faults: tuple[type[Exception], ...]) -> Fit:
    def fit(value: bytes) -> str | None:
        try:
            read(value)
        except faults as error:
            return str(error) or type(error).__name__
        return None

    return fit
