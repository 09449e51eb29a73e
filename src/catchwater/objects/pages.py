"""A cache of pages of remote objects, so that many small ranges need one request.

A request to a remote store costs a round trip, for a hundred bytes as for a page. So the page
around a small range is read and cached for neighbouring ranges. Threads that need the same page
wait for one request.

Relies on objects never changing under their key. Promises what the store's `get_range` does, except
that an object deleted by another process may be readable for a while. A failed request is not
cached: threads that waited for it read their own ranges. Nothing is verified here: damaged bytes
stay in the cache until their page is dropped, and readers verify them.
"""

import threading
from collections import OrderedDict

from catchwater.clock import Clock
from catchwater.objects.base import ObjectStore

PAGE_BYTES = 256 * 1024
"""A store takes hardly longer for this than for one byte."""
CACHED_BYTES = 64 * 1024 * 1024
"""Twice what is appended between two passes of packing, so that a pass reads each object once."""
_POLL_S = 0.002


class Pages:
    """The most recently used pages of a store's objects; for any number of threads."""

    def __init__(self, store: ObjectStore, clock: Clock, max_bytes: int = CACHED_BYTES) -> None:
        self._store = store
        self._clock = clock
        self._max_bytes = max_bytes
        # Guards all fields below; never held during a request to the store.
        self._lock = threading.Lock()
        # Key -> number -> page; least recently used objects first; `_bytes` in total.
        self._pages: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._bytes = 0
        self._requested: set[tuple[str, int]] = set()

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
        """Drop the pages of a deleted object."""
        with self._lock:
            self._bytes -= sum(map(len, self._pages.pop(key, {}).values()))

    def _page(self, key: str, number: int) -> bytes:
        """The page; empty if another thread's request for it has just failed."""
        place = key, number
        has_waited = False
        while True:
            with self._lock:
                if number in self._pages.get(key, ()):
                    self._pages.move_to_end(key)
                    return self._pages[key][number]
                if place not in self._requested:
                    if has_waited:
                        return b""
                    self._requested.add(place)
                    break
            self._clock.pause(_POLL_S)
            has_waited = True
        try:
            page = self._store.get_upto(key, number * PAGE_BYTES, PAGE_BYTES)
            self._cache(key, number, page)
            return page
        finally:
            with self._lock:
                self._requested.remove(place)

    def _cache(self, key: str, number: int, page: bytes) -> None:
        with self._lock:
            self._pages.setdefault(key, {})[number] = page
            self._pages.move_to_end(key)
            self._bytes += len(page)
            while self._bytes > self._max_bytes:
                _, dropped = self._pages.popitem(last=False)
                self._bytes -= sum(map(len, dropped.values()))
