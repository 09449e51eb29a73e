"""Typed messages out of frames and back: every API that is not written by hand, in both directions.

The messages are kio's dataclasses, generated from Kafka's own descriptions; this is the one place
that imports kio. Encoding is kio's. Decoding is ours, driven by kio's descriptions: kio's native
reader allocates all that an array claims to hold, so that one small frame aborts the process.

Promises of decoding: any input gives a message or `MalformedMessage`, in time and memory bounded
by the size of the frame, and for requests also by `fields.MAX_REQUEST_ELEMENTS`. Bytes after the
last field are ignored, as Kafka's brokers do. It does not know which versions are served, nor what
a message means; times are `timedelta` and `datetime`, error codes kio's, absent topic ids None.
"""

import io
import types
from collections.abc import Callable
from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from catchwater.wire.fields import (
    I8,
    I16,
    I32,
    I64,
    NO_TAGGED_FIELDS,
    Cursor,
    MalformedMessage,
    body_of,
    encode_text,
)
from catchwater.wire.frames import RequestHeader

_FIXED_HEADER = Struct(">hhi")
_U16, _F64 = Struct(">H"), Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Reader: TypeAlias = Callable[[Cursor], Any]


def decode_request(header: RequestHeader, frame: memoryview) -> RequestPayload:
    """The request in `frame`, whose header has been read. Raises `MalformedMessage`."""
    entity = _request_type(header.api_key, header.api_version)
    if entity is None:
        raise MalformedMessage(
            f"There is no API with key {header.api_key} and version {header.api_version}."
        )
    body = body_of(frame, header.rest_at, entity.__header_schema__.__flexible__)
    message: RequestPayload = _entity_reader(entity)(body)
    return message


def encode_reply(correlation_id: int, message: ResponsePayload) -> list[bytes]:
    """The reply as the body of a frame; its type says in which version."""
    head = I32.pack(correlation_id)
    if message.__header_schema__.__flexible__:
        head += NO_TAGGED_FIELDS
    return [head, encode(message)]


def reply_type(api_key: int, api_version: int) -> type[ResponsePayload]:
    """The message that replies to a request of this API and version; both must exist."""
    return load_response_schema(api_key, api_version)


def encode_request(
    correlation_id: int, client_id: str | None, message: RequestPayload
) -> list[bytes]:
    """The request as the body of a frame; its type says which API and version."""
    head = _FIXED_HEADER.pack(message.__api_key__, message.__version__, correlation_id)
    # In every version of the header the client id is written the old way.
    head += encode_text(client_id, flexible=False)
    if message.__header_schema__.__flexible__:
        head += NO_TAGGED_FIELDS
    return [head, encode(message)]


def decode_reply(api_key: int, api_version: int, frame: memoryview) -> tuple[int, ResponsePayload]:
    """Correlation id and reply to a request of this API and version. Raises `MalformedMessage`."""
    entity = load_response_schema(api_key, api_version)
    cursor = Cursor(frame, max_elements=len(frame))
    correlation_id: int = cursor.number(I32)
    if entity.__header_schema__.__flexible__:
        cursor.skip_tagged_fields()
    return correlation_id, _entity_reader(entity)(cursor)


