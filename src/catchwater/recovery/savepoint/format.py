"""A savepoint's own file, `savepoint.json`: its fields, and checks for a file of unknown origin.

A savepoint is a folder of objects: state objects and code under the very keys that they had in the
checkpoint's store, and `savepoint.json`, written last, which names them all with size and SHA-256
(docs/formats.md). Pure: bytes in, a checked `Savepoint` out, and back.
"""

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.base import BadKey, check_key
from catchwater.recovery.ledger import EpochEntry, SourceOffset
from catchwater.recovery.savepoint.signature import Signature, check_signature, sign

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys

FILE = "savepoint.json"
LARGEST_FILE_BYTES = 64 << 20

_FORMAT = "catchwater savepoint"
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY = re.compile(r"(?:state/[^/]+/\d{5}|code)/[^/]+")


class SavepointDamaged(CatchwaterError):
    """A savepoint is damaged; the message names the part."""

    exit_code = 5


class BadName(CatchwaterError):
    """A name that no savepoint can have."""

    exit_code = 2


class StoredObject(msgspec.Struct, frozen=True, array_like=True):
    """One object of a savepoint."""

    key: str
    """Below the savepoint's folder."""
    size_bytes: int
    sha256: str


class Savepoint(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `savepoint.json`."""

    name: str
    pipeline: str
    created_ms: int
    catchwater: str
    """The release that made it."""
    functions: list[str]
    """The chain's names, in order: stage 0 first."""
    shards: int
    entry: EpochEntry
    """The ledger entry of its epoch: the input's end, the state's positions, the sinks' marks."""
    beginning: SourceOffset | None = None
    identity: dict[str, Any]
    """What the checkpoint was bound to, as `pipeline.json` has it."""
    versions: dict[str, Any]
    """The checkpoint's version ledger, with the schemas of the state."""
    contract: dict[str, Any] | None = None
    objects: list[StoredObject]
    pin: str = ""
    """The pin that holds the log from here on; empty: the log is not ours."""

    @property
    def epoch(self) -> int:
        """The epoch that it was taken of."""
        return self.entry.epoch

    @property
    def size_bytes(self) -> int:
        """All its objects together."""
        return sum(each.size_bytes for each in self.objects)


class _File(msgspec.Struct, frozen=True, omit_defaults=True):
    format: str
    version: int
    sha256: str
    savepoint: msgspec.Raw
    signature: Signature | None = None
    """Of the savepoint's bytes; where there were keys."""


def is_name(name: str) -> bool:
    """Whether a savepoint can have this name."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name itself. Raises `BadName`."""
    if not is_name(name):
        raise BadName(
            f"{name!r} cannot be a savepoint's name.",
            hint="Use 1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit.",
        )
    return name


def encode(savepoint: Savepoint, keys: "Keys | None" = None) -> bytes:
    """The bytes of `savepoint.json`, signed where there are keys."""
    body = msgspec.json.encode(savepoint)
    signature = sign(body, keys) if keys else None
    checksum = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode(_File(_FORMAT, _VERSION, checksum, msgspec.Raw(body), signature))


def check_signed(data: bytes, where: str, keys: "Keys") -> None:
    """Raise `SavepointUntrusted` unless these keys have signed what `decode` has accepted."""
    file = msgspec.json.decode(data, type=_File)
    check_signature(bytes(file.savepoint), file.signature, keys, where)


def signed_with(data: bytes) -> str | None:
    """The id of the key with which it says it was signed; None: it was not."""
    signature = msgspec.json.decode(data, type=_File).signature
    return None if signature is None else signature.key


def decode(data: bytes, where: str) -> Savepoint:
    """The parsed `savepoint.json`; `where` is its URL, for messages. Raises `SavepointDamaged`.

    Who signed it is for `check_signed`.
    """
    try:
        if len(data) > LARGEST_FILE_BYTES:
            raise ValueError(f"it has more than {LARGEST_FILE_BYTES} bytes")
        file = msgspec.json.decode(data, type=_File)
        _check_file(file)
        savepoint = msgspec.json.decode(file.savepoint, type=Savepoint)
        _check(savepoint)
    except (ValueError, BadName, BadKey) as error:
        raise SavepointDamaged(
            f"{where} cannot be used: {error}.", hint="Use another savepoint, or a copy of it."
        ) from error
    return savepoint


def _check_file(file: _File) -> None:
    if file.format != _FORMAT:
        raise ValueError("it is no savepoint of ours")
    if file.version != _VERSION:
        raise ValueError(
            f"its format is version {file.version}, and this release reads version {_VERSION}"
        )
    if hashlib.sha256(file.savepoint).hexdigest() != file.sha256:
        raise ValueError("its checksum does not match")


def _check(savepoint: Savepoint) -> None:
    """Keys stay where they belong, and every shard of every function has a position."""
    check_name(savepoint.name)
    for each in savepoint.objects:
        if not _KEY.fullmatch(check_key(each.key)):
            raise ValueError(f"{each.key!r} is no object of a savepoint")
    whole = set(range(savepoint.shards))
    for stage in range(len(savepoint.functions)):
        if savepoint.entry.positions(stage).keys() != whole:
            raise ValueError(f"it lacks shards of {savepoint.functions[stage]!r}")
