"""The object store seam: immutable bytes under keys.

Every implementation keeps these promises; one conformance suite tests them all:

- `put` and `put_if_absent` are atomic and durable: once they return, a crash of the machine
  loses nothing; if they fail or the process dies, no reader sees a part of the object.
- `put_if_absent` is the only fence: of several callers with one key and different bytes exactly
  one succeeds.
- A range is returned completely or not at all: a short read is an error, never fewer bytes.
- `list` is for finding garbage. It may be stale, so nothing else may depend on it.

Every method blocks and may be called from any thread. No method is called on an event loop.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from catchwater.config import CatchwaterError

Buffer = bytes | bytearray | memoryview
Part = tuple[int, int]
"""The first byte of a range, and its size."""

_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")


class StoreError(CatchwaterError):
    """A request failed; it is not known whether the object exists."""


class ObjectMissing(StoreError):
    """There is no object with this key."""


class ObjectExists(StoreError):
    """`put_if_absent` found an object with this key, and did not change it."""


class ObjectTruncated(StoreError):
    """The object ends before the requested range does."""


class StoreFull(StoreError):
    """No space left: nothing was stored, and a retry may succeed once there is space."""


class StoreUnavailable(StoreError):
    """No answer, or a retriable one: the request may have been applied, and may be repeated."""


class StoreRefused(StoreError):
    """The store refuses the request for good: credentials, permissions, no such bucket."""


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
        """Store the concatenated parts, replacing an older object; return the size in bytes.

        Raises `StoreFull` with nothing stored, or `StoreError`.
        """

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        """As `put`, but raise `ObjectExists` and change nothing if there is such an object."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectMissing`."""

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`. Raises `ObjectMissing` or `ObjectTruncated`."""

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` from `offset`: fewer, or none, if the object ends before.

        Raises `ObjectMissing`.
        """

    def size(self, key: str) -> int:
        """The object's size in bytes. Raises `ObjectMissing`."""

    def delete(self, key: str) -> None:
        """Delete the object; a missing one is no error."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose key starts with the prefix, in key order."""

    def url(self, key: str = "", part: Part | None = None) -> str:
        """The object's URL for readers without this store, see `objects.urls.read_range`.

        Of a store that can grant so little, it is good for these bytes alone. Without a key, the
        store's own URL for `objects.open.open_store`.
        """


def check_key(key: str) -> str:
    """The key itself, or `BadKey`: path parts of letters, digits, `.`, `_` and `-`.

    No part is empty or starts with a dot, so a key cannot leave the store's directory or name the
    store's hidden files.
    """
    if not _KEY.fullmatch(key):
        raise BadKey(
            f"The object key {key!r} is not allowed.",
            hint="Use parts of letters, digits, '.', '_' and '-', none starting with a dot, "
            "joined by '/'.",
        )
    return key


def range_header(offset: int, size: int) -> str:
    """HTTP's `Range` of these bytes; one at least, for there is no header for none."""
    return f"bytes={offset}-{offset + max(size, 1) - 1}"


def check_range(key: str, offset: int, size: int, object_bytes: int) -> None:
    """Raise `ObjectTruncated` unless the object holds bytes `offset` to `offset + size`."""
    assert offset >= 0 and size >= 0, f"the range {offset}+{size} of {key} is no range"
    if offset + size > object_bytes:
        raise ObjectTruncated(
            f"{key} ends at byte {object_bytes}, but bytes {offset} to {offset + size} are needed.",
            hint="The object was truncated or replaced; restore it from a copy.",
        )
