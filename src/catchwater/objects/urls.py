"""Reads ranges of objects by URL, for readers that have a plan and no store: Spark's tasks, tools.

The file of a `file://` URL is memory-mapped, not copied. From an `http(s)://` URL, signed by a
store, the range is requested; a reply that ends early is requested again. What is sealed is opened
with the keys of this process, if it has some. Relies on objects and
the durable bytes of WAL files never changing; does not check the content.
"""

import http.client
import mmap
import os
import stat
import urllib.error
import urllib.request
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from catchwater.clock import SYSTEM, Clock
from catchwater.objects.base import (
    ObjectMissing,
    ObjectStore,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    check_range,
    range_header,
)
from catchwater.objects.open import given_keys, open_store
from catchwater.objects.retry import PATIENT, RetryPolicy, retried
from catchwater.objects.seal import KEYS, SEALED, KeysNeeded

_REQUEST_S = 20
_END_BYTES = 64 * 1024
"""As much as pyarrow reads of a file's end first."""
_ENDED = (b"ExpiredToken", b"Request has expired")
"""In replies with another status than 403: the signature or its key has expired."""
_MAY_PASS = {408, 409, 425, 429}


class AccessEnded(StoreRefused):
    """The URL gives no access (any more); a new one may."""


def read_range(
    url: str, offset: int, size: int, *, clock: Clock = SYSTEM, policy: RetryPolicy = PATIENT
) -> memoryview:
    """Exactly `size` bytes from `offset` of the object at `url`, read-only.

    Raises `ObjectMissing`, `ObjectTruncated`, `AccessEnded`, or another `StoreError`. `clock` and
    `policy` are for retries.
    """
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return retried(lambda: _requested(url, offset, size)[0], clock, policy)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return _mapped(Path(unquote(parts.path)), offset, size)
    if url.startswith(SEALED):
        return _opened(url, offset, size)
    raise StoreError(
        f"{shown(url)} cannot be read from here.",
        hint="Only file:// URLs of this machine and http(s):// are supported; read over the Kafka "
        "protocol instead (catchwater.read=kafka).",
    )


class RemoteFile:
    """The object at an `http(s)://` URL, as what pyarrow takes for a file: reads ask for ranges.

    Raises what `read_range` raises. For one thread at a time.
    """

    closed = False

    def __init__(self, url: str, size_bytes: int | None = None) -> None:
        """Without its size its end is asked for: there files say what is in them."""
        self._url = url
        self._at, self._end = 0, memoryview(b"")
        if size_bytes is None:
            self._end, size_bytes = retried(
                lambda: _requested(url, -_END_BYTES, _END_BYTES), SYSTEM, PATIENT
            )
        self.size_bytes = size_bytes

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:
        left = max(0, self.size_bytes - self._at)
        size = left if size < 0 else min(size, left)
        in_end = self._at - (self.size_bytes - len(self._end))
        if in_end >= 0 or not size:
            data = self._end[in_end : in_end + size]
        else:
            data = read_range(self._url, self._at, size)
        self._at += size
        return data


def _opened(url: str, offset: int, size: int) -> memoryview:
    place, _, key = url.removeprefix(SEALED).partition("#")
    if not os.environ.get(KEYS):
        raise KeysNeeded(f"The object {key} in {place}")
    if "?head=" in place:  # of a file, and not of an object
        from catchwater.objects.sealed_file import read_by_url

        keys = given_keys()
        assert keys is not None
        return memoryview(read_by_url(url, keys, offset, size))
    return memoryview(_store(place, os.environ[KEYS]).get_range(key, offset, size))


@lru_cache(maxsize=8)
def _store(place: str, keys: str) -> ObjectStore:
    """Kept, because it knows the headers of what it has read; anew for other keys."""
    return open_store(place, SYSTEM)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signature, or a login, is one for the host that was named: nobody sends a reader on."""

    def redirect_request(self, *asked: object) -> None:
        return None


_OPENER = urllib.request.build_opener(NoRedirect)


def _open_object(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _mapped(path: Path, offset: int, size: int) -> memoryview:
    try:
        # Neither a link nor a pipe, a device or a folder is an object.
        with open(path, "rb", buffering=0, opener=_open_object) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{path} is no object: it is not a plain file.")
            check_range(str(path), offset, size, status.st_size)
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


def _requested(url: str, offset: int, size: int) -> tuple[memoryview, int]:
    """The bytes, and how many the object has; from a negative offset on, those at its end."""
    # Of an empty range one byte, which shows whether the object exists.
    wanted = range_header(offset, size) if offset >= 0 else f"bytes={offset}"
    request = urllib.request.Request(url, headers={"Range": wanted})
    try:
        with _OPENER.open(request, timeout=_REQUEST_S) as reply:
            served = reply.headers.get("Content-Range", "")
            data = reply.read()
    except urllib.error.HTTPError as error:
        with error:
            asked = (offset, size) if offset >= 0 else (0, 0)
            return memoryview(b""), _refused(url, *asked, error)
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(f"{shown(url)} gave no complete answer: {error}.") from error
    first, _, total = served.removeprefix("bytes ").partition("/")
    begin = first.partition("-")[0]
    is_range = begin.isdecimal() and total.isdecimal()
    if not is_range or (offset >= 0 and int(begin) != offset):
        raise StoreError(f"{shown(url)} was asked for a range and answered {served or 'all'!r}.")
    if offset < 0:
        offset, size = int(begin), int(total) - int(begin)
    check_range(shown(url), offset, size, int(total))
    if len(data) < size:
        raise StoreUnavailable(f"{shown(url)} came back with {len(data)} of {size} bytes.")
    return memoryview(data)[:size], int(total)


def _refused(url: str, offset: int, size: int, error: urllib.error.HTTPError) -> int:
    """Raise why; or the object's size, where nothing but that was asked for, at its end."""
    name = shown(url)
    match error.code:
        case 404:
            raise ObjectMissing(f"There is no object at {name}.") from error
        case 416:
            total = error.headers.get("Content-Range", "").removeprefix("bytes */")
            end = int(total) if total.isdecimal() else offset
            check_range(name, offset, size, end)
            return end
        case code if code == 403 or (code == 400 and _has_expired(error)):
            hint = "A signed URL ends after some minutes: ask for the plan again."
            raise AccessEnded(f"{name} answered {code} {error.reason}.", hint=hint) from error
        case code if code >= 500 or code in _MAY_PASS:
            raise StoreUnavailable(f"{name} answered {code} {error.reason}.") from error
    raise StoreRefused(f"{name} answered {error.code} {error.reason}.") from error


def _has_expired(error: urllib.error.HTTPError) -> bool:
    text = error.read(4096)
    return any(word in text for word in _ENDED)


def shown(url: str) -> str:
    """The URL without its query, which may grant access."""
    return url.partition("?")[0]
