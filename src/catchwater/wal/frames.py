"""The bytes of a write-ahead log's file: how it begins, its frames, and where they are found.

The byte table is in `docs/formats.md`; objects of the WAL `object` hold the same. A frame counts
only when its header's CRC, its file's salt and its payload's CRC are right and it lies wholly in
the file. Behind damage the next frame is looked for at every eighth byte, so damage is reported
with the frames it took. Each file carries a random salt that its frames repeat: bytes of some other
WAL that a producer sent us inside a record are never taken for frames of this one.

A sealed file is of the next version: it begins with the head of `objects.sealed_file` as well, its
payloads are encrypted, and behind each are its tags, which its CRC covers too. So finding frames
needs no key. Pure: reads and writes nothing.
"""

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.objects.seal import HEAD_BYTES, is_head, tag_bytes
from catchwater.wal.base import Damage

if TYPE_CHECKING:
    from catchwater.objects.sealed_file import FileSeal

VERSION = 1
SEALED_VERSION = 2
"""Of a file whose frames are sealed."""
FILE_HEADER_BYTES = 32
SEALED_HEADER_BYTES = FILE_HEADER_BYTES + HEAD_BYTES
FRAME_HEADER_BYTES = 40
ALIGNMENT = 8

FILE_MAGIC = b"CWWL"
FILE_HEADER = struct.Struct(">4sHHQQ")
"""Magic, version, 0, first sequence, salt; a CRC is behind."""
FRAME_MAGIC = b"CWF1"
FRAME_HEADER = struct.Struct(">4sHHQQQI")
"""Magic, version, 0, sequence, the payload's size, salt, the payload's CRC; a CRC is behind."""
CRC = struct.Struct(">I")


class WalTooNew(CatchwaterError):
    """A WAL file was written by a newer release."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One checked frame; `payload` is the byte where its payload begins, `size` in bytes."""

    sequence: int
    payload: int
    size: int
    tags: int = 0
    """The bytes of its tags behind the payload."""

    @property
    def end(self) -> int:
        """Behind the padding, where the next frame begins."""
        written = self.size + self.tags
        return self.payload + written + -written % ALIGNMENT


@dataclass(slots=True)
class Scan:
    """What a file holds. `end` is where its last frame ends; bytes from there on are no frame."""

    first_sequence: int
    size_bytes: int
    header_intact: bool
    end: int
    salt: int = 0
    is_sealed: bool = False
    may_be_begun: bool = False
    """Without an intact header: whether it may be one that was never written to its end."""
    frames: list[Frame] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    seal: "FileSeal | None" = None
    """Once a frame of it was opened (`wal.sealed.payload`)."""

    @property
    def last_sequence(self) -> int:
        """The last frame's, or the one before the file's first."""
        return self.frames[-1].sequence if self.frames else self.first_sequence - 1


def scan(name: str, data: bytes, first_sequence: int) -> Scan:
    """Find the frames of the file `name`, whose first should be `first_sequence`.

    Raises `WalTooNew`.
    """
    found = _begin(name, data, first_sequence)
    if not found.header_intact:
        return found
    while found.end < len(data):
        expected = found.last_sequence + 1
        frame = _frame_at(name, data, found.end, found)
        if frame is None or frame.sequence != expected:
            frame = _next_frame(name, data, found.end, found, expected)
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
    paddings = [(FILE_HEADER.size + CRC.size, FILE_HEADER_BYTES)]
    paddings += [(frame.payload + frame.size + frame.tags, frame.end) for frame in found.frames]
    return [(first, end - 1) for first, end in paddings if any(data[first:end])]


def _begin(name: str, data: bytes, first_sequence: int) -> Scan:
    """What a file's beginning says."""
    beginning, head = data[:FILE_HEADER_BYTES], data[FILE_HEADER_BYTES:SEALED_HEADER_BYTES]
    header = _header(name, beginning, first_sequence)
    salt, sealed = header or (0, False)
    if header is not None and (not sealed or is_head(beginning, head)):
        begins = SEALED_HEADER_BYTES if sealed else FILE_HEADER_BYTES
        return Scan(first_sequence, len(data), True, begins, salt, sealed)
    may_be_begun = len(data) <= FILE_HEADER_BYTES or (
        len(data) <= SEALED_HEADER_BYTES and (sealed or not any(data))
    )
    return Scan(first_sequence, len(data), False, 0, may_be_begun=may_be_begun)


def _header(name: str, beginning: bytes, first_sequence: int) -> tuple[int, bool] | None:
    """The file's salt, and whether it is sealed; None: its header is damaged or unfinished."""
    if len(beginning) < FILE_HEADER_BYTES:
        return None
    magic, version, _flags, first, salt = FILE_HEADER.unpack_from(beginning)
    (crc,) = CRC.unpack_from(beginning, FILE_HEADER.size)
    head = beginning[: FILE_HEADER.size]
    if magic != FILE_MAGIC or crc != crc32c(head) or first != first_sequence:
        return None
    _check_version(name, version, SEALED_VERSION)
    return int(salt), version == SEALED_VERSION


def is_sealed(beginning: bytes) -> bool:
    """Whether a file with this beginning is sealed."""
    return beginning.startswith(FILE_MAGIC + SEALED_VERSION.to_bytes(2, "big"))


def frame_size(header: bytes, sequence: int) -> int | None:
    """The size of the payload behind this header of a frame, if it is the one of this number."""
    if len(header) < FRAME_HEADER_BYTES:
        return None
    magic, _version, _flags, its_sequence, size, _salt, _crc = FRAME_HEADER.unpack_from(header)
    (crc,) = CRC.unpack_from(header, FRAME_HEADER.size)
    is_it = magic == FRAME_MAGIC and its_sequence == sequence
    return int(size) if is_it and crc == crc32c(header[: FRAME_HEADER.size]) else None


def _frame_at(name: str, data: Buffer, at: int, file: Scan) -> Frame | None:
    if len(data) - at < FRAME_HEADER_BYTES:
        return None
    magic, version, _flags, sequence, size, its_salt, payload_crc = FRAME_HEADER.unpack_from(
        data, at
    )
    if magic != FRAME_MAGIC or its_salt != file.salt:
        return None
    view = memoryview(data)
    (crc,) = CRC.unpack_from(data, at + FRAME_HEADER.size)
    if crc != crc32c(view[at : at + FRAME_HEADER.size]):
        return None
    _check_version(name, version)
    frame = Frame(sequence, at + FRAME_HEADER_BYTES, size, tag_bytes(size) if file.is_sealed else 0)
    written = size + frame.tags
    payload = view[frame.payload : frame.payload + written]
    return frame if len(payload) == written and crc32c(payload) == payload_crc else None


def _next_frame(name: str, data: bytes, at: int, file: Scan, expected: int) -> Frame | None:
    """The first frame behind byte `at` that belongs to what is expected or comes later."""
    while (at := data.find(FRAME_MAGIC, at + 1)) >= 0:
        if at % ALIGNMENT == 0:
            frame = _frame_at(name, data, at, file)
            if frame is not None and frame.sequence >= expected:
                return frame
    return None


def _check_version(name: str, version: int, newest: int = VERSION) -> None:
    if version > newest:
        raise WalTooNew(
            f"{name} has WAL format version {version}; this release reads up to {newest}.",
            hint="Start the release that wrote it, or a newer one.",
        )
