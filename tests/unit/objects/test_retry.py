"""How requests are repeated: which, how often, how long, and what is told of it."""

from collections.abc import Sequence

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectMissing,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from catchwater.objects.memory import MemoryStore
from catchwater.objects.retry import RetryingStore, RetryPolicy


class Pauses(ManualClock):
    """A clock that remembers how long it was waited."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.waits: list[float] = []

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        super().pause(seconds)


class Away(MemoryStore):
    """A store that does not answer; with `applies`, it does what it is asked all the same."""

    def __init__(self, failures: int, *, applies: bool = False) -> None:
        super().__init__(ManualClock())
        self.failures = failures
        self.applies = applies

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        if self.failures and not self.applies:
            self._fail()
        size = super().put_if_absent(key, parts)
        if self.failures:
            self._fail()
        return size

    def get(self, key: str) -> bytes:
        if self.failures:
            self._fail()
        return super().get(key)

    def _fail(self) -> None:
        self.failures -= 1
        raise StoreUnavailable("No answer.", hint="Wait.")


def test_waits_grow_up_to_a_bound_and_differ_between_brokers() -> None:
    policy = RetryPolicy(tries=12, first_wait_s=0.1, longest_wait_s=2.0, total_s=1e9)
    waits = []
    for seed in (1, 2):
        clock = Pauses(seed)
        with pytest.raises(StoreUnavailable, match="Given up after 12 tries"):
            RetryingStore(Away(99), clock, policy).get("a")
        waits.append(clock.waits)
    bounds = [min(2.0, 0.1 * 2**n) for n in range(11)]
    for drawn in waits:
        assert all(0 <= wait <= bound for wait, bound in zip(drawn, bounds, strict=True))
    assert waits[0] != waits[1]


def test_no_try_begins_when_the_time_is_over() -> None:
    clock = Pauses()
    with pytest.raises(StoreUnavailable) as given_up:
        RetryingStore(Away(99), clock, RetryPolicy(tries=10**6, total_s=20.0)).get("a")
    assert sum(clock.waits) <= 20.0
    assert given_up.value.hint == "Wait."


def test_what_was_applied_before_the_reply_was_lost_is_a_success() -> None:
    store = Away(2, applies=True)  # the write's reply and the comparison's are lost
    retrying = RetryingStore(store, ManualClock())
    assert retrying.put_if_absent("a", [b"on", b"", b"ce"]) == 4
    assert store.get("a") == b"once"
    assert retrying.requests.snapshot() == {
        ("put_if_absent", "retried"): 1,
        ("put_if_absent", "ok"): 1,
        ("get", "retried"): 1,
        ("get", "ok"): 1,
    }


def test_the_comparison_has_tries_of_its_own() -> None:
    store = Away(1 + 7, applies=True)
    assert RetryingStore(store, ManualClock()).put_if_absent("a", [b"once"]) == 4


@pytest.mark.parametrize("there", [b"them", b"longer", b""])
def test_what_another_wrote_meanwhile_is_not_ours(there: bytes) -> None:
    store = Away(1)
    retrying = RetryingStore(store, ManualClock())
    store.put("a", [there])
    with pytest.raises(ObjectExists):
        retrying.put_if_absent("a", [b"us", b"!!"])
    assert store.get("a") == there


def test_the_same_bytes_on_the_first_try_are_somebody_elses() -> None:
    retrying = RetryingStore(MemoryStore(), ManualClock())
    retrying.put_if_absent("a", [b"x"])
    with pytest.raises(ObjectExists):
        retrying.put_if_absent("a", [b"x"])


@pytest.mark.parametrize("error", [StoreFull, StoreRefused, ObjectMissing])
def test_a_definite_answer_is_never_asked_for_again(error: type[Exception]) -> None:
    asked = []

    class Definite(MemoryStore):
        def get(self, key: str) -> bytes:
            asked.append(key)
            raise error("No.")

    retrying = RetryingStore(Definite(), ManualClock())
    with pytest.raises(error):
        retrying.get("a")
    assert asked == ["a"]
    outcome = "ok" if error is ObjectMissing else "failed"
    assert retrying.requests.snapshot() == {("get", outcome): 1}