def encode(message: Entity) -> bytes:
    """A message, or another of kio's entities (a group's assignment), without any header."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def decode(entity: type[Entity], data: bytes | memoryview) -> Any:
    """The reverse of `encode`, with the bounds of a request. Raises `MalformedMessage`."""
    return _entity_reader(entity)(Cursor(memoryview(data)))


@cache
def _request_type_by_key(api_key: int, api_version: int) -> type[RequestPayload]:
    return load_request_schema(api_key, api_version)


def _request_type(api_key: int, api_version: int) -> type[RequestPayload] | None:
    try:
        return _request_type_by_key(api_key, api_version)
    except KioIndexError:
        return None


# From here on: readers, one for each field type of Kafka's message descriptions. A reader takes
# its value from the cursor; compact types belong to flexible versions (KIP-482).


@cache
def _entity_reader(entity: type[Entity]) -> Reader:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in fields(entity):
        reader = _field_reader(field, entity.__flexible__)
        if (tag := field.metadata.get("tag")) is None:
            plain.append((field.name, reader))
        else:
            tagged[tag] = (field.name, reader)
            # Not always the dataclass's own: a few tagged structs have none there.
            defaults[field.name] = get_tagged_field_default(field)

    def read(cursor: Cursor) -> Any:
        values = {name: reader(cursor) for name, reader in plain}
        if entity.__flexible__:
            values |= defaults
            _read_tagged_fields(cursor, tagged, values)
        return entity(**values)

    return read


def _read_tagged_fields(
    cursor: Cursor, known: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    """Known tagged fields into `values`, the last of duplicates; unknown ones are skipped."""
    for _ in range(cursor.elements(cursor.varint())):
        tag, size_bytes = cursor.varint(), cursor.varint()
        start = cursor.take(size_bytes)
        if tag in known:
            name, reader = known[tag]
            cursor.at, end, cursor.end = start, cursor.end, cursor.at
            values[name] = reader(cursor)
            cursor.at, cursor.end = cursor.end, end


def _field_reader(field: Field[Any], flexible: bool) -> Reader:
    kafka_type = field.metadata.get("kafka_type")
    value_type, nullable = _without_none(field.type)
    if get_origin(value_type) is tuple:
        element_type, _ = _without_none(get_args(value_type)[0])
        element = _value_reader(element_type, kafka_type, flexible, nullable=False)
        return _array_reader(element, flexible, nullable)
    return _value_reader(value_type, kafka_type, flexible, nullable)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The type that is not None in an annotation, and whether None is the other one."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    (inner,) = (choice for choice in get_args(annotation) if choice is not types.NoneType)
    return inner, True


def _value_reader(
    value_type: Any, kafka_type: str | None, flexible: bool, nullable: bool
) -> Reader:
    match kafka_type:
        case None:
            return _struct_reader(_entity_reader(value_type), nullable)
        case "string":
            read_text = Cursor.nullable_text if nullable else Cursor.text
            return lambda cursor: read_text(cursor, flexible)
        case "bytes" | "records":
            return _bytes_reader(flexible, nullable)
        case "datetime_i64":
            return _read_nullable_datetime if nullable else _read_datetime
        case _:
            return _FIXED_SIZE_READERS[kafka_type]


def _struct_reader(read_entity: Reader, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> Any:
        # A byte in front of a struct that may be null: negative if it is (KIP-893).
        return None if cursor.number(I8) < 0 else read_entity(cursor)

    return read if nullable else read_entity


def _array_reader(element: Reader, flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> Any:
        count = cursor.size(flexible)
        if count == -1 and nullable:
            return None
        return tuple([element(cursor) for _ in range(cursor.elements(count))])

    return read


def _bytes_reader(flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> Any:
        size_bytes = cursor.size(flexible)
        return None if size_bytes == -1 and nullable else cursor.bytes(size_bytes)

    return read


def _number_reader(form: Struct) -> Reader:
    return lambda cursor: cursor.number(form)


def _read_uuid(cursor: Cursor) -> UUID | None:
    data = cursor.bytes(16)
    return UUID(bytes=data) if any(data) else None


def _read_error_code(cursor: Cursor) -> KioErrorCode:
    code = cursor.number(I16)
    try:
        return KioErrorCode(code)
    except ValueError:
        raise MalformedMessage(f"There is no error code {code}.") from None


def _timedelta_reader(form: Struct) -> Reader:
    def read(cursor: Cursor) -> timedelta:
        milliseconds = cursor.number(form)
        try:
            return timedelta(milliseconds=milliseconds)
        except OverflowError:
            raise MalformedMessage(f"A duration of {milliseconds} ms is too long.") from None

    return read


def _read_nullable_datetime(cursor: Cursor) -> datetime | None:
    milliseconds = cursor.number(I64)
    return None if milliseconds == -1 else _datetime(milliseconds)


def _read_datetime(cursor: Cursor) -> datetime:
    return _datetime(cursor.number(I64))


def _datetime(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise MalformedMessage(f"There is no date at {milliseconds} ms since 1970.") from None


_FIXED_SIZE_READERS: dict[str, Reader] = {
    "bool": lambda cursor: cursor.number(I8) != 0,
    "int8": _number_reader(I8),
    "int16": _number_reader(I16),
    "uint16": _number_reader(_U16),
    "int32": _number_reader(I32),
    "int64": _number_reader(I64),
    "float64": _number_reader(_F64),
    "uuid": _read_uuid,
    "error_code": _read_error_code,
    "timedelta_i32": _timedelta_reader(I32),
    "timedelta_i64": _timedelta_reader(I64),
}
