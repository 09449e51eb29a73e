"""The store for tests and simulations, where it differs from the others."""

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.base import StoreFull
from catchwater.objects.memory import MemoryStore


def test_it_can_run_full_and_recover() -> None:
    store = MemoryStore(max_bytes=10)
    store.put("a", [b"123456"])
    with pytest.raises(StoreFull):
        store.put("b", [b"12345"])
    store.put("a", [b"1234567890"])
    store.delete("a")
    store.put("b", [b"12345"])
    assert [info.key for info in store.list("")] == ["b"]


def test_it_takes_the_time_from_its_clock() -> None:
    clock = ManualClock(now_ms=1000)
    store = MemoryStore(clock)
    store.put("a", [b""])
    assert next(store.list("")).modified_ms == 1000
