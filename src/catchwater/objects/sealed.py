"""Another store whose objects are encrypted: AES-256-GCM, a data key of its own for each object.

    header (512 bytes)   "CWSEALED", version, block size, plain size, key id, wrapped data key
    blocks               64 KiB of content each, encrypted, with a tag of 16 bytes

A block can be read by itself, so ranges cost what they cost without encryption, and the first
read of an object one request more, for its header. Each block is bound to its object's key and
header, its number and the size of the whole: a block, an object or a header that was changed,
moved, cut off or put in another's place is `SealBroken`. The data key is used once, so a block's
number is its nonce.

Objects from before, which are not sealed, are read as they are. `url` grants nothing: who reads by
it needs the keys, and others read through a broker. `list` gives sizes as of sealed objects. What
is not hidden: keys of objects, their sizes and times.
"""

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    Part,
    StoreError,
    check_key,
    check_range,
)
from catchwater.objects.keys import KEY_BYTES, Keys, KeyWrong
from catchwater.objects.open import CHECK
from catchwater.objects.seal import (
    BLOCK_BYTES,
    SEALED,
    TAG_BYTES,
    SealBroken,
    SealTooNew,
    blocks,
    tag_bytes,
)

HEADER_BYTES = 512
_MAGIC = b"CWSEALED"
_VERSION = 1
_HEAD = Struct(">8sHIQBH")
"""Magic, version, block size, plain size, size of the key's id, size of the wrapped key."""
_MOST_KNOWN = 4_096
_LARGE_BYTES = 4 * 1024 * 1024
"""Memory of so much comes from the system."""


class _Sealed(NamedTuple):
    """What is known of a sealed object."""

    header: bytes
    data_key: bytes
    size_bytes: int


