"""Running out of disk space or file descriptors, and a reserve of space for that case.

Deleting needs space before it frees any: a transaction, a backup, the first bytes of another file.
So a file of preallocated blocks is kept on the disk of the write-ahead log. When an operation that
frees space finds the disk full, the file is emptied to make room; nothing else is written until it
has been filled again.
"""

import errno
import os
import resource
import threading
from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, a quota or a limit on the size of files; a later write may succeed."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""This process or the system has too many open files; the file itself may be fine."""

_SHARE = 16
"""On a small disk the reserve is at most this part of it: 1/16."""


class Reserve:
    """The reserve file; without a path there is no reserve. Used from any thread."""

    def __init__(self, path: Path | None = None, size_bytes: int = 0) -> None:
        """Open the file, or create an empty one. Raises `OSError`."""
        self._lock = threading.Lock()
        self._size_bytes = 0
        self._fd = -1
        self.is_whole = True
        """Nothing was given up, so there is nothing to take back."""
        if path is not None and size_bytes:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            disk = os.fstatvfs(self._fd)
            self._size_bytes = min(size_bytes, disk.f_blocks * disk.f_frsize // _SHARE)
            largest_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            if largest_bytes != resource.RLIM_INFINITY:
                self._size_bytes = min(self._size_bytes, largest_bytes)
            self.is_whole = os.fstat(self._fd).st_size >= self._size_bytes

    def refill(self) -> bool:
        """Fill the file again if the disk has space; whether it is full."""
        if self.is_whole:
            return True
        with self._lock:
            try:
                os.posix_fallocate(self._fd, 0, self._size_bytes)
                self.is_whole = True
            except OSError as error:
                os.ftruncate(self._fd, 0)
                # A file system that cannot preallocate has no reserve.
                self.is_whole = error.errno not in NO_SPACE
        return self.is_whole

    def give_up(self) -> bool:
        """Empty the file to make room for an operation that frees space; whether it had any."""
        with self._lock:
            if self._fd < 0 or not os.fstat(self._fd).st_size:
                return False
            os.ftruncate(self._fd, 0)
            self.is_whole = False
        return True

    def close(self) -> None:
        """Close the file, which stays on the disk."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
