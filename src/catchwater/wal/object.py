"""A write-ahead log in an object store: every frame is an object of its own.

An object holds what a file with one frame would (`docs/formats.md`), under a key that is chosen
before the write and never used twice: a frame that was not confirmed loses its number, so a late
write can only leave garbage. The key is taken with create-if-absent. Where the reply was lost
after the write was applied, the store's retries find the very bytes there (each frame has a random
salt) and report success; other bytes mean that another process writes under this prefix, and this
WAL is dead from then on.

Several threads may append at once. An object costs a round trip of tens of milliseconds and money,
so `linger_ms` asks the writer to wait for more, and small ranges are read by the page
(`objects.pages`); see decision 7.
"""

import threading
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from catchwater.clock import Clock
from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectTruncated,
    Part,
    StoreError,
    StoreFull,
)
from catchwater.objects.pages import Pages
from catchwater.wal.base import (
    Position,
    WalDead,
    WalDescription,
    WalFile,
    WalFull,
    WalReadError,
    WalUnavailable,
)
from catchwater.wal.file import file_header, frame_header
from catchwater.wal.frames import ALIGNMENT, FILE_HEADER_BYTES, FRAME_HEADER_BYTES

LINGER_MS = 150
LINGER_BYTES = 8 * 1024 * 1024
MAX_IN_FLIGHT = 4


class ObjectWal:
    """The WAL of one session of a broker, in objects `wal/<prefix><sequence>.wal`."""

    linger_bytes = LINGER_BYTES
    max_in_flight = MAX_IN_FLIGHT
    in_commit = False
    one_frame_files = True

    def __init__(
        self, store: ObjectStore, clock: Clock, *, prefix: str, linger_ms: int = LINGER_MS
    ) -> None:
        """`prefix` is one that no session had before."""
        self.prefix = prefix
        self.linger_ms = linger_ms
        self._store = store
        # An object holds runs of many partitions, each of which is read by itself.
        self._pages = Pages(store, clock)
        self._clock = clock
        self._dead: str | None = None
        # Guards the number of the next frame, and the salts' order.
        self._lock = threading.Lock()
        self._next = 1

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Put the parts as one object."""
        if self._dead is not None:
            raise WalDead(self._dead)
        with self._lock:
            sequence, salt = self._next, self._clock.random.getrandbits(64)
            self._next += 1
        size = payload_crc = 0
        for part in parts:
            size += len(part)
            payload_crc = crc32c(part, payload_crc)
        file = f"wal/{self.prefix}{sequence:020d}.wal"
        headers = file_header(sequence, salt) + frame_header(sequence, salt, size, payload_crc)
        self._put(file, [headers, *parts, bytes(-size % ALIGNMENT)])
        return Position(sequence, file, FILE_HEADER_BYTES + FRAME_HEADER_BYTES, size)

    def _put(self, file: str, parts: Sequence[Buffer]) -> None:
        try:
            self._store.put_if_absent(file, parts)
        except StoreFull as error:
            raise WalFull(str(error), hint=error.hint) from error
        except ObjectExists as error:
            self._dead = (
                f"{file} in {self._store.url()} holds another frame than the one written: another "
                "process writes under this broker's session; this one takes no more appends."
            )
            hint = (
                "Does another cluster use this bucket path? Was the catalog restored from a backup?"
            )
            raise WalDead(self._dead, hint=hint) from error
        except StoreError as error:
            raise WalUnavailable(
                f"The frame {file} was not confirmed: {error}", hint=error.hint
            ) from error

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of an object. `StoreError` where the store does not answer."""
        try:
            return self._pages.get_range(file, offset, size)
        except (ObjectMissing, ObjectTruncated) as error:
            raise WalReadError(str(error), hint=error.hint) from error

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with what `read` gives."""
        into[:] = self.read(file, offset, len(into))

    def url(self, file: str, part: Part | None = None) -> str:
        """The object's URL."""
        return self._store.url(file, part)

    def files(self) -> list[WalFile]:
        """None: an object is complete when it is there."""
        return []

    def listing(self) -> Iterator[ObjectInfo]:
        """The objects of all writers."""
        return self._store.list("wal/")

    def roll(self) -> None:
        """Every frame begins a file anyway."""

    def remove(self, file: str) -> None:
        """Delete an object."""
        self._pages.forget(file)
        try:
            self._store.delete(file)
        except StoreError as error:
            raise WalUnavailable(f"{file} was not removed: {error}", hint=error.hint) from error

    def describe(self) -> WalDescription:
        """What this WAL is and who can read it."""
        return description(self._store, self.linger_ms)

    def close(self) -> None:
        """Nothing is held."""


def description(store: ObjectStore, linger_ms: int) -> WalDescription:
    """What a WAL in this store is, whether or not it is open."""
    return WalDescription(
        kind="object",
        latency_class=f"one PUT after at most {linger_ms} ms or {LINGER_BYTES >> 20} MiB of "
        "gathering: hundreds of ms",
        failure_domain=f"the object store at {store.url()}",
        readers="every broker that can reach the object store",
        is_shared=True,
    )
