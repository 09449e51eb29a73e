"""The object store seam: what the log asks of a place that keeps immutable bytes under keys.

An implementation keeps these promises, and one conformance suite holds all of them to it:

- `put` and `put_if_absent` are atomic and durable: when they return, a crash of the machine
  loses nothing; when they fail or the process dies, no reader ever sees a part of the object.
- `put_if_absent` is the only fence: of many callers with one key exactly one succeeds, if no two
  bring the same bytes.
- A range is returned whole or not at all: a short read is an error, never fewer bytes.
- `list` is for finding garbage. It may be stale, so nothing else may depend on it.

Every method blocks and may be called from any thread. No method is called on an event loop.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from catchwater.config import CatchwaterError

Buffer = bytes | bytearray | memoryview

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")


class StoreError(CatchwaterError):
    """The store could not do what it was asked; it is not known whether the object is there."""


class ObjectMissing(StoreError):
    """There is no object of this key."""


class ObjectExists(StoreError):
    """`put_if_absent` found an object of this key; it is left as it was."""


class ObjectTruncated(StoreError):
    """The object ends before the end of the range that was asked for."""


class StoreFull(StoreError):
    """No space left: nothing was stored, and the same call may succeed once there is space."""


class StoreUnavailable(StoreError):
    """No answer, or "try again": it is not known whether it was done, and it may be repeated."""


class StoreRefused(StoreError):
    """The store said no, and will again: credentials, permissions, no such bucket."""


class BadKey(StoreError):
    """The key could leave the store's root or collide with the store's own files."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One entry of a listing."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Immutable objects under keys such as `segments/<topic>/<partition>/<name>.seg`."""

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        """Store the concatenated parts, replacing what was there; return the size in bytes.

        Raises `StoreFull` with nothing stored, or `StoreError`.
        """

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        """As `put`, but raise `ObjectExists` and change nothing if the key is taken."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectMissing`."""

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`. Raises `ObjectMissing` or `ObjectTruncated`."""

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        """`max_bytes` from `offset`, or all there is where the object ends before; perhaps none.

        Raises `ObjectMissing`.
        """

    def size(self, key: str) -> int:
        """The object's size in bytes. Raises `ObjectMissing`."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose key starts with the prefix, in key order."""

    def url(self, key: str = "") -> str:
        """Where a reader without this store finds the bytes: see `objects.urls.read_range`.

        Without a key: where the store itself lies, as `objects.open.open_store` takes it.
        """


def check_key(key: str) -> str:
    """The key itself, or `BadKey`: path parts of letters, digits, `.`, `_` and `-`.

    No part is empty or starts with a dot, so no key climbs out of a directory and none names the
    hidden files a store keeps for itself.
    """
    if not _KEY.fullmatch(key):
        raise BadKey(
            f"The object key {key!r} is not allowed.",
            hint="Use parts of letters, digits, '.', '_' and '-', none starting with a dot, "
            "joined by '/'.",
        )
    return key


def check_range(key: str, offset: int, size: int, object_bytes: int) -> None:
    """Raise `ObjectTruncated` unless the object holds bytes `offset` to `offset + size`."""
    assert offset >= 0 and size >= 0, f"the range {offset}+{size} of {key} is no range"
    if offset + size > object_bytes:
        raise ObjectTruncated(
            f"{key} ends at byte {object_bytes}, but bytes {offset} to {offset + size} are needed.",
            hint="The object was truncated or replaced; restore it from a copy.",
        )
