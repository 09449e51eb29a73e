"""How events, keys and a key's record become bytes.

Events and outputs are JSON, decoded by msgspec straight into the declared class. A key's record
(state, timers, last write) is msgpack behind the version that wrote it, so that an upgraded
function reads old state lazily: added, removed and reordered fields by themselves, everything
else through the function's `from_vN`.

A *stored key* is the 8-byte hash of the key, big-endian, then the key: entries lie in the order
of the hash, so a shard is a range of them and can be split or merged by copying ranges.
"""

import dataclasses
import typing
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from catchwater.config import CatchwaterError

StateT = TypeVar("StateT")

KeyValue = str | int | bytes | tuple[str | int | bytes, ...]
KeyType = Any
"""`str`, `int`, `bytes`, or a tuple of them if the key has several fields."""

HASH_BYTES = 8
MAX_KEY_BYTES = 255
"""An entry of the embedded store has at most 511 bytes of key; the rest is for names and ids."""

NEVER = -(2**63)
"""A time before all others: the last write of a record that no event has reached yet."""


class KeyTooLong(CatchwaterError):
    """A key that the embedded store cannot hold."""


class StateUnreadable(CatchwaterError):
    """Stored state does not fit the declared class, and nothing says how to bring it over."""


def is_record(declared: Any) -> bool:
    """Whether a type is one of those an event or a state may be."""
    if not isinstance(declared, type):
        return typing.is_typeddict(declared)
    return (
        dataclasses.is_dataclass(declared)
        or issubclass(declared, msgspec.Struct)
        or typing.is_typeddict(declared)
        or _is_pydantic(declared)
    )


def union_members(declared: Any) -> tuple[Any, ...]:
    """The members of `A | B`, or the type alone."""
    if isinstance(declared, type) or typing.get_origin(declared) is None:
        return (declared,)
    return typing.get_args(declared)


def fields_type(declared: Any, fields: tuple[str, ...], types: Any) -> type[msgspec.Struct]:
    """A struct of some fields of a record type, to decode only these out of its JSON."""
    names = {}
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(declared)}
    typed = zip(fields, types if isinstance(types, tuple) else (types,), strict=True)
    return msgspec.defstruct("KeyFields", list(typed), rename=names)


def json_decoder(declared: Any) -> Callable[[bytes], Any]:
    """JSON to a value of the type; raises msgspec.DecodeError."""
    return msgspec.json.Decoder(declared, dec_hook=_from_plain).decode


def json_encoder() -> Callable[[Any], bytes]:
    """A value of any declared type to JSON."""
    return msgspec.json.Encoder(enc_hook=_to_plain).encode


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


def id_encoder(id_type: type) -> Callable[[Any], bytes]:
    """Event identities of one declared type to bytes, as `encode_key` does it."""
    encoders: dict[type, Callable[[Any], bytes]] = {str: str.encode, bytes: bytes}
    return encoders.get(id_type, b"%d".__mod__)


class Record(msgspec.Struct, Generic[StateT], array_like=True, gc=False):
    """Everything kept for one key."""

    written: int
    """The last write: event time (ms) of the last event or timer handled."""
    timers: dict[str, int]
    """Due time by name."""
    seen: dict[Any, int]
    """Event time by id, of the last few events; expired ones may linger."""
    spilled: int
    """The youngest event time among the ids that went to the SEEN table; NEVER: none went."""
    state: StateT


def new_record(state: StateT) -> Record[StateT]:
    """The record of a key that no event has reached yet."""
    return Record(NEVER, {}, {}, NEVER, state)


class RecordCodec(Generic[StateT]):
    """Records of one state class to bytes and back, whatever version of the function wrote them."""

    def __init__(
        self, state_type: Any, version: int, migrations: dict[int, Callable[[dict[str, Any]], Any]]
    ) -> None:
        self._version = version.to_bytes(2, "big")
        self._migrations = migrations
        self._label = getattr(state_type, "__name__", str(state_type))
        self._encode = msgspec.msgpack.Encoder(enc_hook=_to_plain).encode
        self._decode = msgspec.msgpack.Decoder(Record[state_type], dec_hook=_from_plain).decode
        self._decode_plain = msgspec.msgpack.Decoder(Record[Any]).decode

    def encode(self, record: Record[StateT]) -> bytes:
        """The version that writes, then the record."""
        return self._version + self._encode(record)

    def decode(self, data: bytes) -> Record[StateT]:
        """The record in this version's class; StateUnreadable if it cannot be brought over."""
        if self._migrations and data[:2] != self._version:
            migrate = self._migrations.get(int.from_bytes(data[:2], "big"))
            if migrate is not None:
                record = self._decode_plain(data[2:])
                record.state = migrate(record.state)
                return record
        try:
            return self._decode(data[2:])
        except msgspec.ValidationError as error:
            raise self._unreadable(data, str(error)) from None

    def _unreadable(self, data: bytes, reason: str) -> StateUnreadable:
        written_by, version = (int.from_bytes(d, "big") for d in (data[:2], self._version))
        return StateUnreadable(
            f"State written by version {written_by} does not fit {self._label} of version "
            f"{version}: {reason}.",
            hint=f"Give the function a from_v{written_by}(old: dict) that builds {self._label}.",
        )


def _is_pydantic(declared: Any) -> bool:
    """Pydantic is never imported by us: a model is known by what it can do."""
    return hasattr(declared, "model_validate") and hasattr(declared, "model_dump")


def _to_plain(value: Any) -> Any:
    if _is_pydantic(value):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def _from_plain(declared: type, value: Any) -> Any:
    if _is_pydantic(declared):
        return declared.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(f"{declared.__name__} cannot be decoded")
