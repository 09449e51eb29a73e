"""What a broker's machine may run out of, and the space that is kept back for that moment.

Deleting takes space before it frees any: a transaction, a backup, the first bytes of another file.
So a file of preallocated blocks lies on the disk of the write-ahead log. When something that frees
space finds the disk full, the file is emptied and its space is there; nothing else is written
until it is whole again.
"""

import errno
import os
import resource
import threading
from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, a quota or a limit on the size of files; a later write may succeed."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""This process or the system has too many files open; it says nothing about the file."""

_SHARE = 16
"""A small disk keeps no more than this part of itself back."""


class Reserve:
    """The file; of no size where there is none. Used from any thread."""

    def __init__(self, path: Path | None = None, size_bytes: int = 0) -> None:
        """Find the file, or make an empty one. Raises `OSError`."""
        self._lock = threading.Lock()
        self._size_bytes = 0
        self._fd = -1
        self._is_whole = True
        if path is not None and size_bytes:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            disk = os.fstatvfs(self._fd)
            self._size_bytes = min(size_bytes, disk.f_blocks * disk.f_frsize // _SHARE)
            largest_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            if largest_bytes != resource.RLIM_INFINITY:
                self._size_bytes = min(self._size_bytes, largest_bytes)
            self._is_whole = os.fstat(self._fd).st_size >= self._size_bytes

    def refill(self) -> bool:
        """Take back what was given up, if the disk has it again; whether the reserve is whole."""
        if self._is_whole:
            return True
        with self._lock:
            try:
                os.posix_fallocate(self._fd, 0, self._size_bytes)
                self._is_whole = True
            except OSError as error:
                os.ftruncate(self._fd, 0)
                # A file system that cannot do it at all keeps no reserve.
                self._is_whole = error.errno not in NO_SPACE
        return self._is_whole

    def give_up(self) -> bool:
        """Free its space for something that frees more; whether there was any."""
        with self._lock:
            if self._fd < 0 or not os.fstat(self._fd).st_size:
                return False
            os.ftruncate(self._fd, 0)
            self._is_whole = False
        return True

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
