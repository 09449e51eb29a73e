"""Sealed files of write-ahead logs: where their frames are, and what is in them.

A range of a file is read as if it were not sealed: a frame's content lies where its ciphertext
lies. Which frame that is, is found by walking the headers of the frames, once a file, as far as
somebody has read.

With no keys every sealed file is refused, by name; files that are not sealed are none of this
module's business. Any number of threads may read.
"""

import os
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.objects.base import ObjectTruncated
from catchwater.objects.seal import HEAD_BYTES, KeysNeeded, SealBroken, tag_bytes
from catchwater.wal.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    SEALED_HEADER_BYTES,
    Frame,
    Scan,
    frame_size,
    is_sealed,
    scan,
)

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys
    from catchwater.objects.sealed_file import FileSeal

_MOST_KNOWN = 64


class _FrameIndex:
    """A sealed file: its key, and the frames that were found in it."""

    def __init__(self, seal: "FileSeal", first_sequence: int) -> None:
        self.seal = seal
        self.numbers = array("Q")
        self.begins = array("Q")
        self.sizes = array("Q")
        self._next = first_sequence
        self._at = SEALED_HEADER_BYTES

    def frame_at(self, path: Path, offset: int) -> tuple[int, int, int]:
        """Number, first byte and size of the frame in which this byte lies."""
        if offset >= self._at:
            self._walk(path, offset)
        index = bisect_right(self.begins, offset) - 1
        if index < 0 or offset > self.begins[index] + self.sizes[index]:
            raise ObjectTruncated(
                f"Byte {offset} of {path} lies in no frame.",
                hint="The file was truncated or replaced; restore it from a copy.",
            )
        return self.numbers[index], self.begins[index], self.sizes[index]

    def _walk(self, path: Path, upto: int) -> None:
        with open(path, "rb", buffering=0) as file:
            while self._at <= upto:
                header = os.pread(file.fileno(), FRAME_HEADER_BYTES, self._at)
                size = frame_size(header, self._next)
                if size is None:
                    self._search(path)
                    return
                self._add(Frame(self._next, self._at + FRAME_HEADER_BYTES, size, tag_bytes(size)))

    def _search(self, path: Path) -> None:
        """Find what lies behind damage."""
        for frame in scan(self.seal.name, path.read_bytes(), _first_of(path)).frames:
            if frame.payload >= self._at:
                self._add(frame)

    def _add(self, frame: Frame) -> None:
        self.numbers.append(frame.sequence)
        self.begins.append(frame.payload)
        self.sizes.append(frame.size)
        self._at, self._next = frame.end, frame.sequence + 1


class SealedFiles:
    """The sealed files below a directory, by their names."""

    def __init__(self, root: Path, keys: "Keys | None") -> None:
        self._root = root
        self._keys = keys
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _FrameIndex | None] = OrderedDict()
        """By name; None: it is not sealed."""

    def __contains__(self, file: str) -> bool:
        """Whether a file is sealed. Raises `OSError`, `KeysNeeded` and what opening it raises."""
        return self._look(file) is not None

    def check(self, file: str) -> None:
        """Raise `KeysNeeded` or another `StoreError` unless the keys open this file.

        One whose head is damaged is left to those who look at its frames.
        """
        with suppress(SealBroken):
            self._look(file)

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a sealed file as they were before. Raises `StoreError`, `OSError`."""
        content = bytearray(size)
        self.read_into(file, offset, memoryview(content))
        return bytes(content)

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with them. Raises as `read`."""
        known = self._look(file)
        assert known is not None, f"{file} is sealed"
        with self._lock:
            frame = known.frame_at(self._root / file, offset)
        known.seal.read_into(self._root / file, frame, offset, into)

    def url(self, file: str, offset: int) -> str:
        """Where a reader with the keys finds the frame of this byte."""
        from catchwater.objects.sealed_file import frame_url

        known = self._look(file)
        assert known is not None, f"{file} is sealed"
        with self._lock:
            frame = known.frame_at(self._root / file, offset)
        return frame_url(self._root / file, file, FILE_HEADER_BYTES, frame)

    def forget(self, file: str) -> None:
        """The file is gone."""
        with self._lock:
            self._known.pop(file, None)

    def _look(self, file: str) -> _FrameIndex | None:
        with self._lock:
            if file in self._known:
                return self._known[file]
        with open(self._root / file, "rb") as opened:
            beginning, head = opened.read(FILE_HEADER_BYTES), opened.read(HEAD_BYTES)
        if len(beginning) < FILE_HEADER_BYTES:
            return None  # it is being begun
        known = None
        if is_sealed(beginning):
            known = _FrameIndex(self._seal_of(file, beginning, head), _first_of(Path(file)))
        with self._lock:
            self._known[file] = known
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return known

    def _seal_of(self, file: str, beginning: bytes, head: bytes) -> "FileSeal":
        if self._keys is None:
            raise KeysNeeded(f"The write-ahead log {self._root / file}")
        from catchwater.objects.sealed_file import FileSeal

        return FileSeal.of(file, beginning, head, self._keys)


def payload(found: Scan, name: str, data: bytes, frame: Frame, keys: "Keys | None") -> memoryview:
    """What a frame holds that `scan` has found in the file `name` with these bytes.

    Raises `SealBroken`, `KeysNeeded` and what opening the file's key raises.
    """
    view = memoryview(data)[frame.payload : frame.payload + frame.size]
    if not found.is_sealed:
        return view
    if found.seal is None:
        if keys is None:
            raise KeysNeeded(f"The write-ahead log {name}")
        from catchwater.objects.sealed_file import FileSeal

        head = data[FILE_HEADER_BYTES:SEALED_HEADER_BYTES]
        found.seal = FileSeal.of(name, data[:FILE_HEADER_BYTES], head, keys)
    ends = frame.payload + frame.size
    tags = memoryview(data)[ends : ends + frame.tags]
    return found.seal.opened(frame.sequence, view, tags)


def _first_of(path: Path) -> int:
    return int(path.stem)
