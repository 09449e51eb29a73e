"""Messages: kio is the oracle for good input; bad input of any kind is one exception, soon."""

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.static.constants import EntityType
from msgspec.structs import astuple

from catchwater.wire.fields import MAX_REQUEST_ELEMENTS, MalformedMessage, body_of
from catchwater.wire.frames import decode_header
from catchwater.wire.messages import (
    decode,
    decode_reply,
    decode_request,
    encode,
    encode_reply,
    encode_request,
    reply_type,
)

API_VERSIONS, METADATA, CREATE_TOPICS = 18, 3, 19


def all_messages(direction: EntityType) -> Iterator[tuple[int, int]]:
    for api_key, name in api_key_map.items():
        for version, paths in schema_name_map[name].items():
            if direction in paths:
                yield api_key, version


def some_entity(entity: type, source: random.Random) -> Any:
    """A message of this type with random content, small enough to read in a failure."""
    return entity(**{field.name: _some_field(field, source) for field in fields(entity)})


def _some_field(field: Any, source: random.Random) -> Any:
    choices = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else ()
    value_type = next((c for c in choices if c is not NoneType), field.type)
    is_tagged = "tag" in field.metadata
    if is_tagged and source.random() < 0.5 and field.default is not MISSING:
        return field.default
    if choices and not is_tagged and source.random() < 0.3:
        return None
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(value_type) is tuple:
        element = get_args(value_type)[0]
        return tuple(_some_value(element, kafka_type, source) for _ in range(source.randrange(3)))
    return _some_value(value_type, kafka_type, source)


def _some_value(value_type: Any, kafka_type: str | None, source: random.Random) -> Any:
    if kafka_type is None:
        return some_entity(value_type, source)
    return {
        "bool": lambda: source.random() < 0.5,
        "int8": lambda: source.randrange(-128, 128),
        "int16": lambda: source.randrange(-(2**15), 2**15),
        "uint16": lambda: source.randrange(2**16),
        "int32": lambda: source.randrange(-(2**31), 2**31),
        "int64": lambda: source.randrange(-(2**63), 2**63),
        "float64": lambda: source.uniform(-1e9, 1e9),
        "string": lambda: "".join(source.choices("aä€😀", k=source.randrange(5))),
        "bytes": lambda: source.randbytes(source.randrange(5)),
        "records": lambda: source.randbytes(source.randrange(200)),
        "uuid": lambda: UUID(int=source.randrange(1, 2**128)),
        "error_code": lambda: source.choice(list(KioErrorCode)),
        "timedelta_i32": lambda: timedelta(milliseconds=source.randrange(-(2**31), 2**31)),
        "timedelta_i64": lambda: timedelta(milliseconds=source.randrange(2**40)),
        "datetime_i64": lambda: datetime.fromtimestamp(source.randrange(2**32), UTC),
    }[kafka_type]()


def request_frame(api_key: int, version: int, seed: int = 0) -> bytes:
    message = some_entity(load_request_schema(api_key, version), random.Random(seed))
    return b"".join(encode_request(7, "a client", message))


def test_every_request_reads_as_kio_reads_it() -> None:
    source = random.Random(1)
    for api_key, version in all_messages(EntityType.request):
        entity = load_request_schema(api_key, version)
        message = some_entity(entity, source)
        frame = b"".join(encode_request(7, "a client", message))
        header = decode_header(memoryview(frame))
        assert astuple(header)[:4] == (api_key, version, 7, "a client")
        assert decode_request(header, memoryview(frame)) == message
        body_at = body_of(
            memoryview(frame), header.rest_at, entity.__header_schema__.__flexible__
        ).at
        assert entity_reader(entity)(frame, body_at) == (message, len(frame) - body_at)


def test_every_reply_reads_as_kio_reads_it() -> None:
    source = random.Random(2)
    for api_key, version in all_messages(EntityType.response):
        entity = load_response_schema(api_key, version)
        message = some_entity(entity, source)
        head, body = encode_reply(9, message)
        assert decode_reply(api_key, version, memoryview(head + body)) == (9, message)
        assert entity_reader(entity)(body, 0) == (message, len(body))


def test_the_reply_to_a_request_has_the_version_of_the_request() -> None:
    for version in (0, 12):
        message = reply_type(METADATA, version)
        assert (message.__api_key__, message.__version__) == (METADATA, version)


def test_a_request_header_is_as_kio_writes_it() -> None:
    for api_key, version in ((METADATA, 4), (METADATA, 12), (API_VERSIONS, 3)):
        for client_id in (None, "", "a client"):
            message = some_entity(load_request_schema(api_key, version), random.Random(3))
            header = message.__header_schema__(
                request_api_key=api_key,
                request_api_version=version,
                correlation_id=5,
                client_id=client_id,
            )
            assert encode_request(5, client_id, message)[0] == encode(header)


def test_a_reply_to_api_versions_has_the_oldest_header_in_every_version() -> None:
    for version in range(5):
        message = some_entity(load_response_schema(API_VERSIONS, version), random.Random(4))
        assert encode_reply(5, message)[0] == struct.pack(">i", 5)


def test_the_header_of_an_unknown_version_still_tells_whom_to_answer() -> None:
    frame = struct.pack(">hhih", API_VERSIONS, 99, 1234, 2) + b"me" + b"whatever"
    assert astuple(decode_header(memoryview(frame)))[:4] == (API_VERSIONS, 99, 1234, "me")


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (-1, 0), (METADATA, 99)])
def test_an_api_that_does_not_exist_cannot_be_decoded(api_key: int, version: int) -> None:
    frame = memoryview(struct.pack(">hhih", api_key, version, 1, -1))
    with pytest.raises(MalformedMessage, match=str(api_key)):
        decode_request(decode_header(frame), frame)


