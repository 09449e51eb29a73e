"""What is common to sealed objects and sealed files; needs no cryptography to be installed."""

from collections.abc import Iterator, Sequence
from struct import Struct

from crc32c import crc32c

from catchwater.config import Restart
from catchwater.objects.base import Buffer, StoreError

KEYS = "CATCHWATER_ENCRYPTION_KEYS"
"""A variable of the environment: the keys with which objects are sealed (`objects.keys`)."""
LOCAL = "CATCHWATER_ENCRYPTION_LOCAL"
"""Says `disk` where what lies on this machine beside objects is encrypted by its disk."""
SEALED = "sealed+"
"""What the URL of a sealed object begins with: then its store's, `#`, and its key."""

BLOCK_BYTES = 64 * 1024
TAG_BYTES = 16
HEAD_BYTES = 480
"""Of a sealed file, behind what it begins with anyway (`objects.sealed_file`)."""
HEAD_CRC = Struct(">I")


class KeysNeeded(StoreError):
    """What is to be read is encrypted, and this process was given no keys."""

    restart = Restart.NEVER

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is encrypted, and no key was given here.",
            hint="Name the keys it was written with: catchwater.encryption.keys of a broker, "
            f"{KEYS} in the environment of anything else. Who may not have them reads through a "
            "broker.",
        )


class SealBroken(StoreError):
    """What is sealed is not as it was written."""


class SealTooNew(StoreError):
    """A newer release has sealed it."""


def tag_bytes(size_bytes: int) -> int:
    """The tags of so much content; nothing has one, too, so that it is authenticated."""
    return max(1, -(-size_bytes // BLOCK_BYTES)) * TAG_BYTES


def blocks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """The parts' bytes in blocks, copied only where one reaches into the next part.

    Of nothing there is one, too, so that it is authenticated.
    """
    if sum(map(len, parts)) <= BLOCK_BYTES:
        yield b"".join(parts)
        return
    pieces: list[memoryview] = []
    room = BLOCK_BYTES
    for part in parts:
        view, at = memoryview(part), 0
        while at < len(view):
            piece = view[at : at + room]
            at += len(piece)
            room -= len(piece)
            pieces.append(piece)
            if not room:
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces, room = [], BLOCK_BYTES
    if pieces:
        yield b"".join(pieces)


def is_head(beginning: bytes, head: bytes) -> bool:
    """Whether this is the head, whole, of a sealed file with this beginning."""
    return len(head) == HEAD_BYTES and HEAD_CRC.unpack(head[-HEAD_CRC.size :])[0] == crc32c(
        beginning + head[: -HEAD_CRC.size]
    )
