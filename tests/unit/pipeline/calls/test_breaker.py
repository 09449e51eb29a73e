"""Closed, open, half-open."""

from catchwater.pipeline.calls.policy import BreakerPolicy, BreakerState, Gate


def breaker(failures: int = 3) -> BreakerState:
    return BreakerState(BreakerPolicy(failures, within_ms=1000, open_for_ms=5000))


def opened() -> BreakerState:
    state = breaker()
    for at in (0, 10, 20):
        state.failed(at, at)
    return state


def test_it_opens_at_the_last_of_so_many_failures_and_not_before():
    state = breaker()
    state.failed(0, 0)
    state.failed(0, 400)
    assert state.gate(400) is Gate.GO
    state.failed(0, 1000)
    assert state.gate(1000) is Gate.REFUSED
    assert state.name(1000) == "open"


def test_failures_too_far_apart_leave_it_closed():
    state = breaker()
    for at in range(0, 6000, 600):
        state.failed(at, at)
        assert state.gate(at) is Gate.GO


def test_half_open_lets_one_try_while_the_others_wait():
    state = opened()
    assert state.gate(5019) is Gate.REFUSED
    assert state.gate(5020) is Gate.GO
    assert state.gate(5020) is Gate.HOLD
    assert state.name(5020) == "half-open"


def test_a_trial_that_succeeds_closes_it_and_forgets_the_failures():
    state = opened()
    state.gate(5020)
    state.succeeded(5020, 5030)
    assert state.name(5030) == "closed"
    state.failed(5040, 5040)
    state.failed(5040, 5040)
    assert state.gate(5040) is Gate.GO


def test_a_trial_that_fails_opens_it_for_as_long_again():
    state = opened()
    state.gate(5020)
    state.failed(5020, 5100)
    assert state.gate(10_099) is Gate.REFUSED
    assert state.gate(10_100) is Gate.GO


def test_what_was_under_way_when_it_opened_says_nothing_about_the_endpoint_later():
    state = opened()
    state.succeeded(15, 5010)
    assert state.name(5010) == "open"
    state.gate(5020)
    state.failed(15, 5030)
    assert state.gate(5030) is Gate.HOLD
    state.succeeded(5020, 5040)
    for _ in range(3):
        state.failed(15, 5041)
    assert state.gate(5041) is Gate.GO


def test_a_trial_that_was_given_up_leaves_the_place_to_another():
    state = opened()
    state.gate(5020)
    state.gave_up(5020)
    assert state.gate(5030) is Gate.GO


def test_without_a_policy_it_never_opens():
    state = BreakerState(None)
    for at in range(1000):
        state.failed(at, at)
    assert state.gate(1000) is Gate.GO
