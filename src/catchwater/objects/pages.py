"""Small ranges of remote objects, read by the page: many of them for one request.

A request to a remote store costs a round trip, whether it asks for a hundred bytes or for a page.
So the page around a small range is read whole and kept for the neighbours of that range. Several
threads that need one page wait for one request.

Relies on objects that never change under their key. Promises what the store's `get_range` does,
except that an object another process deleted may be read for a while. A request that failed is not
kept: those who waited for it ask for their own ranges. Nothing is checked here: what is damaged
stays so until its page is dropped, and readers check what they get.
"""

import threading
from collections import OrderedDict

from catchwater.clock import Clock
from catchwater.objects.base import ObjectStore

PAGE_BYTES = 256 * 1024
"""Reading so much takes a store hardly longer than reading one byte."""
CACHED_BYTES = 64 * 1024 * 1024
"""Twice what is appended from one packing to the next, so that each object is read once there."""
_LOOK_AGAIN_S = 0.002


class Pages:
    """The pages of a store's objects that were needed last; for any number of threads."""

    def __init__(self, store: ObjectStore, clock: Clock, max_bytes: int = CACHED_BYTES) -> None:
        self._store = store
        self._clock = clock
        self._max_bytes = max_bytes
        # Guards the rest, and is never held while the store is asked.
        self._lock = threading.Lock()
        # Key -> number -> page, the objects in the order of their last use; in all `_bytes`.
        self._kept: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._bytes = 0
        self._coming: set[tuple[str, int]] = set()

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes of the object. Raises what the store's `get_range` raises."""
        number, start = divmod(offset, PAGE_BYTES)
        end = start + size
        if end <= PAGE_BYTES:
            page = self._page(key, number)
            if end <= len(page):
                return page[start:end]
        return self._store.get_range(key, offset, size)

    def forget(self, key: str) -> None:
        """Drop the pages of an object that is deleted."""
        with self._lock:
            self._bytes -= sum(map(len, self._kept.pop(key, {}).values()))

    def _page(self, key: str, number: int) -> bytes:
        """The page; nothing where somebody else's request for it has just failed."""
        place = key, number
        has_waited = False
        while True:
            with self._lock:
                if number in self._kept.get(key, ()):
                    self._kept.move_to_end(key)
                    return self._kept[key][number]
                if place not in self._coming:
                    if has_waited:
                        return b""
                    self._coming.add(place)
                    break
            self._clock.pause(_LOOK_AGAIN_S)
            has_waited = True
        try:
            page = self._store.get_upto(key, number * PAGE_BYTES, PAGE_BYTES)
            self._keep(key, number, page)
            return page
        finally:
            with self._lock:
                self._coming.remove(place)

    def _keep(self, key: str, number: int, page: bytes) -> None:
        with self._lock:
            self._kept.setdefault(key, {})[number] = page
            self._kept.move_to_end(key)
            self._bytes += len(page)
            while self._bytes > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= sum(map(len, dropped.values()))
