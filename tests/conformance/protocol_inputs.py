"""Requests of every API and version that is served, drawn by hypothesis from Kafka's descriptions.

A request follows the grammar of its version, with values near the bounds of their types and names
that exist in the broker under test. Many are then damaged: cut, flipped, stuffed with lengths that
lie. The bytes depend on the seed alone; topic ids, which the broker deals out, are put in by
`with_topic_ids` just before sending.
"""

import random
import struct
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from crc32c import crc32c
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode as KioErrorCode

from catchwater.broker import acls
from catchwater.broker.router import APIS
from catchwater.wire.arrow import encode_batch
from catchwater.wire.codecs import Codec
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import encode_request

TOPICS = ("fuzz-a", "fuzz-b")
"""Topics that a broker under test had better have."""
TOPIC_IDS = {name: UUID(bytes=name.encode().ljust(16, b"\x77")) for name in TOPICS}
"""What stands for the ids of these topics."""
CORRELATION_ID = 7
HUGE_BYTES = 2**18
"""A larger one may have more elements than are taken, and is refused then."""
DAMAGED = 15
"""How many damaged inputs are made of each whole one."""
VERSIONS = [(key, version) for key, api in APIS.items() for version in api.versions]

_NAMES = (
    *TOPICS,
    *("fuzz-group", "fuzz-txn", "member", "", ".", "..", "a.b", "a_b", "range", "consumer"),
    *("n" * 249, "n" * 250, "n" * 32_767, "/etc/passwd", "nul\x00", "\x1b[31m", "\u20ac\U0001f600"),
    *("line\nERROR forged", "cleanup.policy", "compact", "retention.ms", "min.insync.replicas"),
)
_RECORD_MS = 1_790_000_000_000
_CRC_AT, _ATTRIBUTES_AT, _HEADER_BYTES = 17, 21, 61


class Input(NamedTuple):
    """One thing to send, size prefix included; a good one must be answered.

    With acks=0 none is good: it is not answered, and what is refused closes the connection.
    """

    api_key: int
    version: int
    is_good: bool
    data: bytes


def with_topic_ids(data: bytes, ids: Mapping[str, bytes]) -> bytes:
    """The bytes, naming topics by the ids that they have in the broker under test."""
    for name, topic_id in ids.items():
        data = data.replace(TOPIC_IDS[name].bytes, topic_id)
    return data


def drawn(number: int, api_key: int, version: int, requests: int) -> list[Input]:
    """The inputs that one seed gives for so many requests of one version of an API."""
    found: list[Input] = []

    @seed(number)
    @settings(
        max_examples=requests,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(api_key, version))
    def collect(some: list[Input]) -> None:
        found.extend(some)

    collect()
    return found


def inputs(api_key: int, version: int) -> st.SearchStrategy[list[Input]]:
    """A request of this API and version, and the same damaged in many ways."""

    def with_damaged(drawn: tuple[str | None, Any]) -> list[Input]:
        client_id, request = drawn
        frame = b"".join(encode_request(CORRELATION_ID, client_id, request))
        is_good = len(frame) < HUGE_BYTES and getattr(request, "acks", None) != 0
        source = random.Random(frame)
        return [
            Input(api_key, version, is_good, b"".join(prefixed([frame]))),
            *(Input(api_key, version, False, _damaged(frame, source)) for _ in range(DAMAGED)),
        ]

    return _requests(api_key, version).map(with_damaged)


@cache
def _requests(api_key: int, version: int) -> st.SearchStrategy[tuple[str | None, Any]]:
    """A client's id and a well-formed request."""
    client_ids = st.one_of(st.none(), st.sampled_from(_NAMES))
    return st.tuples(client_ids, _entity(load_request_schema(api_key, version)))


# The grammar: one strategy for each type of Kafka's message descriptions.


def _entity(entity: type) -> st.SearchStrategy[Any]:
    known = _ACL_NUMBERS if "_acls." in entity.__module__ else {}
    values = {
        each.name: known[each.name] if each.name in known else _field(each)
        for each in fields(entity)
    }
    return st.builds(entity, **values)


def _field(field: Any) -> st.SearchStrategy[Any]:
    choices = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else ()
    value_type = next((c for c in choices if c is not NoneType), field.type)
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(value_type) is tuple:
        values = _array(_value(get_args(value_type)[0], kafka_type))
    else:
        values = _value(value_type, kafka_type)
    if "tag" in field.metadata:
        return values if field.default is MISSING else st.one_of(st.just(field.default), values)
    return st.one_of(values, values, st.none()) if choices else values


