"""Token buckets: bursts, steady rates, and memory that does not grow with those refused."""

from catchwater.broker.limits.rate import BURST_S, ConnectionRates, TokenBucket


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(2, 5, 100.0)
    assert [bucket.take(100.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.take(101.0) for _ in range(3)] == [True, True, False]
    assert not bucket.is_full(103.0)
    assert bucket.is_full(104.0)


def test_one_address_is_held_to_its_rate_and_another_is_not() -> None:
    rates = ConnectionRates(of_all=100, per_ip=1, now_s=0.0)
    assert sum(rates.admit("a", 0.0) is None for _ in range(50)) == BURST_S
    assert rates.admit("b", 0.0) is None
    first, second = (rates.admit("a", 1.0) for _ in range(2))
    assert first is None
    assert second is not None and second.key.endswith(".per.ip")


def test_all_together_are_held_to_theirs() -> None:
    rates = ConnectionRates(of_all=2, per_ip=1, now_s=0.0)
    assert sum(rates.admit(f"host-{number}", 0.0) is None for number in range(100)) == 2 * BURST_S
    exceeded = rates.admit("another", 0.0)
    assert exceeded is not None and exceeded.key == "max.connection.creation.rate"


def test_refused_connections_of_one_address_take_nothing_from_the_others() -> None:
    rates = ConnectionRates(of_all=2, per_ip=1, now_s=0.0)
    assert sum(rates.admit("a", 0.0) is None for _ in range(1_000)) == BURST_S
    assert sum(rates.admit("b", 0.0) is None for _ in range(1_000)) == BURST_S


def test_only_admitted_addresses_are_remembered_and_not_for_long() -> None:
    rates = ConnectionRates(of_all=1, per_ip=1, now_s=0.0)
    for number in range(1_000):
        rates.admit(f"host-{number}", 0.0)
    assert len(rates) == BURST_S
    rates.forget_silent(0.5)
    assert len(rates) == BURST_S
    rates.forget_silent(1.0)
    assert len(rates) == 0
