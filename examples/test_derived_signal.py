"""A cart is paid, emptied or abandoned."""

from examples.derived_signal import Carts, Click, Signal

from catchwater.testing import Harness

MINUTE = 60_000


def test_a_cart_paid_in_time() -> None:
    h = Harness(Carts)
    signals = h.send(
        Click("ada", "1", 0, "look", "lamp"),
        Click("ada", "2", 1_000, "add", "lamp"),
        Click("ada", "3", 2_000, "add", "bulb"),
        Click("ada", "4", 5 * MINUTE, "pay"),
    )
    assert signals == [Signal("ada", "2", "paid", 5 * MINUTE - 1_000)]
    assert h.advance_time("1h") == []


def test_an_emptied_cart_is_no_signal() -> None:
    h = Harness(Carts)
    assert h.send(Click("ada", "1", 1_000, "add", "lamp"), Click("ada", "2", 2_000, "empty")) == []
    assert h.advance_time("1h") == []


def test_a_cart_left_for_half_an_hour_is_abandoned_once() -> None:
    h = Harness(Carts)
    h.send(Click("ada", "1", 1_000, "add", "lamp"), Click("ada", "2", 9_000, "add", "bulb"))
    assert h.advance_watermark(30 * MINUTE + 999) == []
    assert h.advance_watermark(30 * MINUTE + 1_000) == [
        Signal("ada", "1", "abandoned", 30 * MINUTE)
    ]
    h.crash_and_restore(at=1)
    h.check_replay()