def _array(element: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    few = st.lists(element, max_size=3).map(tuple)
    many = st.tuples(element, st.sampled_from((64, 65, 1_000))).map(lambda pair: pair[:1] * pair[1])
    return st.integers(0, 40).flatmap(lambda die: few if die else many)


def _integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    near = (0, 0, 0, 1, -1, 2, 5, 100, -2, -3, -4, -5, 1_000, least, most, least + 1, most - 1)
    return st.one_of(
        st.sampled_from([value for value in near if least <= value <= most]),
        st.integers(least, most),
    )


def _value(value_type: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    if kafka_type is None:
        return _entity(value_type)
    return _VALUES[kafka_type]


def _batch(drawn: tuple[int, int, int, int, int, bool]) -> bytes:
    count, codec, producer_id, epoch, sequence, transactional = drawn
    records = [(b"k%d" % i, b"v" * i, _RECORD_MS + i, ()) for i in range(count)]
    return encode_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def _sealed(drawn: tuple[bytes, list[tuple[int, int]]]) -> bytes:
    """A batch with other bytes in its header, under a CRC that fits again."""
    batch = bytearray(drawn[0])
    for at, byte in drawn[1]:
        batch[at] = byte
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_ATTRIBUTES_AT:])))
    return bytes(batch)


_BATCHES = st.tuples(
    st.integers(1, 5),
    st.sampled_from(list(Codec)),
    st.sampled_from((-1, 0, 1, 2**63 - 1)),
    st.sampled_from((-1, 0, 1, 2**15 - 1)),
    st.sampled_from((-1, 0, 3, 2**31 - 1)),
    st.booleans(),
).map(_batch)
_RECORDS = st.one_of(
    _BATCHES,
    st.tuples(
        _BATCHES,
        st.lists(st.tuples(st.integers(0, _HEADER_BYTES), st.integers(0, 255)), max_size=3),
    ).map(_sealed),
    st.lists(_BATCHES, min_size=2, max_size=2).map(b"".join),
    st.binary(max_size=200),
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": _integers(32),
    "int64": _integers(64),
    "float64": st.floats(),  # NaN and infinity too
    "string": st.one_of(st.sampled_from(TOPICS), st.sampled_from(_NAMES), st.text(max_size=12)),
    "bytes": st.one_of(st.binary(max_size=20), st.just(b"\xff" * 70_000)),
    "records": _RECORDS,
    "uuid": st.sampled_from([*TOPIC_IDS.values(), None, UUID(int=1), UUID(int=2**128 - 1)]),
    "error_code": st.sampled_from(list(KioErrorCode)),
    "timedelta_i32": _integers(32).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.sampled_from((-1, 0, 1, 60_000, 2**50)).map(
        lambda ms: timedelta(milliseconds=ms)
    ),
}

_ACL_NUMBERS: dict[str, st.SearchStrategy[int]] = {
    name: st.integers(1, len(words) - 1)
    for name, words in {
        "resource_type_filter": acls.TYPES,
        "resource_type": acls.TYPES,
        "pattern_type_filter": acls.PATTERNS,
        "resource_pattern_type": acls.PATTERNS,
        "operation": acls.OPERATIONS,
        "permission_type": acls.PERMISSIONS,
    }.items()
}
"""One that is UNKNOWN closes the connection, at Apache Kafka too."""


# Damage: what no client sends.

_EXTREMES = (
    *(b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x00\x00\x00\x00"),
    *(b"\xff\xff\xff\xff\x0f", b"\xff" * 10, b"\x80\x80\x80\x80\x80\x00", b"\x81\x00"),
    *(b"\x7f\xff", b"\xff\xfb", b"\x00", b"\xff", b"\x80", b""),
)

_LIES = (-1, 0, 1, 9, 2**19, 2**20, 2**31 - 1)
"""What a size prefix may say that is not true."""


def _damaged(frame: bytes, source: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(source.randrange(1, 4)):
        # Most often behind the fixed header: what fails there is soon known.
        first = 8 if len(data) > 8 and source.random() < 0.9 else 0
        at, size = source.randrange(first, len(data) + 1), source.randrange(8)
        match source.randrange(8):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = bytes(data[at : at + size]) * 300
            case 2 | 3:
                data[at : at + size] = source.randbytes(source.randrange(6))
            case _:
                data[at : at + size] = source.choice(_EXTREMES)
    lies = source.random() < 0.15
    return struct.pack(">i", source.choice(_LIES) if lies else len(data)) + bytes(data)
