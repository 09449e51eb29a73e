"""Keys as bytes, and where their entries lie.

A *stored key* is the 8-byte hash of the key, big-endian, then the key: entries lie in the order
of the hash, so a shard is a range of them and can be split or merged by copying ranges.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from catchwater.config import CatchwaterError

KeyValue = str | int | bytes | tuple[str | int | bytes, ...]
KeyType = Any
"""`str`, `int`, `bytes`, or a tuple of them if the key has several fields."""

HASH_BYTES = 8
MAX_KEY_BYTES = 255
"""An entry of the embedded store has at most 511 bytes of key; the rest is for names and ids."""


class KeyTooLong(CatchwaterError):
    """A key that the embedded store cannot hold."""


def encode_key(value: KeyValue) -> bytes:
    """A key as bytes: text as UTF-8, a number as decimal text, bytes as they are.

    That is what Kafka producers write as a record's key, so a record's key can stand for the
    field. A key of several fields is a msgpack array of them.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return msgspec.msgpack.encode(value)
    return b"%d" % value


def key_decoder(key_type: KeyType) -> Callable[[bytes], Any]:
    """The way back from `encode_key`, by the declared type of the key."""
    if isinstance(key_type, tuple):
        return msgspec.msgpack.Decoder(tuple[key_type]).decode
    if key_type is str:
        return bytes.decode
    return int if key_type is int else bytes


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


def shard_of(stored_key: bytes, shards: int) -> int:
    """Which of so many shards keeps a key: each is an equal range of the hash.

    The first four bytes of the hash decide.
    """
    return int.from_bytes(stored_key[:4], "big") * shards >> 32
