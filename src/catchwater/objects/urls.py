"""Ranges of objects by URL, for readers who have a plan and no store: Spark's tasks, tools.

`file://` is the only scheme so far. A file is mapped, not copied: the bytes are read when they
are looked at. Relies on objects never changing, and on a WAL file's durable bytes staying as they
are; checks nothing of the content.
"""

import mmap
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from catchwater.objects.base import ObjectMissing, StoreError, check_range


def read_range(url: str, offset: int, size: int) -> memoryview:
    """Exactly `size` bytes from `offset` of the object at `url`, read-only and not copied.

    Raises `ObjectMissing`, `ObjectTruncated`, or `StoreError` for anything else.
    """
    path = _path_of(url)
    try:
        with open(path, "rb", buffering=0) as file:
            check_range(str(path), offset, size, os.fstat(file.fileno()).st_size)
            if size == 0:
                return memoryview(b"")
            skipped = offset % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(
                file.fileno(), skipped + size, access=mmap.ACCESS_READ, offset=offset - skipped
            )
    except FileNotFoundError as error:
        raise ObjectMissing(f"There is no object at {path}.") from error
    except OSError as error:
        raise StoreError(f"{path} could not be read: {error.strerror}.") from error
    return memoryview(mapped)[skipped:]


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreError(
            f"{url} cannot be read from here.",
            hint="Only file:// URLs of this machine are supported; read over the Kafka protocol "
            "instead (catchwater.read=kafka).",
        )
    return Path(unquote(parts.path))
