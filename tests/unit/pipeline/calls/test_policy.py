"""What a call may declare, and the schedule of its retries."""

import random

import pytest

from catchwater.pipeline.calls.policy import Breaker, BreakerPolicy, Call, check, override


def test_a_declared_call_is_a_policy_in_milliseconds():
    call = Call(timeout="1s", concurrency=4, attempts=5, backoff="50ms", budget="1m",
                breaker=Breaker(3, "10s", "1m"), on_failure="none")  # fmt: skip
    policy = check(call)
    assert (policy.timeout_ms, policy.concurrency, policy.attempts) == (1000, 4, 5)
    assert (policy.backoff_ms, policy.max_backoff_ms, policy.budget_ms) == (50, 5000, 60_000)
    assert policy.breaker == BreakerPolicy(3, 10_000, 60_000)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Call(timeout="2"), "timeout='2' is not a duration"),
        (Call(timeout="0s"), "timeout='0s' must be longer than nothing"),
        (Call(attempts=0), "attempts=0 must be a whole number from 1 to 100"),
        (Call(concurrency=True), "concurrency=True must be a whole number"),
        (Call(on_failure="ignore"), "on_failure='ignore' must be"),  # type: ignore[arg-type]
        (Call(breaker=Breaker(within="x")), "breaker.within='x' is not a duration"),
        (Call(breaker=7), "breaker=7 is neither"),  # type: ignore[arg-type]
        ("2s", "'2s' is not a Call"),
    ],
)
def test_what_is_wrong_is_named(wrong: Call, words: str):
    with pytest.raises(ValueError) as told:
        check(wrong)
    assert words in str(told.value)


def test_waits_double_up_to_a_limit_give_or_take_a_fifth():
    policy = check(Call(backoff="100ms", max_backoff="1s"))
    draw = random.Random(1)
    for failed, wait_ms in enumerate((100, 200, 400, 800, 1000, 1000), 1):
        drawn = [policy.wait_ms(failed, draw) for _ in range(200)]
        assert wait_ms * 0.8 - 1 <= min(drawn) < wait_ms * 0.85
        assert wait_ms * 1.15 < max(drawn) <= wait_ms * 1.2 + 1


def test_a_file_says_some_of_it_otherwise():
    call = override(Call(), {"timeout": "9s", "breaker.failures": "2"})
    assert call == Call(timeout="9s", breaker=Breaker(failures=2))
    assert override(Call(breaker=None), {"attempts": "1"}).breaker is None
    assert override(Call(breaker=None), {"breaker.within": "1s"}).breaker == Breaker(within="1s")
    for key in ("retries", "breaker", "breaker.size"):
        with pytest.raises(ValueError, match=f"there is no {key}; there are timeout, "):
            override(Call(), {key: "1"})
