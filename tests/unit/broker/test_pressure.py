"""Every bound on what clients may take, and what is decided at it; without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.broker import pressure
from catchwater.broker.pressure import (
    BURST_S,
    FIRST_LINES,
    LINES_A_SECOND,
    RESERVE,
    ConnectionRates,
    Entrance,
    Pressure,
    RefusalLog,
    Share,
    TokenBucket,
    TooFewDescriptors,
    fitted,
    printable,
    to_shed,
)
from catchwater.broker_config import BrokerConfig

SMALL, LARGE = 1024, pressure.SMALL_FRAME_BYTES + 1


def test_what_connections_take_is_counted_in_all_and_given_back() -> None:
    all_ = Pressure(1_000_000)
    one, other = Share(all_, 0.0), Share(all_, 0.0)
    one.hold(10)
    other.hold(20)
    one.count_unsent(5)
    other.receive(LARGE, 2 * LARGE, is_another=False, now_s=0.0)
    assert (all_.held_bytes, all_.unsent_bytes, all_.unfinished_bytes) == (30, 5, LARGE)
    one.give_up()
    other.give_up()
    assert (all_.held_bytes, all_.unsent_bytes, all_.unfinished_bytes) == (30, 0, 0)


def test_a_large_frame_that_has_only_begun_waits_near_the_bound() -> None:
    all_ = Pressure(3 * LARGE)
    first, second, small = (Share(all_, 0.0) for _ in range(3))
    first.receive(2 * LARGE, 2 * LARGE + 1, is_another=False, now_s=0.0)
    assert all_.is_pressed
    assert not first.is_held_back
    second.receive(1, LARGE, is_another=False, now_s=0.0)
    small.receive(1, SMALL, is_another=False, now_s=0.0)
    assert (second.is_held_back, small.is_held_back) == (True, False)
    assert not second.may_read(waiting=0, in_flight=0)
    assert small.may_read(waiting=0, in_flight=0)


def test_the_oldest_large_request_is_given_up_and_never_the_only_one() -> None:
    all_ = Pressure(LARGE)
    shares = {name: Share(all_, 0.0) for name in ("new", "old", "small")}
    named = [(share, name) for name, share in shares.items()]
    shares["old"].receive(LARGE, 2 * LARGE, is_another=False, now_s=1.0)
    shares["small"].receive(1, SMALL, is_another=False, now_s=0.0)
    assert to_shed(all_, named) is None
    shares["new"].receive(LARGE, 2 * LARGE, is_another=False, now_s=2.0)
    assert to_shed(all_, named) == "old"


def test_produce_follows_produce_and_nothing_else_follows() -> None:
    share = Share(Pressure(1_000_000), 0.0)
    assert share.may_start(in_flight=0, is_fetch=True, follows_produce=False)
    assert share.may_start(in_flight=1, is_fetch=False, follows_produce=True)
    assert not share.may_start(in_flight=1, is_fetch=False, follows_produce=False)
    most = pressure.MAX_IN_FLIGHT
    assert not share.may_start(in_flight=most, is_fetch=False, follows_produce=True)
    share.count_unsent(1)
    assert not share.may_start(in_flight=0, is_fetch=False, follows_produce=False)


def test_no_fetch_begins_while_replies_wait_beyond_their_bound() -> None:
    all_ = Pressure(1_000_000)
    reader, other = Share(all_, 0.0), Share(all_, 0.0)
    reader.count_unsent(pressure.MAX_TOTAL_UNSENT_BYTES)
    assert not other.may_start(in_flight=0, is_fetch=True, follows_produce=False)
    assert other.may_start(in_flight=0, is_fetch=False, follows_produce=False)
    assert reader.is_stalled(pressure.STALLED_S + 0.1)
    assert not other.is_stalled(pressure.STALLED_S + 0.1)


@pytest.mark.parametrize(
    ("is_read", "is_answered", "at_s", "reason"),
    [
        (True, True, pressure.FIRST_REQUEST_S - 1, None),
        (True, True, pressure.FRAME_S + 1, "slow"),
        (False, True, pressure.FRAME_S + 1, "idle"),
        (False, False, 10_000.0, None),  # it waits for us
    ],
)
def test_slowness_is_a_clients_only_while_we_wait_for_it(
    is_read, is_answered, at_s, reason
) -> None:
    share = Share(Pressure(1_000_000), 0.0)
    share.receive(1, SMALL, is_another=False, now_s=0.0)
    refusal = share.late(at_s, 600.0, is_read=is_read, is_answered=is_answered)
    assert (refusal.reason if refusal else None) == reason


def test_a_full_port_gives_the_place_of_a_silent_connection_to_a_new_one() -> None:
    entrance: Entrance[str] = Entrance(ConnectionRates(100, 100, 0.0))
    config = BrokerConfig(max_connections=2, max_connections_per_ip=2)
    for name in ("a", "b"):
        assert entrance.admit(name, "h", config, 0.0) == (None, None)
    refusal, displaced = entrance.admit("c", "i", config, 0.5)
    assert refusal is not None
    assert (refusal.reason, displaced) == ("limit", None)
    entrance.forget("c")
    entrance.newcomers.drop("a")  # it has asked for something
    assert entrance.admit("d", "i", config, 2.0) == (None, "b")


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


def test_a_flood_is_written_in_part_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(0.0)
    for _ in range(1_000):
        log.write("10.0.0.1", "why", 0.0)
    log.summarize(0.0)
    assert len(caplog.records) == FIRST_LINES
    log.summarize(1.0)
    assert caplog.messages[-1].startswith(f"Closed {1_000 - FIRST_LINES} more")
    for _ in range(1_000):
        log.write("10.0.0.1", "why", 1.0)
    assert len(caplog.records) == FIRST_LINES + LINES_A_SECOND


def test_nothing_is_said_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(0.0).summarize(10.0)
    assert not caplog.records


def test_a_line_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(0.0).write("10.0.0.1", "a\nERROR forged\x1b[31m\r\x00\ud800", 0.0)
    assert caplog.messages[0].isprintable()
    assert printable("as it is: \u20ac") == "as it is: \u20ac"


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
