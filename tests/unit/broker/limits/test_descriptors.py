"""What the limit of open files leaves to connections: never more than is there, never nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.broker.limits.descriptors import RESERVE, TooFewDescriptors, fitted
from catchwater.config import BrokerConfig

LEAST = RESERVE + 32
bounds = st.integers(1, 100_000)


@given(st.integers(LEAST, 200_000), bounds, bounds, bounds)
def test_connections_and_the_reserve_stay_below_the_limit(limit, most, of_one, control) -> None:
    config = BrokerConfig(
        max_connections=most,
        max_connections_per_ip=of_one,
        catchwater_max_control_connections=control,
    )
    got = fitted(config, limit)
    assert got.max_connections + got.catchwater_max_control_connections + RESERVE <= limit
    assert 1 <= got.max_connections <= most
    assert 1 <= got.max_connections_per_ip <= of_one
    assert 1 <= got.catchwater_max_control_connections <= control
    if most + control + RESERVE <= limit:
        assert got == config


def test_the_bound_of_one_address_shrinks_with_that_of_all() -> None:
    got = fitted(BrokerConfig(), 1024)
    assert got.max_connections_per_ip == got.max_connections // 2
    assert got.max_connections > 700


@pytest.mark.parametrize("limit", [0, 64, RESERVE, LEAST - 1])
def test_a_limit_that_leaves_nothing_is_refused(limit: int) -> None:
    with pytest.raises(TooFewDescriptors, match=f"is {limit};") as refused:
        fitted(BrokerConfig(), limit)
    assert str(LEAST) in (refused.value.hint or "")
