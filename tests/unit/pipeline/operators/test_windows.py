"""Which windows hold a time."""

import pytest

from catchwater.pipeline.operators.windowed import Window, session, sliding, tumbling


@pytest.mark.parametrize(
    ("at", "start"), [(0, 0), (59_999, 0), (60_000, 60_000), (-1, -60_000), (-60_000, -60_000)]
)
def test_tumbling_windows_are_half_open_and_lie_side_by_side(at: int, start: int) -> None:
    assert tumbling("1m").windows_of(at) == [Window(start, start + 60_000)]
    assert tumbling("1m").last_end(at) == start + 60_000


def test_an_offset_moves_all_windows() -> None:
    assert tumbling("1d", offset="2h").windows_of(0) == [Window(-22 * 3_600_000, 2 * 3_600_000)]


def test_sliding_windows_overlap() -> None:
    windows = sliding("10s", every="4s")
    assert windows.windows_of(9_000) == [
        Window(0, 10_000),
        Window(4_000, 14_000),
        Window(8_000, 18_000),
    ]
    assert windows.windows_of(11_000) == [Window(4_000, 14_000), Window(8_000, 18_000)]
    assert windows.last_end(9_000) == 18_000


@pytest.mark.parametrize("size", ["7s", "8s", "9s"])
def test_every_window_that_holds_a_time_is_found(size: str) -> None:
    windows = sliding(size, every="3s", offset="1s")
    for at in range(-30_000, 30_000, 500):
        starts = range(-59_000, 60_000, 3_000)
        every = [Window(start, start + windows.size_ms) for start in starts]
        assert windows.windows_of(at) == [w for w in every if w.start <= at < w.end]


def test_a_session_begins_with_one_event() -> None:
    assert session("30m").windows_of(5) == [Window(5, 5 + 1_800_000)]
    assert session("30m").last_end(5) == 5 + 1_800_000


def test_windows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="do not cover all of time"):
        sliding("1m", every="2m")
    with pytest.raises(ValueError, match="do not cover all of time"):
        tumbling("0s")
    with pytest.raises(ValueError, match="separates nothing"):
        session("0s")
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        tumbling("soon")
