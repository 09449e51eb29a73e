"""Stores and write-ahead logs that fail by a seeded plan.

A simulation needs three things for these to be exact: a `Clock` whose `pause` moves its virtual
time (a slow call moves the clock and returns; nothing here sleeps), calls made one at a time from
one thread (the plan draws one number a call, in their order), and `plan.heal()` for the moment
from which everything has to make progress. The order of layers is the one of a real store:

    RetryingStore(FaultyStore(MemoryStore(clock), plan, clock), clock)

What may happen to a call of a store: it is slow; the store says 503 and nothing was done; it was
done and the reply is lost; it is done later, when the caller has given up on it; there is no space;
a body ends early, which a store turns into "no complete answer". A listing may leave out what was
stored, and show what was deleted, in the last `stale_list_ms`. Nothing else is ever stale, and no
call ever returns wrong bytes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from catchwater.clock import Clock
from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectStore,
    Part,
    StoreFull,
    StoreUnavailable,
)
from catchwater.wal.base import (
    Position,
    Wal,
    WalDead,
    WalDescription,
    WalFile,
    WalFull,
    WalUnavailable,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Rates:
    """How likely each fault is, per call; all of them together at most 1."""

    slow: float = 0.0
    unavailable: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    full: float = 0.0
    dead: float = 0.0
    """Of a WAL only: a failed sync, after which it never acknowledges again."""
    slow_s: float = 2.0
    """A slow call takes up to so long; so does one whose reply is lost, until that is noticed."""
    stale_list_ms: int = 0


NASTY = Rates(slow=0.1, unavailable=0.1, lost_reply=0.1, late=0.05, full=0.02, stale_list_ms=5_000)


@dataclass
class FaultPlan:
    """Which fault the next call meets; the same seed gives the same faults."""

    seed: int
    rates: Rates = NASTY
    drawn: list[str] = field(default_factory=list)
    """The faults so far, for reports."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def heal(self) -> None:
        """No more faults from here on."""
        self.rates = Rates()

    def next(self, *possible: str) -> str:
        """The next call's fault, of those that are possible for it; empty: none."""
        drawn = self._random.random()
        for name in ("slow", "unavailable", "lost_reply", "late", "full", "dead"):
            drawn -= getattr(self.rates, name)
            if drawn < 0:
                fault = name if name in possible else ""
                self.drawn += [fault] if fault else []
                return fault
        return ""

    def delay_s(self) -> float:
        """How long a slow call takes."""
        return self._random.uniform(0.0, self.rates.slow_s)


