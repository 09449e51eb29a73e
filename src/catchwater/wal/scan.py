"""The bytes of one WAL file -> its frames, the damage between them, and where they end.

Pure. The byte table is in `docs/formats.md`. A frame counts only when its header's CRC, its
file's salt and its payload's CRC are right and it lies wholly in the file. Behind damage the next
frame is looked for at every eighth byte, so damage is reported with the frames it took.

Each file carries a random salt that its frames repeat: bytes of some other WAL that a producer
sent us inside a record are never taken for frames of this one.
"""

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wal.base import Damage

VERSION = 1
FILE_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 40
ALIGNMENT = 8

_FILE_MAGIC = b"CWWL"
_FILE_HEADER = struct.Struct(">4sHHQQ")
_FRAME_MAGIC = b"CWF1"
_FRAME_HEADER = struct.Struct(">4sHHQQQI")
_CRC = struct.Struct(">I")


class WalTooNew(CatchwaterError):
    """A WAL file was written by a newer release."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One checked frame; `payload` is the byte where its payload begins, `size` in bytes."""

    sequence: int
    payload: int
    size: int

    @property
    def end(self) -> int:
        """Behind the padding, where the next frame begins."""
        return self.payload + self.size + -self.size % ALIGNMENT


@dataclass(slots=True)
class Scan:
    """What a file holds. `end` is where its last frame ends; bytes from there on are no frame."""

    first_sequence: int
    size_bytes: int
    header_intact: bool
    end: int
    salt: int = 0
    frames: list[Frame] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        """The last frame's, or the one before the file's first."""
        return self.frames[-1].sequence if self.frames else self.first_sequence - 1


def file_header(first_sequence: int, salt: int) -> bytes:
    """The bytes a file begins with."""
    head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, 0, first_sequence, salt)
    return (head + _CRC.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def frame_header(sequence: int, salt: int, size: int, payload_crc: int) -> bytes:
    """The bytes in front of a payload."""
    head = _FRAME_HEADER.pack(_FRAME_MAGIC, VERSION, 0, sequence, size, salt, payload_crc)
    return head + _CRC.pack(crc32c(head))


def scan(name: str, data: bytes, first_sequence: int) -> Scan:
    """Find the frames of the file `name`, whose first should be `first_sequence`.

    Raises `WalTooNew`.
    """
    salt = _salt(name, data, first_sequence)
    if salt is None:
        return Scan(first_sequence, len(data), header_intact=False, end=0)
    found = Scan(first_sequence, len(data), True, FILE_HEADER_BYTES, salt)
    while found.end < len(data):
        expected = found.last_sequence + 1
        frame = _frame_at(name, data, found.end, salt)
        if frame is None or frame.sequence != expected:
            frame = _next_frame(name, data, found.end, salt, expected)
            if frame is None:
                break
            start = frame.payload - FRAME_HEADER_BYTES
            lost = Damage(name, found.end, start - 1, expected, frame.sequence - 1)
            found.damage.append(lost)
        found.frames.append(frame)
        found.end = frame.end
    return found


def spoiled_padding(data: Buffer, found: Scan) -> list[tuple[int, int]]:
    """First and last byte of paddings that are not 0; nothing is read from there."""
    paddings = [(_FILE_HEADER.size + _CRC.size, FILE_HEADER_BYTES)]
    paddings += [(frame.payload + frame.size, frame.end) for frame in found.frames]
    return [(first, end - 1) for first, end in paddings if any(data[first:end])]


def _salt(name: str, data: bytes, first_sequence: int) -> int | None:
    """The file's salt, or None when its header is damaged or unfinished."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, _flags, first, salt = _FILE_HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if magic != _FILE_MAGIC or crc != crc32c(data[: _FILE_HEADER.size]) or first != first_sequence:
        return None
    _check_version(name, version)
    return int(salt)


def _frame_at(name: str, data: Buffer, at: int, salt: int) -> Frame | None:
    if len(data) - at < FRAME_HEADER_BYTES:
        return None
    magic, version, _flags, sequence, size, its_salt, payload_crc = _FRAME_HEADER.unpack_from(
        data, at
    )
    if magic != _FRAME_MAGIC or its_salt != salt:
        return None
    view = memoryview(data)
    (crc,) = _CRC.unpack_from(data, at + _FRAME_HEADER.size)
    if crc != crc32c(view[at : at + _FRAME_HEADER.size]):
        return None
    _check_version(name, version)
    frame = Frame(sequence, at + FRAME_HEADER_BYTES, size)
    payload = view[frame.payload : frame.payload + size]
    return frame if len(payload) == size and crc32c(payload) == payload_crc else None


def _next_frame(name: str, data: bytes, at: int, salt: int, expected: int) -> Frame | None:
    """The first frame behind byte `at` that belongs to what is expected or comes later."""
    while (at := data.find(_FRAME_MAGIC, at + 1)) >= 0:
        if at % ALIGNMENT == 0:
            frame = _frame_at(name, data, at, salt)
            if frame is not None and frame.sequence >= expected:
                return frame
    return None


def _check_version(name: str, version: int) -> None:
    if version > VERSION:
        raise WalTooNew(
            f"{name} has WAL format version {version}; this release reads up to {VERSION}.",
            hint="Start the release that wrote it, or a newer one.",
        )