class SealedStore:
    """Seals what is put, and opens what is read."""

    def __init__(self, store: ObjectStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Sealed] = OrderedDict()
        """Objects that were read, for they never change; one that was replaced is read anew."""

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        self._forget(key)
        size_bytes, sealed = self._seal(key, parts)
        self._store.put(key, sealed)
        self._forget(key)
        return size_bytes

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        size_bytes, sealed = self._seal(key, parts)
        self._store.put_if_absent(key, sealed)
        return size_bytes

    def _seal(self, key: str, parts: Sequence[Buffer]) -> tuple[int, list[Buffer]]:
        data_key = os.urandom(KEY_BYTES)
        size_bytes = sum(map(len, parts))
        key_id, wrapped = self._keys.wrap(data_key, key.encode())
        named = key_id.encode()
        head = _HEAD.pack(_MAGIC, _VERSION, BLOCK_BYTES, size_bytes, len(named), len(wrapped))
        header = (head + named + wrapped).ljust(HEADER_BYTES, b"\0")
        if len(header) > HEADER_BYTES:
            raise StoreError("The wrapped data key is too long for a sealed object.")
        cipher, view, at = AESGCM(data_key), _memory(_physical(size_bytes)), 0
        sealed: list[Buffer] = [header]
        for index, block in enumerate(blocks(parts)):
            ends = at + len(block) + TAG_BYTES
            bound = _bound(key, header, index)
            cipher.encrypt_into(_nonce(index), block, bound, view[at:ends])
            sealed.append(view[at:ends])
            at = ends
        return size_bytes, sealed

    def get(self, key: str) -> bytes:
        data = self._store.get(key)
        if not data.startswith(_MAGIC):
            return data
        sealed = self._opened(key, data[:HEADER_BYTES])
        self._forget(key)
        content = self._decrypted(key, sealed, 0, memoryview(data)[HEADER_BYTES:])
        if len(content) != sealed.size_bytes:
            raise SealBroken(
                f"The sealed object {key} ends at byte {len(content)} of {sealed.size_bytes}.",
                hint="Restore it from a copy.",
            )
        return content

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        sealed = self._look(key)
        if sealed is None:
            return self._store.get_range(key, offset, size)
        check_range(key, offset, size, sealed.size_bytes)
        if size == 0:
            return b""
        first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
        begin = HEADER_BYTES + first * (BLOCK_BYTES + TAG_BYTES)
        end = HEADER_BYTES + _physical(min(sealed.size_bytes, (last + 1) * BLOCK_BYTES))
        blocks = memoryview(self._store.get_range(key, begin, end - begin))
        try:
            content = self._decrypted(key, sealed, first, blocks)
        except SealBroken:
            # It may have been replaced since it was looked at: see anew, once.
            self._forget(key)
            again = self._look(key)
            if again is None or again == sealed:
                raise
            return self.get_range(key, offset, size)
        begin = offset - first * BLOCK_BYTES
        return content[begin : begin + size]

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        sealed = self._look(key)
        if sealed is None:
            return self._store.get_upto(key, offset, max_bytes)
        return self.get_range(
            key, min(offset, sealed.size_bytes), max(0, min(max_bytes, sealed.size_bytes - offset))
        )

    def size(self, key: str) -> int:
        sealed = self._look(key)
        return self._store.size(key) if sealed is None else sealed.size_bytes

    def delete(self, key: str) -> None:
        self._store.delete(key)
        self._forget(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in self._store.list(prefix):
            yield ObjectInfo(info.key, plain_bytes(info.size_bytes), info.modified_ms)

    def url(self, key: str = "", part: Part | None = None) -> str:
        return f"{SEALED}{self._store.url()}#{check_key(key)}" if key else self._store.url()

    def _look(self, key: str) -> _Sealed | None:
        """What the object's header says; None: it is not sealed."""
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        header = self._store.get_upto(key, 0, HEADER_BYTES)
        if not header.startswith(_MAGIC):
            return None
        return self._opened(key, header)

    def _opened(self, key: str, header: bytes) -> _Sealed:
        if len(header) < HEADER_BYTES:
            raise SealBroken(f"The sealed object {key} ends within its header.")
        _, version, block_bytes, size_bytes, of_id, of_key = _HEAD.unpack_from(header)
        if version != _VERSION or block_bytes != BLOCK_BYTES:
            raise SealTooNew(
                f"{key} is sealed in version {version}; this release opens {_VERSION}.",
                hint="Use the release that has written it.",
            )
        at = _HEAD.size
        key_id = header[at : at + of_id].decode(errors="replace")
        wrapped = header[at + of_id : at + of_id + of_key]
        try:
            data_key = self._keys.unwrap(key_id, wrapped, key.encode())
        except StoreError as error:
            where = f"{key} in {self._store.url()}"
            raise type(error)(f"{where} cannot be opened: {error}", hint=error.hint) from error
        sealed = _Sealed(header, data_key, size_bytes)
        with self._lock:
            self._known[key] = sealed
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return sealed

    def _decrypted(self, key: str, sealed: _Sealed, first: int, blocks: memoryview) -> bytes:
        cipher, content = AESGCM(sealed.data_key), []
        whole = BLOCK_BYTES + TAG_BYTES
        last = tag_bytes(sealed.size_bytes) // TAG_BYTES
        try:
            for at in range(0, max(len(blocks), 1), whole):
                index = first + at // whole
                block = blocks[at : at + whole]
                content.append(
                    cipher.decrypt(_nonce(index), block, _bound(key, sealed.header, index))
                )
        except (InvalidTag, ValueError) as error:
            raise SealBroken(
                f"The sealed object {key} is damaged in block {index} of {last}: it is not what "
                "was written.",
                hint="Restore it from a copy.",
            ) from error
        return b"".join(content)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)


def _memory(size_bytes: int) -> memoryview:
    """Fresh memory for an object: its pages would cost more than the cipher if they were small."""
    if size_bytes < _LARGE_BYTES:
        return memoryview(bytearray(size_bytes))
    region = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            region.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(region)


def _physical(size_bytes: int) -> int:
    return size_bytes + tag_bytes(size_bytes)


def plain_bytes(physical_bytes: int) -> int:
    """What a sealed object of this size holds."""
    inside = physical_bytes - HEADER_BYTES
    if inside < TAG_BYTES:
        return physical_bytes  # an object from before
    return inside - -(-inside // (BLOCK_BYTES + TAG_BYTES)) * TAG_BYTES


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "big")


def _bound(key: str, header: bytes, index: int) -> bytes:
    return b"%d\0%s\0%s" % (index, key.encode(), header)


def check_keys(store: ObjectStore, *, may_write: bool = True) -> None:
    """Raise `KeyMissing` or `KeyWrong` unless these keys are those of this store."""
    try:
        if store.get(CHECK) != CHECK.encode():
            raise KeyWrong(f"{CHECK} in {store.url()} was not sealed by these keys.")
    except ObjectMissing:
        if not may_write:
            return
        try:
            store.put_if_absent(CHECK, [CHECK.encode()])
        except ObjectExists:
            check_keys(store)