def test_a_request_cut_short_at_any_byte_is_malformed_in_every_version() -> None:
    for api_key, version in all_messages(EntityType.request):
        frame = memoryview(request_frame(api_key, version))
        for size in range(len(frame)):
            with pytest.raises(MalformedMessage):
                decode_request(decode_header(frame[:size]), frame[:size])


def test_bytes_behind_a_request_are_ignored() -> None:
    frame = memoryview(request_frame(METADATA, 12) + b"more")
    decode_request(decode_header(frame), frame)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def metadata(version: int, body: bytes) -> memoryview:
    flexible = b"\x00" if version >= 9 else b""
    return memoryview(struct.pack(">hhih", METADATA, version, 1, -1) + flexible + body)


NO_TOPICS_AND_FLAGS = b"\x01\x01\x00"

HOSTILE = {
    "compact count of 2^32-1": metadata(12, varint(2**32 - 1)),
    "compact count of 2^31": metadata(12, varint(2**31) + bytes(100)),
    "more elements than a request may have": metadata(12, varint(300_001) + bytes(6_000_000)),
    "varint of 10 bytes": metadata(12, b"\xff" * 10 + bytes(100)),
    "overlong varint": metadata(12, b"\x81\x80\x80\x80\x80\x00" + bytes(100)),
    "count of 2^31-1": metadata(4, b"\x7f\xff\xff\xff" + bytes(100)),
    "count of -2": metadata(4, b"\xff\xff\xff\xfe\x01"),
    "string of -5 bytes": metadata(4, b"\x00\x00\x00\x01\xff\xfb\x01"),
    "null where none may be": metadata(4, b"\x00\x00\x00\x01\xff\xff\x01"),
    "string that is not UTF-8": metadata(4, b"\x00\x00\x00\x01\x00\x02\xff\xfe\x01"),
    "10^6 tagged fields": metadata(
        12, NO_TOPICS_AND_FLAGS + varint(10**6) + b"".join(varint(t) + b"\0" for t in range(10**6))
    ),
    "tagged field of 2^31 bytes": metadata(
        12, NO_TOPICS_AND_FLAGS + b"\x01\x05" + varint(2**31) + b"x"
    ),
    "10^6 tagged fields in the header": memoryview(
        struct.pack(">hhih", METADATA, 12, 1, -1) + varint(10**6) + bytes(2 * 10**6)
    ),
    "a header cut short": memoryview(b"\x00\x03\x00"),
    "nothing": memoryview(b""),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_request_is_malformed_and_costs_little(frame: memoryview) -> None:
    tracemalloc.start()
    started = time.thread_time()
    with pytest.raises(MalformedMessage):
        decode_request(decode_header(frame), frame)
    seconds = time.thread_time() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1024 * 1024
    assert seconds < 5


def test_the_largest_request_stays_within_the_memory_a_broker_can_spare() -> None:
    tenth = MAX_REQUEST_ELEMENTS // 10
    frame = metadata(4, struct.pack(">i", tenth) + bytes(2 * tenth + 1))
    tracemalloc.start()
    decode_request(decode_header(frame), frame)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes * 10 < 64 * 1024 * 1024


def test_unknown_and_repeated_tagged_fields_are_ignored() -> None:
    plain = metadata(12, NO_TOPICS_AND_FLAGS + b"\x00")
    tagged = metadata(12, NO_TOPICS_AND_FLAGS + b"\x03\x05\x01a\x05\x01b\x07\x00")
    assert decode_request(decode_header(plain), plain) == decode_request(
        decode_header(tagged), tagged
    )


def test_a_known_tagged_field_may_not_read_past_its_own_end() -> None:
    finalized_features_epoch = b"\x01\x04" + struct.pack(">q", 5)
    body = b"\x00\x00" + b"\x01" + b"\x00\x00\x00\x00" + b"\x01" + finalized_features_epoch
    with pytest.raises(MalformedMessage):
        decode(load_response_schema(API_VERSIONS, 3), body)


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63)])
def test_a_duration_or_date_beyond_the_calendar_is_malformed(milliseconds: int) -> None:
    renew_delegation_token, produce = 39, 0
    token = b"\x01" + struct.pack(">q", milliseconds) + b"\x00"
    with pytest.raises(MalformedMessage):
        decode(load_request_schema(renew_delegation_token, 2), token)
    reply = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iihqq", 1, 0, 0, 0, milliseconds)
    with pytest.raises(MalformedMessage):
        decode(load_response_schema(produce, 3), reply + bytes(4))


def test_an_error_code_that_does_not_exist_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="999"):
        decode(load_response_schema(API_VERSIONS, 0), struct.pack(">hi", 999, 0))


ALL_REQUESTS = sorted(all_messages(EntityType.request))


@settings(deadline=None)
@given(st.sampled_from(ALL_REQUESTS), st.integers(0, 2**32), st.data())
def test_a_mutated_request_is_a_message_or_malformed(
    request_type: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    frame = bytearray(request_frame(*request_type, seed))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(frame)))
        removed = data.draw(st.integers(0, 4))
        frame[at : at + removed] = data.draw(
            st.one_of(st.binary(max_size=6), st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 3]))
        )
    started = time.thread_time()
    try:
        header = decode_header(memoryview(frame))
        message = decode_request(header, memoryview(frame))
        assert type(message) is load_request_schema(*request_type)
    except MalformedMessage:
        pass
    assert time.thread_time() - started < 2


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_malformed_or_happen_to_be_a_request(noise: bytes) -> None:
    try:
        decode_request(decode_header(memoryview(noise)), memoryview(noise))
    except MalformedMessage as error:
        assert str(error).endswith(".")
