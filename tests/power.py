"""What of a folder would be there after a loss of power, going by the syncs that were asked for.

A file is there with the bytes that it had at its last sync, under a name that its folder had at the
folder's. What SQLite syncs by itself is left out.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest


class Power:
    """Notes all that this process syncs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, sync):
        def synced(descriptor: int) -> None:
            sync(descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self._names[found.st_ino] = set(os.listdir(descriptor))
            else:
                self._sizes[found.st_ino] = found.st_size

        return synced

    def lost(self, folder: Path) -> Iterator[Path]:
        """What would not be there, or not whole."""
        for path in sorted(folder.rglob("*")):
            if ".db" in path.suffix:
                continue
            status = path.stat()
            has_name = path.name in self._names.get(path.parent.stat().st_ino, ())
            is_whole = path.is_dir() or self._sizes.get(status.st_ino) == status.st_size
            if not (has_name and is_whole):
                yield path
