"""Ranges by the page: how often the store is asked, what is kept, and what happens in trouble."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.clock import SYSTEM, ManualClock
from catchwater.objects.base import ObjectMissing, ObjectTruncated, StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.objects.pages import PAGE_BYTES, Pages

DATA = bytes(range(251)) * (3 * PAGE_BYTES // 251)


class Counted(MemoryStore):
    """A store in memory that notes what is read, and fails or waits when told."""

    def __init__(self, **objects: bytes) -> None:
        super().__init__(ManualClock())
        for key, data in objects.items():
            self.put(key, [data])
        self.asked: list[tuple[str, int, int]] = []
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        self._ask(key, offset, size)
        return super().get_range(key, offset, size)

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        self._ask(key, offset, max_bytes)
        return super().get_upto(key, offset, max_bytes)

    def _ask(self, *request: object) -> None:
        self.asked.append(request)  # type: ignore[arg-type]
        self.reached.set()
        assert self.gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("No answer.")


def pages(store: MemoryStore, **options: int) -> Pages:
    return Pages(store, ManualClock(), **options)


def test_a_small_object_is_read_once_however_many_ranges_are_needed() -> None:
    store = Counted(a=DATA[:10_000])
    cached = pages(store)
    for at in range(0, 10_000, 100):
        assert cached.get_range("a", at, 100) == DATA[at : at + 100]
    assert store.asked == [("a", 0, PAGE_BYTES)]


def test_of_a_large_object_only_the_pages_around_small_ranges_are_read() -> None:
    store = Counted(a=DATA)
    cached = pages(store)
    for at in (PAGE_BYTES + 7, 2 * PAGE_BYTES - 10):
        assert cached.get_range("a", at, 10) == DATA[at : at + 10]
    assert store.asked == [("a", PAGE_BYTES, PAGE_BYTES)]


def test_a_range_over_the_end_of_a_page_is_read_as_it_is() -> None:
    store = Counted(a=DATA)
    assert pages(store).get_range("a", PAGE_BYTES - 1, 2) == DATA[PAGE_BYTES - 1 : PAGE_BYTES + 1]
    assert store.asked == [("a", PAGE_BYTES - 1, 2)]


@given(st.integers(0, 700_000), st.integers(0, 300_000))
def test_a_range_is_what_the_store_says_it_is(offset: int, size: int) -> None:
    store = MemoryStore(ManualClock())
    store.put("a", [DATA[:600_000]])
    cached = pages(store)
    for _ in range(2):
        if offset + size > 600_000:
            with pytest.raises(ObjectTruncated, match="ends at byte 600000"):
                cached.get_range("a", offset, size)
        else:
            assert cached.get_range("a", offset, size) == DATA[offset : offset + size]


def test_an_object_that_is_not_there_is_missing_until_it_is() -> None:
    store = Counted()
    cached = pages(store)
    with pytest.raises(ObjectMissing):
        cached.get_range("a", 0, 1)
    store.put("a", [b"x"])
    assert cached.get_range("a", 0, 1) == b"x"


def test_what_was_forgotten_is_asked_for_again() -> None:
    store = Counted(a=b"x")
    cached = pages(store)
    cached.get_range("a", 0, 1)
    store.delete("a")
    cached.forget("a")
    cached.forget("a")
    with pytest.raises(ObjectMissing):
        cached.get_range("a", 0, 1)


def test_the_pages_that_were_used_last_are_kept_up_to_a_bound() -> None:
    store = Counted(a=b"a" * 100, b=b"b" * 100, c=b"c" * 100)
    cached = pages(store, max_bytes=250)
    for key in "abaca":
        cached.get_range(key, 0, 10)
    assert [key for key, *_ in store.asked] == ["a", "b", "c"]
    cached.get_range("b", 0, 10)
    cached.get_range("a", 0, 10)
    assert [key for key, *_ in store.asked] == ["a", "b", "c", "b"]
    cached.forget("a")
    cached.get_range("c", 0, 10)
    cached.get_range("b", 0, 10)
    assert [key for key, *_ in store.asked] == ["a", "b", "c", "b", "c"]


def test_what_is_larger_than_the_bound_is_read_and_not_kept() -> None:
    store = Counted(a=b"a" * 100)
    cached = pages(store, max_bytes=50)
    for _ in range(2):
        assert cached.get_range("a", 90, 10) == b"a" * 10
    assert len(store.asked) == 2


def test_a_failure_is_raised_and_not_kept() -> None:
    store = Counted(a=b"abc")
    store.failures = 1
    cached = pages(store)
    with pytest.raises(StoreUnavailable):
        cached.get_range("a", 0, 1)
    assert cached.get_range("a", 1, 1) == b"b"
    assert cached.get_range("a", 2, 1) == b"c"
    assert len(store.asked) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_need_one_page_wait_for_one_request_and_no_longer(fails: bool) -> None:
    store = Counted(a=b"abcdefgh")
    store.failures = int(fails)
    store.gate.clear()
    cached = Pages(store, SYSTEM)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(cached.get_range, "a", 0, 1)
        assert store.reached.wait(60)
        others = [threads.submit(cached.get_range, "a", at, 1) for at in range(1, 8)]
        while not all(other.running() for other in others):
            SYSTEM.pause(0)
        assert store.asked == [("a", 0, PAGE_BYTES)]
        store.gate.set()
        assert [other.result() for other in others] == [b"%c" % at for at in b"bcdefgh"]
    assert isinstance(first.exception(), StoreUnavailable if fails else type(None))
    assert fails or len(store.asked) == 1
