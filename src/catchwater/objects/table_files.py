"""Files of Iceberg tables, in a folder as durable as objects are.

pyiceberg syncs nothing that it writes to a disk. So after a loss of power a snapshot may name files
that are empty, and the log has deleted by then what was in them. Here a file is synced when it is
closed, and its name with it, before any snapshot can name it. In a bucket nothing is changed.
"""

import io
import os
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from pyiceberg.io import PY_IO_IMPL, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from catchwater.objects.local import PIECE_BYTES, make_folders, sync_and_pause, sync_folder


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but that what it writes to a disk is there after a loss of power."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if not isinstance(output._filesystem, LocalFileSystem):
            return output
        return _LocalFile(output.location, output._path, output._filesystem)


SYNCED = {PY_IO_IMPL: f"{SyncedFileIO.__module__}.{SyncedFileIO.__qualname__}"}
"""The property of a catalog that has its tables' files synced."""


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_folders(path.parent)
        return io.BufferedWriter(_Synced(path, "wb" if overwrite else "xb"), PIECE_BYTES)


class _Synced(io.FileIO):
    """Synced in pieces while it is written, as large objects are, and whole when it is closed."""

    _unsynced = 0

    def write(self, data: Any, /) -> int:
        if self._unsynced >= PIECE_BYTES:
            sync_and_pause(self.fileno())
            self._unsynced = 0
        written = super().write(data)
        self._unsynced += written
        return written

    def close(self) -> None:
        if self.closed:
            return
        try:
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_folder(Path(os.fsdecode(self.name)).parent)
