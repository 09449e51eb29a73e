"""The object WAL when the store is slow, full, silent, or another's."""

import threading
from collections.abc import Sequence

import pytest
from tests.faulty import FaultPlan, FaultyStore, Rates

from catchwater.clock import ManualClock
from catchwater.objects.base import Buffer, StoreError, StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.objects.retry import RetryingStore, RetryPolicy
from catchwater.wal.base import WalDead, WalFull, WalUnavailable
from catchwater.wal.object import MAX_IN_FLIGHT, ObjectWal


class Store(MemoryStore):
    """A store in memory; what `before` and `after` do happens around each conditional write."""

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__(ManualClock(), max_bytes)
        self.failures: list[StoreError | None] = []

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        size = super().put_if_absent(key, parts)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        return size


def keys(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("")]


LOST = StoreUnavailable("The reply was lost.")


def test_a_lost_reply_of_an_applied_write_is_one_success() -> None:
    store, clock = Store(), ManualClock()
    wal = ObjectWal(RetryingStore(store, clock), clock, prefix="1-1/")
    store.failures = [LOST]
    position = wal.append([b"once"])
    assert keys(store) == [position.file]
    assert wal.read(*position[1:]) == b"once"
    assert wal.append([b"again"]).sequence == 2


def test_what_was_not_confirmed_loses_its_place_for_good() -> None:
    store, clock = Store(), ManualClock()
    wal = ObjectWal(RetryingStore(store, clock, RetryPolicy(tries=1)), clock, prefix="1-1/")
    store.failures = [LOST]
    with pytest.raises(WalUnavailable, match=r"wal/1-1/0{19}1\.wal was not confirmed"):
        wal.append([b"perhaps"])
    position = wal.append([b"certain"])
    assert position.sequence == 2
    assert wal.read(*position[1:]) == b"certain"


def test_the_same_bytes_under_the_same_prefix_are_still_told_apart() -> None:
    store = Store()
    ours, theirs = (ObjectWal(store, ManualClock(seed=n), prefix="1-1/") for n in (1, 2))
    position = theirs.append([b"equal"])
    with pytest.raises(WalDead, match="another process writes under this broker's session"):
        ours.append([b"equal"])
    with pytest.raises(WalDead):
        ours.append([b"more"])
    assert keys(store) == [position.file]


def test_a_full_store_refuses_and_goes_on_by_itself() -> None:
    store = Store(max_bytes=150)
    wal = ObjectWal(store, ManualClock(), prefix="1-1/")
    with pytest.raises(WalFull):
        wal.append([b"x" * 100])
    assert keys(store) == []
    assert wal.append([b"x" * 10]).size == 10


def test_a_silent_store_is_no_read_error() -> None:
    """Only what is gone for good may be answered with CORRUPT_MESSAGE."""
    clock = ManualClock()
    plan = FaultPlan(1, Rates())
    wal = ObjectWal(FaultyStore(MemoryStore(clock), plan, clock), clock, prefix="1-1/")
    position = wal.append([b"there"])
    plan.rates = Rates(unavailable=1.0)
    with pytest.raises(StoreUnavailable):
        wal.read(*position[1:])


def test_as_many_writes_fly_at_once_as_it_says() -> None:
    together = threading.Barrier(MAX_IN_FLIGHT, timeout=60)

    class Meeting(MemoryStore):
        def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
            together.wait()
            return super().put_if_absent(key, parts)

    wal = ObjectWal(Meeting(ManualClock()), ManualClock(), prefix="1-1/")
    threads = [threading.Thread(target=wal.append, args=([b"x"],)) for _ in range(MAX_IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not together.broken
    assert len(list(wal.listing())) == MAX_IN_FLIGHT
