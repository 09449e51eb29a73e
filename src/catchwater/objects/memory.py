"""Objects in this process's memory: for tests, simulations and trying things out.

Keeps the contract of `objects.base`, except for durability. `max_bytes` limits its size.
"""

import threading
from collections.abc import Iterator, Sequence

from catchwater.clock import SYSTEM, Clock
from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    Part,
    StoreFull,
    check_key,
    check_range,
)


class MemoryStore:
    """An object store that is lost with its process."""

    def __init__(self, clock: Clock = SYSTEM, max_bytes: int | None = None) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        with self._lock:
            self._store(check_key(key), data)
        return len(data)

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        with self._lock:
            if check_key(key) in self._objects:
                raise ObjectExists(f"There is an object {key} already.")
            self._store(key, data)
        return len(data)

    def get(self, key: str) -> bytes:
        return self._entry(key)[0]

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        data = self.get(key)
        check_range(key, offset, size, len(data))
        return data[offset : offset + size]

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        return self.get(key)[offset : offset + max_bytes]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._lock:
            entries = sorted(self._objects.items())
        for key, (data, modified_ms) in entries:
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data), modified_ms)

    def url(self, key: str = "", part: Part | None = None) -> str:
        """A name for messages; no other process can read it."""
        return f"memory:///{check_key(key) if key else ''}"

    def _entry(self, key: str) -> tuple[bytes, int]:
        with self._lock:
            if check_key(key) not in self._objects:
                raise ObjectMissing(f"There is no object {key}.")
            return self._objects[key]

    def _store(self, key: str, data: bytes) -> None:
        if self._max_bytes is not None:
            others = sum(len(kept) for name, (kept, _) in self._objects.items() if name != key)
            if others + len(data) > self._max_bytes:
                raise StoreFull(f"{key} was not stored: the store holds {self._max_bytes} bytes.")
        self._objects[key] = (data, self._clock.now_ms())
