"""Keys as bytes, and where their entries lie.

A *stored key* is the 8-byte hash of the key, big-endian, then the key: entries lie in the order
of the hash, so a shard is a range of them and can be split or merged by copying ranges.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import Any
from uuid import UUID

import msgspec

from catchwater.config import CatchwaterError

KeyValue = Any
"""A value of one of the key types, or a tuple of them if the key has several fields."""
KeyType = Any
"""The type of a key, or a tuple of types if the key has several fields."""

KEY_TYPES = (str, int, bytes, bool, float, UUID, datetime, date, time, Decimal)
"""What a key may be, beside an Enum and a Literal of these."""

HASH_BYTES = 8
MAX_KEY_BYTES = 255
"""An entry of the embedded store has at most 511 bytes of key; the rest is for names and ids."""


class EventRefused(CatchwaterError):
    """An event cannot be handled, through no fault of the machinery: the poison policy decides."""


class KeyTooLong(EventRefused):
    """A key that the embedded store cannot hold."""


class KeyUnusable(EventRefused):
    """A value that is not equal to itself, or of a type that no key has."""


_HASH = blake2b(digest_size=HASH_BYTES)


def encode_key(value: KeyValue) -> bytes:
    """A key as bytes: as Kafka producers write it, so that a record's key can stand for the field.

    Text is UTF-8, a number decimal text, bytes are as they are, a truth value is `true` or
    `false`, an Enum is its value, everything else its ISO or canonical text. A key of several
    fields is a msgpack array of them. Equal keys have equal bytes. Raises KeyUnusable.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return msgspec.msgpack.encode(canonical(value))
    plain = canonical(value)
    if isinstance(plain, str | bytes):
        return encode_key(plain)
    if isinstance(plain, int) and not isinstance(plain, bool):
        return b"%d" % plain
    return msgspec.json.encode(plain).strip(b'"')


def canonical(value: KeyValue) -> Any:
    """One value for all that are equal: 0.0 for -0.0, 1 for Decimal("1.00"), UTC for any zone.

    Raises KeyUnusable for what is not equal to itself, or of a type that no key has.
    """
    if isinstance(value, Enum):
        return canonical(value.value)
    if isinstance(value, tuple):
        return tuple(map(canonical, value))
    if isinstance(value, float) and value == value:
        return value + 0.0
    if isinstance(value, Decimal) and value.is_finite():
        return _shortest(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, KEY_TYPES) and not isinstance(value, float | Decimal):
        return value
    raise KeyUnusable(
        f"{value!r} cannot be a key.",
        hint="Use a text, a number, bytes, a truth value, a UUID, a date or time, or an Enum.",
    )


def _shortest(value: Decimal) -> str:
    """Without the zeros at its end; `normalize` would round to the context's precision."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "only what is finite gets here"
    while digits and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return str(Decimal((sign, digits, exponent))) if digits else "0"


def key_encoder(key_type: KeyType) -> Callable[[Any], bytes]:
    """`encode_key` for keys of one declared type, the quickest way."""
    quick: dict[Any, Callable[[Any], bytes]] = {str: str.encode, bytes: bytes, int: b"%d".__mod__}
    return quick.get(key_type, encode_key)


def key_decoder(key_type: KeyType) -> Callable[[bytes], Any]:
    """The way back from `encode_key`; raises ValueError if the bytes are no such key."""
    if isinstance(key_type, tuple):
        return msgspec.msgpack.Decoder(tuple[key_type]).decode
    quick: dict[Any, Callable[[bytes], Any]] = {str: bytes.decode, bytes: bytes, int: int}
    return quick.get(key_type) or partial(_from_text, key_type)


def _from_text(key_type: KeyType, key: bytes) -> Any:
    return msgspec.convert(key.decode(), key_type, strict=False)


def key_hash(key: bytes) -> bytes:
    """The 8-byte hash that orders keys: BLAKE2b, equal in every process and on any machine."""
    return blake2b(key, digest_size=HASH_BYTES).digest()


def stored_key(key: bytes) -> bytes:
    """Hash and key, as entries are kept; KeyTooLong beyond 255 bytes."""
    if len(key) > MAX_KEY_BYTES:
        raise KeyTooLong(
            f"The key {key[:40]!r}… has {len(key)} bytes; state is kept for keys of at most "
            f"{MAX_KEY_BYTES}. Use a shorter field, or a digest of it, as the function's key."
        )
    return key_hash(key) + key


def stored_keys(keys: Sequence[bytes]) -> list[bytes]:
    """`stored_key` of each, at half the cost; raises KeyTooLong if one of them is."""
    if max(map(len, keys), default=0) > MAX_KEY_BYTES:
        return list(map(stored_key, keys))
    copy = _HASH.copy  # the parameters of a hash take as long to read as a key takes to be hashed
    stored = []
    for key in keys:
        hashed = copy()
        hashed.update(key)
        stored.append(hashed.digest() + key)
    return stored


def shard_of(stored_key: bytes, shards: int) -> int:
    """Which of so many shards keeps a key: each is an equal range of the hash.

    The first four bytes of the hash decide.
    """
    return int.from_bytes(stored_key[:4], "big") * shards >> 32
