"""Files that grow by frames, encrypted: AES-256-GCM, a data key of its own for each file.

    head (480 bytes)     version, key id, wrapped data key, zeros, CRC-32C of what the file begins
                         with and of this; behind what the file itself begins with
    frame                as many bytes as its content has, so that positions stay what they are
    tags                 16 bytes for each 64 KiB of content, behind the frame's last byte

A block can be read by itself. Each is bound to the file's beginning (with its key), to the number
and size of its frame, and to its place in it: a frame that was changed, moved, cut off or put in
another file's place is `SealBroken`. Whoever writes a file seals a number once, and never goes on
with a file that another process has begun: so no nonce (number and block) comes twice.

What a frame is, its numbers and where it begins, is for the file's owner to say (`wal.frames`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from catchwater.objects.base import Buffer, ObjectMissing, StoreError, check_range
from catchwater.objects.keys import KEY_BYTES, Keys
from catchwater.objects.local import fill
from catchwater.objects.seal import (
    BLOCK_BYTES,
    HEAD_BYTES,
    HEAD_CRC,
    SEALED,
    TAG_BYTES,
    SealBroken,
    SealTooNew,
    blocks,
    is_head,
    tag_bytes,
)

_MOST_KEPT_BYTES = 16 * 1024 * 1024
_VERSION = 1
_HEAD = Struct(">HBH")
"""Version, size of the key's id, size of the wrapped key."""


