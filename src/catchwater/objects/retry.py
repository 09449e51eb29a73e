"""Retries of requests to a store, and counts of them.

Only `StoreUnavailable` is retried: a store raises it for transient errors (500, 503, a timeout, a
lost connection, a reply that ended early). The bound of the waits doubles and each wait is random
below it, so that many brokers do not retry at once; tries and total time are bounded.

A reply can be lost after its request was applied. Every request may therefore be repeated, except
`put_if_absent`, whose second try would find the object of its first: there the object is compared
with what was sent before `ObjectExists` is raised.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from catchwater import retries
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
    StoreUnavailable,
)

T = TypeVar("T")

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds, seconds."""


class RetryPolicy(NamedTuple):
    """How often and how long a request is retried; times in seconds."""

    tries: int = 8
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    total_s: float = 60.0
    """No try begins after this time."""


PATIENT = RetryPolicy()
ONCE = RetryPolicy(tries=1)
"""Requests are only counted; an error stays as it is."""


class RequestCounts:
    """Requests by outcome; for `catchwater_object_store_requests_total`.

    Outcomes: `ok` (any definite answer, also "no such object"), `retried` (an attempt that was
    repeated), `failed` (given up, or refused).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._times: dict[str, tuple[list[int], float]] = {}
        self.stored: Counter[str] = Counter()
        """Bytes of objects that were put, by the first part of their keys."""

    def took(self, operation: str, seconds: float) -> None:
        """Note how long a request took, with its retries."""
        with self._lock:
            counts, sum_s = self._times.get(operation) or ([0] * (len(BUCKETS_S) + 1), 0.0)
            counts[bisect_left(BUCKETS_S, seconds)] += 1
            self._times[operation] = counts, sum_s + seconds

    def put(self, key: str, size_bytes: int) -> None:
        """Note an object that was put."""
        with self._lock:
            self.stored[key.partition("/")[0]] += size_bytes

    def times(self) -> Mapping[str, tuple[Sequence[int], float]]:
        """Operation -> requests by the bucket their seconds fall into, and the sum of these."""
        with self._lock:
            return {op: ([*counts], sum_s) for op, (counts, sum_s) in self._times.items()}

    def add(self, operation: str, outcome: str) -> None:
        """Count one request."""
        with self._lock:
            self._counts[operation, outcome] += 1

    def snapshot(self) -> Mapping[tuple[str, str], int]:
        """(operation, outcome) -> requests so far."""
        with self._lock:
            return dict(self._counts)


class Attempts:
    """The attempts of one request."""

    def __init__(self, clock: Clock, policy: RetryPolicy) -> None:
        self._clock = clock
        self._policy = policy
        self._made = 0
        self._started_s = clock.monotonic_s()

    def wait(self, error: StoreUnavailable) -> None:
        """Wait before the next attempt. Raises `StoreUnavailable` after the last one."""
        if self._policy.tries == 1:
            raise error
        self._made += 1
        elapsed_s = self._clock.monotonic_s() - self._started_s
        policy = self._policy
        wait_s = min(policy.longest_wait_s, policy.first_wait_s * 2 ** (self._made - 1))
        wait_s *= self._clock.random.random()
        if self._made >= policy.tries or elapsed_s + wait_s > policy.total_s:
            raise StoreUnavailable(
                f"{error} Given up after {self._made} tries in {elapsed_s:.1f} s.", hint=error.hint
            ) from error
        retries.count("object_store")
        self._clock.pause(wait_s)


def retried(call: Callable[[], T], clock: Clock, policy: RetryPolicy) -> T:
    """The result of the call, after as many attempts as `policy` allows."""
    attempts = Attempts(clock, policy)
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            attempts.wait(error)


class RetryingStore:
    """Another store, with retries and counts."""

    def __init__(self, store: ObjectStore, clock: Clock, policy: RetryPolicy = PATIENT) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy
        self.requests = RequestCounts()

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        size_bytes = self._request("put", lambda: self._store.put(key, parts))
        self.requests.put(key, size_bytes)
        return size_bytes

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        """Store the object, or raise `ObjectExists` if its key holds other bytes."""
        may_be_ours = False

        def attempt() -> int:
            nonlocal may_be_ours
            try:
                return self._store.put_if_absent(key, parts)
            except StoreUnavailable:
                may_be_ours = True
                raise
            except ObjectExists:
                if may_be_ours and self._holds(key, parts):
                    return sum(map(len, parts))
                raise

        size_bytes = self._request("put_if_absent", attempt)
        self.requests.put(key, size_bytes)
        return size_bytes

    def _holds(self, key: str, parts: Sequence[Buffer]) -> bool:
        try:
            data = memoryview(self.get(key))
        except ObjectMissing:
            return False
        if len(data) != sum(map(len, parts)):
            return False
        at = 0
        for part in parts:
            if data[at : at + len(part)] != part:
                return False
            at += len(part)
        return True

    def get(self, key: str) -> bytes:
        return self._request("get", lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        return self._request("get_range", lambda: self._store.get_range(key, offset, size))

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        return self._request("get_range", lambda: self._store.get_upto(key, offset, max_bytes))

    def size(self, key: str) -> int:
        return self._request("size", lambda: self._store.size(key))

    def delete(self, key: str) -> None:
        self._request("delete", lambda: self._store.delete(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the store's; continues after the last key if it was interrupted."""
        attempts = Attempts(self._clock, self._policy)
        last = ""
        while True:
            try:
                for info in self._store.list(prefix):
                    if info.key > last:
                        last = info.key
                        yield info
            except StoreError as error:
                self._after(error, "list", attempts)
            else:
                self.requests.add("list", "ok")
                return

    def url(self, key: str = "", part: Part | None = None) -> str:
        return self._store.url(key, part)

    def _request(self, operation: str, call: Callable[[], T]) -> T:
        attempts, began_s = Attempts(self._clock, self._policy), self._clock.monotonic_s()
        try:
            while True:
                try:
                    result = call()
                except (ObjectExists, ObjectMissing, ObjectTruncated):
                    self.requests.add(operation, "ok")
                    raise
                except StoreError as error:
                    self._after(error, operation, attempts)
                else:
                    self.requests.add(operation, "ok")
                    return result
        finally:
            self.requests.took(operation, self._clock.monotonic_s() - began_s)

    def _after(self, error: StoreError, operation: str, attempts: Attempts) -> None:
        """Wait and return if the request is to be retried; else raise its error."""
        outcome = "failed"
        try:
            if not isinstance(error, StoreUnavailable):
                raise error
            attempts.wait(error)
            outcome = "retried"
        finally:
            self.requests.add(operation, outcome)