class FaultyStore:
    """Another store, with the plan's faults before and behind its calls."""

    def __init__(self, store: ObjectStore, plan: FaultPlan, clock: Clock) -> None:
        self._store = store
        self._plan = plan
        self._clock = clock
        self._late: list[Callable[[], object]] = []
        # Key -> when it was stored or deleted, and what a stale listing shows of it.
        self._changed: dict[str, tuple[int, ObjectInfo | None]] = {}

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._write(key, parts, self._store.put)

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._write(key, parts, self._store.put_if_absent)

    def _write(
        self, key: str, parts: Sequence[Buffer], write: Callable[[str, Sequence[Buffer]], int]
    ) -> int:
        self._finish_late()
        fault = self._plan.next("slow", "unavailable", "lost_reply", "late", "full")
        if fault == "full":
            raise StoreFull(f"{key} was not stored: the store is full.")
        if fault == "unavailable":
            raise StoreUnavailable(f"{key} was not stored: 503 Slow Down.")
        if fault == "late":
            data = [b"".join(parts)]
            self._late.append(lambda: write(key, data))
        else:
            size = write(key, parts)
            self._changed[key] = (self._clock.now_ms(), None)
        if fault:
            self._clock.pause(self._plan.delay_s())
        if fault in ("late", "lost_reply"):
            raise StoreUnavailable(f"{key} was perhaps stored: no answer came.")
        return size

    def get(self, key: str) -> bytes:
        return self._read(key, lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        return self._read(key, lambda: self._store.get_range(key, offset, size))

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        return self._read(key, lambda: self._store.get_upto(key, offset, max_bytes))

    def size(self, key: str) -> int:
        return self._read(key, lambda: self._store.size(key))

    def _read(self, key: str, read: Callable[[], T]) -> T:
        self._finish_late()
        fault = self._plan.next("slow", "unavailable", "lost_reply")
        result = read()
        if fault:
            self._clock.pause(self._plan.delay_s())
        if fault in ("unavailable", "lost_reply"):
            raise StoreUnavailable(f"{key} came back with a part of its bytes.")
        return result

    def delete(self, key: str) -> None:
        self._finish_late()
        fault = self._plan.next("slow", "unavailable", "lost_reply")
        if fault == "unavailable":
            raise StoreUnavailable(f"{key} was not deleted: 503 Slow Down.")
        was = next((info for info in self._store.list(key) if info.key == key), None)
        self._store.delete(key)
        self._changed[key] = (self._clock.now_ms(), was)
        if fault == "lost_reply":
            raise StoreUnavailable(f"{key} was perhaps deleted: no answer came.")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._finish_late()
        if self._plan.next("unavailable"):
            raise StoreUnavailable(f"{prefix} was not listed: 503 Slow Down.")
        shown = {info.key: info for info in self._store.list(prefix)}
        since_ms = self._clock.now_ms() - self._plan.rates.stale_list_ms
        for key, (changed_ms, was) in self._changed.items():
            if changed_ms > since_ms and key.startswith(prefix):
                shown.pop(key, None)
                if was is not None:
                    shown[key] = was
        yield from (shown[key] for key in sorted(shown))

    def url(self, key: str = "", part: Part | None = None) -> str:
        return self._store.url(key, part)

    def _finish_late(self) -> None:
        """What callers have given up on happens now."""
        late, self._late = self._late, []
        for write in late:
            try:
                write()
            except ObjectExists:
                continue  # the caller's next try was first


class FaultyWal:
    """Another write-ahead log, with the plan's faults at its appends."""

    def __init__(self, wal: Wal, plan: FaultPlan, clock: Clock) -> None:
        self._wal = wal
        self._plan = plan
        self._clock = clock
        self._is_dead = False
        self.prefix = wal.prefix
        self.linger_ms = wal.linger_ms
        self.linger_bytes = wal.linger_bytes
        self.max_in_flight = wal.max_in_flight
        self.in_commit = wal.in_commit
        self.one_frame_files = wal.one_frame_files

    def append(self, parts: Sequence[Buffer]) -> Position:
        fault = self._plan.next("slow", "unavailable", "lost_reply", "full", "dead")
        self._is_dead = self._is_dead or fault == "dead"
        if self._is_dead:
            raise WalDead("A file of the write-ahead log could not be synced.")
        if fault == "full":
            raise WalFull("There is no space for the write-ahead log.")
        if fault == "unavailable":
            raise WalUnavailable("The frame was not confirmed, and is not there.")
        position = self._wal.append(parts)
        if fault:
            self._clock.pause(self._plan.delay_s())
        if fault == "lost_reply":
            raise WalUnavailable("The frame was not confirmed, though it is there.")
        return position

    def read(self, file: str, offset: int, size: int) -> bytes:
        if self._plan.next("slow"):
            self._clock.pause(self._plan.delay_s())
        return self._wal.read(file, offset, size)

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        into[:] = self.read(file, offset, len(into))

    def url(self, file: str, part: Part | None = None) -> str:
        return self._wal.url(file, part)

    def files(self) -> list[WalFile]:
        return self._wal.files()

    def listing(self) -> Iterator[ObjectInfo]:
        return self._wal.listing()

    def roll(self) -> None:
        self._wal.roll()

    def remove(self, file: str) -> None:
        self._wal.remove(file)

    def describe(self) -> WalDescription:
        return self._wal.describe()

    def close(self) -> None:
        self._wal.close()