class FileSeal:
    """Seals and opens the frames of one file."""

    def __init__(self, name: str, beginning: bytes, head: bytes, data_key: bytes) -> None:
        self.name = name
        self.head = head
        self._bound = beginning + head
        self._cipher = AESGCM(data_key)
        self._buffer = bytearray()
        """What frames are sealed into: fresh memory for each would cost more than the cipher."""

    @classmethod
    def begin(cls, name: str, beginning: bytes, keys: Keys) -> "FileSeal":
        """A new file's; `name` is one that it keeps wherever it is copied to."""
        data_key = os.urandom(KEY_BYTES)
        key_id, wrapped = keys.wrap(data_key, name.encode())
        named = key_id.encode()
        head = _HEAD.pack(_VERSION, len(named), len(wrapped)) + named + wrapped
        if len(head) > HEAD_BYTES - HEAD_CRC.size:
            raise StoreError("The wrapped data key is too long for a sealed file.")
        head = head.ljust(HEAD_BYTES - HEAD_CRC.size, b"\0")
        return cls(name, beginning, head + HEAD_CRC.pack(crc32c(beginning + head)), data_key)

    @classmethod
    def of(cls, name: str, beginning: bytes, head: bytes, keys: Keys) -> "FileSeal":
        """Of a file that is there. Raises `KeyMissing`, `KeyWrong`, `SealBroken`, `SealTooNew`."""
        if not is_head(beginning, head):
            raise SealBroken(f"The beginning of {name} is damaged.", hint="Restore it from a copy.")
        version, of_id, of_key = _HEAD.unpack_from(head)
        if version != _VERSION:
            raise SealTooNew(
                f"{name} is sealed in version {version}; this release opens {_VERSION}.",
                hint="Use the release that has written it.",
            )
        at = _HEAD.size
        key_id = head[at : at + of_id].decode(errors="replace")
        wrapped = head[at + of_id : at + of_id + of_key]
        try:
            data_key = keys.unwrap(key_id, wrapped, name.encode())
        except StoreError as error:
            raise type(error)(f"{name} cannot be opened: {error}", hint=error.hint) from error
        return cls(name, beginning, head, data_key)

    def seal(self, number: int, parts: Sequence[Buffer]) -> list[Buffer]:
        """What to write of a frame: its bytes in pieces, and behind them their tags in one.

        Good until the next call.
        """
        size_bytes = sum(map(len, parts))
        bound = self._bound + size_bytes.to_bytes(8, "big")
        need = size_bytes + tag_bytes(size_bytes)
        buffer = self._buffer if need <= len(self._buffer) else bytearray(need)
        if need <= _MOST_KEPT_BYTES:
            self._buffer = buffer
        view, at = memoryview(buffer), 0
        sealed: list[Buffer] = []
        tags = []
        for index, block in enumerate(blocks(parts)):
            ends = at + len(block)
            nonce = _nonce(number, index)
            self._cipher.encrypt_into(nonce, block, bound, view[at : ends + TAG_BYTES])
            sealed.append(view[at:ends])
            tags.append(view[ends : ends + TAG_BYTES])
            at = ends + TAG_BYTES
        return [*sealed, b"".join(tags)]

    def opened(self, number: int, sealed: memoryview, tags: memoryview) -> memoryview:
        """The content of a frame, all of which is in memory. Raises `SealBroken`."""
        content, block = _room(len(sealed)), _room(BLOCK_BYTES + TAG_BYTES)
        for index in range(len(tags) // TAG_BYTES):
            at, tag = index * BLOCK_BYTES, index * TAG_BYTES
            size = len(sealed[at : at + BLOCK_BYTES])
            block[:size] = sealed[at : at + size]
            block[size : size + TAG_BYTES] = tags[tag : tag + TAG_BYTES]
            into = content[at : at + size]
            self._open(number, len(sealed), index, block[: size + TAG_BYTES], into)
        return content

    def read_into(
        self, path: Path, frame: tuple[int, int, int], offset: int, into: memoryview
    ) -> None:
        """Fill memory with bytes of the file, which lie in its frame (number, first byte, size).

        They are deciphered where they are wanted, a block after the other: new memory for all of
        them would cost more than the cipher does. Raises `ObjectTruncated`, `SealBroken`
        and `OSError`.
        """
        number, begins, size_bytes = frame
        at, ends = offset - begins, offset - begins + len(into)
        check_range(str(path), at, len(into), size_bytes)
        if not into:
            return
        blocks = range(at // BLOCK_BYTES, (ends - 1) // BLOCK_BYTES + 1)
        block, tags = _room(BLOCK_BYTES + TAG_BYTES), _room(len(blocks) * TAG_BYTES)
        with open(path, "rb", buffering=0) as file:
            descriptor, name = file.fileno(), str(path)
            fill(descriptor, name, begins + size_bytes + blocks.start * TAG_BYTES, tags)
            for index in blocks:
                first = index * BLOCK_BYTES
                size = min(BLOCK_BYTES, size_bytes - first)
                fill(descriptor, name, begins + first, block[:size])
                tag = (index - blocks.start) * TAG_BYTES
                block[size : size + TAG_BYTES] = tags[tag : tag + TAG_BYTES]
                low, high = max(at, first), min(ends, first + size)
                wanted = into[low - at : high - at]
                content = wanted if len(wanted) == size else _room(size)
                self._open(number, size_bytes, index, block[: size + TAG_BYTES], content)
                if content is not wanted:
                    wanted[:] = content[low - first : high - first]

    def _open(
        self, number: int, size_bytes: int, index: int, block: memoryview, into: memoryview
    ) -> None:
        """Decipher a block, its tag behind it, of a frame of this size. Raises `SealBroken`."""
        bound = self._bound + size_bytes.to_bytes(8, "big")
        try:
            self._cipher.decrypt_into(_nonce(number, index), block, bound, into)
        except (InvalidTag, ValueError) as error:
            raise SealBroken(
                f"{self.name} is damaged in frame {number}: it is not what was written.",
                hint="Restore it from a copy.",
            ) from error


def _room(size_bytes: int) -> memoryview:
    return memoryview(bytearray(size_bytes))


def _nonce(number: int, index: int) -> bytes:
    return number.to_bytes(8, "big") + index.to_bytes(4, "big")


# --- for readers with a plan and no log ---


def frame_url(path: Path, name: str, beginning_bytes: int, frame: tuple[int, int, int]) -> str:
    """Where one frame of a sealed file is to be read, see `objects.urls.read_range`."""
    number, begins, size_bytes = frame
    asked = {"head": beginning_bytes, "number": number, "begins": begins, "size": size_bytes}
    url = path.absolute().as_uri()
    return f"{SEALED}{url}?{urlencode(asked)}#{quote(name)}"


def read_by_url(url: str, keys: Keys, offset: int, size: int) -> bytes:
    """Bytes of what `frame_url` names. Raises a `StoreError`."""
    parts = urlsplit(url.removeprefix(SEALED))
    asked = {name: int(value) for name, value in parse_qsl(parts.query)}
    path, name = Path(unquote(parts.path)), unquote(parts.fragment)
    try:
        with open(path, "rb") as file:
            beginning = file.read(asked["head"])
            head = file.read(HEAD_BYTES)
        frame, content = (asked["number"], asked["begins"], asked["size"]), bytearray(size)
        seal = FileSeal.of(name, beginning, head, keys)
        seal.read_into(path, frame, offset, memoryview(content))
        return bytes(content)
    except FileNotFoundError as error:
        raise ObjectMissing(f"There is no file {path}.") from error
    except OSError as error:
        raise StoreError(f"{path} could not be read: {error.strerror}.") from error
